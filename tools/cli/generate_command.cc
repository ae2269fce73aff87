#include <iostream>
#include <iterator>

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

void PrintJsonLine(const google::protobuf::Message& message) {
  std::string line;
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  if (google::protobuf::util::MessageToJsonString(message, &line, options).ok()) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }
}

// One object with what most programs want.
void PrintJson(const Generation& generation, const std::vector<std::string>& texts) {
  nlohmann::ordered_json completions = nlohmann::ordered_json::array();
  for (const v1::Finished& one : generation.finished) {
    completions.push_back({{"index", one.index()},
                           {"text", texts.at(static_cast<size_t>(one.index()))},
                           {"finish_reason", v1::FinishReason_Name(one.reason())},
                           {"prompt_tokens", one.usage().prompt_tokens()},
                           {"completion_tokens", one.usage().completion_tokens()},
                           {"seed", one.seed()}});
  }
  const nlohmann::ordered_json result = {
      {"completions", completions},
      {"first_text_seconds", absl::ToDoubleSeconds(generation.first_text)},
      {"total_seconds", absl::ToDoubleSeconds(generation.total)},
      {"tokens_per_second", generation.tokens_per_second()}};
  fmt::print("{}\n", result.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void PrintTexts(const std::vector<std::string>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts.size() > 1) fmt::print("--- {} ---\n", i);
    fmt::print("{}\n", texts[i]);
  }
}

}  // namespace

ExitCode RunGenerate(const GenerateFlags& flags, Client* client) {
  // Several completions come mixed, so their text is kept apart until the end.
  const bool print_as_it_comes = flags.stream && flags.n == 1 && !flags.json;
  std::vector<std::string> texts(static_cast<size_t>(std::max(1, flags.n)));
  const auto on_message = [&](const v1::GenerateResponse& message) {
    const size_t index = static_cast<size_t>(message.chunk().index());
    if (index < texts.size()) texts[index] += message.chunk().text();
    if (flags.json && flags.stream) PrintJsonLine(message);
    if (!print_as_it_comes || !message.has_chunk()) return;
    fmt::print("{}", message.chunk().text());
    std::fflush(stdout);
  };
  const Generation generation = client->Generate(ToRequest(flags), on_message);
  if (print_as_it_comes) fmt::print("\n");
  if (!generation.status.ok()) return ReportError(generation.status, client->server());
  if (flags.json && !flags.stream) PrintJson(generation, texts);
  if (!flags.json && !print_as_it_comes) PrintTexts(texts);
  fmt::print(stderr, "[{}]\n", generation.Speed());
  return kExitOk;
}

}  // namespace tokenbutler
