#include "engine/chat_template/jinja_methods.h"

#include <algorithm>
#include <string>

#include "engine/chat_template/jinja_run.h"

namespace tokenbutler {
namespace {

using Attribute = absl::StatusOr<std::optional<JinjaValue>>;

bool Contains(std::initializer_list<std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <typename Call>
JinjaValue Bind(const JinjaValue& self, std::string_view name, Call call) {
  auto method = std::make_shared<JinjaFunction>();
  method->repr = fmt::format("<built-in method {} of {} object>", name, self.TypeName());
  method->depth = self.depth() + 1;
  method->call = [self, call](JinjaRun& run, const JinjaArgs& args) {
    return call(run, self, args);
  };
  return JinjaValue(JinjaValue::FunctionPtr(std::move(method)));
}

JinjaValue Unsafe(const JinjaValue& object, std::string_view name) {
  return JinjaValue::Undefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, object.TypeName()));
}

absl::Status NotSupported(const JinjaValue& object, std::string_view name) {
  return UnimplementedError("the method '{}' of '{}' is not supported", name, object.TypeName());
}

JinjaResult DictGet(JinjaRun&, const JinjaValue& self, const JinjaArgs& args) {
  if (!args.named.empty()) return InvalidArgumentError("get() takes no keyword arguments");
  if (args.positional.empty() || args.positional.size() > 2) {
    return InvalidArgumentError("get expected 1 or 2 arguments, got {}", args.positional.size());
  }
  RETURN_IF_ERROR(JinjaKey(args.positional[0]).status());
  if (const JinjaValue* value = self.as_dict()->Find(args.positional[0])) return *value;
  return args.positional.size() == 2 ? args.positional[1] : JinjaValue();
}

template <JinjaList::Flavor flavor>
JinjaResult DictView(JinjaRun& run, const JinjaValue& self, const JinjaArgs& args) {
  if (!args.positional.empty() || !args.named.empty()) {
    return InvalidArgumentError("keys(), values() and items() take no arguments");
  }
  const JinjaDict& dict = *self.as_dict();
  RETURN_IF_ERROR(run.Charge(static_cast<int64_t>(dict.entries.size())));
  std::vector<JinjaValue> items;
  for (const auto& [key, value] : dict.entries) {
    if constexpr (flavor == JinjaList::Flavor::kKeys) {
      items.push_back(key);
    } else if constexpr (flavor == JinjaList::Flavor::kValues) {
      items.push_back(value);
    } else {
      items.push_back(JinjaValue::Tuple({key, value}));
    }
  }
  return MakeJinjaList(std::move(items), flavor);
}

JinjaResult CopySelf(JinjaRun&, const JinjaValue& self, const JinjaArgs&) { return self; }

Attribute DictMethod(const JinjaValue& object, std::string_view name) {
  if (name == "get") return Bind(object, name, DictGet);
  if (name == "items") return Bind(object, name, DictView<JinjaList::Flavor::kItems>);
  if (name == "keys") return Bind(object, name, DictView<JinjaList::Flavor::kKeys>);
  if (name == "values") return Bind(object, name, DictView<JinjaList::Flavor::kValues>);
  if (name == "copy") return Bind(object, name, CopySelf);
  if (Contains({"clear", "pop", "popitem", "setdefault", "update"}, name)) {
    return Unsafe(object, name);
  }
  if (name == "fromkeys") return NotSupported(object, name);
  return std::nullopt;
}

JinjaResult ListIndex(JinjaRun& run, const JinjaValue& self, const JinjaArgs& args) {
  if (args.positional.size() != 1 || !args.named.empty()) {
    return InvalidArgumentError("index() takes one argument");
  }
  const std::vector<JinjaValue>& items = self.as_list()->items;
  RETURN_IF_ERROR(run.Charge(static_cast<int64_t>(items.size())));
  for (size_t i = 0; i < items.size(); ++i) {
    if (JinjaEqual(items[i], args.positional[0])) return JinjaValue(static_cast<int64_t>(i));
  }
  return InvalidArgumentError("index(): the value is not in the list");
}

JinjaResult ListCount(JinjaRun& run, const JinjaValue& self, const JinjaArgs& args) {
  if (args.positional.size() != 1 || !args.named.empty()) {
    return InvalidArgumentError("count() takes one argument");
  }
  const std::vector<JinjaValue>& items = self.as_list()->items;
  RETURN_IF_ERROR(run.Charge(static_cast<int64_t>(items.size())));
  return JinjaValue(
      static_cast<int64_t>(std::count_if(items.begin(), items.end(), [&](const JinjaValue& item) {
        return JinjaEqual(item, args.positional[0]);
      })));
}

Attribute ListMethod(const JinjaValue& object, std::string_view name) {
  const JinjaList& list = *object.as_list();
  if (!list.is_sequence()) return std::nullopt;
  if (list.is_group && name == "grouper") return list.items[0];
  if (list.is_group && name == "list") return list.items[1];
  if (name == "index") return Bind(object, name, ListIndex);
  if (name == "count") return Bind(object, name, ListCount);
  if (list.flavor == JinjaList::Flavor::kRange) {
    if (name == "start") return JinjaValue(list.range_start);
    if (name == "stop") return JinjaValue(list.range_stop);
    if (name == "step") return JinjaValue(list.range_step);
  }
  if (list.flavor != JinjaList::Flavor::kList) return std::nullopt;
  if (name == "copy") return Bind(object, name, CopySelf);
  if (Contains({"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"}, name)) {
    return Unsafe(object, name);
  }
  return std::nullopt;
}

Attribute TextAttribute(const JinjaValue& object, std::string_view name) {
  if (const JinjaTextMethod method = FindJinjaTextMethod(name)) {
    return Bind(object, name,
                [method](JinjaRun& run, const JinjaValue& self, const JinjaArgs& args) {
                  return method(run, *self.as_text(), args);
                });
  }
  if (Contains({"encode", "expandtabs", "format_map", "isidentifier", "maketrans", "translate"},
               name)) {
    return NotSupported(object, name);
  }
  return std::nullopt;
}

Attribute NumberAttribute(const JinjaValue& object, std::string_view name) {
  if (name == "real" || (name == "numerator" && object.as_int())) return object;
  if (name == "imag" && object.as_int()) return JinjaValue(int64_t{0});
  if (name == "imag") return JinjaValue(0.0);
  if (name == "denominator" && object.as_int()) return JinjaValue(int64_t{1});
  if (Contains({"as_integer_ratio", "conjugate", "fromhex", "hex", "is_integer", "bit_count",
                "bit_length", "from_bytes", "to_bytes"},
               name)) {
    return NotSupported(object, name);
  }
  return std::nullopt;
}

}  // namespace

Attribute FindJinjaMethod(const JinjaValue& object, std::string_view name) {
  // Every Python object has these, and the sandbox hides them.
  if (Contains({"__class__", "__dict__", "__doc__", "__eq__", "__getattribute__", "__hash__",
                "__init__", "__module__", "__ne__", "__new__", "__reduce__", "__repr__", "__str__",
                "__subclasshook__"},
               name)) {
    return Unsafe(object, name);
  }
  if (object.as_dict() != nullptr) return DictMethod(object, name);
  if (object.as_list() != nullptr) return ListMethod(object, name);
  if (object.is_text()) return TextAttribute(object, name);
  if (object.as_number()) return NumberAttribute(object, name);
  return std::nullopt;
}

std::optional<JinjaValue> LoopAttribute(const JinjaValue& self, const JinjaLoop& loop,
                                        std::string_view name) {
  const auto length = static_cast<int64_t>(loop.items.size());
  const int64_t index0 = loop.index0;
  if (name == "index") return JinjaValue(index0 + 1);
  if (name == "index0") return JinjaValue(index0);
  if (name == "revindex") return JinjaValue(length - index0);
  if (name == "revindex0") return JinjaValue(length - index0 - 1);
  if (name == "first") return JinjaValue(index0 == 0);
  if (name == "last") return JinjaValue(index0 + 1 == length);
  if (name == "length") return JinjaValue(length);
  if (name == "depth") return JinjaValue(loop.depth0 + 1);
  if (name == "depth0") return JinjaValue(loop.depth0);
  if (name == "previtem") {
    return index0 > 0 ? loop.items[index0 - 1] : JinjaValue::Undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index0 + 1 < length ? loop.items[index0 + 1]
                               : JinjaValue::Undefined("there is no next item");
  }
  if (name == "cycle") {
    return Bind(self, name,
                [](JinjaRun&, const JinjaValue& owner, const JinjaArgs& args) -> JinjaResult {
                  if (args.positional.empty()) {
                    return InvalidArgumentError("no items for cycling given");
                  }
                  return args.positional[owner.as_loop()->index0 % args.positional.size()];
                });
  }
  if (name == "changed") {
    return Bind(self, name,
                [](JinjaRun& run, const JinjaValue& owner, const JinjaArgs& args) -> JinjaResult {
                  std::optional<std::vector<JinjaValue>>* last = run.LastChanged(owner.as_loop());
                  const bool same =
                      last->has_value() &&
                      std::equal((*last)->begin(), (*last)->end(), args.positional.begin(),
                                 args.positional.end(), JinjaEqual);
                  if (!same) *last = args.positional;
                  return JinjaValue(!same);
                });
  }
  return std::nullopt;
}

}  // namespace tokenbutler
