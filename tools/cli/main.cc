// tokenbutler: the command-line client.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <system_error>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "fmt/format.h"
#include "google/protobuf/stubs/logging.h"
#include "server/version.h"
#include "tools/cli/commands.h"

namespace tokenbutler {
namespace {

constexpr char kFooter[] =
    "Exit codes: 0 done; 1 the server answered with an error or is not ready; 2 wrong command\n"
    "line; 3 no answer (UNAVAILABLE); 4 --timeout passed; 130 interrupted.\n"
    "TOKENBUTLER_SERVER is the default of --server.";

// Not CLI11's envname(): every command has a --server, and the ones that are not run would set the
// shared value from the environment, over the flag of the one that is.
std::string DefaultServer() {
  const char* server = std::getenv("TOKENBUTLER_SERVER");
  return server != nullptr && *server != '\0' ? server : "127.0.0.1:50051";
}

struct Flags {
  std::string server = DefaultServer();
  double timeout_seconds = 0;  // 0: none
  ChatFlags chat;
  GenerateFlags generate;
  TokenizeFlags tokenize;
  std::vector<int> token_ids;
  bool info_json = false;
  std::string health_service = v1::InferenceService::service_full_name();
  bool health_live = false;
  std::vector<std::string> request_ids;
};

// CLI::Range lets "nan" pass.
std::string CheckTimeout(const std::string& text) {
  constexpr double kMaxSeconds = 86400;
  double seconds = 0;
  if (CLI::detail::lexical_cast(text, seconds) && seconds >= 0 && seconds <= kMaxSeconds) return {};
  return fmt::format("{} is not a number from 0 to {}", text, kMaxSeconds);
}

// The flags that every command has.
void AddConnection(CLI::App* app, Flags* flags) {
  app->add_option("-s,--server", flags->server, "Address of the server")
      ->capture_default_str()
      ->group("Connection");
  app->add_option("--timeout", flags->timeout_seconds, "Seconds until a call is given up; 0: none")
      ->check(CheckTimeout)
      ->group("Connection");
}

using Command = std::function<ExitCode(Client*)>;

CLI::App* AddCommand(CLI::App* app, const char* name, const char* help, Flags* flags,
                     Command* chosen, Command run) {
  CLI::App* command = app->add_subcommand(name, help);
  AddConnection(command, flags);
  command->callback([chosen, run = std::move(run)] { *chosen = run; });
  return command;
}

void AddTextCommands(CLI::App* app, Flags* flags, Command* chosen) {
  CLI::App* chat = AddCommand(app, "chat", "Talk to the model", flags, chosen,
                              [flags](Client* c) { return RunChat(flags->chat, c); });
  chat->add_option("--system", flags->chat.system, "What the model is told first");
  flags->chat.generation.AddTo(chat);

  CLI::App* generate =
      AddCommand(app, "generate", "Complete a text, or answer one question (--chat)", flags, chosen,
                 [flags](Client* c) { return RunGenerate(flags->generate, c); });
  CLI::Option* text =
      generate->add_option("text", flags->generate.text, "The text; default: standard input");
  CLI::Option* message =
      generate->add_option("--chat", flags->generate.chat, "A user's message instead of a text")
          ->excludes(text);
  generate->add_option("--system", flags->generate.system, "With --chat: what comes first")
      ->needs(message);
  generate->add_option("--request-id", flags->generate.request_id, "Name of the call, for abort");
  generate->add_option("-n", flags->generate.n, "Completions")->capture_default_str();
  generate->add_option("--logprobs", flags->generate.logprobs,
                       "With --json: log-probabilities, and of this many alternatives");
  generate->add_flag("--stream,!--no-stream", flags->generate.stream,
                     "Print the text while it comes (default), or at the end");
  generate->add_flag("--json", flags->generate.json,
                     "Print JSON: a line per message, or one object with --no-stream");
  flags->generate.generation.AddTo(generate);

  CLI::App* tokenize =
      AddCommand(app, "tokenize", "Show the tokens of a text or a chat message", flags, chosen,
                 [flags](Client* c) { return RunTokenize(flags->tokenize, c); });
  text = tokenize->add_option("text", flags->tokenize.text, "The text; default: standard input");
  tokenize->add_option("--chat", flags->tokenize.chat, "A user's message, in the chat template")
      ->excludes(text);
  tokenize->add_flag("--special", flags->tokenize.special,
                     "Text that looks like special tokens becomes them");
  tokenize->add_flag("--json", flags->tokenize.json, "Print JSON");

  CLI::App* detokenize =
      AddCommand(app, "detokenize", "Show the text of token ids", flags, chosen,
                 [flags](Client* c) { return RunDetokenize(flags->token_ids, c); });
  detokenize->add_option("ids", flags->token_ids, "Token ids")->required();
}

void AddServerCommands(CLI::App* app, Flags* flags, Command* chosen) {
  CLI::App* info = AddCommand(app, "info", "Describe server, model and load", flags, chosen,
                              [flags](Client* c) { return RunInfo(flags->info_json, c); });
  info->add_flag("--json", flags->info_json, "Print JSON");

  CLI::App* health = AddCommand(
      app, "health", "Ask whether the server takes requests (exit code 0: yes)", flags, chosen,
      [flags](Client* c) { return RunHealth(flags->health_live ? "" : flags->health_service, c); });
  health->add_option("--service", flags->health_service, "Which service")->capture_default_str();
  health->add_flag("--live", flags->health_live, "Only ask whether the server lives");

  CLI::App* abort = AddCommand(app, "abort", "End running requests", flags, chosen,
                               [flags](Client* c) { return RunAbort(flags->request_ids, c); });
  abort->add_option("request-ids", flags->request_ids, "Their ids")->required();
}

// Output that cannot be written (a full disk) is a failure; fmt reports it by throwing. A reader
// that went away ends the program by SIGPIPE, as usual.
ExitCode RunAndFlush(const Command& command, Client* client) {
  try {
    const ExitCode code = command(client);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    fmt::print(stderr, "tokenbutler: cannot write to standard output\n");
  } catch (const std::system_error& error) {
    fmt::print(stderr, "tokenbutler: cannot write to standard output: {}\n", error.what());
  }
  return kExitFailed;
}

// A socket would take the number of a standard stream that is closed, and get what is meant for
// that. Something stands in for it: reading finds nothing, writing results fails.
void FillClosedStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) == -1) open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
  }
}

int Main(int argc, char** argv) {
  FillClosedStreams();
  Flags flags;
  Command command;
  CLI::App app("Client of a TokenButler Server.", "tokenbutler");
  app.set_version_flag("--version", std::string("tokenbutler ") + kVersion,
                       "Print the version and exit");
  app.require_subcommand(1);
  app.footer(kFooter);
  AddTextCommands(&app, &flags, &command);
  AddServerCommands(&app, &flags, &command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    const int code = app.exit(success);  // --help, --version
    return std::cout.flush() ? code : kExitFailed;
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return kExitUsage;
  }
  // Text that is not UTF-8: the server's answer says it better.
  google::protobuf::SetLogHandler(nullptr);
  Interrupt interrupt;
  Client client(
      flags.server,
      flags.timeout_seconds > 0 ? absl::Seconds(flags.timeout_seconds) : absl::InfiniteDuration(),
      &interrupt);
  const ExitCode code = RunAndFlush(command, &client);
  // The interrupt's thread waits for signals for ever, so nothing is torn down.
  std::_Exit(code);
}

}  // namespace
}  // namespace tokenbutler

int main(int argc, char** argv) { return tokenbutler::Main(argc, argv); }
