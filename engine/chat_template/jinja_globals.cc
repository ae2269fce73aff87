#include "engine/chat_template/jinja_globals.h"

#include <limits>

#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_run.h"

namespace tokenbutler {
namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2.sandbox.MAX_RANGE

JinjaResult Range(JinjaRun& run, const JinjaArgs& args) {
  if (!args.named.empty()) return InvalidArgumentError("range() takes no keyword arguments");
  if (args.positional.empty() || args.positional.size() > 3) {
    return InvalidArgumentError("range expected 1 to 3 arguments, got {}", args.positional.size());
  }
  int64_t numbers[3] = {0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    const JinjaValue& value = args.positional[i];
    if (value.is_undefined()) return JinjaUndefinedError(value);
    if (!value.as_int()) {
      return InvalidArgumentError("'{}' object cannot be interpreted as an integer",
                                  value.TypeName());
    }
    numbers[args.positional.size() == 1 ? 1 : i] = *value.as_int();
  }
  const auto [start, stop, step] = numbers;
  if (step == 0) return InvalidArgumentError("range() arg 3 must not be zero");
  uint64_t length = 0;
  if (step > 0 && start < stop) {
    length = (static_cast<uint64_t>(stop) - static_cast<uint64_t>(start) - 1) / step + 1;
  } else if (step < 0 && start > stop) {
    const uint64_t stride = uint64_t{0} - static_cast<uint64_t>(step);
    length = (static_cast<uint64_t>(start) - static_cast<uint64_t>(stop) - 1) / stride + 1;
  }
  if (length > kMaxRange) {
    return InvalidArgumentError("range of {} numbers, at most {} are possible", length, kMaxRange);
  }
  RETURN_IF_ERROR(run.Charge(static_cast<int64_t>(length)));
  auto range = std::make_shared<JinjaList>();
  range->flavor = JinjaList::Flavor::kRange;
  range->range_start = start;
  range->range_stop = stop;
  range->range_step = step;
  for (uint64_t i = 0; i < length; ++i) {
    range->items.emplace_back(start + static_cast<int64_t>(i) * step);
  }
  return JinjaValue(JinjaValue::ListPtr(std::move(range)));
}

// dict(mapping or pairs, name=value ...)
absl::StatusOr<JinjaDict> BuildDict(JinjaRun& run, const JinjaArgs& args) {
  if (args.positional.size() > 1) {
    return InvalidArgumentError("dict expected at most 1 argument, got {}", args.positional.size());
  }
  JinjaDict dict;
  if (!args.positional.empty()) {
    const JinjaValue& source = args.positional[0];
    if (source.as_dict() != nullptr) {
      dict = *source.as_dict();
      RETURN_IF_ERROR(run.Charge(static_cast<int64_t>(dict.entries.size())));
    } else {
      ASSIGN_OR_RETURN(const std::vector<JinjaValue> pairs, run.Items(source));
      for (const JinjaValue& pair : pairs) {
        ASSIGN_OR_RETURN(const std::vector<JinjaValue> items, run.Items(pair));
        if (items.size() != 2) return InvalidArgumentError("dict() wants pairs");
        RETURN_IF_ERROR(dict.Set(items[0], items[1]));
      }
    }
  }
  for (const auto& [name, value] : args.named) {
    RETURN_IF_ERROR(dict.Set(JinjaValue::Text(name), value));
  }
  return dict;
}

JinjaResult Dict(JinjaRun& run, const JinjaArgs& args) {
  ASSIGN_OR_RETURN(JinjaDict dict, BuildDict(run, args));
  return MakeJinjaDict(std::move(dict));
}

JinjaResult Namespace(JinjaRun& run, const JinjaArgs& args) {
  ASSIGN_OR_RETURN(const JinjaDict dict, BuildDict(run, args));
  std::vector<std::pair<std::string, JinjaValue>> attributes;
  for (const auto& [key, value] : dict.entries) {
    if (key.is_text()) attributes.emplace_back(key.as_text()->view(), value);
  }
  return run.NewNamespace(std::move(attributes));
}

JinjaResult RaiseException(JinjaRun& run, const JinjaArgs& args) {
  std::vector<const JinjaValue*> a;
  RETURN_IF_ERROR(BindJinjaArgs("raise_exception", args, {"message"}, 1, &a));
  return run.Raise(std::string(JinjaStr(*a[0]).view()));
}

JinjaResult StrftimeNow(JinjaRun& run, const JinjaArgs& args) {
  std::vector<const JinjaValue*> a;
  RETURN_IF_ERROR(BindJinjaArgs("strftime_now", args, {"format"}, 1, &a));
  if (!a[0]->is_text()) return InvalidArgumentError("strftime_now() wants a string");
  const TemplateOptions& options = run.options();
  return JinjaValue(JinjaText(
      absl::FormatTime(std::string(a[0]->as_text()->view()), options.now(), options.time_zone)));
}

JinjaValue Function(std::string_view name,
                    std::function<JinjaResult(JinjaRun&, const JinjaArgs&)> call) {
  auto function = std::make_shared<JinjaFunction>();
  function->repr = fmt::format("<function {}>", name);
  function->call = std::move(call);
  return JinjaValue(JinjaValue::FunctionPtr(std::move(function)));
}

}  // namespace

std::vector<std::pair<std::string_view, JinjaValue>> JinjaGlobals() {
  std::vector<std::pair<std::string_view, JinjaValue>> globals = {
      {"range", Function("range", Range)},
      {"dict", Function("dict", Dict)},
      {"namespace", Function("namespace", Namespace)},
      {"raise_exception", Function("raise_exception", RaiseException)},
      {"strftime_now", Function("strftime_now", StrftimeNow)},
  };
  for (std::string_view name : {"cycler", "joiner", "lipsum"}) {
    globals.emplace_back(name, Function(name, [name](JinjaRun&, const JinjaArgs&) -> JinjaResult {
                           return UnimplementedError("the function '{}' is not supported", name);
                         }));
  }
  return globals;
}

}  // namespace tokenbutler
