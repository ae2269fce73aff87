#include "tools/train/corpus.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/sha256.h"
#include "engine/counter_rng.h"
#include "tools/train/text_files.h"

namespace tokenbutler {
namespace {

// What is drawn for.
enum Stream : uint32_t { kTrainingPlace, kValidationDocument, kValidationPlace };

// In [0, count).
int64_t Draw(uint64_t seed, Stream stream, int64_t index, int64_t count) {
  const double u = UniformAt(seed, stream, static_cast<uint64_t>(index));
  return std::min(static_cast<int64_t>(u * static_cast<double>(count)), count - 1);
}

absl::Status CheckRange(std::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidArgumentError("{} is {}, must be in [{}, {}]", field, value, least, most);
}

absl::Span<const std::byte> BytesOf(const std::vector<int32_t>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(int32_t)};
}

}  // namespace

absl::Status CorpusOptions::Validate() const {
  if (texts.empty()) return InvalidArgumentError("no texts are given");
  if (field.empty()) return InvalidArgumentError("field is empty, must name a member");
  RETURN_IF_ERROR(CheckRange("tokens_per_sequence", tokens_per_sequence, 2, 1 << 24));
  RETURN_IF_ERROR(CheckRange("num_validation", num_validation, 1, 1 << 16));
  return CheckRange("most_tokens", most_tokens, tokens_per_sequence, int64_t{1} << 40);
}

void Corpus::Documents::Add(const std::string& name, const std::vector<int32_t>& ids) {
  names.push_back(name);
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  ends.push_back(num_tokens());
}

void Corpus::Documents::MoveTo(const std::vector<int>& indices, Documents* other) {
  Documents kept;
  size_t next = 0;
  for (int i = 0; i < num_documents(); ++i) {
    const bool is_moved = next < indices.size() && indices[next] == i;
    if (is_moved) ++next;
    (is_moved ? *other : kept)
        .Add(names[i], {tokens.begin() + begin_of(i), tokens.begin() + ends[i]});
  }
  *this = std::move(kept);
}

absl::StatusOr<std::unique_ptr<Corpus>> Corpus::Create(const CorpusOptions& options,
                                                       const Tokenizer& tokenizer,
                                                       const Progress& progress) {
  RETURN_IF_ERROR(options.Validate());
  auto corpus = std::unique_ptr<Corpus>(new Corpus(options));
  const std::vector<int32_t> of_nothing = tokenizer.Encode("", {});
  if (!of_nothing.empty() && tokenizer.bos_id() == of_nothing.front()) {
    corpus->prefix_ = {of_nothing.front()};
  }
  if (corpus->stretch() < 1) {
    return InvalidArgumentError(
        "tokens_per_sequence is {}, must be above {}: what the model has in "
        "front of a text",
        options.tokens_per_sequence, corpus->prefix_.size());
  }
  RETURN_IF_ERROR(corpus->Read(options.texts, tokenizer, progress, &corpus->training_));
  if (options.validation.empty()) {
    if (corpus->num_documents() < 2) {
      return InvalidArgumentError(
          "one document alone has {} tokens ({}); there must be another one for validation, or "
          "texts for it (--validation)",
          options.tokens_per_sequence, corpus->training_.names.front());
    }
    corpus->SetValidationAside();
  } else {
    RETURN_IF_ERROR(corpus->Read(options.validation, tokenizer, progress, &corpus->validation_));
  }
  for (int i = 0; i < corpus->num_documents(); ++i) {
    const int64_t tokens = corpus->training_.ends[i] - corpus->training_.begin_of(i);
    corpus->places_.push_back((i == 0 ? 0 : corpus->places_.back()) + tokens - corpus->stretch() +
                              1);
  }
  corpus->FindFingerprint();
  return corpus;
}

absl::Status Corpus::Read(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                          const Progress& progress, Documents* documents) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ListTextFiles(paths));
  num_read_ = 0;
  longest_ = 0;
  for (const std::string& file : files) {
    RETURN_IF_ERROR(ReadDocuments(
        file, options_.field, [&](const std::string& name, std::string_view text) -> absl::Status {
          const std::vector<int32_t> ids = tokenizer.Encode(text, {.add_special_tokens = false});
          const auto count = static_cast<int64_t>(ids.size());
          ++num_read_;
          bytes_read_ += static_cast<int64_t>(text.size());
          if (progress) progress(bytes_read_);
          if (count > longest_) longest_ = count, longest_name_ = name;
          if (count < stretch()) {
            ++num_short_;
            return absl::OkStatus();
          }
          const int64_t kept = training_.num_tokens() + validation_.num_tokens() + count;
          if (kept > options_.most_tokens) {
            return InvalidArgumentError(
                "{}: the texts up to here have {} tokens, must have at most {} (--max-tokens)",
                name, kept, options_.most_tokens);
          }
          documents->Add(name, ids);
          return absl::OkStatus();
        }));
  }
  if (documents->num_documents() > 0) return absl::OkStatus();
  if (longest_ == 0) {
    return InvalidArgumentError("the texts are empty: {} files, {} documents without a token",
                                files.size(), num_read_);
  }
  return InvalidArgumentError(
      "no document is long enough: a sequence takes {} tokens of one (--tokens), the longest of {} "
      "has {} ({})",
      stretch(), num_read_, longest_, longest_name_);
}

void Corpus::SetValidationAside() {
  const int count = std::clamp(num_documents() / 10, 1, options_.num_validation);
  std::vector<int> order(static_cast<size_t>(num_documents()));
  std::iota(order.begin(), order.end(), 0);
  for (int i = 0; i < count; ++i) {
    const int64_t left = num_documents() - i;
    std::swap(order[i], order[i + Draw(options_.seed, kValidationDocument, i, left)]);
  }
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  training_.MoveTo(order, &validation_);
}

void Corpus::FindFingerprint() {
  std::string text =
      fmt::format("sequences 1\n{} {} {}\n", length(), num_validation(), options_.seed);
  text += Sha256Hex(BytesOf(prefix_)) + "\n";
  for (const Documents* documents : {&training_, &validation_}) {
    text += Sha256Hex(BytesOf(documents->tokens)) + "\n";
    text += fmt::format("{}\n", fmt::join(documents->ends, " "));
  }
  fingerprint_ = Sha256Hex({reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

std::vector<int32_t> Corpus::Sequence(const Documents& documents, int document,
                                      int64_t place) const {
  std::vector<int32_t> ids = prefix_;
  const auto begin = documents.tokens.begin() + documents.begin_of(document) + place;
  ids.insert(ids.end(), begin, begin + stretch());
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Corpus::Training(int64_t index) {
  const int64_t drawn = Draw(options_.seed, kTrainingPlace, index, places_.back());
  const auto at = std::upper_bound(places_.begin(), places_.end(), drawn);
  const int document = static_cast<int>(at - places_.begin());
  return Sequence(training_, document, drawn - (document == 0 ? 0 : places_[document - 1]));
}

absl::StatusOr<std::vector<int32_t>> Corpus::Validation(int index) {
  RETURN_IF_ERROR(CheckRange("index", index, 0, num_validation() - 1));
  const int document = index % validation_.num_documents();
  const int64_t tokens = validation_.ends[document] - validation_.begin_of(document);
  return Sequence(validation_, document,
                  Draw(options_.seed, kValidationPlace, index, tokens - stretch() + 1));
}

std::string Corpus::Description() const {
  // Names alone: where a machine has its files tells nobody anything.
  const auto names = [](const std::vector<std::string>& paths) {
    std::string text;
    for (const std::string& path : paths) {
      const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
      text += (text.empty() ? "" : ", ") +
              (normal.has_filename() ? normal : normal.parent_path()).filename().string();
    }
    return text;
  };
  return fmt::format(
      "{} documents, {} tokens, of {}; validation {} documents, {} tokens{}; left out {} shorter "
      "than a sequence; SHA-256 of the sequences {}",
      num_documents(), num_tokens(), names(options_.texts), num_validation_documents(),
      validation_.num_tokens(),
      options_.validation.empty() ? " of the same"
                                  : fmt::format(" of {}", names(options_.validation)),
      num_short_, fingerprint_);
}

}  // namespace tokenbutler
