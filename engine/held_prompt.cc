#include "engine/held_prompt.h"

#include <algorithm>
#include <utility>

namespace tokenbutler {

const PromptObserver* HeldPrompt::Find(const AttentionParams& attention) const {
  const auto at = std::find_if(observers.begin(), observers.end(),
                               [&](const PromptObserver& o) { return o.attention == attention; });
  return at == observers.end() ? nullptr : &*at;
}

void HeldPrompts::Add(std::unique_ptr<HeldPrompt> prompt) {
  std::string name = prompt->name;
  held_[std::move(name)] = std::move(prompt);
}

std::shared_ptr<const HeldPrompt> HeldPrompts::Find(const std::string& name) const {
  const auto at = held_.find(name);
  return at == held_.end() ? nullptr : at->second;
}

bool HeldPrompts::Drop(const std::string& name) {
  const auto at = held_.find(name);
  if (at == held_.end()) return false;
  dropped_.push_back(std::move(at->second));
  held_.erase(at);
  names_.erase(name);
  return true;
}

void HeldPrompts::DropAll() {
  for (auto& [name, prompt] : held_) {
    names_.erase(name);
    dropped_.push_back(std::move(prompt));
  }
  held_.clear();
}

std::vector<std::shared_ptr<HeldPrompt>> HeldPrompts::TakeUnused() {
  // A prompt that was dropped is kept by fewer and fewer: nobody finds it any more.
  const auto used = std::partition(dropped_.begin(), dropped_.end(),
                                   [](const auto& prompt) { return prompt.use_count() > 1; });
  std::vector<std::shared_ptr<HeldPrompt>> unused(std::make_move_iterator(used),
                                                  std::make_move_iterator(dropped_.end()));
  dropped_.erase(used, dropped_.end());
  return unused;
}

}  // namespace tokenbutler
