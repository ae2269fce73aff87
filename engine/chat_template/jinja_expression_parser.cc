#include <algorithm>
#include <charconv>

#include "engine/chat_template/jinja_parser.h"

namespace tokenbutler {

JinjaParser::NodeResult JinjaParser::ParseTuple(TupleOf of, bool parenthesised) {
  const int line = current().line;
  Nodes items;
  JinjaNode* first = nullptr;
  bool is_tuple = false;
  while (true) {
    const bool at_end = AtOperator(")") || current().kind == TokenKind::kPrintEnd ||
                        current().kind == TokenKind::kTagEnd;
    if (at_end) break;
    ASSIGN_OR_RETURN(JinjaNode * item, of == TupleOf::kTargets
                                           ? ParseTargetItem()
                                           : ParseExpression(of == TupleOf::kExpressions));
    if (first == nullptr) first = item;
    items.push_back(item);
    if (!SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && first != nullptr) return first;
  if (items.empty() && !parenthesised) return Unexpected("an expression");
  JinjaNode* tuple = New(Kind::kTuple, line);
  tuple->items = std::move(items);
  return Finish(tuple);
}

JinjaParser::NodeResult JinjaParser::ParseExpression(bool with_conditional) {
  const DepthGuard guard(this);
  RETURN_IF_ERROR(guard.status());
  return with_conditional ? ParseConditional() : ParseOr();
}

JinjaParser::NodeResult JinjaParser::ParseConditional() {
  const int line = current().line;
  // What the branches hold only runs when chosen; which they are is known at the end, so anything
  // that may become one counts.
  const size_t before = unknown_.size();
  ASSIGN_OR_RETURN(JinjaNode * value, ParseOr());
  while (SkipName("if")) {
    unknown_.resize(std::min(before, unknown_.size()));
    JinjaNode* node = New(Kind::kConditional, line);
    node->b = value;
    ++conditional_depth_;
    ASSIGN_OR_RETURN(node->a, ParseOr());
    if (SkipName("else")) {
      const DepthGuard guard(this);
      RETURN_IF_ERROR(guard.status());
      ASSIGN_OR_RETURN(node->c, ParseConditional());
    }
    --conditional_depth_;
    ASSIGN_OR_RETURN(value, Finish(node));
  }
  return value;
}

JinjaParser::NodeResult JinjaParser::ParseBinary(
    NodeResult (JinjaParser::*operand)(), std::initializer_list<std::string_view> operators) {
  ASSIGN_OR_RETURN(JinjaNode * left, (this->*operand)());
  while (true) {
    const auto* op =
        std::find_if(operators.begin(), operators.end(),
                     [&](std::string_view candidate) { return AtOperator(candidate); });
    if (op == operators.end()) return left;
    JinjaNode* node = New(Kind::kBinary, current().line);
    Advance();
    node->name = *op;
    node->a = left;
    ASSIGN_OR_RETURN(node->b, (this->*operand)());
    ASSIGN_OR_RETURN(left, Finish(node));
  }
}

JinjaParser::NodeResult JinjaParser::ParseOr() {
  ASSIGN_OR_RETURN(JinjaNode * left, ParseAnd());
  while (AtName("or")) {
    JinjaNode* node = New(Kind::kOr, current().line);
    Advance();
    node->a = left;
    ASSIGN_OR_RETURN(node->b, ParseAnd());
    ASSIGN_OR_RETURN(left, Finish(node));
  }
  return left;
}

JinjaParser::NodeResult JinjaParser::ParseAnd() {
  ASSIGN_OR_RETURN(JinjaNode * left, ParseNot());
  while (AtName("and")) {
    JinjaNode* node = New(Kind::kAnd, current().line);
    Advance();
    node->a = left;
    ASSIGN_OR_RETURN(node->b, ParseNot());
    ASSIGN_OR_RETURN(left, Finish(node));
  }
  return left;
}

JinjaParser::NodeResult JinjaParser::ParseNot() {
  if (!AtName("not")) return ParseCompare();
  const DepthGuard guard(this);
  RETURN_IF_ERROR(guard.status());
  JinjaNode* node = New(Kind::kNot, current().line);
  Advance();
  ASSIGN_OR_RETURN(node->a, ParseNot());
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseCompare() {
  const int line = current().line;
  ASSIGN_OR_RETURN(JinjaNode * left, ParseSum());
  std::vector<std::pair<std::string, const JinjaNode*>> chain;
  while (true) {
    std::string op;
    for (std::string_view candidate : {"==", "!=", "<", "<=", ">", ">="}) {
      if (AtOperator(candidate)) op = candidate;
    }
    if (AtName("in")) op = "in";
    if (AtName("not") && next().kind == TokenKind::kName && next().text == "in") {
      Advance();
      op = "not in";
    }
    if (op.empty()) break;
    Advance();
    ASSIGN_OR_RETURN(const JinjaNode* right, ParseSum());
    chain.emplace_back(std::move(op), right);
  }
  if (chain.empty()) return left;
  JinjaNode* node = New(Kind::kCompare, line);
  node->a = left;
  node->named = std::move(chain);
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseSum() {
  return ParseBinary(&JinjaParser::ParseConcat, {"+", "-"});
}

JinjaParser::NodeResult JinjaParser::ParseConcat() {
  const int line = current().line;
  ASSIGN_OR_RETURN(JinjaNode * first, ParseProduct());
  if (!AtOperator("~")) return first;
  JinjaNode* node = New(Kind::kConcat, line);
  node->items.push_back(first);
  while (SkipOperator("~")) {
    ASSIGN_OR_RETURN(const JinjaNode* item, ParseProduct());
    node->items.push_back(item);
  }
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseProduct() {
  return ParseBinary(&JinjaParser::ParsePower, {"*", "//", "/", "%"});
}

JinjaParser::NodeResult JinjaParser::ParsePower() {
  ASSIGN_OR_RETURN(JinjaNode * left, ParseUnary());
  while (AtOperator("**")) {
    JinjaNode* node = New(Kind::kBinary, current().line);
    Advance();
    node->name = "**";
    node->a = left;
    ASSIGN_OR_RETURN(node->b, ParseUnary());
    ASSIGN_OR_RETURN(left, Finish(node));
  }
  return left;
}

JinjaParser::NodeResult JinjaParser::ParseUnary(bool with_filters) {
  JinjaNode* node = nullptr;
  if (AtOperator("-") || AtOperator("+")) {
    const DepthGuard guard(this);
    RETURN_IF_ERROR(guard.status());
    JinjaNode* unary = New(AtOperator("-") ? Kind::kNegate : Kind::kPlus, current().line);
    Advance();
    ASSIGN_OR_RETURN(unary->a, ParseUnary(/*with_filters=*/false));
    ASSIGN_OR_RETURN(node, Finish(unary));
  } else {
    ASSIGN_OR_RETURN(node, ParsePrimary());
  }
  ASSIGN_OR_RETURN(node, ParsePostfix(node));
  if (!with_filters) return node;
  return ParseFilters(node);
}

JinjaParser::NodeResult JinjaParser::ParsePrimary() {
  const JinjaToken& token = current();
  JinjaNode* node = New(Kind::kConstant, token.line);
  if (token.kind == TokenKind::kName) {
    const std::string name = token.text;
    Advance();
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      node->constant = JinjaValue(name == "true" || name == "True");
    } else if (name != "none" && name != "None") {
      node->kind = Kind::kName;
      node->name = name;
      for (JinjaNode* macro : macros_) {
        macro->uses_caller |= name == "caller";
        macro->uses_kwargs |= name == "kwargs";
        macro->uses_varargs |= name == "varargs";
      }
    }
    return node;
  }
  if (token.kind == TokenKind::kString) {
    std::string text;
    for (; current().kind == TokenKind::kString; Advance()) text += current().text;
    node->constant = JinjaValue::Text(text);
    return node;
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) return ParseNumber();
  if (AtOperator("(")) {
    const DepthGuard guard(this);
    RETURN_IF_ERROR(guard.status());
    Advance();
    ASSIGN_OR_RETURN(JinjaNode * inner, ParseTuple(TupleOf::kExpressions, true));
    RETURN_IF_ERROR(ExpectOperator(")"));
    return inner;
  }
  if (AtOperator("[")) return ParseList();
  if (AtOperator("{")) return ParseDict();
  return Unexpected("an expression");
}

JinjaParser::NodeResult JinjaParser::ParseNumber() {
  const JinjaToken& token = current();
  JinjaNode* node = New(Kind::kConstant, token.line);
  const std::string& text = token.text;
  const char* end = text.data() + text.size();
  std::from_chars_result result{};
  if (token.kind == TokenKind::kFloat) {
    double value = 0;
    result = std::from_chars(text.data(), end, value);
    node->constant = JinjaValue(value);
  } else {
    const char prefix = text.size() > 1 ? text[1] | 0x20 : '\0';
    const int base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    int64_t value = 0;
    result = std::from_chars(text.data() + (base == 10 ? 0 : 2), end, value, base);
    node->constant = JinjaValue(value);
    const bool leading_zero = base == 10 && text[0] == '0' && value != 0;
    if (leading_zero) return Error(fmt::format("a number with a leading zero: {}", text));
  }
  if (result.ec == std::errc::result_out_of_range) {
    return UnimplementedError("chat template line {}: the number {} needs more than 64 bits",
                              token.line, text);
  }
  if (result.ec != std::errc() || result.ptr != end) {
    return Error(fmt::format("not a number: {}", text));
  }
  Advance();
  return node;
}

JinjaParser::NodeResult JinjaParser::ParseList() {
  const DepthGuard guard(this);
  RETURN_IF_ERROR(guard.status());
  JinjaNode* node = New(Kind::kList, current().line);
  Advance();
  while (!AtOperator("]")) {
    if (!node->items.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    if (AtOperator("]")) break;
    ASSIGN_OR_RETURN(const JinjaNode* item, ParseExpression());
    node->items.push_back(item);
  }
  RETURN_IF_ERROR(ExpectOperator("]"));
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseDict() {
  const DepthGuard guard(this);
  RETURN_IF_ERROR(guard.status());
  JinjaNode* node = New(Kind::kDict, current().line);
  Advance();
  while (!AtOperator("}")) {
    if (!node->items.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    if (AtOperator("}")) break;
    ASSIGN_OR_RETURN(const JinjaNode* key, ParseExpression());
    RETURN_IF_ERROR(ExpectOperator(":"));
    ASSIGN_OR_RETURN(const JinjaNode* value, ParseExpression());
    node->items.push_back(key);
    node->items.push_back(value);
  }
  RETURN_IF_ERROR(ExpectOperator("}"));
  return Finish(node);
}

}  // namespace tokenbutler
