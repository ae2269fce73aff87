// tokenbutler-train: distils a predictor for a model; docs/training.md is for users.
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "engine/predictor/predictor_file.h"
#include "fmt/format.h"
#include "tools/scoring/measured_model.h"
#include "tools/train/corpus.h"
#include "tools/train/corpus_manifest.h"
#include "tools/train/progress_lines.h"
#include "tools/train/trainer.h"
#include "tools/train/training_flags.h"

namespace tokenbutler {
namespace {

constexpr int kExitInterrupted = 130;
constexpr int kChunkTokens = 1024;  // of the teacher's prefill

std::atomic<bool> stop_requested{false};

// The first Ctrl-C (or SIGTERM) ends the run after a checkpoint, the second one at once.
void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) {
    stop_requested.store(true);
    constexpr char kText[] = "\nStopping after this step; again: at once.\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on files is an error of writing, like a full disk
}

// As the server has it: the kernel's page faults would dominate prefill.
void KeepLargeAllocations() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

absl::StatusOr<std::unique_ptr<MeasuredModel>> LoadTeacher(const TrainingFlags& flags,
                                                           ComputePool& pool) {
  MeasuredModel::Options options;
  options.model = flags.model;
  options.dtype = flags.dtype;
  options.needs_tokenizer = true;
  options.runner.prefill_chunk_tokens = kChunkTokens;
  options.num_blocks = [&flags](const SelectionResources& resources) {
    return resources.layout.blocks_for(flags.corpus.tokens_per_sequence);
  };
  ASSIGN_OR_RETURN(std::unique_ptr<MeasuredModel> model, MeasuredModel::Create(options, pool));
  if (flags.corpus.tokens_per_sequence <= model->config().max_position) return model;
  return InvalidArgumentError("--tokens is {}, must be at most {}, the model's context",
                              flags.corpus.tokens_per_sequence, model->config().max_position);
}

absl::StatusOr<std::unique_ptr<Corpus>> ReadCorpus(const TrainingFlags& flags,
                                                   const Tokenizer& tokenizer, bool is_terminal) {
  int64_t printed = 0;
  const auto progress = [&](int64_t bytes) {
    if (!is_terminal || bytes - printed < 1'000'000) return;
    printed = bytes;
    fmt::print("\r\x1b[Ktokenised {} MB of text", bytes / 1'000'000);
    std::fflush(stdout);
  };
  ASSIGN_OR_RETURN(auto corpus, Corpus::Create(flags.corpus, tokenizer, progress));
  fmt::print(
      "{}texts: {} documents, {} tokens; {} more for validation; {} shorter than {} tokens left "
      "out\n",
      is_terminal ? "\r\x1b[K" : "", corpus->num_documents(), corpus->num_tokens(),
      corpus->num_validation_documents(), corpus->num_short_documents(), corpus->length());
  return corpus;
}

// A path as others can read it: where this machine has its files is nobody's business.
std::string NameOf(const std::string& path) {
  const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
}

// The command line, files and folders by their names alone.
std::string CommandText(int argc, char** argv) {
  std::string text = "tokenbutler-train";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    text += " " + (word.find('/') == std::string::npos ? word : NameOf(word));
  }
  return text;
}

std::map<std::string, std::string> Metadata(const TrainingFlags& flags,
                                            const std::string& command) {
  std::map<std::string, std::string> metadata = {{"training.model", NameOf(flags.model)},
                                                 {"training.command", command}};
  const std::string packages = PackagesOf(flags.corpus.texts);
  if (!packages.empty()) metadata["training.packages"] = packages;
  return metadata;
}

void ForgetRun(const std::string& output) {
  for (const char* name : {"checkpoint", "log.jsonl", "predictor.safetensors"}) {
    std::error_code ignored;
    std::filesystem::remove(std::filesystem::path(output) / name, ignored);
  }
}

absl::StatusOr<int> Train(const TrainingFlags& flags, const std::string& command) {
  const bool is_terminal = isatty(STDOUT_FILENO) == 1;
  ComputePool pool(flags.num_threads);
  ASSIGN_OR_RETURN(const auto model, LoadTeacher(flags, pool));
  ASSIGN_OR_RETURN(const auto corpus, ReadCorpus(flags, model->tokenizer(), is_terminal));
  ASSIGN_OR_RETURN(const std::string digest, ModelDigest(flags.model));
  if (flags.restart && !flags.dry_run) ForgetRun(flags.training.output);
  Teacher teacher(model->runner(), model->store(), pool, kChunkTokens);
  ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(flags.training, teacher, *corpus, digest,
                                                       Metadata(flags, command)));
  if (flags.dry_run) {
    ASSIGN_OR_RETURN(const TrainingEstimate estimate, trainer->Estimate());
    fmt::print("{}", EstimateText(estimate));
    return 0;
  }
  if (trainer->steps_done() > 0) fmt::print("going on after step {}\n", trainer->steps_done());
  CatchInterrupts();
  ProgressLines lines(flags.training.num_steps, trainer->steps_done(), is_terminal);
  const auto print = [&lines](const TrainingEvent& event) {
    fmt::print("{}", lines.For(event, absl::Now()));
    std::fflush(stdout);
  };
  ASSIGN_OR_RETURN(const TrainingResult result,
                   trainer->Run({.on_event = print, .stop = &stop_requested}));
  fmt::print("{}{}", is_terminal ? "\r\x1b[K" : "", ResultText(result, flags.training.output));
  return result.is_finished ? 0 : kExitInterrupted;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<TrainingCommandLine> command_line = ParseTrainingFlags(argc, argv);
  if (!command_line.ok()) {
    fmt::print(stderr, "tokenbutler-train: {}\nRun tokenbutler-train --help for the flags.\n",
               std::string(command_line.status().message()));
    return 2;
  }
  if (!command_line->flags) {
    fmt::print("{}", command_line->text);
    return 0;
  }
  KeepLargeAllocations();
  const absl::StatusOr<int> code = Train(*command_line->flags, CommandText(argc, argv));
  if (code.ok()) return *code;
  fmt::print(stderr, "\ntokenbutler-train: {}\n", std::string(code.status().message()));
  return 1;
}

}  // namespace
}  // namespace tokenbutler

int main(int argc, char** argv) { return tokenbutler::Main(argc, argv); }
