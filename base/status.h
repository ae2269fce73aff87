#pragma once

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"

// Propagates errors: `RETURN_IF_ERROR(f());` and `ASSIGN_OR_RETURN(auto x, g());`.
// The only control-flow macros of the code base.
#define RETURN_IF_ERROR(expr)                             \
  do {                                                    \
    if (::absl::Status _status = (expr); !_status.ok()) { \
      return _status;                                     \
    }                                                     \
  } while (false)

#define TOKENBUTLER_CONCAT_INNER(a, b) a##b
#define TOKENBUTLER_CONCAT(a, b) TOKENBUTLER_CONCAT_INNER(a, b)
#define ASSIGN_OR_RETURN(lhs, expr) \
  TOKENBUTLER_ASSIGN_OR_RETURN(TOKENBUTLER_CONCAT(_statusor_, __LINE__), lhs, expr)
#define TOKENBUTLER_ASSIGN_OR_RETURN(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) {                                   \
    return std::move(tmp).status();                  \
  }                                                  \
  lhs = std::move(tmp).value()

namespace tokenbutler {

// Formatted errors. Debian's absl has its own string_view and does not take std::string_view,
// so messages are formatted with fmt. A message names the field, the value and the bound:
//   return InvalidArgumentError("sampling.top_p is {}, must be in (0, 1]", top_p);
absl::Status MakeStatus(absl::StatusCode code, fmt::string_view format, fmt::format_args args);

template <typename... Args>
absl::Status InvalidArgumentError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kInvalidArgument, format, fmt::make_format_args(args...));
}
template <typename... Args>
absl::Status NotFoundError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kNotFound, format, fmt::make_format_args(args...));
}
template <typename... Args>
absl::Status AlreadyExistsError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kAlreadyExists, format, fmt::make_format_args(args...));
}
template <typename... Args>
absl::Status FailedPreconditionError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kFailedPrecondition, format, fmt::make_format_args(args...));
}
template <typename... Args>
absl::Status ResourceExhaustedError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kResourceExhausted, format, fmt::make_format_args(args...));
}
template <typename... Args>
absl::Status UnimplementedError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kUnimplemented, format, fmt::make_format_args(args...));
}
template <typename... Args>
absl::Status UnavailableError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kUnavailable, format, fmt::make_format_args(args...));
}
template <typename... Args>
absl::Status DataLossError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kDataLoss, format, fmt::make_format_args(args...));
}
template <typename... Args>
absl::Status InternalError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kInternal, format, fmt::make_format_args(args...));
}

// The same error, details included, with `prefix: ` before its message.
absl::Status Annotate(const absl::Status& status, std::string_view prefix);

}  // namespace tokenbutler
