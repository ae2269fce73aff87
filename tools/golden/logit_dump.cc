// Writes the logits of a prompt, for tools/golden/make_logit_goldens.py --compare:
//   logit_dump MODEL PROMPT.json OUTPUT.f32 [float32|bfloat16] [prefill|decode]
// PROMPT.json is a golden file or any object with "prompt": [ids]. OUTPUT is float32
// [positions, vocab_size].

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/compute_pool.h"
#include "base/cpu_features.h"
#include "engine/step_runner.h"
#include "engine/weights/loader.h"
#include "nlohmann/json.hpp"
#include "offload/kv_store.h"

namespace tokenbutler {
namespace {

struct Arguments {
  std::string model, prompt, output;
  DType dtype = DType::kF32;
  bool decode = false;
};

absl::Status Dump(const Arguments& arguments) {
  std::ifstream prompt_file(arguments.prompt);
  if (!prompt_file) return NotFoundError("cannot read {}", arguments.prompt);
  const nlohmann::json prompt_json = nlohmann::json::parse(prompt_file);
  const std::vector<int32_t> prompt = prompt_json["prompt"];

  LoadOptions options;
  options.compute_dtype = arguments.dtype;
  ASSIGN_OR_RETURN(LoadedModel model, LoadModel(arguments.model, options));
  const KvLayout layout = KvLayoutFor(model.config, arguments.dtype);
  BlockTable table;
  for (int i = 0; i < layout.blocks_for(static_cast<int>(prompt.size())); ++i) {
    table.blocks.push_back(i);
  }
  const size_t capacity = (table.blocks.size() + 1) * layout.block_bytes();
  ASSIGN_OR_RETURN(auto kv_store,
                   KvStore::Create(layout, {.capacity_bytes = static_cast<int64_t>(capacity)}));
  ComputePool pool(DefaultNumThreads());
  ASSIGN_OR_RETURN(
      auto runner,
      StepRunner::Create(std::move(model.config), std::move(model.weights), kv_store.get(), &pool));

  std::ofstream output(arguments.output, std::ios::binary);
  const int chunk = arguments.decode ? 1 : 512;
  for (int start = 0; start < static_cast<int>(prompt.size()); start += chunk) {
    StepPlan plan;
    (arguments.decode ? plan.decode : plan.prefill_chunks)
        .push_back({.block_table = &table,
                    .token_ids = absl::MakeConstSpan(prompt).subspan(start, chunk),
                    .start_position = start,
                    .logits = LogitsWanted::kAll});
    RETURN_IF_ERROR(runner->Run(plan));
    const absl::Span<const float> logits =
        arguments.decode ? runner->decode_logits(0) : runner->prefill_logits(0);
    output.write(reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float));
  }
  return output.flush() ? absl::OkStatus() : DataLossError("cannot write {}", arguments.output);
}

}  // namespace
}  // namespace tokenbutler

int main(int argc, char** argv) {
  if (argc < 4 || argc > 6) {
    std::fprintf(stderr,
                 "usage: logit_dump MODEL PROMPT.json OUTPUT.f32 [float32|bfloat16] "
                 "[prefill|decode]\n");
    return 2;
  }
  tokenbutler::Arguments arguments{.model = argv[1], .prompt = argv[2], .output = argv[3]};
  if (argc > 4 && std::string(argv[4]) == "bfloat16") arguments.dtype = tokenbutler::DType::kBF16;
  arguments.decode = argc > 5 && std::string(argv[5]) == "decode";
  const absl::Status status = tokenbutler::Dump(arguments);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
