#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "tools/eval/tasks/seeded_random.h"

namespace tokenbutler {

// Words that tasks are made of.
struct WordPools {
  std::vector<std::string> adjectives = {}, nouns = {}, verbs = {};  // none empty
  std::string source = {};                                           // "built in", or the folder
};

// Some 1,700 English words of our own choice, none in two lists.
const WordPools& BuiltInWords();

// adjectivelist.txt, nounlist.txt and verblist.txt, one word a line: the files of the package that
// RULER takes its words from. NOT_FOUND or INVALID_ARGUMENT naming the file.
absl::StatusOr<WordPools> ReadWordPools(const std::string& folder);

// Different words in random order; when the lists have fewer, compounds of nouns ("riverstone")
// with them.
std::vector<std::string> DistinctWords(const WordPools& pools, int count, SeededRandom* random);

}  // namespace tokenbutler
