#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/tiny_model.h"
#include "tools/eval/eval_session.h"

namespace tokenbutler {

// A folder with the tiny model and texts of about 600 of its tokens each, always the same.
class TinyEvaluation : public ::testing::Test {
 protected:
  TinyEvaluation() {
    WriteTinyModel(folder_.path() / "model");
    std::filesystem::create_directories(folder_.path() / "texts");
    for (int i = 0; i < 3; ++i) folder_.Write(fmt::format("texts/{}.txt", i), Text(i));
  }

  static std::string Text(uint32_t seed) {
    static constexpr const char* kWords[] = {
        "the ",  "river ",   "was ",  "cold ",   "and ",    "a ",  "light ",   "moved ",
        "over ", "stones, ", "then ", "nobody ", "spoke. ", "He ", "counted ", "7 "};
    std::string text;
    for (int i = 0; i < 500; ++i) {
      seed = seed * 1664525u + 1013904223u;
      text += kWords[seed >> 28];
    }
    return text;
  }

  std::string model() const { return (folder_.path() / "model").string(); }
  std::string texts() const { return (folder_.path() / "texts").string(); }

  // Room for `context_len` tokens, of which some may follow what is held.
  EvalOptions Options(int context_len) const {
    EvalOptions options;
    options.model = model();
    options.dtype = "float32";
    options.choice.settings = {"dense", "exact", "sketch", "random"};
    options.choice.sink_tokens = 4;
    options.choice.local_window = 16;
    options.choice.resume = (folder_.path() / "rows.jsonl").string();
    options.budgets = {"160"};
    options.context_len = context_len;
    options.forked_tokens = 64;
    options.batch = 3;
    return options;
  }

  TemporaryFolder folder_;
  ComputePool pool_{2};
};

}  // namespace tokenbutler
