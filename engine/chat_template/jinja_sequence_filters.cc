#include <algorithm>
#include <iterator>

#include "engine/chat_template/jinja_filters.h"
#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_operators.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_sort.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

using Flavor = JinjaList::Flavor;
using Items = std::vector<JinjaValue>;
using Pointers = std::vector<const JinjaValue*>;

bool IsTrue(const JinjaValue* value) { return value != nullptr && value->Truthy(); }

JinjaResult Length(JinjaRun&, const JinjaValue& value, const JinjaArgs&) {
  ASSIGN_OR_RETURN(const int64_t length, JinjaLength(value));
  return JinjaValue(length);
}

JinjaResult List(JinjaRun& run, const JinjaValue& value, const JinjaArgs&) {
  ASSIGN_OR_RETURN(Items items, run.Items(value));
  return MakeJinjaList(std::move(items));
}

JinjaResult First(JinjaRun& run, const JinjaValue& value, const JinjaArgs&) {
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  if (!items.empty()) return items.front();
  return JinjaValue::Undefined("No first item, sequence was empty.");
}

JinjaResult Last(JinjaRun& run, const JinjaValue& value, const JinjaArgs&) {
  if (value.as_list() != nullptr && !value.as_list()->has_length()) {
    return InvalidArgumentError("'generator' object is not reversible");
  }
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  if (!items.empty()) return items.back();
  return JinjaValue::Undefined("No last item, sequence was empty.");
}

JinjaResult Reverse(JinjaRun& run, const JinjaValue& value, const JinjaArgs&) {
  if (value.is_text()) {
    return JinjaSlice(run, value, JinjaValue(), JinjaValue(), JinjaValue(int64_t{-1}));
  }
  ASSIGN_OR_RETURN(Items items, run.Items(value));
  std::reverse(items.begin(), items.end());
  const bool was_generator = value.as_list() != nullptr && !value.as_list()->has_length();
  return MakeJinjaList(std::move(items), was_generator ? Flavor::kList : Flavor::kGenerator);
}

JinjaResult Join(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("join", args, {"d", "attribute"}, 0, &a));
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  const JinjaText separator = a[0] == nullptr ? JinjaText() : JinjaStr(*a[0]);
  JinjaTextBuilder out;
  for (size_t i = 0; i < items.size(); ++i) {
    JinjaValue item = items[i];
    if (a[1] != nullptr && !a[1]->is_none()) {
      ASSIGN_OR_RETURN(item, JinjaAttributePath(item, *a[1], nullptr));
    }
    const JinjaText text = JinjaStr(item);
    RETURN_IF_ERROR(run.ChargeText(text.size()));
    RETURN_IF_ERROR(run.ChargeText(separator.size()));
    if (i > 0) out.Append(separator);
    out.Append(text);
    if (out.size() > run.options().max_output_bytes) return run.ChargeText(out.size());
  }
  return JinjaValue(out.Build());
}

JinjaResult Default(JinjaRun&, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("default", args, {"default_value", "boolean"}, 0, &a));
  const bool missing = value.is_undefined() || (IsTrue(a[1]) && !value.Truthy());
  if (!missing) return value;
  return a[0] == nullptr ? JinjaValue(JinjaText()) : *a[0];
}

JinjaResult Pairs(JinjaRun& run, const JinjaValue& value, const JinjaArgs&) {
  if (value.is_undefined()) return MakeJinjaList({}, Flavor::kGenerator);
  const JinjaDict* dict = value.as_dict();
  if (dict == nullptr) return InvalidArgumentError("Can only get item pairs from a mapping.");
  RETURN_IF_ERROR(run.Charge(static_cast<int64_t>(dict->entries.size())));
  Items pairs;
  for (const auto& [key, item] : dict->entries) pairs.push_back(JinjaValue::Tuple({key, item}));
  return MakeJinjaList(std::move(pairs), Flavor::kGenerator);
}

// Sorting. `key` of an item is what decides.
struct Keyed {
  JinjaValue key;
  JinjaValue item;
};

absl::Status SortByKey(JinjaRun& run, bool reverse, std::vector<Keyed>* items) {
  return StableSort(items, [&](const Keyed& a, const Keyed& b) -> absl::StatusOr<bool> {
    RETURN_IF_ERROR(run.Charge(1));
    return reverse ? JinjaLess(b.key, a.key) : JinjaLess(a.key, b.key);
  });
}

JinjaResult ListOf(std::vector<Keyed> keyed) {
  Items items;
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return MakeJinjaList(std::move(items));
}

// What sort's attribute "a.b,c" makes the key of an item.
JinjaResult SortKey(const JinjaValue& item, const JinjaValue* attribute, bool case_sensitive) {
  Items keys;
  const auto add = [&](const JinjaValue& key) {
    keys.push_back(case_sensitive ? key : JinjaIgnoreCase(key));
  };
  if (attribute == nullptr || attribute->is_none()) {
    add(item);
  } else if (!attribute->is_text()) {
    ASSIGN_OR_RETURN(const JinjaValue key, JinjaAttributePath(item, *attribute, nullptr));
    add(key);
  } else {
    std::string_view rest = attribute->as_text()->view();
    while (true) {
      const size_t comma = rest.find(',');
      ASSIGN_OR_RETURN(const JinjaValue key,
                       JinjaAttributePath(item, JinjaValue::Text(rest.substr(0, comma)), nullptr));
      add(key);
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
  return MakeJinjaList(std::move(keys));
}

JinjaResult Sort(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("sort", args, {"reverse", "case_sensitive", "attribute"}, 0, &a));
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  std::vector<Keyed> keyed;
  for (const JinjaValue& item : items) {
    ASSIGN_OR_RETURN(JinjaValue key, SortKey(item, a[2], IsTrue(a[1])));
    keyed.push_back({std::move(key), item});
  }
  RETURN_IF_ERROR(SortByKey(run, IsTrue(a[0]), &keyed));
  return ListOf(std::move(keyed));
}

JinjaResult DictSort(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("dictsort", args, {"case_sensitive", "by", "reverse"}, 0, &a));
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (value.as_dict() == nullptr) {
    return InvalidArgumentError("dictsort wants a mapping, not {}", value.TypeName());
  }
  const std::string_view by = a[1] != nullptr && a[1]->is_text() ? a[1]->as_text()->view() : "key";
  if (by != "key" && by != "value") {
    return InvalidArgumentError("You can only sort by either \"key\" or \"value\"");
  }
  std::vector<Keyed> keyed;
  for (const auto& [key, item] : value.as_dict()->entries) {
    RETURN_IF_ERROR(run.Charge(1));
    const JinjaValue& sort_by = by == "key" ? key : item;
    keyed.push_back(
        {IsTrue(a[0]) ? sort_by : JinjaIgnoreCase(sort_by), JinjaValue::Tuple({key, item})});
  }
  RETURN_IF_ERROR(SortByKey(run, IsTrue(a[2]), &keyed));
  return ListOf(std::move(keyed));
}

// The key that unique, min, max and groupby look at.
JinjaResult SimpleKey(const JinjaValue& item, const JinjaValue* attribute, bool case_sensitive,
                      const JinjaValue* missing = nullptr) {
  JinjaValue key = item;
  if (attribute != nullptr && !attribute->is_none()) {
    ASSIGN_OR_RETURN(key, JinjaAttributePath(item, *attribute, missing));
  }
  return case_sensitive ? key : JinjaIgnoreCase(key);
}

JinjaResult Unique(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("unique", args, {"case_sensitive", "attribute"}, 0, &a));
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  JinjaDict seen;
  Items kept;
  for (const JinjaValue& item : items) {
    ASSIGN_OR_RETURN(JinjaValue key, SimpleKey(item, a[1], IsTrue(a[0])));
    const size_t before = seen.entries.size();
    RETURN_IF_ERROR(seen.Set(std::move(key), JinjaValue()));
    if (seen.entries.size() > before) kept.push_back(item);
  }
  return MakeJinjaList(std::move(kept), Flavor::kGenerator);
}

template <bool largest>
JinjaResult Extreme(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("min", args, {"case_sensitive", "attribute"}, 0, &a));
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  if (items.empty()) return JinjaValue::Undefined("No aggregated item, sequence was empty.");
  JinjaValue best = items[0];
  ASSIGN_OR_RETURN(JinjaValue best_key, SimpleKey(best, a[1], IsTrue(a[0])));
  for (size_t i = 1; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(JinjaValue key, SimpleKey(items[i], a[1], IsTrue(a[0])));
    ASSIGN_OR_RETURN(const bool better,
                     largest ? JinjaLess(best_key, key) : JinjaLess(key, best_key));
    if (!better) continue;
    best = items[i];
    best_key = std::move(key);
  }
  return best;
}

JinjaResult MakeGroup(JinjaValue grouper, Items members) {
  ASSIGN_OR_RETURN(JinjaValue list, MakeJinjaList(std::move(members)));
  auto group = std::make_shared<JinjaList>();
  group->items = {std::move(grouper), std::move(list)};
  group->flavor = Flavor::kTuple;
  group->is_group = true;
  ASSIGN_OR_RETURN(group->depth, JinjaDepthOf(group->items));
  return JinjaValue(JinjaValue::ListPtr(std::move(group)));
}

JinjaResult GroupBy(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(
      BindJinjaArgs("groupby", args, {"attribute", "default", "case_sensitive"}, 1, &a));
  const bool case_sensitive = IsTrue(a[2]);
  const JinjaValue* missing = a[1] != nullptr && !a[1]->is_none() ? a[1] : nullptr;
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  std::vector<Keyed> keyed;
  for (const JinjaValue& item : items) {
    ASSIGN_OR_RETURN(JinjaValue key, SimpleKey(item, a[0], case_sensitive, missing));
    keyed.push_back({std::move(key), item});
  }
  RETURN_IF_ERROR(SortByKey(run, false, &keyed));
  Items groups;
  for (size_t begin = 0; begin < keyed.size();) {
    size_t end = begin;
    Items members;
    while (end < keyed.size() && JinjaEqual(keyed[end].key, keyed[begin].key)) {
      members.push_back(keyed[end++].item);
    }
    // The group is named as its first member spells it.
    ASSIGN_OR_RETURN(JinjaValue grouper, SimpleKey(members[0], a[0], true, missing));
    ASSIGN_OR_RETURN(JinjaValue group, MakeGroup(std::move(grouper), std::move(members)));
    groups.push_back(std::move(group));
    begin = std::max(end, begin + 1);
  }
  return MakeJinjaList(std::move(groups));
}

absl::StatusOr<int64_t> CountArg(const JinjaValue& value, std::string_view filter) {
  if (value.as_int() && *value.as_int() > 0) return *value.as_int();
  return InvalidArgumentError("{} wants a positive number", filter);
}

JinjaResult Batch(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("batch", args, {"linecount", "fill_with"}, 1, &a));
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  ASSIGN_OR_RETURN(const int64_t size, CountArg(*a[0], "batch"));
  Items batches;
  for (size_t begin = 0; begin < items.size(); begin += size) {
    const size_t end = std::min(begin + static_cast<size_t>(size), items.size());
    Items batch(items.begin() + begin, items.begin() + end);
    if (a[1] != nullptr && !a[1]->is_none()) {
      RETURN_IF_ERROR(run.Charge(size));
      batch.resize(size, *a[1]);
    }
    ASSIGN_OR_RETURN(JinjaValue list, MakeJinjaList(std::move(batch)));
    batches.push_back(std::move(list));
  }
  return MakeJinjaList(std::move(batches), Flavor::kGenerator);
}

JinjaResult Slices(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("slice", args, {"slices", "fill_with"}, 1, &a));
  ASSIGN_OR_RETURN(const Items items, run.Items(value));
  ASSIGN_OR_RETURN(const int64_t num_slices, CountArg(*a[0], "slice"));
  RETURN_IF_ERROR(run.Charge(num_slices));
  const int64_t size = static_cast<int64_t>(items.size()) / num_slices;
  const int64_t longer = static_cast<int64_t>(items.size()) % num_slices;
  Items slices;
  auto next = items.begin();
  for (int64_t i = 0; i < num_slices; ++i) {
    const auto end = next + size + (i < longer);
    Items slice(next, end);
    next = end;
    if (a[1] != nullptr && !a[1]->is_none() && i >= longer) slice.push_back(*a[1]);
    ASSIGN_OR_RETURN(JinjaValue list, MakeJinjaList(std::move(slice)));
    slices.push_back(std::move(list));
  }
  return MakeJinjaList(std::move(slices), Flavor::kGenerator);
}

struct Entry {
  std::string_view name;
  JinjaFilter filter;
};

constexpr Entry kFilters[] = {
    {"batch", Batch},       {"count", Length},       {"d", Default},       {"default", Default},
    {"dictsort", DictSort}, {"first", First},        {"groupby", GroupBy}, {"items", Pairs},
    {"join", Join},         {"last", Last},          {"length", Length},   {"list", List},
    {"max", Extreme<true>}, {"min", Extreme<false>}, {"reverse", Reverse}, {"slice", Slices},
    {"sort", Sort},         {"unique", Unique},
};

}  // namespace

JinjaFilter FindJinjaSequenceFilter(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const Entry& entry) { return entry.name == name; });
  return found == std::end(kFilters) ? nullptr : found->filter;
}

}  // namespace tokenbutler
