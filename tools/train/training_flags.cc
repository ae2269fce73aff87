#include "tools/train/training_flags.h"

#include <functional>
#include <utility>

#include "CLI/CLI.hpp"
#include "base/cpu_features.h"

namespace tokenbutler {
namespace {

constexpr char kDescription[] =
    "Trains a predictor for a model: what the attention policy tokenbutler needs beside it.\n"
    "A run that was interrupted goes on where it was when it is started again (docs/training.md).";

// A flag whose text is parsed by `parse` into `target`.
template <typename T, typename Parse>
CLI::Option* AddParsed(CLI::App& app, const char* name, const char* help, T* target, Parse parse,
                       const char* default_text) {
  const auto set = [target, parse, name](const std::string& text) {
    auto parsed = parse(text);
    if (!parsed.ok()) throw CLI::ValidationError(name, std::string(parsed.status().message()));
    *target = *std::move(parsed);
  };
  return app.add_option_function<std::string>(name, set, help)->default_str(default_text);
}

absl::StatusOr<TrainedKeys> ParseTrainedKeys(std::string_view name) {
  for (const TrainedKeys keys : {TrainedKeys::kProjected, TrainedKeys::kFull}) {
    if (name == TrainedKeysName(keys)) return keys;
  }
  return InvalidArgumentError("'{}' must be projected or full", name);
}

void AddRunFlags(CLI::App& app, TrainingFlags* flags) {
  app.add_option("model", flags->model, "The model: a .gguf file or a Hugging Face folder")
      ->required();
  app.add_option("--output", flags->training.output,
                 "Folder for predictor.safetensors (the best so far), checkpoint and log.jsonl")
      ->required();
  app.add_flag("--dry-run", flags->dry_run,
               "Only say what the run would take: parameters, memory, time");
  app.add_flag("--restart", flags->restart,
               "Begin anew: forget the run that the output folder holds");
  app.add_option("--threads", flags->num_threads, "Threads, this one included")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--dtype", flags->dtype,
                 "Of the model's weights and KV cache: bfloat16 or float32; default: bfloat16 "
                 "where the CPU has it")
      ->check(CLI::IsMember({"bfloat16", "float32"}));
}

void AddTextFlags(CLI::App& app, CorpusOptions* corpus) {
  constexpr char kGroup[] = "Texts";
  app.add_option("--text", corpus->texts,
                 "Files and folders to learn from: text, .jsonl, or either as .gz; of a folder its "
                 ".txt, .md and .jsonl files")
      ->required()
      ->group(kGroup);
  app.add_option("--validation", corpus->validation,
                 "The same, to measure on; default: a tenth of the documents, set aside")
      ->group(kGroup);
  app.add_option("--field", corpus->field, "Member of a .jsonl line that is the text")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--tokens", corpus->tokens_per_sequence,
                 "Tokens of a sequence; documents that are shorter are left out")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--validation-sequences", corpus->num_validation, "Sequences to measure on")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--max-tokens", corpus->most_tokens,
                 "Tokens of all texts together, 4 bytes of memory each")
      ->capture_default_str()
      ->group(kGroup);
}

void AddPredictorFlags(CLI::App& app, StudentOptions* student, std::optional<bool>* late) {
  constexpr char kGroup[] = "Predictor";
  AddParsed(app, "--kind",
            "lookahead: the layers' own query weights on an earlier hidden state; tokenbutler: the "
            "published MLPs",
            &student->kind, ParsePredictorKind, "lookahead")
      ->group(kGroup);
  AddParsed(app, "--keys",
            "projected: learn what keys are projected to; full: learn only to correct early "
            "queries, for low-bit keys",
            &student->keys, ParseTrainedKeys, "projected")
      ->group(kGroup);
  const auto number = [&](const char* flag, int* value, const char* help) {
    app.add_option(flag, *value, help)->capture_default_str()->group(kGroup);
  };
  number("--projected-dim", &student->projected_dim,
         "Dimensions of projected keys: 4 to 128, a multiple of 4");
  number("--hidden-dim", &student->hidden_dim, "Units of each MLP; kind tokenbutler");
  number("--layers-per-predictor", &student->layers_per_predictor,
         "Layers that one hidden state predicts queries for");
  number("--correction-rank", &student->correction_rank,
         "Rank of the learned correction of early queries, 0: none; kind lookahead");
  AddParsed(app, "--point", "Where of its layer the hidden state is taken: input, after_attention",
            &student->point, ParseLayerPoint, "input")
      ->group(kGroup);
  AddParsed(app, "--input", "What the MLPs read: before_norm, after_norm; kind tokenbutler",
            &student->input, ParsePredictorInput, "before_norm")
      ->group(kGroup);
  app.add_option("--late", *late,
                 "Also learn projections of the layers' own queries: late decisions, a sparse "
                 "layer 0")
      ->default_str("true, with --keys full false")
      ->group(kGroup);
  AddParsed(app, "--pooling",
            "How it is served: max_logit, max_lse, max_softmax or mean_softmax over the heads of "
            "a group",
            &student->pooling, ParseScorePooling, "max_lse")
      ->group(kGroup);
}

void AddTrainingFlags(CLI::App& app, TrainingOptions* training) {
  constexpr char kGroup[] = "Training";
  const auto number = [&](const char* flag, auto* value, const char* help) {
    app.add_option(flag, *value, help)->capture_default_str()->group(kGroup);
  };
  number("--steps", &training->num_steps, "Updates of the weights");
  number("--sequences-per-step", &training->sequences_per_step, "Sequences of a step");
  number("--rows", &training->rows, "Positions of a sequence whose attention a step learns");
  number("--steps-per-sequence", &training->steps_per_sequence,
         "Steps, each with rows of its own, that the model's pass over a sequence is used for; 1 "
         "with more than one sequence per step");
  number("--learning-rate", &training->learning_rate, "AdamW's, after the warm-up");
  number("--warmup", &training->warmup, "Share of the steps in which it rises");
  number("--weight-decay", &training->weight_decay, "AdamW's");
  number("--clip-norm", &training->clip_norm, "Largest norm of the gradients; 0: any");
  number("--sink-tokens", &training->sink_tokens,
         "First tokens that the loss leaves out, as they are attended in any case");
  number("--local-window", &training->local_window, "Last tokens, the same");
  number("--calibration-sequences", &training->calibration_sequences,
         "Sequences whose keys say where projections begin");
  number("--seed", &training->seed, "Of all that is drawn at random");
  number("--validate-every", &training->validate_every, "Steps between two validations");
  number("--patience", &training->patience,
         "Validations without a better one that end the run; 0: never");
  number("--checkpoint-every", &training->checkpoint_every, "Steps between two checkpoints");
}

}  // namespace

absl::StatusOr<TrainingCommandLine> ParseTrainingFlags(int argc, const char* const* argv) {
  TrainingFlags flags;
  flags.num_threads = DefaultNumThreads();
  std::optional<bool> late;
  CLI::App app(kDescription, "tokenbutler-train");
  app.get_formatter()->column_width(36);
  AddRunFlags(app, &flags);
  AddTextFlags(app, &flags.corpus);
  AddPredictorFlags(app, &flags.training.student, &late);
  AddTrainingFlags(app, &flags.training);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return TrainingCommandLine{.flags = std::nullopt, .text = app.help()};
  } catch (const CLI::Error& error) {
    return InvalidArgumentError("{}", error.what());
  }
  StudentOptions& student = flags.training.student;
  student.late = late.value_or(student.keys == TrainedKeys::kProjected);
  flags.corpus.seed = flags.training.seed;
  RETURN_IF_ERROR(flags.corpus.Validate());
  RETURN_IF_ERROR(flags.training.Validate());
  return TrainingCommandLine{.flags = std::move(flags), .text = ""};
}

}  // namespace tokenbutler
