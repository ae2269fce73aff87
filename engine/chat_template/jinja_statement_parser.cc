#include "engine/chat_template/jinja_parser.h"

namespace tokenbutler {

JinjaParser::NodeResult JinjaParser::ParseStatement() {
  if (current().kind != TokenKind::kName) return Unexpected("the name of a tag");
  const DepthGuard guard(this);
  RETURN_IF_ERROR(guard.status());
  const std::string name = current().text;
  if (name == "for") return ParseFor();
  if (name == "if") return ParseIf();
  if (name == "set") return ParseSet();
  if (name == "macro") return ParseMacro();
  if (name == "call") return ParseCallBlock();
  if (name == "filter") return ParseFilterBlock();
  if (name == "with") return ParseWith();
  if (name == "generation") return ParseGeneration();
  if (name == "break" || name == "continue") return ParseLoopControl();
  for (std::string_view known :
       {"extends", "include", "import", "from", "block", "autoescape", "print"}) {
    if (name == known) {
      return UnimplementedError("chat template line {}: the tag '{}' is not supported",
                                current().line, name);
    }
  }
  return Error(fmt::format("unknown tag '{}'", name));
}

absl::StatusOr<JinjaParser::Nodes> JinjaParser::ParseBody(
    std::initializer_list<std::string_view> end_names) {
  Nodes body;
  while (current().kind != TokenKind::kEnd) {
    JinjaNode* node = nullptr;
    if (current().kind == TokenKind::kText) {
      node = New(Kind::kText, current().line);
      node->constant = JinjaValue::Text(current().text);
      Advance();
    } else if (current().kind == TokenKind::kPrintBegin) {
      ASSIGN_OR_RETURN(node, ParsePrint());
    } else {
      Advance();  // kTagBegin: the lexer yields nothing else here
      if (AtAnyName(end_names)) return body;
      ASSIGN_OR_RETURN(node, ParseStatement());
      RETURN_IF_ERROR(Expect(TokenKind::kTagEnd, "the end of the tag"));
    }
    body.push_back(node);
  }
  if (end_names.size() == 0) return body;
  return Error(fmt::format("unexpected end of template, expected '{}'", *(end_names.end() - 1)));
}

absl::StatusOr<JinjaParser::Nodes> JinjaParser::ParseTagBody(
    std::initializer_list<std::string_view> end_names) {
  SkipOperator(":");
  RETURN_IF_ERROR(Expect(TokenKind::kTagEnd, "the end of the tag"));
  return ParseBody(end_names);
}

JinjaParser::NodeResult JinjaParser::ParsePrint() {
  JinjaNode* node = New(Kind::kPrint, current().line);
  Advance();
  ASSIGN_OR_RETURN(node->a, ParseTuple(TupleOf::kExpressions));
  RETURN_IF_ERROR(Expect(TokenKind::kPrintEnd, "the end of the print statement"));
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseLoopControl() {
  if (loop_depth_ == 0) return Error(fmt::format("'{}' outside of a loop", current().text));
  JinjaNode* node = New(AtName("break") ? Kind::kBreak : Kind::kContinue, current().line);
  Advance();
  return node;
}

JinjaParser::NodeResult JinjaParser::ParseFor() {
  JinjaNode* node = New(Kind::kFor, current().line);
  Advance();
  ASSIGN_OR_RETURN(node->a, ParseTarget(/*with_namespace=*/false));
  RETURN_IF_ERROR(ExpectName("in"));
  ASSIGN_OR_RETURN(node->b, ParseTuple(TupleOf::kConditionFree));
  if (SkipName("if")) {
    ASSIGN_OR_RETURN(node->c, ParseExpression());
  }
  node->recursive = SkipName("recursive");
  ++loop_depth_;
  ASSIGN_OR_RETURN(node->items, ParseTagBody({"else", "endfor"}));
  --loop_depth_;
  const bool has_else = AtName("else");
  Advance();
  if (has_else) {
    ASSIGN_OR_RETURN(node->other, ParseTagBody({"endfor"}));
    Advance();
  }
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseIf() {
  JinjaNode* node = New(Kind::kIf, current().line);
  ++conditional_depth_;
  do {
    Advance();  // if, elif
    JinjaNode::Branch branch;
    ASSIGN_OR_RETURN(branch.test, ParseTuple(TupleOf::kConditionFree));
    ASSIGN_OR_RETURN(branch.body, ParseTagBody({"elif", "else", "endif"}));
    node->branches.push_back(std::move(branch));
  } while (AtName("elif"));
  if (SkipName("else")) {
    ASSIGN_OR_RETURN(node->other, ParseTagBody({"endif"}));
  }
  Advance();
  --conditional_depth_;
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseSet() {
  JinjaNode* node = New(Kind::kSet, current().line);
  Advance();
  ASSIGN_OR_RETURN(node->a, ParseTarget(/*with_namespace=*/true));
  if (SkipOperator("=")) {
    ASSIGN_OR_RETURN(node->b, ParseTuple(TupleOf::kExpressions));
    return Finish(node);
  }
  node->kind = Kind::kSetBlock;
  ASSIGN_OR_RETURN(node->b, ParseFilterChain(nullptr, /*inline_first=*/false));
  ASSIGN_OR_RETURN(node->items, ParseTagBody({"endset"}));
  Advance();
  return Finish(node);
}

absl::Status JinjaParser::ParseSignature(JinjaNode* macro) {
  RETURN_IF_ERROR(ExpectOperator("("));
  while (!AtOperator(")")) {
    if (!macro->parameters.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    JinjaNode* target = New(Kind::kName, current().line);
    ASSIGN_OR_RETURN(target->name, TakeName());
    RETURN_IF_ERROR(CheckTarget(*target));
    JinjaNode::Parameter parameter{target, nullptr};
    if (SkipOperator("=")) {
      ASSIGN_OR_RETURN(parameter.value, ParseExpression());
    } else if (!macro->parameters.empty() && macro->parameters.back().value != nullptr) {
      return Error("a parameter without a default follows one with a default");
    }
    macro->parameters.push_back(parameter);
  }
  return ExpectOperator(")");
}

absl::Status JinjaParser::ParseMacroBody(JinjaNode* macro, std::string_view end_name) {
  macros_.push_back(macro);
  const int loops_outside = std::exchange(loop_depth_, 0);
  ASSIGN_OR_RETURN(macro->items, ParseTagBody({end_name}));
  loop_depth_ = loops_outside;
  macros_.pop_back();
  Advance();
  return absl::OkStatus();
}

JinjaParser::NodeResult JinjaParser::ParseMacro() {
  JinjaNode* node = New(Kind::kMacro, current().line);
  Advance();
  ASSIGN_OR_RETURN(node->name, TakeName());
  RETURN_IF_ERROR(ParseSignature(node));
  RETURN_IF_ERROR(ParseMacroBody(node, "endmacro"));
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseCallBlock() {
  JinjaNode* node = New(Kind::kCallBlock, current().line);
  Advance();
  node->name = "caller";
  if (AtOperator("(")) RETURN_IF_ERROR(ParseSignature(node));
  ASSIGN_OR_RETURN(node->a, ParseExpression());
  if (node->a->kind != Kind::kCall) return Error("the call tag needs a call");
  RETURN_IF_ERROR(ParseMacroBody(node, "endcall"));
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseFilterBlock() {
  JinjaNode* node = New(Kind::kFilterBlock, current().line);
  Advance();
  ASSIGN_OR_RETURN(node->a, ParseFilterChain(nullptr, /*inline_first=*/true));
  ASSIGN_OR_RETURN(node->items, ParseTagBody({"endfilter"}));
  Advance();
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseWith() {
  JinjaNode* node = New(Kind::kWith, current().line);
  Advance();
  while (current().kind != TokenKind::kTagEnd && current().kind != TokenKind::kEnd) {
    if (!node->parameters.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    JinjaNode::Parameter parameter;
    ASSIGN_OR_RETURN(parameter.target, ParseTarget(/*with_namespace=*/false));
    RETURN_IF_ERROR(ExpectOperator("="));
    ASSIGN_OR_RETURN(parameter.value, ParseExpression());
    node->parameters.push_back(parameter);
  }
  ASSIGN_OR_RETURN(node->items, ParseTagBody({"endwith"}));
  Advance();
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseGeneration() {
  JinjaNode* node = New(Kind::kGeneration, current().line);
  Advance();
  const int loops_outside = std::exchange(loop_depth_, 0);
  ASSIGN_OR_RETURN(node->items, ParseTagBody({"endgeneration"}));
  loop_depth_ = loops_outside;
  Advance();
  return Finish(node);
}

JinjaParser::NodeResult JinjaParser::ParseTarget(bool with_namespace) {
  targets_with_namespace_ = with_namespace;
  NodeResult target = ParseTuple(TupleOf::kTargets);
  RETURN_IF_ERROR(target.status());
  RETURN_IF_ERROR(CheckTarget(**target));
  return target;
}

JinjaParser::NodeResult JinjaParser::ParseTargetItem() {
  const bool is_attribute = current().kind == TokenKind::kName &&
                            next().kind == TokenKind::kOperator && next().text == ".";
  if (!targets_with_namespace_ || !is_attribute) return ParsePrimary();
  JinjaNode* object = New(Kind::kName, current().line);
  ASSIGN_OR_RETURN(object->name, TakeName());
  Advance();  // the dot
  JinjaNode* node = New(Kind::kAttribute, object->line);
  node->a = object;
  ASSIGN_OR_RETURN(node->name, TakeName());
  return Finish(node);
}

absl::Status JinjaParser::CheckTarget(const JinjaNode& target) const {
  if (target.kind == Kind::kTuple) {
    for (const JinjaNode* item : target.items) RETURN_IF_ERROR(CheckTarget(*item));
    return absl::OkStatus();
  }
  if (target.kind == Kind::kName) {
    for (std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == constant) return Error(fmt::format("cannot assign to '{}'", constant));
    }
    return absl::OkStatus();
  }
  if (target.kind == Kind::kAttribute && targets_with_namespace_) return absl::OkStatus();
  return Error("cannot assign to this expression");
}

}  // namespace tokenbutler
