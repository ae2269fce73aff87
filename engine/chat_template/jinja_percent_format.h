#pragma once

#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

// Python's `format % values`: a tuple, a dictionary for %(name)s, or one value. What is put in
// keeps its provenance.
JinjaResult PercentFormat(JinjaRun& run, const JinjaText& format, const JinjaValue& values);

// str.format(*args, **kwargs) with jinja2's sandboxed look-up of {a.b[c]}.
JinjaResult FormatMethod(JinjaRun& run, const JinjaText& format, const JinjaArgs& args);

}  // namespace tokenbutler
