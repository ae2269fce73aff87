#include "engine/chat_template/jinja_run.h"

#include "engine/chat_template/jinja_filters.h"
#include "engine/chat_template/jinja_globals.h"
#include "engine/chat_template/jinja_run_guards.h"
#include "engine/chat_template/jinja_tests.h"

namespace tokenbutler {
namespace {

// One step pays for this much text.
constexpr size_t kBytesPerStep = 16;

}  // namespace

const JinjaValue* JinjaScope::Find(std::string_view name) const {
  for (const JinjaScope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void JinjaScope::Set(std::string_view name, JinjaValue value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

JinjaRun::JinjaRun(const JinjaTree* tree, const TemplateOptions* options)
    : tree_(tree), options_(options), root_(NewScope(nullptr)), scope_(root_) {
  for (const auto& [name, value] : JinjaGlobals()) root_->Set(name, value);
  // Assignments of the template go to a scope of their own, over its variables.
  scope_ = NewScope(root_);
}

JinjaRun::~JinjaRun() {
  for (const std::shared_ptr<JinjaNamespace>& space : namespaces_) {
    const auto released = std::move(space->attributes);  // may hold the last of other namespaces
  }
}

absl::StatusOr<RenderedPrompt> JinjaRun::Render() {
  JinjaTextBuilder output;
  out_ = &output;
  const FlowResult flow = RunBody(tree_->body);
  if (!flow.ok()) return Annotated(flow.status());
  RenderedPrompt prompt;
  prompt.text = output.TakeBytes();
  prompt.content_spans = output.TakeContent();
  return prompt;
}

absl::Status JinjaRun::Annotated(const absl::Status& status) const {
  if (raised_) return status;
  return Annotate(status, fmt::format("chat template line {}", error_line_));
}

absl::Status JinjaRun::Charge(int64_t steps) {
  steps_ += steps;
  if (steps_ <= options_->max_steps) return absl::OkStatus();
  return ResourceExhaustedError("the template takes more than {} steps", options_->max_steps);
}

absl::Status JinjaRun::ChargeText(size_t bytes) {
  if (bytes > options_->max_output_bytes) {
    return ResourceExhaustedError("the template makes a text of {} bytes, at most {} are possible",
                                  bytes, options_->max_output_bytes);
  }
  return Charge(static_cast<int64_t>(bytes / kBytesPerStep));
}

absl::StatusOr<std::vector<JinjaValue>> JinjaRun::Items(const JinjaValue& value) {
  if (const JinjaText* text = value.as_text()) {
    // Each character becomes a text of its own.
    RETURN_IF_ERROR(Charge(static_cast<int64_t>(text->size())));
  } else if (const JinjaList* list = value.as_list()) {
    RETURN_IF_ERROR(Charge(static_cast<int64_t>(list->items.size())));
  } else if (const JinjaDict* dict = value.as_dict()) {
    RETURN_IF_ERROR(Charge(static_cast<int64_t>(dict->entries.size())));
  }
  return JinjaItems(value);
}

JinjaResult JinjaRun::Call(const JinjaValue& function, const JinjaArgs& args) {
  const DepthGuard guard(this);
  RETURN_IF_ERROR(guard.status());
  if (function.is_undefined()) return JinjaUndefinedError(function);
  if (const JinjaFunction* callee = function.as_function()) return callee->call(*this, args);
  if (const JinjaLoop* loop = function.as_loop()) {
    if (!loop->recurse) {
      return InvalidArgumentError(
          "the loop must have the 'recursive' marker to be called recursively");
    }
    if (args.positional.size() != 1 || !args.named.empty()) {
      return InvalidArgumentError("loop() takes one argument");
    }
    return loop->recurse(*this, args.positional[0]);
  }
  return InvalidArgumentError("'{}' object is not callable", function.TypeName());
}

JinjaResult JinjaRun::ApplyFilter(std::string_view name, const JinjaValue& value,
                                  const JinjaArgs& args) {
  const DepthGuard guard(this);
  RETURN_IF_ERROR(guard.status());
  return RunJinjaFilter(*this, name, value, args);
}

absl::StatusOr<bool> JinjaRun::ApplyTest(std::string_view name, const JinjaValue& value,
                                         const JinjaArgs& args) {
  return RunJinjaTest(*this, name, value, args);
}

absl::Status JinjaRun::Raise(const std::string& message) {
  raised_ = true;
  return absl::InvalidArgumentError(message);
}

JinjaValue JinjaRun::NewNamespace(std::vector<std::pair<std::string, JinjaValue>> attributes) {
  auto space = std::make_shared<JinjaNamespace>();
  space->attributes = std::move(attributes);
  namespaces_.push_back(space);
  return JinjaValue(std::move(space));
}

JinjaScope* JinjaRun::NewScope(JinjaScope* parent) {
  JinjaScope* scope = nullptr;
  if (free_scopes_.empty()) {
    scopes_.push_back(std::make_unique<JinjaScope>());
    scope = scopes_.back().get();
  } else {
    scope = free_scopes_.back();
    free_scopes_.pop_back();
  }
  scope->parent = parent;
  return scope;
}

void JinjaRun::ReleaseScope(JinjaScope* scope) {
  if (scope->captured) return;
  scope->variables.clear();
  free_scopes_.push_back(scope);
}

void JinjaRun::CaptureScopes() {
  for (JinjaScope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) {
    scope->captured = true;
  }
}

}  // namespace tokenbutler
