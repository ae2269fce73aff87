#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/selection/attention_params.h"
#include "engine/step_plan.h"
#include "offload/block_table.h"

namespace tokenbutler {

// A prompt in the KV cache that no sequence owns: its rows, and what policies have learned while it
// was prefilled. Sequences that begin with it share its full blocks and get copies of the last one,
// as forks do. Does not change once it is held; the engine thread makes and destroys it.
struct HeldPrompt {
  std::string name;
  std::vector<int32_t> token_ids;
  BlockTable table;  // an owner of its blocks; no state blocks
  // One for each of HoldParams::attentions; an owner of its state blocks only.
  std::vector<PromptObserver> observers;
  std::vector<BlockId> reserved_blocks;  // that stand for what the observers keep elsewhere

  int num_tokens() const { return static_cast<int>(token_ids.size()); }
  // The observer with this attention; null: none.
  const PromptObserver* Find(const AttentionParams& attention) const;
};

// The held prompts of an engine, by name. Not thread-safe: the engine's mutex guards it.
class HeldPrompts {
 public:
  // Takes a name for a prompt that is to be held. False: it is taken.
  bool Reserve(const std::string& name) { return names_.insert(name).second; }
  // Gives a name back whose prompt is not held after all.
  void Cancel(const std::string& name) { names_.erase(name); }

  // REQUIRES: its name is reserved.
  void Add(std::unique_ptr<HeldPrompt> prompt);
  // Null: none. Who keeps the result keeps the prompt's blocks.
  std::shared_ptr<const HeldPrompt> Find(const std::string& name) const;

  // From now on nobody finds the prompt, and its name is free. False: there is none.
  bool Drop(const std::string& name);
  void DropAll();
  // Prompts that were dropped and that nobody keeps any more; the caller releases what they own.
  std::vector<std::shared_ptr<HeldPrompt>> TakeUnused();

 private:
  std::set<std::string> names_;  // reserved ones included
  std::map<std::string, std::shared_ptr<HeldPrompt>> held_;
  std::vector<std::shared_ptr<HeldPrompt>> dropped_;
};

}  // namespace tokenbutler
