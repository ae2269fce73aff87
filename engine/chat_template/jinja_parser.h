#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/chat_template/jinja_ast.h"
#include "engine/chat_template/jinja_lexer.h"

namespace tokenbutler {

// Trees higher than this are refused, so that parsing and running may recurse.
inline constexpr int kMaxJinjaTreeHeight = 200;
inline constexpr int kMaxJinjaParserDepth = 100;

// Recursive-descent parser with jinja2's grammar and precedences (jinja2/parser.py), plus the
// loop control tags and transformers' `generation`. Errors name the line: INVALID_ARGUMENT for
// syntax, UNIMPLEMENTED for what chat templates do not have (extends, include, import, block,
// autoescape), RESOURCE_EXHAUSTED for nesting beyond kMaxJinjaTreeHeight.
class JinjaParser {
 public:
  using NodeResult = absl::StatusOr<JinjaNode*>;
  using Nodes = std::vector<const JinjaNode*>;

  explicit JinjaParser(std::vector<JinjaToken> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<JinjaTree> Parse();

 private:
  using Kind = JinjaNode::Kind;
  using TokenKind = JinjaToken::Kind;

  // Tokens.
  const JinjaToken& current() const { return tokens_[at_]; }
  const JinjaToken& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Advance() { at_ += at_ + 1 < tokens_.size(); }
  bool AtOperator(std::string_view op) const;
  bool AtName(std::string_view name) const;
  bool AtAnyName(std::initializer_list<std::string_view> names) const;
  bool SkipOperator(std::string_view op);
  bool SkipName(std::string_view name);
  absl::Status ExpectOperator(std::string_view op);
  absl::Status ExpectName(std::string_view name);
  absl::Status Expect(TokenKind kind, std::string_view what);
  absl::StatusOr<std::string> TakeName();
  absl::Status Error(std::string_view what) const;
  absl::Status Unexpected(std::string_view expected) const;

  // Nodes.
  JinjaNode* New(Kind kind, int line);
  // Sets the height from the children; every node passes through here once they are in place.
  NodeResult Finish(JinjaNode* node);
  // Notes a filter or test that does not exist. Inside a branch it is an error only when run, as in
  // jinja2; elsewhere Parse() fails.
  void CheckKnown(const JinjaNode& node);

  // Statements (jinja_statement_parser.cc).
  absl::StatusOr<Nodes> ParseBody(std::initializer_list<std::string_view> end_names);
  absl::StatusOr<Nodes> ParseTagBody(std::initializer_list<std::string_view> end_names);
  NodeResult ParseStatement();
  NodeResult ParsePrint();
  NodeResult ParseLoopControl();
  NodeResult ParseFor();
  NodeResult ParseIf();
  NodeResult ParseSet();
  NodeResult ParseMacro();
  NodeResult ParseCallBlock();
  NodeResult ParseFilterBlock();
  NodeResult ParseWith();
  NodeResult ParseGeneration();
  absl::Status ParseSignature(JinjaNode* macro);
  absl::Status ParseMacroBody(JinjaNode* macro, std::string_view end_name);
  NodeResult ParseTarget(bool with_namespace);
  absl::Status CheckTarget(const JinjaNode& target) const;

  // Expressions (jinja_expression_parser.cc), one method per level of precedence.
  enum class TupleOf { kExpressions, kConditionFree, kTargets };
  NodeResult ParseTuple(TupleOf of, bool parenthesised = false);
  NodeResult ParseExpression(bool with_conditional = true);
  NodeResult ParseConditional();
  NodeResult ParseOr();
  NodeResult ParseAnd();
  NodeResult ParseNot();
  NodeResult ParseCompare();
  NodeResult ParseSum();
  NodeResult ParseConcat();
  NodeResult ParseProduct();
  NodeResult ParsePower();
  NodeResult ParseUnary(bool with_filters = true);
  NodeResult ParsePrimary();
  NodeResult ParseTargetItem();
  NodeResult ParseNumber();
  NodeResult ParseList();
  NodeResult ParseDict();
  NodeResult ParsePostfix(JinjaNode* node);
  NodeResult ParseFilters(JinjaNode* node);
  // The chain `|a|b(c)`; with `inline_first` the first filter has no bar. Null when there is none.
  NodeResult ParseFilterChain(JinjaNode* node, bool inline_first);
  NodeResult ParseTest(JinjaNode* node);
  NodeResult ParseSubscript(JinjaNode* node);
  NodeResult ParseIndex();
  absl::Status ParseCallArgs(JinjaCallArgs* args);
  NodeResult ParseBinary(NodeResult (JinjaParser::*operand)(),
                         std::initializer_list<std::string_view> operators);

  // Counts how deep the parser itself has recursed.
  class DepthGuard {
   public:
    explicit DepthGuard(JinjaParser* parser) : parser_(parser) { ++parser_->depth_; }
    ~DepthGuard() { --parser_->depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;
    absl::Status status() const;

   private:
    JinjaParser* parser_;
  };

  std::vector<JinjaToken> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int conditional_depth_ = 0;       // if statements and conditional expressions around here
  int loop_depth_ = 0;              // for statements around here, within the innermost macro
  std::vector<JinjaNode*> macros_;  // macros and call blocks around here
  bool targets_with_namespace_ = false;
  std::vector<absl::Status> unknown_;  // what CheckKnown noted
  JinjaTree tree_;
};

}  // namespace tokenbutler
