#include <algorithm>

#include "engine/chat_template/jinja_filters.h"
#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_run_guards.h"

namespace tokenbutler {

JinjaRun::FlowResult JinjaRun::RunBody(const Nodes& body) {
  for (const JinjaNode* node : body) {
    FlowResult flow = RunStatement(*node);
    if (!flow.ok() && error_line_ == 0) error_line_ = node->line;
    if (!flow.ok() || *flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

JinjaRun::FlowResult JinjaRun::RunStatement(const JinjaNode& node) {
  using Kind = JinjaNode::Kind;
  const DepthGuard guard(this);
  RETURN_IF_ERROR(guard.status());
  RETURN_IF_ERROR(Charge(1));
  absl::Status status;
  switch (node.kind) {
    case Kind::kText:
      status = Print(*node.constant.as_text());
      break;
    case Kind::kPrint:
      status = RunPrint(node);
      break;
    case Kind::kFor:
      status = RunFor(node);
      break;
    case Kind::kIf:
      return RunIf(node);
    case Kind::kSet: {
      ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*node.b));
      status = Assign(*node.a, value);
      break;
    }
    case Kind::kSetBlock:
      status = RunSetBlock(node);
      break;
    case Kind::kMacro:
      CaptureScopes();
      scope_->Set(node.name, MakeMacro(node));
      break;
    case Kind::kCallBlock:
      status = RunCallBlock(node);
      break;
    case Kind::kFilterBlock:
      status = RunFilterBlock(node);
      break;
    case Kind::kWith:
      return RunWith(node);
    case Kind::kGeneration:
      status = RunGeneration(node);
      break;
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
    default:
      return InternalError("an expression where a statement is expected");
  }
  RETURN_IF_ERROR(status);
  return Flow::kNext;
}

absl::Status JinjaRun::Print(const JinjaText& text) {
  RETURN_IF_ERROR(Charge(static_cast<int64_t>(text.size() / 16)));
  if (out_->size() + text.size() > options_->max_output_bytes) {
    return ResourceExhaustedError("the rendered text has more than {} bytes",
                                  options_->max_output_bytes);
  }
  out_->Append(text);
  return absl::OkStatus();
}

absl::Status JinjaRun::RunPrint(const JinjaNode& node) {
  ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*node.a));
  return Print(JinjaStr(value));
}

JinjaRun::FlowResult JinjaRun::RunIf(const JinjaNode& node) {
  for (const JinjaNode::Branch& branch : node.branches) {
    ASSIGN_OR_RETURN(const JinjaValue test, Evaluate(*branch.test));
    if (test.Truthy()) return RunBody(branch.body);
  }
  return RunBody(node.other);
}

absl::Status JinjaRun::Assign(const JinjaNode& target, const JinjaValue& value) {
  if (target.kind == JinjaNode::Kind::kName) {
    scope_->Set(target.name, value);
    return absl::OkStatus();
  }
  if (target.kind == JinjaNode::Kind::kAttribute) {
    ASSIGN_OR_RETURN(const JinjaValue object, Evaluate(*target.a));
    if (object.as_namespace() == nullptr) {
      return InvalidArgumentError("cannot assign attribute on non-namespace object");
    }
    object.as_namespace()->Set(target.name, value);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<JinjaValue> items, Items(value));
  if (items.size() != target.items.size()) {
    return InvalidArgumentError("cannot unpack {} values into {} names", items.size(),
                                target.items.size());
  }
  for (size_t i = 0; i < items.size(); ++i) {
    RETURN_IF_ERROR(Assign(*target.items[i], items[i]));
  }
  return absl::OkStatus();
}

absl::Status JinjaRun::RunFor(const JinjaNode& node) {
  ASSIGN_OR_RETURN(const JinjaValue iterable, Evaluate(*node.b));
  if (node.recursive) CaptureScopes();
  return RunLoop(node, iterable, /*depth0=*/0);
}

absl::StatusOr<std::vector<JinjaValue>> JinjaRun::LoopItems(const JinjaNode& node,
                                                            const JinjaValue& iterable) {
  ASSIGN_OR_RETURN(std::vector<JinjaValue> items, Items(iterable));
  if (node.c == nullptr) return items;
  std::vector<JinjaValue> kept;
  for (JinjaValue& item : items) {
    const ScopeGuard scope(this);
    RETURN_IF_ERROR(Assign(*node.a, item));
    ASSIGN_OR_RETURN(const JinjaValue test, Evaluate(*node.c));
    if (test.Truthy()) kept.push_back(std::move(item));
  }
  return kept;
}

absl::Status JinjaRun::RunLoop(const JinjaNode& node, const JinjaValue& iterable, int64_t depth0) {
  auto loop = std::make_shared<JinjaLoop>();
  last_changed_.erase(loop.get());
  ASSIGN_OR_RETURN(loop->items, LoopItems(node, iterable));
  ASSIGN_OR_RETURN(loop->nesting, JinjaDepthOf(loop->items));
  loop->depth0 = depth0;
  JinjaScope* outer = scope_;
  if (node.recursive) {
    loop->recurse = [&node, outer, depth0](JinjaRun& run, const JinjaValue& inner) -> JinjaResult {
      Capture capture(&run);
      const ScopeGuard scope(&run, outer);
      RETURN_IF_ERROR(run.RunLoop(node, inner, depth0 + 1));
      return JinjaValue(capture.Take());
    };
  }
  for (size_t i = 0; i < loop->items.size(); ++i) {
    RETURN_IF_ERROR(Charge(1));
    loop->index0 = static_cast<int64_t>(i);
    const ScopeGuard scope(this);
    scope_->Set("loop", JinjaValue(loop));
    const JinjaValue item = loop->items[i];
    RETURN_IF_ERROR(Assign(*node.a, item));
    ASSIGN_OR_RETURN(const Flow flow, RunBody(node.items));
    if (flow == Flow::kBreak) break;
  }
  if (!loop->items.empty()) return absl::OkStatus();
  const ScopeGuard scope(this);
  return RunBody(node.other).status();
}

JinjaResult JinjaRun::RunCaptured(const Nodes& body) {
  Capture capture(this);
  const ScopeGuard scope(this);
  RETURN_IF_ERROR(RunBody(body).status());
  return JinjaValue(capture.Take());
}

absl::Status JinjaRun::RunSetBlock(const JinjaNode& node) {
  ASSIGN_OR_RETURN(JinjaValue value, RunCaptured(node.items));
  if (node.b != nullptr) {
    const JinjaText text = *value.as_text();
    const JinjaText* outer = std::exchange(block_text_, &text);
    JinjaResult filtered = Evaluate(*node.b);
    block_text_ = outer;
    RETURN_IF_ERROR(filtered.status());
    value = *std::move(filtered);
  }
  return Assign(*node.a, value);
}

absl::Status JinjaRun::RunFilterBlock(const JinjaNode& node) {
  ASSIGN_OR_RETURN(const JinjaValue value, RunCaptured(node.items));
  const JinjaText* outer = std::exchange(block_text_, value.as_text());
  const JinjaResult filtered = Evaluate(*node.a);
  block_text_ = outer;
  RETURN_IF_ERROR(filtered.status());
  return Print(JinjaStr(*filtered));
}

JinjaRun::FlowResult JinjaRun::RunWith(const JinjaNode& node) {
  // Values see the scope outside, not each other.
  std::vector<JinjaValue> values;
  for (const JinjaNode::Parameter& parameter : node.parameters) {
    ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*parameter.value));
    values.push_back(std::move(value));
  }
  const ScopeGuard scope(this);
  for (size_t i = 0; i < values.size(); ++i) {
    RETURN_IF_ERROR(Assign(*node.parameters[i].target, values[i]));
  }
  return RunBody(node.items);
}

absl::Status JinjaRun::RunGeneration(const JinjaNode& node) {
  const ScopeGuard scope(this);
  return RunBody(node.items).status();
}

absl::Status JinjaRun::RunCallBlock(const JinjaNode& node) {
  CaptureScopes();
  const JinjaValue caller = MakeMacro(node);
  ASSIGN_OR_RETURN(const JinjaValue result, EvaluateCall(*node.a, &caller));
  return Print(JinjaStr(result));
}

JinjaValue JinjaRun::MakeMacro(const JinjaNode& node) {
  auto macro = std::make_shared<JinjaFunction>();
  // The body of a call block is a macro without a name.
  const bool named = node.kind == JinjaNode::Kind::kMacro;
  macro->repr = named ? fmt::format("<Macro '{}'>", node.name) : "<Macro anonymous>";
  std::vector<JinjaValue> parameters;
  parameters.reserve(node.parameters.size());
  for (const JinjaNode::Parameter& parameter : node.parameters) {
    parameters.push_back(JinjaValue::Text(parameter.target->name));
  }
  macro->attributes = {{"name", named ? JinjaValue::Text(node.name) : JinjaValue()},
                       {"arguments", JinjaValue::Tuple(std::move(parameters))},
                       {"catch_kwargs", JinjaValue(node.uses_kwargs)},
                       {"catch_varargs", JinjaValue(node.uses_varargs)},
                       {"caller", JinjaValue(node.uses_caller)}};
  macro->call = [&node, outer = scope_](JinjaRun& run, const JinjaArgs& args) {
    return run.CallMacro(node, outer, args);
  };
  return JinjaValue(JinjaValue::FunctionPtr(std::move(macro)));
}

JinjaResult JinjaRun::CallMacro(const JinjaNode& node, JinjaScope* outer, const JinjaArgs& args) {
  Capture capture(this);
  const ScopeGuard scope(this, outer);
  RETURN_IF_ERROR(BindMacro(node, args));
  RETURN_IF_ERROR(RunBody(node.items).status());
  return JinjaValue(capture.Take());
}

absl::Status JinjaRun::BindMacro(const JinjaNode& node, const JinjaArgs& args) {
  const size_t num_parameters = node.parameters.size();
  std::vector<const JinjaValue*> values(num_parameters, nullptr);
  for (size_t i = 0; i < std::min(num_parameters, args.positional.size()); ++i) {
    values[i] = &args.positional[i];
  }
  JinjaValue caller = JinjaValue::Undefined("No caller defined");
  JinjaDict rest;
  for (const std::pair<std::string, JinjaValue>& argument : args.named) {
    const std::string& name = argument.first;
    const JinjaValue& value = argument.second;
    const auto parameter =
        std::find_if(node.parameters.begin(), node.parameters.end(),
                     [&](const JinjaNode::Parameter& p) { return p.target->name == name; });
    const size_t index = parameter - node.parameters.begin();
    if (index < num_parameters && values[index] == nullptr) {
      values[index] = &value;
    } else if (name == "caller" && node.uses_caller && index == num_parameters) {
      caller = value;
    } else if (node.uses_kwargs) {
      RETURN_IF_ERROR(rest.Set(JinjaValue::Text(name), value));
    } else {
      return InvalidArgumentError("macro '{}' takes no keyword argument '{}'", node.name, name);
    }
  }
  if (args.positional.size() > num_parameters && !node.uses_varargs) {
    return InvalidArgumentError("macro '{}' takes not more than {} argument(s)", node.name,
                                num_parameters);
  }
  if (node.uses_caller) scope_->Set("caller", caller);
  if (node.uses_kwargs) {
    ASSIGN_OR_RETURN(JinjaValue kwargs, MakeJinjaDict(std::move(rest)));
    scope_->Set("kwargs", std::move(kwargs));
  }
  if (node.uses_varargs) {
    const size_t first = std::min(num_parameters, args.positional.size());
    scope_->Set("varargs",
                JinjaValue::Tuple({args.positional.begin() + first, args.positional.end()}));
  }
  // In order, so that a default may use the parameters before it.
  for (size_t i = 0; i < num_parameters; ++i) {
    const JinjaNode::Parameter& parameter = node.parameters[i];
    JinjaValue value = JinjaValue::Undefined(
        fmt::format("parameter '{}' was not provided", parameter.target->name));
    if (values[i] != nullptr) {
      value = *values[i];
    } else if (parameter.value != nullptr) {
      ASSIGN_OR_RETURN(value, Evaluate(*parameter.value));
    }
    scope_->Set(parameter.target->name, std::move(value));
  }
  return absl::OkStatus();
}

}  // namespace tokenbutler
