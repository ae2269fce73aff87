#include "engine/chat_template/jinja_parser.h"

namespace tokenbutler {

absl::StatusOr<JinjaTree> JinjaParser::Parse() {
  ASSIGN_OR_RETURN(tree_.body, ParseBody({}));
  if (!unknown_.empty()) return unknown_[0];
  return std::move(tree_);
}

absl::Status JinjaParser::DepthGuard::status() const {
  if (parser_->depth_ <= kMaxJinjaParserDepth) return absl::OkStatus();
  return ResourceExhaustedError("chat template line {}: nested deeper than {}",
                                parser_->current().line, kMaxJinjaParserDepth);
}

bool JinjaParser::AtOperator(std::string_view op) const {
  return current().kind == TokenKind::kOperator && current().text == op;
}

bool JinjaParser::AtName(std::string_view name) const {
  return current().kind == TokenKind::kName && current().text == name;
}

bool JinjaParser::AtAnyName(std::initializer_list<std::string_view> names) const {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view name) { return AtName(name); });
}

bool JinjaParser::SkipOperator(std::string_view op) {
  if (!AtOperator(op)) return false;
  Advance();
  return true;
}

bool JinjaParser::SkipName(std::string_view name) {
  if (!AtName(name)) return false;
  Advance();
  return true;
}

absl::Status JinjaParser::ExpectOperator(std::string_view op) {
  if (SkipOperator(op)) return absl::OkStatus();
  return Unexpected(fmt::format("'{}'", op));
}

absl::Status JinjaParser::ExpectName(std::string_view name) {
  if (SkipName(name)) return absl::OkStatus();
  return Unexpected(fmt::format("'{}'", name));
}

absl::Status JinjaParser::Expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind) return Unexpected(what);
  Advance();
  return absl::OkStatus();
}

absl::StatusOr<std::string> JinjaParser::TakeName() {
  if (current().kind != TokenKind::kName) return Unexpected("a name");
  std::string name = current().text;
  Advance();
  return name;
}

absl::Status JinjaParser::Error(std::string_view what) const {
  return InvalidArgumentError("chat template line {}: {}", current().line, what);
}

absl::Status JinjaParser::Unexpected(std::string_view expected) const {
  const JinjaToken& token = current();
  switch (token.kind) {
    case TokenKind::kEnd:
      return Error(fmt::format("expected {}, got the end of the template", expected));
    case TokenKind::kPrintEnd:
    case TokenKind::kTagEnd:
      return Error(fmt::format("expected {}, got the end of the tag", expected));
    default:
      return Error(fmt::format("expected {}, got '{}'", expected, token.text));
  }
}

JinjaNode* JinjaParser::New(Kind kind, int line) {
  tree_.nodes.push_back(std::make_unique<JinjaNode>());
  JinjaNode* node = tree_.nodes.back().get();
  node->kind = kind;
  node->line = line;
  return node;
}

JinjaParser::NodeResult JinjaParser::Finish(JinjaNode* node) {
  int height = 0;
  const auto add = [&](const JinjaNode* child) {
    if (child != nullptr) height = std::max(height, child->height);
  };
  const auto add_all = [&](const Nodes& children) {
    for (const JinjaNode* child : children) add(child);
  };
  add(node->a);
  add(node->b);
  add(node->c);
  add_all(node->items);
  add_all(node->other);
  for (const auto& [name, child] : node->named) add(child);
  add_all(node->args.positional);
  for (const auto& [name, child] : node->args.named) add(child);
  add(node->args.star);
  add(node->args.double_star);
  for (const JinjaNode::Branch& branch : node->branches) {
    add(branch.test);
    add_all(branch.body);
  }
  for (const JinjaNode::Parameter& parameter : node->parameters) {
    add(parameter.target);
    add(parameter.value);
  }
  node->height = height + 1;
  if (node->height <= kMaxJinjaTreeHeight) return node;
  return ResourceExhaustedError(
      "chat template line {}: an expression or statement of more than {} "
      "levels",
      node->line, kMaxJinjaTreeHeight);
}

}  // namespace tokenbutler
