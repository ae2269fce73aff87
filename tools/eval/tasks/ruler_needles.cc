#include "tools/eval/tasks/ruler_needles.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "fmt/format.h"
#include "tools/eval/tasks/fit_length.h"
#include "tools/eval/tasks/seeded_random.h"

namespace tokenbutler {
namespace {

constexpr int kMaxTokens = 128;
constexpr int kNumDepths = 40;
constexpr const char* kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

std::string RandomText(NeedleTask::Text text, const WordPools& words, SeededRandom* random) {
  switch (text) {
    case NeedleTask::Text::kWords:
      return random->Pick(words.adjectives) + "-" + random->Pick(words.nouns);
    case NeedleTask::Text::kNumbers:
      return std::to_string(random->Between(1000000, 9999999));
    case NeedleTask::Text::kUuids:
      break;
  }
  const uint64_t a = random->Next(), b = random->Next();
  // Version 4, variant 1 (RFC 4122).
  return fmt::format("{:08x}-{:04x}-4{:03x}-{:x}{:03x}-{:012x}", a >> 32, (a >> 16) & 0xffff,
                     a & 0xfff, 8 | ((b >> 60) & 3), (b >> 48) & 0xfff, b & 0xffffffffffff);
}

std::string TypeName(NeedleTask::Text text) {
  switch (text) {
    case NeedleTask::Text::kWords:
      return "words";
    case NeedleTask::Text::kNumbers:
      return "numbers";
    case NeedleTask::Text::kUuids:
      break;
  }
  return "uuids";
}

std::string Needle(const NeedleTask& task, const std::string& key, const std::string& value) {
  return fmt::format("One of the special magic {} for {} is: {}.", TypeName(task.values), key,
                     value);
}

// 0, 3, 5, 8 ... 100: the depths in percent at which needles may be.
std::vector<int> Depths(int count, SeededRandom* random) {
  std::vector<int> depths;
  for (const int i : random->Distinct(count, kNumDepths)) {
    depths.push_back(static_cast<int>(std::nearbyint(100.0 * i / (kNumDepths - 1))));
  }
  std::sort(depths.begin(), depths.end());
  return depths;
}

std::string HideInEssay(const std::vector<std::string>& needles, const Prose& prose, int num_words,
                        SeededRandom* random) {
  const std::vector<std::string> sentences = Sentences(prose, num_words);
  const int num_sentences = static_cast<int>(sentences.size());
  const std::vector<int> depths = Depths(static_cast<int>(needles.size()), random);
  std::vector<std::string> parts;
  int at = 0;
  for (size_t n = 0; n < needles.size(); ++n) {
    for (const int end = num_sentences * depths[n] / 100; at < end; ++at) {
      parts.push_back(sentences[at]);
    }
    parts.push_back(needles[n]);
  }
  parts.insert(parts.end(), sentences.begin() + at, sentences.end());
  return absl::StrJoin(parts, " ");
}

std::string HideInLines(const std::vector<std::string>& needles, std::vector<std::string> lines,
                        SeededRandom* random) {
  std::vector<int> places =
      random->Distinct(static_cast<int>(needles.size()), static_cast<int>(lines.size()));
  std::sort(places.rbegin(), places.rend());
  for (size_t n = 0; n < needles.size(); ++n) lines.insert(lines.begin() + places[n], needles[n]);
  return absl::StrJoin(lines, "\n");
}

// A key that is none of `taken`: a question about either would have two answers.
std::string NewKey(const NeedleTask& task, const std::vector<std::string>& taken,
                   const WordPools& words, SeededRandom* random) {
  std::string key = RandomText(task.keys, words, random);
  while (std::find(taken.begin(), taken.end(), key) != taken.end()) {
    key = RandomText(task.keys, words, random);
  }
  return key;
}

struct Needles {
  std::vector<std::string> keys, sentences;
};

std::string Haystack(const NeedleTask& task, const Needles& needles, const WordPools& words,
                     const Prose& prose, int num_units, SeededRandom* random) {
  if (task.haystack == NeedleTask::Haystack::kEssay) {
    return HideInEssay(needles.sentences, prose, num_units, random);
  }
  std::vector<std::string> lines(num_units, kNoise);
  if (task.haystack == NeedleTask::Haystack::kNeedles) {
    for (std::string& line : lines) {
      const std::string key = NewKey(task, needles.keys, words, random);
      line = Needle(task, key, RandomText(task.values, words, random));
    }
  }
  return HideInLines(needles.sentences, std::move(lines), random);
}

// "a, b, and c"
std::string Listed(const std::vector<std::string>& keys) {
  if (keys.size() == 1) return keys[0];
  return absl::StrJoin(keys.begin(), keys.end() - 1, ", ") + ", and " + keys.back();
}

TaskSample Build(const NeedleTask& task, TaskSample sample, const WordPools& words,
                 const Prose& prose, int num_units) {
  SeededRandom random(sample.seed, sample.task, sample.index);
  const int num_keys = std::max(task.num_keys, task.num_queries);
  Needles needles;
  std::vector<std::vector<std::string>> values(num_keys);
  for (int k = 0; k < num_keys; ++k) {
    needles.keys.push_back(NewKey(task, needles.keys, words, &random));
    for (int v = 0; v < task.num_values; ++v) {
      values[k].push_back(RandomText(task.values, words, &random));
      needles.sentences.push_back(Needle(task, needles.keys[k], values[k].back()));
    }
  }
  random.Shuffle(&needles.sentences);
  std::vector<std::string> asked;
  for (const int k : random.Distinct(task.num_queries, num_keys)) {
    asked.push_back(needles.keys[k]);
    sample.answers.insert(sample.answers.end(), values[k].begin(), values[k].end());
  }
  const std::string haystack = Haystack(task, needles, words, prose, num_units, &random);

  const bool is_one = sample.answers.size() == 1;
  const std::string types = TypeName(task.values);
  const std::string type = is_one ? types.substr(0, types.size() - 1) : types;
  sample.context = fmt::format(
      "{} special magic {} {} hidden within the following text. Make sure to memorize it. I will "
      "quiz you about the {} afterwards.\n{}\n",
      is_one ? "A" : "Some", type, is_one ? "is" : "are", type, haystack);
  sample.question =
      fmt::format("What {} the special magic {} for {} mentioned in the provided text?",
                  is_one ? "is" : "are all", type, Listed(asked));
  sample.answer_prefix =
      fmt::format(" The special magic {} for {} mentioned in the provided text {}", type,
                  Listed(asked), is_one ? "is" : "are");
  sample.metric = AnswerMetric::kAllStrings;
  sample.max_tokens = kMaxTokens;
  sample.has_chat_form = true;
  return sample;
}

}  // namespace

absl::StatusOr<TaskSample> MakeNeedleSample(const NeedleTask& task, const TaskSample& sample,
                                            const WordPools& words, const Prose& prose,
                                            const PromptFormat& format) {
  // Lines that needles stand between; an essay's least length is a few sentences.
  const int num_needles = std::max(task.num_keys, task.num_queries) * task.num_values;
  const int min_units =
      task.haystack == NeedleTask::Haystack::kEssay ? 20 * num_needles : num_needles;
  return FitLength(format, min_units,
                   [&](int num_units) { return Build(task, sample, words, prose, num_units); });
}

}  // namespace tokenbutler
