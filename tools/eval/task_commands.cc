#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "tools/eval/commands.h"
#include "tools/eval/question_tasks.h"
#include "tools/scoring/setting_flags.h"

namespace tokenbutler {
namespace {

// Sets *value by a name that `parse` understands.
template <typename T, typename Parse>
CLI::Option* AddNamedFlag(CLI::App* command, const char* flag, T* value, Parse parse,
                          const char* help) {
  return command->add_option_function<std::string>(
      flag,
      [=](const std::string& name) {
        const absl::StatusOr<T> parsed = parse(name);
        if (!parsed.ok()) {
          throw CLI::ValidationError(flag, std::string(parsed.status().message()));
        }
        *value = *parsed;
      },
      help);
}

// Of all tasks; `options` must outlive the parsing.
void AddTaskFlags(CLI::App* command, TaskOptions* options) {
  AddEvalFlags(command, &options->eval);
  AddCountFlag(command, "--context", &options->eval.context_len,
               "Tokens of a prompt and its answer together");
  AddNamedFlag(command, "--question", &options->question, ParseQuestionPath,
               "How the question behind the context is read: strict (default), token by token "
               "through each setting's attention; papers, in the dense prefill");
  AddNamedFlag(command, "--chat", &options->chat, ParseChatUse,
               "Use of the model's chat template: benchmark (default), as each benchmark does for "
               "instruct models; always; never");
  command->add_option("--seed", options->seed, "Of samples and drawn answers")
      ->capture_default_str();
  command
      ->add_option("--min-dense-score", options->min_dense_score,
                   "Tasks that dense attention does worse at are left out of the average")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
}

}  // namespace

void AddCoref(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand(
      "coref", "Names that are introduced once and asked for at the end of unrelated text");
  auto options = std::make_shared<CorefOptions>();
  AddTaskFlags(command, &options->task);
  AddCountFlag(command, "--samples", &options->num_samples, "Questions asked");
  command->callback([=] { *chosen = [=](ComputePool& pool) { return RunCoref(*options, pool); }; });
}

void AddRuler(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand("ruler", "The tasks of RULER (arXiv 2404.06654)");
  auto options = std::make_shared<RulerOptions>();
  AddTaskFlags(command, &options->task);
  command->add_option("--tasks", options->tasks,
                      "niah_single_1 ... qa_2; default: all that have what they need");
  AddCountFlag(command, "--samples", &options->num_samples, "Of each task");
  command
      ->add_option("--essay", options->essays,
                   "Text files that needles are hidden in; default: generated prose")
      ->check(CLI::ExistingFile);
  command
      ->add_option("--word-lists", options->word_lists,
                   "Folder with adjectivelist.txt, nounlist.txt, verblist.txt; default: built-in "
                   "words")
      ->check(CLI::ExistingDirectory);
  command->add_option("--squad", options->squad, "SQuAD 2.0's JSON file, for qa_1")
      ->check(CLI::ExistingFile);
  command->add_option("--hotpotqa", options->hotpotqa, "HotpotQA's JSON file, for qa_2")
      ->check(CLI::ExistingFile);
  command->callback([=] { *chosen = [=](ComputePool& pool) { return RunRuler(*options, pool); }; });
}

void AddLongBench(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand(
      "longbench",
      "The 21 tasks of LongBench (arXiv 2308.14508); longbench_score.py scores --resume's file");
  auto options = std::make_shared<LongBenchOptions>();
  AddTaskFlags(command, &options->task);
  command->add_option("--data", options->data, "Folder with the benchmark's TASK.jsonl files")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("--tasks", options->tasks,
                      "narrativeqa ... repobench-p; default: all whose files are there");
  AddCountFlag(command, "--samples", &options->num_samples, "Of each task, the first so many");
  command
      ->add_option("--max-prompt", options->max_prompt_tokens,
                   "Tokens beyond which a prompt is cut in the middle; default: --context less 596")
      ->check(CLI::PositiveNumber);
  command->callback(
      [=] { *chosen = [=](ComputePool& pool) { return RunLongBench(*options, pool); }; });
}

void AddAime(CLI::App& app, Measurement* chosen) {
  CLI::App* command =
      app.add_subcommand("aime", "AIME problems: boxed integers, several answers drawn to each");
  auto options = std::make_shared<AimeTaskOptions>();
  AddTaskFlags(command, &options->task);
  command->add_option("--data", options->data, "JSON files of problems, each a task of its name")
      ->required()
      ->check(CLI::ExistingFile);
  AddCountFlag(command, "--answers", &options->num_answers, "Drawn to each problem");
  AddCountFlag(command, "--samples", &options->num_samples, "Problems, the first so many");
  command->callback([=] { *chosen = [=](ComputePool& pool) { return RunAime(*options, pool); }; });
}

}  // namespace tokenbutler
