#include "tools/eval/tasks/ruler_questions.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_join.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "tools/eval/tasks/fit_length.h"
#include "tools/eval/tasks/seeded_random.h"

namespace tokenbutler {
namespace {

using Json = nlohmann::json;

constexpr int kMaxTokens = 32;

absl::StatusOr<Json> ReadJson(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFoundError("{} cannot be read", path);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgumentError("{} is not JSON", path);
  return json;
}

// Documents by their text, each once.
class DocumentIndex {
 public:
  explicit DocumentIndex(QuestionSet* set) : set_(set) {}

  int Add(const std::string& text) {
    const auto [at, is_new] = indices_.try_emplace(text, static_cast<int>(set_->documents.size()));
    if (is_new) set_->documents.push_back(text);
    return at->second;
  }

 private:
  QuestionSet* set_;
  std::unordered_map<std::string, int> indices_;
};

void AddSquadArticle(const Json& article, DocumentIndex* index, QuestionSet* set) {
  std::vector<int> documents;
  for (const Json& paragraph : article.at("paragraphs")) {
    documents.push_back(index->Add(paragraph.at("context").get<std::string>()));
  }
  for (size_t p = 0; p < documents.size(); ++p) {
    for (const Json& qa : article["paragraphs"][p].at("qas")) {
      if (qa.value("is_impossible", false)) continue;
      QuestionSet::Question question{.text = qa.at("question").get<std::string>(),
                                     .answers = {},
                                     .documents = {documents[p]},
                                     .related_documents = {}};
      for (const Json& answer : qa.at("answers")) {
        question.answers.push_back(answer.at("text").get<std::string>());
      }
      for (const int other : documents) {
        if (other != documents[p]) question.related_documents.push_back(other);
      }
      if (!question.answers.empty()) set->questions.push_back(std::move(question));
    }
  }
}

void AddHotpotQuestion(const Json& entry, DocumentIndex* index, QuestionSet* set) {
  QuestionSet::Question question{.text = entry.at("question").get<std::string>(),
                                 .answers = {entry.at("answer").get<std::string>()},
                                 .documents = {},
                                 .related_documents = {}};
  for (const Json& document : entry.at("context")) {
    std::string text = document.at(0).get<std::string>() + "\n";
    for (const Json& sentence : document.at(1)) text += sentence.get<std::string>();
    const int added = index->Add(text);
    if (std::find(question.documents.begin(), question.documents.end(), added) ==
        question.documents.end()) {
      question.documents.push_back(added);
    }
  }
  set->questions.push_back(std::move(question));
}

absl::StatusOr<QuestionSet> Checked(QuestionSet set, const std::string& path) {
  if (set.questions.empty()) return InvalidArgumentError("{} has no questions", path);
  return set;
}

// The question's documents and `num_documents` less those of others, in random order.
std::vector<int> Choose(const QuestionSet& set, const QuestionSet::Question& question,
                        int num_documents, SeededRandom* random) {
  const int num_all = static_cast<int>(set.documents.size());
  std::vector<int> chosen = question.documents;
  std::unordered_set<int> taken(chosen.begin(), chosen.end());
  const auto take = [&](std::vector<int> from) {
    random->Shuffle(&from);
    for (const int document : from) {
      if (static_cast<int>(chosen.size()) >= num_documents) return;
      if (taken.insert(document).second) chosen.push_back(document);
    }
  };
  take(question.related_documents);
  std::vector<int> all(num_all);
  for (int d = 0; d < num_all; ++d) all[d] = d;
  take(all);
  // A small set is used again and again.
  for (int d = 0; static_cast<int>(chosen.size()) < num_documents; d = (d + 1) % num_all) {
    chosen.push_back(d);
  }
  random->Shuffle(&chosen);
  return chosen;
}

}  // namespace

absl::StatusOr<QuestionSet> ReadSquad(const std::string& path) {
  ASSIGN_OR_RETURN(const Json json, ReadJson(path));
  QuestionSet set;
  DocumentIndex index(&set);
  try {
    for (const Json& article : json.at("data")) AddSquadArticle(article, &index, &set);
  } catch (const Json::exception& e) {
    return InvalidArgumentError("{} does not have SQuAD's format: {}", path, e.what());
  }
  return Checked(std::move(set), path);
}

absl::StatusOr<QuestionSet> ReadHotpotQa(const std::string& path) {
  ASSIGN_OR_RETURN(const Json json, ReadJson(path));
  QuestionSet set;
  DocumentIndex index(&set);
  try {
    for (const Json& entry : json) AddHotpotQuestion(entry, &index, &set);
  } catch (const Json::exception& e) {
    return InvalidArgumentError("{} does not have HotpotQA's format: {}", path, e.what());
  }
  return Checked(std::move(set), path);
}

absl::StatusOr<TaskSample> MakeQuestionSample(const TaskSample& sample, const QuestionSet& set,
                                              const PromptFormat& format) {
  if (sample.index >= static_cast<int>(set.questions.size())) {
    return InvalidArgumentError("{} has {} questions, number {} was asked for", sample.task,
                                set.questions.size(), sample.index);
  }
  const QuestionSet::Question& question = set.questions[sample.index];
  return FitLength(format, static_cast<int>(question.documents.size()), [&](int num_documents) {
    SeededRandom random(sample.seed, sample.task, sample.index);
    std::vector<std::string> documents;
    for (const int d : Choose(set, question, num_documents, &random)) {
      documents.push_back(fmt::format("Document {}:\n{}", documents.size() + 1, set.documents[d]));
    }
    constexpr const char* kInstruction =
        "Answer the question based on the given documents. Only give me the answer and do not "
        "output any other words.";
    TaskSample built = sample;
    built.context = fmt::format("{}\n\nThe following are given documents.\n\n{}\n\n", kInstruction,
                                absl::StrJoin(documents, "\n\n"));
    built.question = fmt::format("{}\n\nQuestion: {}", kInstruction, question.text);
    built.answer_prefix = " Answer:";
    built.answers = question.answers;
    built.metric = AnswerMetric::kAnyString;
    built.max_tokens = kMaxTokens;
    built.has_chat_form = true;
    return built;
  });
}

}  // namespace tokenbutler
