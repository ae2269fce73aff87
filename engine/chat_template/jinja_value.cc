#include "engine/chat_template/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {

JinjaValue JinjaValue::Undefined(std::string message) {
  JinjaValue value;
  value.value_ = JinjaUndefined{std::make_shared<const std::string>(std::move(message))};
  return value;
}

JinjaValue JinjaValue::List(std::vector<JinjaValue> items) {
  auto list = std::make_shared<JinjaList>();
  for (const JinjaValue& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  list->items = std::move(items);
  return JinjaValue(ListPtr(std::move(list)));
}

JinjaValue JinjaValue::Tuple(std::vector<JinjaValue> items) {
  auto list = std::make_shared<JinjaList>();
  for (const JinjaValue& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  list->items = std::move(items);
  list->flavor = JinjaList::Flavor::kTuple;
  return JinjaValue(ListPtr(std::move(list)));
}

std::optional<int64_t> JinjaValue::as_int() const {
  if (const int64_t* number = std::get_if<int64_t>(&value_)) return *number;
  if (const bool* boolean = as_bool()) return *boolean ? 1 : 0;
  return std::nullopt;
}

std::optional<double> JinjaValue::as_number() const {
  if (const double* number = as_float()) return *number;
  if (const std::optional<int64_t> number = as_int()) return static_cast<double>(*number);
  return std::nullopt;
}

bool JinjaValue::Truthy() const {
  if (is_none() || is_undefined()) return false;
  if (const std::optional<double> number = as_number()) return *number != 0;
  if (const JinjaText* text = as_text()) return !text->empty();
  if (const JinjaList* list = as_list()) return !list->has_length() || !list->items.empty();
  if (const JinjaDict* dict = as_dict()) return !dict->entries.empty();
  if (const JinjaLoop* loop = as_loop()) return !loop->items.empty();
  return true;
}

std::string_view JinjaValue::TypeName() const {
  if (is_none()) return "NoneType";
  if (is_undefined()) return "Undefined";
  if (is_bool()) return "bool";
  if (is_float()) return "float";
  if (as_int().has_value()) return "int";
  if (is_text()) return "str";
  if (as_dict() != nullptr) return "dict";
  if (as_namespace() != nullptr) return "Namespace";
  if (as_loop() != nullptr) return "LoopContext";
  if (const JinjaList* list = as_list()) {
    constexpr std::string_view kNames[] = {"list",        "tuple",      "range",    "dict_keys",
                                           "dict_values", "dict_items", "generator"};
    return kNames[static_cast<int>(list->flavor)];
  }
  return "function";
}

int JinjaValue::depth() const {
  if (const JinjaList* list = as_list()) return list->depth;
  if (const JinjaDict* dict = as_dict()) return dict->depth;
  if (const JinjaFunction* function = as_function()) return function->depth;
  if (const JinjaLoop* loop = as_loop()) return loop->nesting;
  return as_namespace() != nullptr ? 1 : 0;
}

bool JinjaValue::IsSame(const JinjaValue& other) const {
  if (value_.index() != other.value_.index()) return false;
  if (as_list() != nullptr) return as_list() == other.as_list();
  if (as_dict() != nullptr) return as_dict() == other.as_dict();
  if (as_function() != nullptr) return as_function() == other.as_function();
  if (as_namespace() != nullptr) return as_namespace() == other.as_namespace();
  if (as_loop() != nullptr) return as_loop() == other.as_loop();
  return JinjaEqual(*this, other);
}

const JinjaValue* JinjaDict::Find(const JinjaValue& key) const {
  const absl::StatusOr<std::string> hashed = JinjaKey(key);
  if (!hashed.ok()) return nullptr;
  const auto found = index_.find(*hashed);
  return found == index_.end() ? nullptr : &entries[found->second].second;
}

const JinjaValue* JinjaDict::Find(std::string_view key) const {
  const auto found = index_.find(fmt::format("s{}", key));
  return found == index_.end() ? nullptr : &entries[found->second].second;
}

absl::Status JinjaDict::Set(JinjaValue key, JinjaValue value) {
  ASSIGN_OR_RETURN(std::string hashed, JinjaKey(key));
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  const auto [found, inserted] = index_.try_emplace(std::move(hashed), entries.size());
  if (inserted) {
    entries.emplace_back(std::move(key), std::move(value));
  } else {
    entries[found->second].second = std::move(value);
  }
  return absl::OkStatus();
}

const JinjaValue* JinjaNamespace::Find(std::string_view name) const {
  for (const auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

void JinjaNamespace::Set(std::string_view name, JinjaValue value) {
  for (auto& [key, old] : attributes) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  attributes.emplace_back(name, std::move(value));
}

absl::StatusOr<int> JinjaDepthOf(const std::vector<JinjaValue>& items) {
  int depth = 1;
  for (const JinjaValue& item : items) depth = std::max(depth, item.depth() + 1);
  if (depth <= kMaxJinjaValueDepth) return depth;
  return ResourceExhaustedError("values nest {} deep, at most {} is possible", depth,
                                kMaxJinjaValueDepth);
}

JinjaResult MakeJinjaList(std::vector<JinjaValue> items, JinjaList::Flavor flavor) {
  auto list = std::make_shared<JinjaList>();
  ASSIGN_OR_RETURN(list->depth, JinjaDepthOf(items));
  list->items = std::move(items);
  list->flavor = flavor;
  return JinjaValue(JinjaValue::ListPtr(std::move(list)));
}

JinjaResult MakeJinjaDict(JinjaDict dict) {
  if (dict.depth > kMaxJinjaValueDepth) {
    return ResourceExhaustedError("values nest {} deep, at most {} is possible", dict.depth,
                                  kMaxJinjaValueDepth);
  }
  return JinjaValue(JinjaValue::DictPtr(std::make_shared<JinjaDict>(std::move(dict))));
}

absl::StatusOr<std::string> JinjaKey(const JinjaValue& value) {
  if (const JinjaText* text = value.as_text()) return fmt::format("s{}", text->view());
  if (const std::optional<int64_t> number = value.as_int()) return fmt::format("i{}", *number);
  if (const double* number = value.as_float()) {
    if (std::floor(*number) == *number && std::abs(*number) < 9e18) {
      return fmt::format("i{}", static_cast<int64_t>(*number));
    }
    return fmt::format("f{}", *number);
  }
  if (value.is_none()) return "n";
  if (value.is_undefined()) return "u";
  const JinjaList* list = value.as_list();
  if (list != nullptr && list->flavor == JinjaList::Flavor::kTuple) {
    std::string key = "t";
    for (const JinjaValue& item : list->items) {
      ASSIGN_OR_RETURN(const std::string part, JinjaKey(item));
      key += fmt::format("{}:{}", part.size(), part);
    }
    return key;
  }
  if (value.as_function() != nullptr) {
    return fmt::format("p{}", static_cast<const void*>(value.as_function()));
  }
  if (value.as_namespace() != nullptr) {
    return fmt::format("p{}", static_cast<const void*>(value.as_namespace()));
  }
  return InvalidArgumentError("unhashable type: '{}'", value.TypeName());
}

bool JinjaEqual(const JinjaValue& a, const JinjaValue& b) {
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.as_int() && b.as_int()) return *a.as_int() == *b.as_int();
  if (a.as_number() && b.as_number()) return *a.as_number() == *b.as_number();
  if (a.is_text() && b.is_text()) return a.as_text()->view() == b.as_text()->view();
  if (const JinjaList* x = a.as_list(), *y = b.as_list(); x != nullptr && y != nullptr) {
    if (x == y) return true;
    if (x->flavor != y->flavor || !x->has_length() || x->flavor == JinjaList::Flavor::kValues) {
      return false;
    }
    return std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(),
                      JinjaEqual);
  }
  if (const JinjaDict* x = a.as_dict(), *y = b.as_dict(); x != nullptr && y != nullptr) {
    if (x->entries.size() != y->entries.size()) return false;
    for (const auto& [key, value] : x->entries) {
      const JinjaValue* other = y->Find(key);
      if (other == nullptr || !JinjaEqual(value, *other)) return false;
    }
    return true;
  }
  if (a.as_function() != nullptr) return a.as_function() == b.as_function();
  if (a.as_namespace() != nullptr) return a.as_namespace() == b.as_namespace();
  if (a.as_loop() != nullptr) return a.as_loop() == b.as_loop();
  return false;
}

absl::StatusOr<bool> JinjaLess(const JinjaValue& a, const JinjaValue& b) {
  if (a.is_undefined()) return JinjaUndefinedError(a);
  if (b.is_undefined()) return JinjaUndefinedError(b);
  if (a.as_int() && b.as_int()) return *a.as_int() < *b.as_int();
  if (a.as_number() && b.as_number()) return *a.as_number() < *b.as_number();
  if (a.is_text() && b.is_text()) return a.as_text()->view() < b.as_text()->view();
  const JinjaList* x = a.as_list();
  const JinjaList* y = b.as_list();
  if (x != nullptr && y != nullptr && x->flavor == y->flavor && x->is_sequence() &&
      x->flavor != JinjaList::Flavor::kRange) {
    for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      if (!JinjaEqual(x->items[i], y->items[i])) return JinjaLess(x->items[i], y->items[i]);
    }
    return x->items.size() < y->items.size();
  }
  return InvalidArgumentError("'<' not supported between instances of '{}' and '{}'", a.TypeName(),
                              b.TypeName());
}

absl::StatusOr<std::vector<JinjaValue>> JinjaItems(const JinjaValue& value) {
  if (value.is_undefined()) return std::vector<JinjaValue>();
  if (const JinjaText* text = value.as_text()) {
    // Iterating over markup gives plain strings, while indexing it gives markup.
    const JinjaText plain(std::string(text->view()), text->content());
    std::vector<JinjaValue> characters;
    for (size_t begin = 0; begin < text->size();) {
      const size_t length = Utf8LengthAt(text->view(), begin);
      characters.emplace_back(plain.Slice(begin, length));
      begin += length;
    }
    return characters;
  }
  if (const JinjaList* list = value.as_list()) {
    if (list->flavor != JinjaList::Flavor::kGenerator) return list->items;
    if (list->exhausted) return std::vector<JinjaValue>();
    list->exhausted = true;
    return list->items;
  }
  if (const JinjaDict* dict = value.as_dict()) {
    std::vector<JinjaValue> keys;
    keys.reserve(dict->entries.size());
    for (const auto& [key, unused] : dict->entries) keys.push_back(key);
    return keys;
  }
  return InvalidArgumentError("'{}' object is not iterable", value.TypeName());
}

absl::StatusOr<int64_t> JinjaLength(const JinjaValue& value) {
  if (value.is_undefined()) return 0;
  if (const JinjaText* text = value.as_text()) return CountCodePoints(text->view());
  const JinjaList* list = value.as_list();
  if (list != nullptr && list->has_length()) return static_cast<int64_t>(list->items.size());
  if (const JinjaDict* dict = value.as_dict()) return static_cast<int64_t>(dict->entries.size());
  if (const JinjaLoop* loop = value.as_loop()) return static_cast<int64_t>(loop->items.size());
  return InvalidArgumentError("object of type '{}' has no len()", value.TypeName());
}

absl::Status JinjaUndefinedError(const JinjaValue& value) {
  return absl::InvalidArgumentError(*value.as_undefined()->message);
}

absl::Status BindJinjaArgs(std::string_view function, const JinjaArgs& args,
                           std::initializer_list<std::string_view> names, size_t num_required,
                           std::vector<const JinjaValue*>* out) {
  out->assign(names.size(), nullptr);
  if (args.positional.size() > names.size()) {
    return InvalidArgumentError("{}() takes at most {} arguments ({} given)", function,
                                names.size(), args.positional.size());
  }
  for (size_t i = 0; i < args.positional.size(); ++i) (*out)[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return InvalidArgumentError("{}() got an unexpected keyword argument '{}'", function, name);
    }
    const JinjaValue*& slot = (*out)[found - names.begin()];
    if (slot != nullptr) {
      return InvalidArgumentError("{}() got multiple values for argument '{}'", function, name);
    }
    slot = &value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if ((*out)[i] == nullptr) {
      return InvalidArgumentError("{}() missing required argument '{}'", function,
                                  names.begin()[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace tokenbutler
