#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/cli/client.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/generation_flags.h"

namespace tokenbutler {

// The subcommands. Each talks to the server, prints its answer to standard output (everything else
// to standard error) and gives the program's exit code.

// What ends the output of `text`: a newline when there is text and it does not end with one. So
// text is printed as it is, and what follows on a terminal begins a line.
const char* LineEnd(const std::string& text);

struct ChatFlags {
  GenerationFlags generation;
  std::string system;  // first message; empty: none
};
// Reads lines from standard input until /quit or its end.
ExitCode RunChat(const ChatFlags& flags, Client* client);

struct GenerateFlags {
  GenerationFlags generation;
  std::optional<std::string> text;  // unset, and chat too: standard input
  std::optional<std::string> chat;  // a user's message
  std::string system;
  std::string request_id;
  int n = 1;
  std::optional<int> logprobs;
  bool stream = true;  // print while it comes
  bool json = false;   // stream: a line per message; otherwise one object
};
ExitCode RunGenerate(const GenerateFlags& flags, Client* client);

struct TokenizeFlags {
  std::optional<std::string> text;  // unset, and chat too: standard input
  std::optional<std::string> chat;
  bool special = false;  // text that looks like special tokens becomes them
  bool json = false;
};
ExitCode RunTokenize(const TokenizeFlags& flags, Client* client);
ExitCode RunDetokenize(const std::vector<int>& token_ids, Client* client);
ExitCode RunInfo(bool json, Client* client);
// kExitOk only when `service` is SERVING.
ExitCode RunHealth(const std::string& service, Client* client);
ExitCode RunAbort(const std::vector<std::string>& request_ids, Client* client);

}  // namespace tokenbutler
