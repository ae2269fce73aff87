#pragma once

#include "engine/chat_template/jinja_text.h"

namespace tokenbutler {

// & < > " ' as HTML entities; markup stays as it is. The result is markup.
JinjaText EscapeJinjaHtml(const JinjaText& text);

}  // namespace tokenbutler
