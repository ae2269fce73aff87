#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tokenbutler {

// The metrics of tasks, as their papers define them; tools/eval/longbench_score.py has LongBench's.

// RULER's string_match_all (arXiv 2404.06654, table 4): the share of `expected` that `answer`
// contains, letters' case ignored. REQUIRES: `expected` is not empty.
double MatchAll(std::string_view answer, const std::vector<std::string>& expected);

// RULER's string_match_part: 1 when `answer` contains one of `expected`, case ignored, else 0.
double MatchAny(std::string_view answer, const std::vector<std::string>& expected);

// 1 when `answer`, white space before it aside, begins with one of `expected` and no letter or
// digit follows, so that half a name is no answer; else 0.
double MatchStart(std::string_view answer, const std::vector<std::string>& expected);

// What the last \boxed{...} or \fbox{...} holds, braces balanced; nullopt without one.
std::optional<std::string> LastBoxed(std::string_view answer);

// An integer as people write it in a box: spaces, dollar signs, digit separators ("1,024", "{,}"),
// \text{} and leading zeros aside. nullopt for anything else, or when it takes over 18 digits.
std::optional<int64_t> ParseBoxedInteger(std::string_view boxed);

// 1 when the last box holds the integer that one of `expected` is, else 0.
double MatchBoxedInteger(std::string_view answer, const std::vector<std::string>& expected);

}  // namespace tokenbutler
