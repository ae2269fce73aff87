#include <algorithm>

#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_methods.h"
#include "engine/chat_template/jinja_operators.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

std::string DescribeObject(const JinjaValue& object) {
  if (object.is_none()) return "None";
  return fmt::format("'{} object'", object.TypeName());
}

JinjaValue MissingAttribute(const JinjaValue& object, std::string_view name) {
  return JinjaValue::Undefined(
      fmt::format("{} has no attribute '{}'", DescribeObject(object), name));
}

// What getattr(object, name) gives: nothing for an attribute that does not exist.
absl::StatusOr<std::optional<JinjaValue>> FindAttribute(const JinjaValue& object,
                                                        std::string_view name) {
  if (const JinjaNamespace* space = object.as_namespace()) {
    if (const JinjaValue* value = space->Find(name)) return *value;
  }
  if (const JinjaLoop* loop = object.as_loop()) return LoopAttribute(object, *loop, name);
  if (const JinjaFunction* function = object.as_function()) {
    for (const auto& [attribute, value] : function->attributes) {
      if (attribute == name) return value;
    }
  }
  return FindJinjaMethod(object, name);
}

// Position of Python's index in a sequence of `length`; unset when outside.
std::optional<int64_t> Position(int64_t index, int64_t length) {
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return index;
}

std::optional<JinjaValue> TextAt(const JinjaText& text, int64_t index) {
  const std::string_view view = text.view();
  if (index >= 0) {
    const size_t begin = OffsetOfCodePoint(view, index);
    if (begin >= view.size()) return std::nullopt;
    return JinjaValue(text.Slice(begin, Utf8LengthAt(view, begin)));
  }
  size_t end = view.size();
  for (; index < -1 && end > 0; ++index) end -= Utf8LengthBefore(view, end);
  if (end == 0) return std::nullopt;
  const size_t length = Utf8LengthBefore(view, end);
  return JinjaValue(text.Slice(end - length, length));
}

// What object[key] gives: nothing for a KeyError, IndexError or TypeError.
std::optional<JinjaValue> FindItem(const JinjaValue& object, const JinjaValue& key) {
  if (const JinjaDict* dict = object.as_dict()) {
    const JinjaValue* value = dict->Find(key);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }
  const std::optional<int64_t> index = key.as_int();
  if (!index.has_value()) return std::nullopt;
  if (const JinjaText* text = object.as_text()) return TextAt(*text, *index);
  const JinjaList* list = object.as_list();
  if (list == nullptr || !list->is_sequence()) return std::nullopt;
  const auto position = Position(*index, static_cast<int64_t>(list->items.size()));
  return position ? std::optional(list->items[*position]) : std::nullopt;
}

// slice.indices() of Python.
struct SliceRange {
  int64_t start = 0, stop = 0, step = 1;
};

absl::StatusOr<SliceRange> ResolveSlice(const JinjaValue& start, const JinjaValue& stop,
                                        const JinjaValue& step, int64_t length) {
  for (const JinjaValue* bound : {&start, &stop, &step}) {
    if (bound->is_undefined()) return JinjaUndefinedError(*bound);
    if (!bound->is_none() && !bound->as_int()) {
      return InvalidArgumentError("slice indices must be integers or None, not {}",
                                  bound->TypeName());
    }
  }
  SliceRange range;
  range.step = step.as_int().value_or(1);
  if (range.step == 0) return InvalidArgumentError("slice step cannot be zero");
  const bool forward = range.step > 0;
  const int64_t lowest = forward ? 0 : -1;
  const int64_t highest = forward ? length : length - 1;
  const auto resolve = [&](const JinjaValue& bound, int64_t missing) {
    if (bound.is_none()) return missing;
    int64_t index = *bound.as_int();
    if (index < 0) index = std::max(index, -length - 1) + length;
    return std::clamp(index, lowest, highest);
  };
  range.start = resolve(start, forward ? lowest : highest);
  range.stop = resolve(stop, forward ? highest : lowest);
  return range;
}

template <typename Visit>
void ForEachIndex(const SliceRange& range, int64_t length, Visit visit) {
  // A huge step would overflow the index; it never gets beyond the first anyway.
  const int64_t step = std::clamp(range.step, -length - 1, length + 1);
  for (int64_t i = range.start; step > 0 ? i < range.stop : i > range.stop; i += step) visit(i);
}

JinjaText SliceText(const JinjaText& text, const SliceRange& range, int64_t length) {
  const std::string_view view = text.view();
  if (range.step == 1) {
    if (range.start >= range.stop) return JinjaText();
    const size_t begin = OffsetOfCodePoint(view, range.start);
    return text.Slice(begin, OffsetOfCodePoint(view.substr(begin), range.stop - range.start));
  }
  std::vector<size_t> offsets;
  for (size_t at = 0; at < view.size(); at += Utf8LengthAt(view, at)) offsets.push_back(at);
  offsets.push_back(view.size());
  JinjaTextBuilder builder;
  ForEachIndex(range, length, [&](int64_t i) { builder.Append(text, offsets[i], offsets[i + 1]); });
  return builder.Build();
}

// A part of a range is a range too.
JinjaResult SliceRangeObject(const JinjaList& list, const SliceRange& slice,
                             std::vector<JinjaValue> items) {
  auto part = std::make_shared<JinjaList>();
  part->flavor = JinjaList::Flavor::kRange;
  part->items = std::move(items);
  part->range_start = list.range_start + slice.start * list.range_step;
  part->range_stop = list.range_start + slice.stop * list.range_step;
  if (__builtin_mul_overflow(list.range_step, slice.step, &part->range_step)) {
    return UnimplementedError("a step of {} through a range with steps of {}", slice.step,
                              list.range_step);
  }
  return JinjaValue(JinjaValue::ListPtr(std::move(part)));
}

}  // namespace

JinjaResult JinjaAttribute(const JinjaValue& object, std::string_view name) {
  if (object.is_undefined()) return JinjaUndefinedError(object);
  ASSIGN_OR_RETURN(const std::optional<JinjaValue> attribute, FindAttribute(object, name));
  if (attribute.has_value()) return *attribute;
  if (const JinjaDict* dict = object.as_dict()) {
    if (const JinjaValue* value = dict->Find(name)) return *value;
  }
  return MissingAttribute(object, name);
}

JinjaResult JinjaItem(const JinjaValue& object, const JinjaValue& key) {
  if (object.is_undefined()) return JinjaUndefinedError(object);
  if (std::optional<JinjaValue> item = FindItem(object, key)) return *item;
  if (const JinjaText* name = key.as_text()) {
    ASSIGN_OR_RETURN(const std::optional<JinjaValue> attribute,
                     FindAttribute(object, name->view()));
    return attribute.has_value() ? *attribute : MissingAttribute(object, name->view());
  }
  return JinjaValue::Undefined(
      fmt::format("{} has no element {}", DescribeObject(object), JinjaRepr(key).view()));
}

JinjaResult JinjaSlice(JinjaRun& run, const JinjaValue& object, const JinjaValue& start,
                       const JinjaValue& stop, const JinjaValue& step) {
  if (object.is_undefined()) return JinjaUndefinedError(object);
  if (const JinjaText* text = object.as_text()) {
    RETURN_IF_ERROR(run.ChargeText(text->size()));
    const int64_t length = CountCodePoints(text->view());
    ASSIGN_OR_RETURN(const SliceRange range, ResolveSlice(start, stop, step, length));
    if (range.step != 1) RETURN_IF_ERROR(run.Charge(length));
    const JinjaText part = SliceText(*text, range, length);
    return JinjaValue(text->is_markup() ? part.AsMarkup() : part);
  }
  const JinjaList* list = object.as_list();
  if (list == nullptr || !list->is_sequence()) {
    return InvalidArgumentError("{} is not subscriptable by a slice", DescribeObject(object));
  }
  const auto length = static_cast<int64_t>(list->items.size());
  RETURN_IF_ERROR(run.Charge(length));
  ASSIGN_OR_RETURN(const SliceRange range, ResolveSlice(start, stop, step, length));
  std::vector<JinjaValue> items;
  ForEachIndex(range, length, [&](int64_t i) { items.push_back(list->items[i]); });
  if (list->flavor == JinjaList::Flavor::kRange) {
    return SliceRangeObject(*list, range, std::move(items));
  }
  return MakeJinjaList(std::move(items), list->flavor);
}

}  // namespace tokenbutler
