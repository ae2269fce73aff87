#pragma once

#include <string>
#include <vector>

namespace tokenbutler {

// "abs-guide 10-4, apache2-doc 2.4.71-1": the packages that scripts/fetch-corpus made the texts of,
// by the manifest.json in a folder or beside it, for the part that the folder's name says (all
// parts for the folder that holds them). Empty: no manifest, or one of somebody else's.
std::string PackagesOf(const std::vector<std::string>& texts);

}  // namespace tokenbutler
