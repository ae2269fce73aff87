#include "tools/eval/tasks/json_lines.h"

#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

namespace tokenbutler {

using Json = nlohmann::json;

absl::StatusOr<std::vector<Json>> ReadJsonLines(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFoundError("{} cannot be read", path);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::vector<Json> objects;
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin != std::string::npos && text[begin] == '[') {
    Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!list.is_array()) return InvalidArgumentError("{} is no JSON list", path);
    for (Json& object : list) objects.push_back(std::move(object));
  } else {
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = std::string_view(text).substr(at, end - at);
      at = end + 1;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      objects.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
      if (objects.back().is_discarded()) {
        return InvalidArgumentError("{}: line {} of the file is no JSON", path, objects.size());
      }
    }
  }
  for (size_t i = 0; i < objects.size(); ++i) {
    if (!objects[i].is_object()) {
      return InvalidArgumentError("{}: entry {} is no JSON object", path, i + 1);
    }
  }
  if (objects.empty()) return InvalidArgumentError("{} has no entries", path);
  return objects;
}

}  // namespace tokenbutler
