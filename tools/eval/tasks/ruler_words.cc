#include "tools/eval/tasks/ruler_words.h"

#include <algorithm>
#include <cstdint>
#include <numbers>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "fmt/format.h"
#include "tools/eval/tasks/fit_length.h"
#include "tools/eval/tasks/seeded_random.h"

namespace tokenbutler {
namespace {

constexpr int kNumCommon = 10;
constexpr int kCommonMaxTokens = 120;
constexpr int kFrequentMaxTokens = 50;
constexpr int kCodedWordLen = 6;

struct WordCounts {
  int num_words;
  int common, uncommon;  // how often each word stands
};

std::string Numbered(const std::vector<std::string>& words) {
  std::vector<std::string> entries;
  entries.reserve(words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    entries.push_back(fmt::format("{}. {}", i + 1, words[i]));
  }
  return absl::StrJoin(entries, " ");
}

TaskSample BuildCommonWords(TaskSample sample, const WordPools& pools, const WordCounts& counts,
                            SeededRandom* random) {
  const std::vector<std::string> words = DistinctWords(pools, counts.num_words, random);
  std::vector<std::string> list;
  for (int w = 0; w < counts.num_words; ++w) {
    list.insert(list.end(), w < kNumCommon ? counts.common : counts.uncommon, words[w]);
  }
  random->Shuffle(&list);
  sample.answers.assign(words.begin(), words.begin() + kNumCommon);
  sample.context = fmt::format(
      "Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.\n{}\n",
      Numbered(list));
  sample.question = "Question: What are the 10 most common words in the above list?";
  sample.answer_prefix = " Answer: The top 10 words that appear most often in the list are:";
  return sample;
}

std::vector<std::string> CodedWords(int count, SeededRandom* random) {
  std::vector<std::string> words;
  std::unordered_set<std::string> seen;
  while (static_cast<int>(words.size()) < count) {
    std::string word;
    for (int i = 0; i < kCodedWordLen; ++i) word += static_cast<char>('a' + random->Below(26));
    if (seen.insert(word).second) words.push_back(std::move(word));
  }
  return words;
}

}  // namespace

absl::StatusOr<TaskSample> MakeCommonWordsSample(const TaskSample& sample, const WordPools& words,
                                                 const PromptFormat& format) {
  TaskSample task = sample;
  task.metric = AnswerMetric::kAllStrings;
  task.max_tokens = kCommonMaxTokens;
  task.has_chat_form = true;
  const bool is_short = sample.context_len < 4096;
  SeededRandom example_random(sample.seed, "cwe example", sample.index);
  const TaskSample example = BuildCommonWords(
      task, words, is_short ? WordCounts{20, 3, 1} : WordCounts{40, 10, 3}, &example_random);
  const std::string solved = example.prompt() + " " + Numbered(example.answers) + "\n";
  return FitLength(format, kNumCommon + 1, [&](int num_words) {
    SeededRandom random(sample.seed, sample.task, sample.index);
    TaskSample built = BuildCommonWords(
        task, words, is_short ? WordCounts{num_words, 6, 1} : WordCounts{num_words, 30, 3},
        &random);
    built.context.insert(0, solved);
    return built;
  });
}

absl::StatusOr<TaskSample> MakeFrequentWordsSample(const TaskSample& sample,
                                                   const PromptFormat& format) {
  TaskSample task = sample;
  task.metric = AnswerMetric::kAllStrings;
  task.max_tokens = kFrequentMaxTokens;
  task.has_chat_form = true;
  SeededRandom vocabulary_random(sample.seed, "fwe words", sample.index);
  const int num_coded = std::max(4, (sample.context_len - kFrequentMaxTokens) / 50);
  std::vector<std::string> vocabulary = CodedWords(num_coded, &vocabulary_random);
  task.answers.assign(vocabulary.begin() + 1, vocabulary.begin() + 4);
  vocabulary[0] = "...";

  // From so many words on, the fourth most frequent one stands there more often than the fifth.
  constexpr int kMinWords = 80;
  return FitLength(format, kMinWords, [&](int num_words) {
    constexpr double kZeta2 = std::numbers::pi * std::numbers::pi / 6;
    std::vector<std::string> text;
    for (int rank = 1; rank <= num_coded; ++rank) {
      const double count = num_words / (static_cast<double>(rank) * rank * kZeta2);
      text.insert(text.end(), static_cast<size_t>(count), vocabulary[rank - 1]);
    }
    SeededRandom random(sample.seed, sample.task, sample.index);
    random.Shuffle(&text);
    TaskSample built = task;
    built.context = fmt::format(
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words. {}\n",
        absl::StrJoin(text, " "));
    built.question =
        "Question: Do not provide any explanation. Please ignore the dots '....'. What are the "
        "three most frequently appeared words in the above coded text?";
    built.answer_prefix =
        " Answer: According to the coded text above, the three most frequently appeared words are:";
    return built;
  });
}

}  // namespace tokenbutler
