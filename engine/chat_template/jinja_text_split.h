#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/chat_template/jinja_text.h"

namespace tokenbutler {

class JinjaRun;

// Cutting and joining of texts as Python's str does it; every byte keeps its provenance.

// str.strip: white space, or the characters of `chars`.
JinjaText StripText(const JinjaText& text, const JinjaText* chars, bool left, bool right);

// str.split without and with a separator; at most `max_splits`, counted from the right if asked.
std::vector<JinjaText> SplitOnSpace(const JinjaText& text, int64_t max_splits, bool from_right);
std::vector<JinjaText> SplitOn(const JinjaText& text, std::string_view separator,
                               int64_t max_splits, bool from_right);
std::vector<JinjaText> SplitTextLines(const JinjaText& text, bool keep_ends);

// str.replace; a negative count replaces all. RESOURCE_EXHAUSTED for a result that is too long.
absl::StatusOr<JinjaText> ReplaceText(JinjaRun& run, const JinjaText& text, const JinjaText& from,
                                      const JinjaText& to, int64_t count);

// str.isupper, str.islower: a cased letter, and none of the other case.
bool IsTextUpper(std::string_view text);
bool IsTextLower(std::string_view text);

}  // namespace tokenbutler
