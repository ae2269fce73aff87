#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/chat_template/chat_template.h"
#include "engine/chat_template/jinja_ast.h"
#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

// Variables of one lexical level: the template, a loop's pass, a macro's call ...
struct JinjaScope {
  JinjaScope* parent = nullptr;
  std::vector<std::pair<std::string_view, JinjaValue>> variables;
  bool captured = false;  // a macro may come back to it

  const JinjaValue* Find(std::string_view name) const;  // here or outside; null when nowhere
  void Set(std::string_view name, JinjaValue value);    // here
};

// One rendering: runs a parsed template over its variables. Used once, by one thread.
class JinjaRun {
 public:
  // Both must outlive the run.
  JinjaRun(const JinjaTree* tree, const TemplateOptions* options);
  ~JinjaRun();
  JinjaRun(const JinjaRun&) = delete;
  JinjaRun& operator=(const JinjaRun&) = delete;

  // Gives the template a variable. `name` must outlive the run.
  void Define(std::string_view name, JinjaValue value) { root_->Set(name, std::move(value)); }

  // Errors as ChatTemplate::Render.
  absl::StatusOr<RenderedPrompt> Render();

  // For functions, filters and tests:

  // Counts work against TemplateOptions::max_steps; RESOURCE_EXHAUSTED beyond.
  absl::Status Charge(int64_t steps);
  // Counts `bytes` of text about to be made: work, and max_output_bytes for a single string.
  absl::Status ChargeText(size_t bytes);
  // What iterating gives (JinjaItems), charged.
  absl::StatusOr<std::vector<JinjaValue>> Items(const JinjaValue& value);

  JinjaResult Call(const JinjaValue& function, const JinjaArgs& args);
  JinjaResult ApplyFilter(std::string_view name, const JinjaValue& value, const JinjaArgs& args);
  absl::StatusOr<bool> ApplyTest(std::string_view name, const JinjaValue& value,
                                 const JinjaArgs& args);
  // The error of raise_exception: reported with its message alone.
  absl::Status Raise(const std::string& message);

  // namespace(...): the run empties it at its end, so that namespaces may hold each other.
  JinjaValue NewNamespace(std::vector<std::pair<std::string, JinjaValue>> attributes);
  // What loop.changed() was last asked about.
  std::optional<std::vector<JinjaValue>>* LastChanged(const JinjaLoop* loop) {
    return &last_changed_[loop];
  }

  const TemplateOptions& options() const { return *options_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using FlowResult = absl::StatusOr<Flow>;
  using Nodes = std::vector<const JinjaNode*>;

  // Takes a level of recursion and a scope, gives them back at its end.
  class DepthGuard;
  class ScopeGuard;
  // Collects what is printed while it lives instead of sending it to the output.
  class Capture;

  JinjaScope* NewScope(JinjaScope* parent);
  void ReleaseScope(JinjaScope* scope);
  void CaptureScopes();
  absl::Status Annotated(const absl::Status& status) const;

  // Statements (jinja_statements.cc).
  FlowResult RunBody(const Nodes& body);
  FlowResult RunStatement(const JinjaNode& node);
  absl::Status RunPrint(const JinjaNode& node);
  FlowResult RunIf(const JinjaNode& node);
  absl::Status RunFor(const JinjaNode& node);
  absl::Status RunLoop(const JinjaNode& node, const JinjaValue& iterable, int64_t depth0);
  absl::StatusOr<std::vector<JinjaValue>> LoopItems(const JinjaNode& node,
                                                    const JinjaValue& iterable);
  absl::Status RunSetBlock(const JinjaNode& node);
  absl::Status RunCallBlock(const JinjaNode& node);
  absl::Status RunFilterBlock(const JinjaNode& node);
  FlowResult RunWith(const JinjaNode& node);
  absl::Status RunGeneration(const JinjaNode& node);
  absl::Status Assign(const JinjaNode& target, const JinjaValue& value);
  JinjaValue MakeMacro(const JinjaNode& node);
  JinjaResult CallMacro(const JinjaNode& node, JinjaScope* outer, const JinjaArgs& args);
  absl::Status BindMacro(const JinjaNode& node, const JinjaArgs& args);
  JinjaResult RunCaptured(const Nodes& body);
  absl::Status Print(const JinjaText& text);

  // Expressions (jinja_expressions.cc).
  JinjaResult Evaluate(const JinjaNode& node);
  JinjaResult EvaluateKind(const JinjaNode& node);
  JinjaResult EvaluateName(const JinjaNode& node);
  JinjaResult EvaluateCollection(const JinjaNode& node);
  JinjaResult EvaluateDict(const JinjaNode& node);
  JinjaResult EvaluateItem(const JinjaNode& node);
  JinjaResult EvaluateCall(const JinjaNode& node, const JinjaValue* caller);
  JinjaResult EvaluateFilter(const JinjaNode& node);
  JinjaResult EvaluateTest(const JinjaNode& node);
  JinjaResult EvaluateUnary(const JinjaNode& node);
  JinjaResult EvaluateBinary(const JinjaNode& node);
  JinjaResult EvaluateLogic(const JinjaNode& node);
  JinjaResult EvaluateCompare(const JinjaNode& node);
  JinjaResult EvaluateConcat(const JinjaNode& node);
  JinjaResult EvaluateConditional(const JinjaNode& node);
  absl::StatusOr<JinjaArgs> EvaluateArgs(const JinjaCallArgs& args);

  const JinjaTree* tree_;
  const TemplateOptions* options_;
  std::vector<std::unique_ptr<JinjaScope>> scopes_;  // all ever made
  std::vector<JinjaScope*> free_scopes_;
  JinjaScope* root_;
  JinjaScope* scope_;  // the current one
  JinjaTextBuilder* out_ = nullptr;
  const JinjaText* block_text_ = nullptr;  // what a block's filters begin with
  std::vector<std::shared_ptr<JinjaNamespace>> namespaces_;
  std::unordered_map<const JinjaLoop*, std::optional<std::vector<JinjaValue>>> last_changed_;
  int64_t steps_ = 0;
  int depth_ = 0;
  int error_line_ = 0;   // of the innermost expression that failed
  bool raised_ = false;  // by raise_exception
};

}  // namespace tokenbutler
