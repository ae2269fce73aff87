#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/chat_template/jinja_text.h"

namespace tokenbutler {

class JinjaRun;
class JinjaValue;
struct JinjaArgs;
struct JinjaDict;
struct JinjaFunction;
struct JinjaList;
struct JinjaLoop;
struct JinjaNamespace;

// What Python calls jinja2.Undefined: prints as nothing, and everything else on it is an error
// with this message.
struct JinjaUndefined {
  std::shared_ptr<const std::string> message;
};

// A value of the template language, with Python's behaviour. Cheap to copy; collections are shared
// and immutable (the sandbox forbids to change them), a namespace is shared and mutable.
class JinjaValue {
 public:
  using ListPtr = std::shared_ptr<const JinjaList>;
  using DictPtr = std::shared_ptr<const JinjaDict>;
  using FunctionPtr = std::shared_ptr<const JinjaFunction>;
  using NamespacePtr = std::shared_ptr<JinjaNamespace>;
  using LoopPtr = std::shared_ptr<JinjaLoop>;

  JinjaValue() = default;  // None
  explicit JinjaValue(bool value) : value_(value) {}
  explicit JinjaValue(int64_t value) : value_(value) {}
  explicit JinjaValue(double value) : value_(value) {}
  explicit JinjaValue(JinjaText value) : value_(std::move(value)) {}
  explicit JinjaValue(ListPtr value) : value_(std::move(value)) {}
  explicit JinjaValue(DictPtr value) : value_(std::move(value)) {}
  explicit JinjaValue(FunctionPtr value) : value_(std::move(value)) {}
  explicit JinjaValue(NamespacePtr value) : value_(std::move(value)) {}
  explicit JinjaValue(LoopPtr value) : value_(std::move(value)) {}

  static JinjaValue Text(std::string_view text) { return JinjaValue(JinjaText(std::string(text))); }
  static JinjaValue Undefined(std::string message);
  static JinjaValue List(std::vector<JinjaValue> items);
  static JinjaValue Tuple(std::vector<JinjaValue> items);

  bool is_none() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_undefined() const { return std::holds_alternative<JinjaUndefined>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_float() const { return std::holds_alternative<double>(value_); }
  bool is_text() const { return std::holds_alternative<JinjaText>(value_); }

  // Null when the value is of another kind.
  const bool* as_bool() const { return std::get_if<bool>(&value_); }
  const double* as_float() const { return std::get_if<double>(&value_); }
  const JinjaText* as_text() const { return std::get_if<JinjaText>(&value_); }
  const JinjaUndefined* as_undefined() const { return std::get_if<JinjaUndefined>(&value_); }
  const JinjaList* as_list() const { return Pointee<ListPtr>(); }
  const JinjaDict* as_dict() const { return Pointee<DictPtr>(); }
  const JinjaFunction* as_function() const { return Pointee<FunctionPtr>(); }
  JinjaNamespace* as_namespace() const { return Pointee<NamespacePtr>(); }
  JinjaLoop* as_loop() const { return Pointee<LoopPtr>(); }

  // The number when the value is an int or a bool, which Python takes for one.
  std::optional<int64_t> as_int() const;
  // The number when the value is an int, a bool or a float.
  std::optional<double> as_number() const;

  bool Truthy() const;
  // Python's name of the type, for messages.
  std::string_view TypeName() const;
  // How deep collections nest in this value; 0 for a scalar.
  int depth() const;
  // Python's `is`.
  bool IsSame(const JinjaValue& other) const;

 private:
  template <typename Pointer>
  typename Pointer::element_type* Pointee() const {
    const Pointer* pointer = std::get_if<Pointer>(&value_);
    return pointer == nullptr ? nullptr : pointer->get();
  }

  std::variant<std::monostate, JinjaUndefined, bool, int64_t, double, JinjaText, ListPtr, DictPtr,
               FunctionPtr, NamespacePtr, LoopPtr>
      value_;
};

using JinjaResult = absl::StatusOr<JinjaValue>;

// Python's ordered sequences and the iterators that filters return.
struct JinjaList {
  enum class Flavor { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };

  Flavor flavor = Flavor::kList;
  std::vector<JinjaValue> items;
  int depth = 1;
  int64_t range_start = 0, range_stop = 0, range_step = 1;  // of kRange, for its repr
  // A generator gives its items to whoever asks first. Only ever touched by the run that made it.
  mutable bool exhausted = false;
  bool is_group = false;  // a tuple of groupby, with attributes grouper and list

  // Can be indexed and has a length.
  bool is_sequence() const {
    return flavor == Flavor::kList || flavor == Flavor::kTuple || flavor == Flavor::kRange;
  }
  bool has_length() const { return flavor != Flavor::kGenerator; }
};

// An insertion-ordered dictionary.
struct JinjaDict {
  std::vector<std::pair<JinjaValue, JinjaValue>> entries;
  int depth = 1;

  const JinjaValue* Find(const JinjaValue& key) const;  // null when absent
  const JinjaValue* Find(std::string_view key) const;
  // Adds or replaces. TypeError (INVALID_ARGUMENT) when the key cannot be hashed.
  absl::Status Set(JinjaValue key, JinjaValue value);

 private:
  std::unordered_map<std::string, size_t> index_;  // by JinjaKey
};

// namespace(): the one thing a template may change.
struct JinjaNamespace {
  std::vector<std::pair<std::string, JinjaValue>> attributes;

  const JinjaValue* Find(std::string_view name) const;
  void Set(std::string_view name, JinjaValue value);
};

struct JinjaArgs {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> named;
};

// A macro, a global function or a bound method.
struct JinjaFunction {
  std::string repr;
  std::function<JinjaResult(JinjaRun&, const JinjaArgs&)> call;
  int depth = 1;
  std::vector<std::pair<std::string_view, JinjaValue>> attributes;  // of a macro: its name ...
};

// The `loop` variable of a running for statement.
struct JinjaLoop {
  std::vector<JinjaValue> items;
  int64_t index0 = -1;
  int64_t depth0 = 0;
  int nesting = 1;                                                   // depth of the values
  std::function<JinjaResult(JinjaRun&, const JinjaValue&)> recurse;  // unset: not recursive
};

// Collections nest at most this deep, so that what walks them may recurse.
inline constexpr int kMaxJinjaValueDepth = 150;

// The depth of a collection of these. RESOURCE_EXHAUSTED above kMaxJinjaValueDepth.
absl::StatusOr<int> JinjaDepthOf(const std::vector<JinjaValue>& items);
// A list, tuple ... of `items`, checked for depth.
JinjaResult MakeJinjaList(std::vector<JinjaValue> items,
                          JinjaList::Flavor flavor = JinjaList::Flavor::kList);
JinjaResult MakeJinjaDict(JinjaDict dict);

// A string equal for exactly the values that are equal dictionary keys (1, 1.0 and True are).
// INVALID_ARGUMENT for a value that Python cannot hash.
absl::StatusOr<std::string> JinjaKey(const JinjaValue& value);

// Python's ==.
bool JinjaEqual(const JinjaValue& a, const JinjaValue& b);
// Python's <; INVALID_ARGUMENT for kinds that have no order.
absl::StatusOr<bool> JinjaLess(const JinjaValue& a, const JinjaValue& b);

// What iterating over the value gives: items, keys, characters. An Undefined gives nothing; a
// generator gives its items once. INVALID_ARGUMENT when the value is not iterable.
absl::StatusOr<std::vector<JinjaValue>> JinjaItems(const JinjaValue& value);
// Python's len().
absl::StatusOr<int64_t> JinjaLength(const JinjaValue& value);

// The error that Python's Undefined raises when it is used.
absl::Status JinjaUndefinedError(const JinjaValue& value);

// Fits the arguments of a call to parameter names; out[i] is null where one was not given.
// INVALID_ARGUMENT in Python's words when they do not fit.
absl::Status BindJinjaArgs(std::string_view function, const JinjaArgs& args,
                           std::initializer_list<std::string_view> names, size_t num_required,
                           std::vector<const JinjaValue*>* out);

}  // namespace tokenbutler
