#include <algorithm>

#include "engine/chat_template/jinja_filters.h"
#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_operators.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_run_guards.h"

namespace tokenbutler {

JinjaResult JinjaRun::Evaluate(const JinjaNode& node) {
  const DepthGuard guard(this);
  absl::Status status = guard.status();
  if (status.ok()) status = Charge(1);
  if (status.ok()) {
    JinjaResult result = EvaluateKind(node);
    if (result.ok()) return result;
    status = result.status();
  }
  if (error_line_ == 0) error_line_ = node.line;
  return status;
}

JinjaResult JinjaRun::EvaluateKind(const JinjaNode& node) {
  using Kind = JinjaNode::Kind;
  switch (node.kind) {
    case Kind::kConstant:
      return node.constant;
    case Kind::kName:
      return EvaluateName(node);
    case Kind::kList:
    case Kind::kTuple:
      return EvaluateCollection(node);
    case Kind::kDict:
      return EvaluateDict(node);
    case Kind::kAttribute: {
      ASSIGN_OR_RETURN(const JinjaValue object, Evaluate(*node.a));
      return JinjaAttribute(object, node.name);
    }
    case Kind::kItem:
      return EvaluateItem(node);
    case Kind::kCall:
      return EvaluateCall(node, /*caller=*/nullptr);
    case Kind::kFilter:
      return EvaluateFilter(node);
    case Kind::kTest:
      return EvaluateTest(node);
    case Kind::kNot:
    case Kind::kNegate:
    case Kind::kPlus:
      return EvaluateUnary(node);
    case Kind::kBinary:
      return EvaluateBinary(node);
    case Kind::kAnd:
    case Kind::kOr:
      return EvaluateLogic(node);
    case Kind::kCompare:
      return EvaluateCompare(node);
    case Kind::kConcat:
      return EvaluateConcat(node);
    case Kind::kConditional:
      return EvaluateConditional(node);
    default:
      return InternalError("a statement where an expression is expected");
  }
}

JinjaResult JinjaRun::EvaluateName(const JinjaNode& node) {
  if (const JinjaValue* value = scope_->Find(node.name)) return *value;
  return JinjaValue::Undefined(fmt::format("'{}' is undefined", node.name));
}

JinjaResult JinjaRun::EvaluateCollection(const JinjaNode& node) {
  std::vector<JinjaValue> items;
  items.reserve(node.items.size());
  for (const JinjaNode* item : node.items) {
    ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*item));
    items.push_back(std::move(value));
  }
  return MakeJinjaList(std::move(items), node.kind == JinjaNode::Kind::kTuple
                                             ? JinjaList::Flavor::kTuple
                                             : JinjaList::Flavor::kList);
}

JinjaResult JinjaRun::EvaluateDict(const JinjaNode& node) {
  JinjaDict dict;
  for (size_t i = 0; i + 1 < node.items.size(); i += 2) {
    ASSIGN_OR_RETURN(JinjaValue key, Evaluate(*node.items[i]));
    ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*node.items[i + 1]));
    RETURN_IF_ERROR(dict.Set(std::move(key), std::move(value)));
  }
  return MakeJinjaDict(std::move(dict));
}

JinjaResult JinjaRun::EvaluateItem(const JinjaNode& node) {
  ASSIGN_OR_RETURN(const JinjaValue object, Evaluate(*node.a));
  if (node.b->kind != JinjaNode::Kind::kSlice) {
    ASSIGN_OR_RETURN(const JinjaValue key, Evaluate(*node.b));
    return JinjaItem(object, key);
  }
  JinjaValue bounds[3];  // None where left out
  const JinjaNode* parts[3] = {node.b->a, node.b->b, node.b->c};
  for (int i = 0; i < 3; ++i) {
    if (parts[i] == nullptr) continue;
    ASSIGN_OR_RETURN(bounds[i], Evaluate(*parts[i]));
  }
  return JinjaSlice(*this, object, bounds[0], bounds[1], bounds[2]);
}

absl::StatusOr<JinjaArgs> JinjaRun::EvaluateArgs(const JinjaCallArgs& nodes) {
  JinjaArgs args;
  for (const JinjaNode* node : nodes.positional) {
    ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*node));
    args.positional.push_back(std::move(value));
  }
  for (const auto& [name, node] : nodes.named) {
    ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*node));
    args.named.emplace_back(name, std::move(value));
  }
  if (nodes.star != nullptr) {
    ASSIGN_OR_RETURN(const JinjaValue star, Evaluate(*nodes.star));
    ASSIGN_OR_RETURN(std::vector<JinjaValue> items, Items(star));
    for (JinjaValue& item : items) args.positional.push_back(std::move(item));
  }
  if (nodes.double_star != nullptr) {
    ASSIGN_OR_RETURN(const JinjaValue more, Evaluate(*nodes.double_star));
    if (more.as_dict() == nullptr) {
      return InvalidArgumentError("argument after ** must be a mapping, not {}", more.TypeName());
    }
    RETURN_IF_ERROR(Charge(static_cast<int64_t>(more.as_dict()->entries.size())));
    for (const auto& [key, value] : more.as_dict()->entries) {
      if (!key.is_text()) return InvalidArgumentError("keywords must be strings");
      const std::string name(key.as_text()->view());
      if (std::any_of(nodes.named.begin(), nodes.named.end(),
                      [&](const auto& named) { return named.first == name; })) {
        return InvalidArgumentError("got multiple values for keyword argument '{}'", name);
      }
      args.named.emplace_back(name, value);
    }
  }
  return args;
}

JinjaResult JinjaRun::EvaluateCall(const JinjaNode& node, const JinjaValue* caller) {
  ASSIGN_OR_RETURN(const JinjaValue function, Evaluate(*node.a));
  ASSIGN_OR_RETURN(JinjaArgs args, EvaluateArgs(node.args));
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  return Call(function, args);
}

JinjaResult JinjaRun::EvaluateFilter(const JinjaNode& node) {
  JinjaValue value;
  if (node.a != nullptr) {
    ASSIGN_OR_RETURN(value, Evaluate(*node.a));
  } else {
    value = JinjaValue(*block_text_);
  }
  ASSIGN_OR_RETURN(const JinjaArgs args, EvaluateArgs(node.args));
  return ApplyFilter(node.name, value, args);
}

JinjaResult JinjaRun::EvaluateTest(const JinjaNode& node) {
  ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*node.a));
  ASSIGN_OR_RETURN(const JinjaArgs args, EvaluateArgs(node.args));
  ASSIGN_OR_RETURN(const bool result, ApplyTest(node.name, value, args));
  return JinjaValue(result);
}

JinjaResult JinjaRun::EvaluateUnary(const JinjaNode& node) {
  ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*node.a));
  if (node.kind == JinjaNode::Kind::kNot) return JinjaValue(!value.Truthy());
  return JinjaSign(value, node.kind == JinjaNode::Kind::kNegate);
}

JinjaResult JinjaRun::EvaluateBinary(const JinjaNode& node) {
  ASSIGN_OR_RETURN(const JinjaValue left, Evaluate(*node.a));
  ASSIGN_OR_RETURN(const JinjaValue right, Evaluate(*node.b));
  return JinjaArithmetic(*this, node.name, left, right);
}

JinjaResult JinjaRun::EvaluateLogic(const JinjaNode& node) {
  ASSIGN_OR_RETURN(JinjaValue left, Evaluate(*node.a));
  const bool is_or = node.kind == JinjaNode::Kind::kOr;
  if (left.Truthy() == is_or) return left;
  return Evaluate(*node.b);
}

JinjaResult JinjaRun::EvaluateCompare(const JinjaNode& node) {
  ASSIGN_OR_RETURN(JinjaValue left, Evaluate(*node.a));
  for (const auto& [op, operand] : node.named) {
    ASSIGN_OR_RETURN(JinjaValue right, Evaluate(*operand));
    ASSIGN_OR_RETURN(const bool holds, JinjaCompare(*this, op, left, right));
    if (!holds) return JinjaValue(false);
    left = std::move(right);
  }
  return JinjaValue(true);
}

JinjaResult JinjaRun::EvaluateConcat(const JinjaNode& node) {
  JinjaTextBuilder builder;
  for (const JinjaNode* item : node.items) {
    ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*item));
    const JinjaText text = JinjaStr(value);
    RETURN_IF_ERROR(ChargeText(builder.size() + text.size()));
    builder.Append(text);
  }
  return JinjaValue(builder.Build());
}

JinjaResult JinjaRun::EvaluateConditional(const JinjaNode& node) {
  ASSIGN_OR_RETURN(const JinjaValue test, Evaluate(*node.a));
  if (test.Truthy()) return Evaluate(*node.b);
  if (node.c != nullptr) return Evaluate(*node.c);
  return JinjaValue::Undefined(
      "the inline if-expression evaluated to false and no else section was defined.");
}

}  // namespace tokenbutler
