#include <unistd.h>

#include <iostream>

#include "fmt/format.h"
#include "tools/cli/commands.h"

namespace tokenbutler {
namespace {

void AddMessage(v1::GenerateRequest* request, const char* role, const std::string& content) {
  auto* message = request->mutable_chat()->add_messages();
  message->set_role(role);
  message->set_content(content);
}

v1::GenerateRequest NewConversation(const ChatFlags& flags) {
  v1::GenerateRequest request;
  flags.generation.ApplyTo(&request);
  request.mutable_chat();
  if (!flags.system.empty()) AddMessage(&request, "system", flags.system);
  return request;
}

// One turn: asks, prints the answer while it comes, and remembers both sides.
ExitCode Answer(v1::GenerateRequest* request, Client* client) {
  const Generation generation = client->Generate(*request, [](const v1::GenerateResponse& message) {
    fmt::print("{}", message.chunk().text());
    std::fflush(stdout);
  });
  fmt::print("{}", LineEnd(generation.text));
  std::fflush(stdout);  // before what comes on standard error, which may be the same terminal
  if (!generation.status.ok()) {
    // The question is taken back, so that the conversation stays as the server last saw it.
    request->mutable_chat()->mutable_messages()->RemoveLast();
    return ReportError(generation.status, client->server());
  }
  fmt::print(stderr, "{}", generation.Summary());
  AddMessage(request, "assistant", generation.text);
  return kExitOk;
}

}  // namespace

ExitCode RunChat(const ChatFlags& flags, Client* client) {
  const bool interactive = isatty(STDIN_FILENO) != 0;
  if (interactive) {
    fmt::print(stderr,
               "Talking to {}. /reset forgets everything, /quit ends, Ctrl-C stops an "
               "answer.\n",
               client->server());
  }
  v1::GenerateRequest request = NewConversation(flags);
  ExitCode last = kExitOk;
  while (true) {
    if (interactive) {
      fmt::print(stderr, "> ");
      std::fflush(stderr);
    }
    std::string line;
    if (!std::getline(std::cin, line) || line == "/quit") return interactive ? kExitOk : last;
    if (line.empty()) continue;
    if (line == "/reset") {
      request = NewConversation(flags);
      fmt::print(stderr, "[forgotten]\n");
      continue;
    }
    if (line[0] == '/') {
      fmt::print(stderr, "[there are only /reset and /quit]\n");
      continue;
    }
    AddMessage(&request, "user", line);
    last = Answer(&request, client);
    if (!interactive && last != kExitOk) return last;
  }
}

}  // namespace tokenbutler
