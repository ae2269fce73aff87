// Filters that apply a filter or a test to each item: map, select, reject and their kin.

#include <algorithm>
#include <iterator>

#include "engine/chat_template/jinja_filters.h"
#include "engine/chat_template/jinja_methods.h"
#include "engine/chat_template/jinja_operators.h"
#include "engine/chat_template/jinja_run.h"

namespace tokenbutler {
namespace {

using Items = std::vector<JinjaValue>;

absl::StatusOr<std::string_view> NameArg(const JinjaArgs& args, size_t index,
                                         std::string_view what) {
  if (index >= args.positional.size()) return InvalidArgumentError("{} is missing", what);
  if (const JinjaText* name = args.positional[index].as_text()) return name->view();
  return InvalidArgumentError("{} must be a string, not {}", what,
                              args.positional[index].TypeName());
}

JinjaArgs Without(const JinjaArgs& args, size_t count) {
  JinjaArgs rest = args;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + count);
  return rest;
}

JinjaResult MapAttribute(JinjaRun& run, const Items& items, const JinjaArgs& args) {
  std::vector<const JinjaValue*> a;
  RETURN_IF_ERROR(BindJinjaArgs("map", args, {"attribute", "default"}, 1, &a));
  const JinjaValue* missing = a[1] != nullptr && !a[1]->is_none() ? a[1] : nullptr;
  Items mapped;
  for (const JinjaValue& item : items) {
    RETURN_IF_ERROR(run.Charge(1));
    ASSIGN_OR_RETURN(JinjaValue value, JinjaAttributePath(item, *a[0], missing));
    mapped.push_back(std::move(value));
  }
  return MakeJinjaList(std::move(mapped), JinjaList::Flavor::kGenerator);
}

JinjaResult Map(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  const bool by_attribute =
      args.positional.empty() && std::any_of(args.named.begin(), args.named.end(),
                                             [](const auto& n) { return n.first == "attribute"; });
  if (by_attribute) return MapAttribute(run, items, args);
  if (items.empty()) return MakeJinjaList({}, JinjaList::Flavor::kGenerator);
  ASSIGN_OR_RETURN(const std::string_view name, NameArg(args, 0, "the filter of map"));
  const JinjaArgs rest = Without(args, 1);
  Items mapped;
  for (const JinjaValue& item : items) {
    RETURN_IF_ERROR(run.Charge(1));
    ASSIGN_OR_RETURN(JinjaValue result, run.ApplyFilter(name, item, rest));
    mapped.push_back(std::move(result));
  }
  return MakeJinjaList(std::move(mapped), JinjaList::Flavor::kGenerator);
}

template <bool wanted, bool by_attribute>
JinjaResult Select(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  Items kept;
  if (items.empty()) return MakeJinjaList({}, JinjaList::Flavor::kGenerator);
  if (by_attribute && args.positional.empty()) {
    return InvalidArgumentError("Missing parameter for attribute name");
  }
  constexpr size_t kNameAt = by_attribute ? 1 : 0;
  const bool has_test = args.positional.size() > kNameAt;
  std::string_view test;
  if (has_test) {
    ASSIGN_OR_RETURN(test, NameArg(args, kNameAt, "the test"));
  }
  const JinjaArgs rest = has_test ? Without(args, kNameAt + 1) : JinjaArgs();
  for (const JinjaValue& item : items) {
    RETURN_IF_ERROR(run.Charge(1));
    JinjaValue subject = item;
    if (by_attribute) {
      ASSIGN_OR_RETURN(subject, JinjaAttributePath(item, args.positional[0], nullptr));
    }
    bool holds = subject.Truthy();
    if (has_test) {
      ASSIGN_OR_RETURN(holds, run.ApplyTest(test, subject, rest));
    }
    if (holds == wanted) kept.push_back(item);
  }
  return MakeJinjaList(std::move(kept), JinjaList::Flavor::kGenerator);
}

// object|attr("name"): like object.name, without falling back to object["name"].
JinjaResult Attr(JinjaRun&, const JinjaValue& value, const JinjaArgs& args) {
  ASSIGN_OR_RETURN(const std::string_view name, NameArg(args, 0, "the name of attr"));
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (value.as_dict() == nullptr) return JinjaAttribute(value, name);
  ASSIGN_OR_RETURN(const std::optional<JinjaValue> method, FindJinjaMethod(value, name));
  if (method.has_value()) return *method;
  return JinjaValue::Undefined(fmt::format("'dict object' has no attribute '{}'", name));
}

struct Entry {
  std::string_view name;
  JinjaFilter filter;
};

constexpr Entry kFilters[] = {
    {"attr", Attr},
    {"map", Map},
    {"reject", Select<false, false>},
    {"rejectattr", Select<false, true>},
    {"select", Select<true, false>},
    {"selectattr", Select<true, true>},
};

}  // namespace

JinjaFilter FindJinjaSelectionFilter(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const Entry& entry) { return entry.name == name; });
  return found == std::end(kFilters) ? nullptr : found->filter;
}

}  // namespace tokenbutler
