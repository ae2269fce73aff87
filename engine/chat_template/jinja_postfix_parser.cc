#include "engine/chat_template/jinja_filters.h"
#include "engine/chat_template/jinja_parser.h"
#include "engine/chat_template/jinja_tests.h"

namespace tokenbutler {

JinjaParser::NodeResult JinjaParser::ParsePostfix(JinjaNode* node) {
  while (true) {
    if (AtOperator(".") || AtOperator("[")) {
      ASSIGN_OR_RETURN(node, ParseSubscript(node));
    } else if (AtOperator("(")) {
      JinjaNode* call = New(Kind::kCall, current().line);
      call->a = node;
      RETURN_IF_ERROR(ParseCallArgs(&call->args));
      ASSIGN_OR_RETURN(node, Finish(call));
    } else {
      return node;
    }
  }
}

JinjaParser::NodeResult JinjaParser::ParseFilters(JinjaNode* node) {
  while (true) {
    if (AtOperator("|")) {
      ASSIGN_OR_RETURN(node, ParseFilterChain(node, /*inline_first=*/false));
    } else if (AtName("is")) {
      ASSIGN_OR_RETURN(node, ParseTest(node));
    } else if (AtOperator("(")) {
      JinjaNode* call = New(Kind::kCall, current().line);
      call->a = node;
      RETURN_IF_ERROR(ParseCallArgs(&call->args));
      ASSIGN_OR_RETURN(node, Finish(call));
    } else {
      return node;
    }
  }
}

JinjaParser::NodeResult JinjaParser::ParseFilterChain(JinjaNode* node, bool inline_first) {
  while (AtOperator("|") || inline_first) {
    if (!inline_first) Advance();
    inline_first = false;
    JinjaNode* filter = New(Kind::kFilter, current().line);
    ASSIGN_OR_RETURN(filter->name, TakeName());
    while (SkipOperator(".")) {
      ASSIGN_OR_RETURN(const std::string part, TakeName());
      filter->name += "." + part;
    }
    filter->a = node;
    if (AtOperator("(")) RETURN_IF_ERROR(ParseCallArgs(&filter->args));
    CheckKnown(*filter);
    ASSIGN_OR_RETURN(node, Finish(filter));
  }
  return node;
}

JinjaParser::NodeResult JinjaParser::ParseTest(JinjaNode* node) {
  JinjaNode* test = New(Kind::kTest, current().line);
  Advance();
  const bool negated = SkipName("not");
  ASSIGN_OR_RETURN(test->name, TakeName());
  while (SkipOperator(".")) {
    ASSIGN_OR_RETURN(const std::string part, TakeName());
    test->name += "." + part;
  }
  test->a = node;
  const TokenKind kind = current().kind;
  if (AtOperator("(")) {
    RETURN_IF_ERROR(ParseCallArgs(&test->args));
  } else if (kind == TokenKind::kName || kind == TokenKind::kString ||
             kind == TokenKind::kInteger || kind == TokenKind::kFloat || AtOperator("[") ||
             AtOperator("{")) {
    if (AtName("is")) return Error("tests cannot be chained with 'is'");
    if (!AtAnyName({"else", "or", "and"})) {
      ASSIGN_OR_RETURN(JinjaNode * argument, ParsePrimary());
      ASSIGN_OR_RETURN(argument, ParsePostfix(argument));
      test->args.positional.push_back(argument);
    }
  }
  CheckKnown(*test);
  ASSIGN_OR_RETURN(test, Finish(test));
  if (!negated) return test;
  JinjaNode* negation = New(Kind::kNot, test->line);
  negation->a = test;
  return Finish(negation);
}

void JinjaParser::CheckKnown(const JinjaNode& node) {
  if (conditional_depth_ > 0) return;
  const bool is_filter = node.kind == Kind::kFilter;
  if (is_filter ? IsJinjaFilter(node.name) : IsJinjaTest(node.name)) return;
  unknown_.push_back(UnimplementedError("chat template line {}: no {} named '{}'", node.line,
                                        is_filter ? "filter" : "test", node.name));
}

JinjaParser::NodeResult JinjaParser::ParseSubscript(JinjaNode* node) {
  const int line = current().line;
  if (SkipOperator(".")) {
    if (current().kind == TokenKind::kName) {
      JinjaNode* attribute = New(Kind::kAttribute, line);
      attribute->a = node;
      ASSIGN_OR_RETURN(attribute->name, TakeName());
      return Finish(attribute);
    }
    if (current().kind != TokenKind::kInteger) return Unexpected("a name or a number");
    JinjaNode* item = New(Kind::kItem, line);
    item->a = node;
    ASSIGN_OR_RETURN(item->b, ParseNumber());
    return Finish(item);
  }
  const DepthGuard guard(this);
  RETURN_IF_ERROR(guard.status());
  Advance();
  Nodes indices;
  while (!AtOperator("]")) {
    if (!indices.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    ASSIGN_OR_RETURN(const JinjaNode* index, ParseIndex());
    indices.push_back(index);
  }
  if (indices.empty()) return Unexpected("an index");
  RETURN_IF_ERROR(ExpectOperator("]"));
  JinjaNode* item = New(Kind::kItem, line);
  item->a = node;
  item->b = indices[0];
  if (indices.size() > 1) {
    JinjaNode* tuple = New(Kind::kTuple, line);
    tuple->items = std::move(indices);
    ASSIGN_OR_RETURN(item->b, Finish(tuple));
  }
  return Finish(item);
}

JinjaParser::NodeResult JinjaParser::ParseIndex() {
  const auto at_end = [&] { return AtOperator("]") || AtOperator(",") || AtOperator(":"); };
  JinjaNode* slice = New(Kind::kSlice, current().line);
  if (!AtOperator(":")) {
    ASSIGN_OR_RETURN(JinjaNode * index, ParseExpression());
    if (!AtOperator(":")) return index;
    slice->a = index;
  }
  RETURN_IF_ERROR(ExpectOperator(":"));
  if (!at_end()) {
    ASSIGN_OR_RETURN(slice->b, ParseExpression());
  }
  if (SkipOperator(":") && !at_end()) {
    ASSIGN_OR_RETURN(slice->c, ParseExpression());
  }
  return Finish(slice);
}

absl::Status JinjaParser::ParseCallArgs(JinjaCallArgs* args) {
  const DepthGuard guard(this);
  RETURN_IF_ERROR(guard.status());
  RETURN_IF_ERROR(ExpectOperator("("));
  bool first = true;
  while (!AtOperator(")")) {
    if (!first) {
      RETURN_IF_ERROR(ExpectOperator(","));
      if (AtOperator(")")) break;
    }
    first = false;
    const JinjaToken& following = next();
    const bool is_named = current().kind == TokenKind::kName &&
                          following.kind == TokenKind::kOperator && following.text == "=";
    if (AtOperator("*") && args->star == nullptr && args->double_star == nullptr) {
      Advance();
      ASSIGN_OR_RETURN(args->star, ParseExpression());
    } else if (AtOperator("**") && args->double_star == nullptr) {
      Advance();
      ASSIGN_OR_RETURN(args->double_star, ParseExpression());
    } else if (is_named && args->double_star == nullptr) {
      std::string name = current().text;
      Advance();
      Advance();
      for (const auto& [other, unused] : args->named) {
        if (other == name) return Error(fmt::format("keyword argument repeated: {}", name));
      }
      ASSIGN_OR_RETURN(const JinjaNode* value, ParseExpression());
      args->named.emplace_back(std::move(name), value);
    } else if (!is_named && args->named.empty() && args->star == nullptr &&
               args->double_star == nullptr) {
      ASSIGN_OR_RETURN(const JinjaNode* value, ParseExpression());
      args->positional.push_back(value);
    } else {
      return Error("invalid order of arguments in a call");
    }
  }
  return ExpectOperator(")");
}

}  // namespace tokenbutler
