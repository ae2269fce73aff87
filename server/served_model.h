#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/model_config.h"
#include "engine/selection/attention_params.h"
#include "server/predictor_in_use.h"

namespace tokenbutler {

class ChatTemplate;
class Engine;
class Tokenizer;

// A model that is ready to serve, as the services see it. Values do not change; what the pointers
// point to belongs to main() and outlives every call.
struct ServedModel {
  std::string name;  // what GenerateRequest.model may say
  ModelConfig config;
  int max_model_len = 0;           // tokens of prompt and completion together
  int max_num_seqs = 0;            // sequences decoded together: the bound of sampling.n
  size_t max_text_bytes = 0;       // a longer text cannot fit max_model_len tokens
  std::string dtype;               // of weights and activations
  std::string kv_dtype;            // of the KV cache
  int64_t kv_bytes_per_token = 0;  // all layers
  AttentionParams attention;       // of a request that asks for nothing
  std::string attention_setting;   // by which it was chosen; empty: none
  int64_t attention_state_bytes_per_token = 0;  // that it keeps beside the KV cache
  std::string offload_backend = "direct";       // or "staged"
  bool link_is_modelled = false;
  PredictorInUse predictor;
  std::string chat_template_source;  // Jinja; empty: none

  Engine* engine = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: chat input is refused
  std::string chat_template_error;  // why it is null although the model has one; empty: it has none
};

}  // namespace tokenbutler
