#include "tools/eval/tasks/coref.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tools/eval/tasks/fit_length.h"
#include "tools/eval/tasks/prose.h"
#include "tools/eval/tasks/seeded_random.h"

namespace tokenbutler {
namespace {

constexpr int kMinNameTokens = 3;
constexpr int kMinSentences = 4;
constexpr int kTokensBehindName = 2;  // generated beyond the name, to see where it ends

// What is introduced and asked for. <T> stands for one of `traits`, the name follows the beginning.
struct Kind {
  const char* introduction;
  const char* behind_name;
  const char* question;
};

const std::vector<Kind>& Kinds() {
  static const auto* const kKinds = new std::vector<Kind>{
      {"Far to the south there is an island where people make <T>, and it is called ", ".",
       "The island in the south where people make <T> is called"},
      {"The inventor who was the first to build <T> was named ", ".",
       "The first to build <T> was an inventor named"},
      {"The ship that once brought <T> across the sea was the ", ", and it never came back.",
       "The name of the ship that once brought <T> across the sea was the"},
      {"High in the mountains lies a village known for <T>; its name is ", ".",
       "The village in the mountains that is known for <T> has the name"},
      {"The king who paid for <T> with half of his land was called ", ".",
       "The king who paid for <T> with half of his land was called"},
      {"The book that explains how to look after <T> was written by ", " a century ago.",
       "The book that explains how to look after <T> was written by"}};
  return *kKinds;
}

// None of them is in ProseSentence's lists.
const std::vector<std::string>& Traits() {
  static const auto* const kTraits = new std::vector<std::string>{
      "mechanical birds",  "blue glass",       "singing kites",   "salted plums",
      "paper umbrellas",   "floating gardens", "amber combs",     "striped tulips",
      "wind-up soldiers",  "smoked cheese",    "velvet masks",    "talking drums",
      "ivory chessmen",    "luminous ink",     "giant pumpkins",  "folding telescopes",
      "porcelain dolls",   "scented soap",     "dwarf elephants", "knitted boots",
      "musical fountains", "bottled thunder",  "peppered honey",  "marble globes"};
  return *kTraits;
}

std::string InventedName(const PromptFormat& format, SeededRandom* random) {
  static const auto* const kOnsets = new std::vector<std::string>{
      "b", "d", "f",  "g",  "k",  "l",  "m",  "n",  "p",  "r",  "s",  "t",
      "v", "z", "br", "dr", "gr", "kl", "qu", "sk", "th", "tr", "vl", "zh"};
  static const auto* const kVowels =
      new std::vector<std::string>{"a", "e", "i", "o", "u", "ae", "ou", "y"};
  static const auto* const kCodas =
      new std::vector<std::string>{"", "", "l", "n", "r", "s", "m", "x", "th"};
  std::string name;
  const auto add_syllable = [&] {
    name += random->Pick(*kOnsets) + random->Pick(*kVowels) + random->Pick(*kCodas);
  };
  for (int syllables = random->Between(3, 4); syllables > 0; --syllables) add_syllable();
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  while (static_cast<int>(format.Encode(" " + name).size()) < kMinNameTokens) add_syllable();
  return name;
}

// What does not depend on the filler's length.
struct Story {
  Kind kind;
  std::string trait, name;
  int depth_percent;
};

TaskSample Build(const TaskSample& sample, const Story& story, int num_sentences) {
  SeededRandom random(sample.seed, "coref filler", sample.index);
  TaskSample built = sample;
  const auto with_trait = [&](const char* text) {
    return absl::StrReplaceAll(text, {{"<T>", story.trait}});
  };
  const int before = 1 + (num_sentences - 1) * story.depth_percent / 100;
  for (int s = 0; s < num_sentences; ++s) {
    if (s == before) {
      built.context += with_trait(story.kind.introduction);
      built.evidence = {{built.context.size(), built.context.size() + story.name.size()}};
      built.context += story.name + story.kind.behind_name + " ";
    }
    built.context += ProseSentence(&random) + (s + 1 < num_sentences ? " " : "");
  }
  built.question = absl::StrCat(" ", with_trait(story.kind.question));
  return built;
}

}  // namespace

absl::StatusOr<TaskSample> MakeCorefSample(const TaskSample& sample, const PromptFormat& format) {
  SeededRandom random(sample.seed, "coref", sample.index);
  Story story;
  story.kind = random.Pick(Kinds());
  story.trait = random.Pick(Traits());
  story.depth_percent = random.Between(10, 50);
  story.name = InventedName(format, &random);
  TaskSample task = sample;
  task.answers = {story.name};
  task.forced_answer = " " + story.name;
  task.metric = AnswerMetric::kStartsWith;
  task.max_tokens = static_cast<int>(format.Encode(task.forced_answer).size()) + kTokensBehindName;
  return FitLength(format, kMinSentences,
                   [&](int num_sentences) { return Build(task, story, num_sentences); });
}

}  // namespace tokenbutler
