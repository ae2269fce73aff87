#include "engine/chat_template/jinja_json.h"

#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

// Builds values from nlohmann's event stream, whose parser keeps its own stack: deep input cannot
// overflow ours.
class ValueReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add(JinjaValue()); }
  bool boolean(bool value) override { return Add(JinjaValue(value)); }
  bool number_integer(number_integer_t value) override { return Add(JinjaValue(int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) return Add(JinjaValue(double(value)));
    return Add(JinjaValue(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override {
    return Add(JinjaValue(double{value}));
  }
  bool string(string_t& value) override {
    return Add(JinjaValue(JinjaText(std::move(value), /*from_content=*/true)));
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(/*is_object=*/true); }
  bool start_array(size_t) override { return Open(/*is_object=*/false); }
  bool key(string_t& value) override {
    open_.back().key = JinjaValue(JinjaText(std::move(value), /*from_content=*/true));
    return true;
  }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    status_ = InvalidArgumentError("not valid JSON at byte {}", position);
    return false;
  }

  JinjaResult Take() && {
    if (!status_.ok()) return status_;
    return std::move(result_);
  }

 private:
  struct Collection {
    bool is_object = false;
    JinjaDict dict;
    std::vector<JinjaValue> items;
    JinjaValue key;
  };

  bool Open(bool is_object) {
    if (open_.size() >= static_cast<size_t>(kMaxJinjaValueDepth)) {
      status_ = InvalidArgumentError("JSON nests deeper than {}", kMaxJinjaValueDepth);
      return false;
    }
    open_.emplace_back().is_object = is_object;
    return true;
  }

  bool Close() {
    Collection done = std::move(open_.back());
    open_.pop_back();
    JinjaResult value =
        done.is_object ? MakeJinjaDict(std::move(done.dict)) : MakeJinjaList(std::move(done.items));
    if (!value.ok()) {
      status_ = value.status();
      return false;
    }
    return Add(*std::move(value));
  }

  bool Add(JinjaValue value) {
    if (open_.empty()) {
      result_ = std::move(value);
      return true;
    }
    Collection& parent = open_.back();
    if (!parent.is_object) {
      parent.items.push_back(std::move(value));
      return true;
    }
    status_ = parent.dict.Set(std::move(parent.key), std::move(value));
    return status_.ok();
  }

  std::vector<Collection> open_;
  JinjaValue result_;
  absl::Status status_;
};

}  // namespace

JinjaResult ParseJinjaJson(std::string_view json) {
  ValueReader reader;
  nlohmann::json::sax_parse(json, &reader);
  return std::move(reader).Take();
}

}  // namespace tokenbutler
