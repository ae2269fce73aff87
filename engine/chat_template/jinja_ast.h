#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

struct JinjaNode;

struct JinjaCallArgs {
  std::vector<const JinjaNode*> positional;
  std::vector<std::pair<std::string, const JinjaNode*>> named;
  const JinjaNode* star = nullptr;         // *args
  const JinjaNode* double_star = nullptr;  // **kwargs
};

// One node of a parsed template. Which fields mean something depends on the kind; `a`, `b`, `c` are
// null where the source leaves them out.
struct JinjaNode {
  enum class Kind {
    // Expressions
    kConstant,     // constant
    kName,         // name
    kList,         // items
    kTuple,        // items
    kDict,         // items: key, value, key, value ...
    kAttribute,    // a.name
    kItem,         // a[b]
    kSlice,        // a:b:c, only as the b of kItem
    kCall,         // a(args)
    kFilter,       // a|name(args); a is null where a block's text goes in
    kTest,         // a is name(args)
    kNot,          // not a
    kNegate,       // -a
    kPlus,         // +a
    kBinary,       // a name b, an arithmetic operator
    kAnd,          // a and b
    kOr,           // a or b
    kCompare,      // a named[0].op named[0].b ...: a chain, operators in named
    kConcat,       // items joined by ~
    kConditional,  // b if a else c
    // Statements
    kText,         // constant: template data
    kPrint,        // {{ a }}
    kFor,          // for a in b if c: items, else other; recursive
    kIf,           // branches: (test, body), else other
    kSet,          // set a = b
    kSetBlock,     // set a | b: items endset; b is a chain of filters or null
    kMacro,        // macro name(params): items
    kCallBlock,    // call(params) a: items endcall
    kFilterBlock,  // filter a: items endfilter
    kWith,         // with targets = values: items
    kGeneration,   // generation: items
    kBreak,
    kContinue,
  };
  struct Branch {
    const JinjaNode* test = nullptr;
    std::vector<const JinjaNode*> body;
  };
  // A parameter of a macro; or target and value of `with`.
  struct Parameter {
    const JinjaNode* target = nullptr;
    const JinjaNode* value = nullptr;  // the default
  };

  Kind kind = Kind::kConstant;
  int line = 1;
  int height = 1;  // of the tree below, for the bound on recursion
  std::string name;
  JinjaValue constant;
  const JinjaNode* a = nullptr;
  const JinjaNode* b = nullptr;
  const JinjaNode* c = nullptr;
  std::vector<const JinjaNode*> items;
  std::vector<const JinjaNode*> other;
  std::vector<std::pair<std::string, const JinjaNode*>> named;
  JinjaCallArgs args;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  bool recursive = false;
  // What a macro's body mentions.
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
};

// A parsed template; owns its nodes, so that deep trees are freed without recursion.
struct JinjaTree {
  std::vector<std::unique_ptr<JinjaNode>> nodes;
  std::vector<const JinjaNode*> body;
};

}  // namespace tokenbutler
