#include <iostream>
#include <iterator>
#include <map>

#include "fmt/format.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "tools/cli/commands.h"

namespace tokenbutler {
namespace {

v1::GenerateRequest ToRequest(const GenerateFlags& flags) {
  v1::GenerateRequest request;
  flags.generation.ApplyTo(&request);
  request.set_request_id(flags.request_id);
  request.mutable_sampling()->set_n(flags.n);
  if (flags.logprobs) request.mutable_logprobs()->set_top(*flags.logprobs);
  if (flags.chat) {
    if (!flags.system.empty()) {
      auto* system = request.mutable_chat()->add_messages();
      system->set_role("system");
      system->set_content(flags.system);
    }
    auto* user = request.mutable_chat()->add_messages();
    user->set_role("user");
    user->set_content(*flags.chat);
  } else if (flags.text) {
    request.set_text(*flags.text);
  } else {
    request.set_text(std::string(std::istreambuf_iterator<char>(std::cin), {}));
  }
  return request;
}

google::protobuf::util::JsonPrintOptions JsonOptions() {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  return options;
}

void PrintJsonLine(const google::protobuf::Message& message) {
  std::string line;
  if (google::protobuf::util::MessageToJsonString(message, &line, JsonOptions()).ok()) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }
}

// What came of one completion.
struct Completion {
  std::string text;
  v1::Chunk chunk;  // the log-probabilities of all its chunks
};

// By index; n is the server's to check, so it is no reason to reserve memory.
using Completions = std::map<int, Completion>;

// The log-probabilities as they are in the lines of a stream: tokens are bytes, so base64.
nlohmann::ordered_json Logprobs(const v1::Chunk& chunk) {
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(chunk, &json, JsonOptions()).ok()) return {};
  return nlohmann::ordered_json::parse(json).at("logprobs");
}

nlohmann::ordered_json Offload(const v1::OffloadStats& stats) {
  return {{"host_to_device_bytes", stats.host_to_device_bytes()},
          {"device_to_host_bytes", stats.device_to_host_bytes()},
          {"mean_tokens_attended", stats.mean_tokens_attended()},
          {"hit_ratio", stats.hit_ratio()},
          {"stall_seconds",
           static_cast<double>(stats.stall().seconds()) + stats.stall().nanos() * 1e-9}};
}

// One object with what most programs want.
void PrintJson(const Generation& generation, const Completions& completions, bool logprobs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const v1::Finished& one : generation.finished) {
    const auto found = completions.find(one.index());
    const Completion completion = found == completions.end() ? Completion() : found->second;
    list.push_back({{"index", one.index()},
                    {"text", completion.text},
                    {"finish_reason", v1::FinishReason_Name(one.reason())},
                    {"matched_stop_string", one.matched_stop_string()},
                    {"prompt_tokens", one.usage().prompt_tokens()},
                    {"completion_tokens", one.usage().completion_tokens()},
                    {"seed", one.seed()}});
    if (one.has_offload()) list.back()["offload"] = Offload(one.offload());
    if (logprobs) list.back()["logprobs"] = Logprobs(completion.chunk);
  }
  const nlohmann::ordered_json result = {
      {"completions", list},
      {"first_text_seconds", absl::ToDoubleSeconds(generation.first_text)},
      {"total_seconds", absl::ToDoubleSeconds(generation.total)},
      {"tokens_per_second", generation.tokens_per_second()}};
  fmt::print("{}\n", result.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void PrintTexts(const Generation& generation, Completions* completions) {
  for (const v1::Finished& one : generation.finished) {
    if (generation.finished.size() > 1) fmt::print("--- {} ---\n", one.index());
    const std::string& text = (*completions)[one.index()].text;
    fmt::print("{}{}", text, LineEnd(text));
  }
}

}  // namespace

const char* LineEnd(const std::string& text) {
  return text.empty() || text.back() == '\n' ? "" : "\n";
}

ExitCode RunGenerate(const GenerateFlags& flags, Client* client) {
  // Several completions come mixed, so their text is kept apart until the end.
  const bool print_as_it_comes = flags.stream && flags.n == 1 && !flags.json;
  Completions completions;
  const auto on_message = [&](const v1::GenerateResponse& message) {
    if (flags.json && flags.stream) PrintJsonLine(message);
    if (!message.has_chunk()) return;
    Completion& completion = completions[message.chunk().index()];
    completion.text += message.chunk().text();
    completion.chunk.mutable_logprobs()->MergeFrom(message.chunk().logprobs());
    if (!print_as_it_comes) return;
    fmt::print("{}", message.chunk().text());
    std::fflush(stdout);
  };
  const Generation generation = client->Generate(ToRequest(flags), on_message);
  if (print_as_it_comes) fmt::print("{}", LineEnd(generation.text));
  std::fflush(stdout);  // before what comes on standard error, which may be the same terminal
  if (!generation.status.ok()) return ReportError(generation.status, client->server());
  if (flags.json && !flags.stream) PrintJson(generation, completions, flags.logprobs.has_value());
  if (!flags.json && !print_as_it_comes) PrintTexts(generation, &completions);
  std::fflush(stdout);
  fmt::print(stderr, "{}", generation.Summary());
  return kExitOk;
}

}  // namespace tokenbutler
