#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tools/eval/tasks/seeded_random.h"

namespace tokenbutler {

// One grammatical English sentence about everyday things, without names or digits: filler that has
// nothing to do with what a task asks. "The patient miller carried a copper lamp to the harbor
// before sunrise."
std::string ProseSentence(SeededRandom* random);

// Running text that tasks hide things in.
struct Prose {
  std::vector<std::string> words = {};  // not empty
  std::string source = {};              // "generated", or the files' names
};

// Sentences of ProseSentence, `num_words` words or a few more.
Prose GeneratedProse(uint64_t seed, int num_words);

// The words of text files, one after the other. NOT_FOUND, or INVALID_ARGUMENT without words.
absl::StatusOr<Prose> ReadProse(const std::vector<std::string>& paths);

// The first `num_words` words, begun again from the start when there are fewer, cut into sentences:
// behind a full stop, question or exclamation mark and the quotes and brackets that close with it.
std::vector<std::string> Sentences(const Prose& prose, int num_words);

}  // namespace tokenbutler
