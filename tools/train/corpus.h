#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "tools/train/token_sequences.h"

namespace tokenbutler {

struct CorpusOptions {
  std::vector<std::string> texts;       // files and folders, as ListTextFiles takes them
  std::vector<std::string> validation;  // the same; empty: some of the documents of `texts`
  std::string field = "text";           // of a line of .jsonl
  int tokens_per_sequence = 2048;       // a text's first token, if the model wants one, included
  int num_validation = 8;               // sequences
  int64_t most_tokens = 256'000'000;    // kept in memory, 4 bytes each
  uint64_t seed = 1;

  // INVALID_ARGUMENT naming the field, its value and the bound.
  absl::Status Validate() const;
};

// Sequences cut at random from the documents of text files. Each is a stretch of one document, with
// what the tokenizer puts in front of a text; documents that are shorter are left out. Every place
// of every document is as likely as every other. Where no validation texts are given, a tenth of
// the documents, at least one and no more than there are validation sequences, are set aside for
// them. Texts are tokenised once, when the corpus is made, and kept as tokens.
class Corpus : public TokenSequences {
 public:
  // Told the bytes of text that have been tokenised.
  using Progress = std::function<void(int64_t bytes)>;

  // Errors of ListTextFiles and ReadDocuments; INVALID_ARGUMENT when there are no documents, none
  // that is long enough, only one, or more tokens than may be kept.
  static absl::StatusOr<std::unique_ptr<Corpus>> Create(const CorpusOptions& options,
                                                        const Tokenizer& tokenizer,
                                                        const Progress& progress = nullptr);

  int length() const override { return options_.tokens_per_sequence; }
  absl::StatusOr<std::vector<int32_t>> Training(int64_t index) override;
  int num_validation() const override { return options_.num_validation; }
  absl::StatusOr<std::vector<int32_t>> Validation(int index) override;
  std::string Description() const override;
  std::string Fingerprint() const override { return fingerprint_; }

  int num_documents() const { return training_.num_documents(); }
  int num_validation_documents() const { return validation_.num_documents(); }
  int num_short_documents() const { return num_short_; }
  int64_t num_tokens() const { return training_.num_tokens(); }

 private:
  // Documents one after the other.
  struct Documents {
    std::vector<std::string> names;
    std::vector<int32_t> tokens;
    std::vector<int64_t> ends;  // of each document's tokens

    int num_documents() const { return static_cast<int>(ends.size()); }
    int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
    int64_t begin_of(int document) const { return document == 0 ? 0 : ends[document - 1]; }
    void Add(const std::string& name, const std::vector<int32_t>& ids);
    // Moves the documents of the indices, ascending, to `other`.
    void MoveTo(const std::vector<int>& indices, Documents* other);
  };

  explicit Corpus(const CorpusOptions& options) : options_(options) {}
  absl::Status Read(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                    const Progress& progress, Documents* documents);
  void SetValidationAside();
  void FindFingerprint();
  // Tokens of a document that a sequence takes.
  int64_t stretch() const { return length() - static_cast<int64_t>(prefix_.size()); }
  // The sequence that begins at `place` of a document.
  std::vector<int32_t> Sequence(const Documents& documents, int document, int64_t place) const;

  const CorpusOptions options_;
  std::vector<int32_t> prefix_;  // what the tokenizer puts in front of a text
  Documents training_, validation_;
  std::vector<int64_t> places_;  // of the training documents up to and with each one
  int num_read_ = 0, num_short_ = 0;
  int64_t longest_ = 0;  // tokens of the longest document
  std::string longest_name_;
  int64_t bytes_read_ = 0;
  std::string fingerprint_;
};

}  // namespace tokenbutler
