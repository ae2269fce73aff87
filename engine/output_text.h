#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "engine/stop_matcher.h"
#include "engine/token_sink.h"
#include "engine/tokenizer/tokenizer.h"

namespace tokenbutler {

class IncrementalDecoder;

// Why a completion ended by itself; what FinishedOutput says about it.
struct StopEvent {
  FinishReason reason = FinishReason::kEos;  // kEos, kStopToken or kStopString
  std::string matched_stop_string;
  int32_t matched_token_id = -1;
};

struct OutputTextOptions {
  int index = 0;  // which completion; goes into every chunk
  StopParams stop;
  OutputParams output;
  int min_tokens = 0;     // nothing stops the completion before this many tokens came
  bool logprobs = false;  // chunks carry log-probabilities
};

// Turns one completion's sampled tokens into the chunks its client gets: detokenises, watches for
// EOS, stop tokens and stop strings, holds back what may be the beginning of a stop string, merges
// tokens up to output.stream_interval. Owned by the sequence, used on the engine thread.
//
// Promises, for any division into tokens: every chunk has whole UTF-8 and is not empty (it has
// text, or ids or log-probabilities when those are asked for); the chunks' texts concatenate to the
// decoded text of all tokens, cut before the stop string or stop token that ended it (after it with
// stop.include_in_output). Ids and log-probabilities cover every token, the one that stopped too;
// they may come earlier than held-back text. Time is linear in the text.
class OutputText {
 public:
  struct Update {
    const OutputChunk* chunk = nullptr;  // null: nothing to send; valid until the next call
    std::optional<StopEvent> stop;       // the completion is over; `chunk`, if any, was its last
  };

  // `tokenizer` must outlive this.
  OutputText(const Tokenizer* tokenizer, OutputTextOptions options);
  ~OutputText();
  OutputText(OutputText&&) noexcept;
  OutputText& operator=(OutputText&&) noexcept;

  // REQUIRES: not over. `logprobs` is kept when options.logprobs is set.
  Update Append(int32_t token_id, PositionLogprobs logprobs = {});

  // The completion is over for a reason from outside (length, cancel): everything held back comes
  // out. `stop` is set only if the last incomplete bytes, now text, completed a stop string.
  // REQUIRES: not over.
  Update Flush();

  int64_t num_tokens() const { return num_tokens_; }

 private:
  bool may_stop() const { return num_tokens_ > options_.min_tokens; }
  std::optional<StopEvent> StopTokenEvent(int32_t token_id) const;
  // Appends decoded text to pending_, with `match` only up to a stop string that it completes.
  std::optional<StopEvent> Absorb(std::string_view text, bool match);
  Update Finish(std::optional<StopEvent> stop);
  const OutputChunk* TakeChunk(bool last);
  void ForgetSentChunk();

  const Tokenizer* tokenizer_;
  OutputTextOptions options_;
  std::unique_ptr<IncrementalDecoder> decoder_;
  std::optional<StopMatcher> matcher_;  // unset without stop strings
  std::string pending_;                 // text not yet sent, from sent_ on
  size_t sent_ = 0;                     // prefix of pending_ that was sent already
  OutputChunk next_;                    // ids and log-probabilities not yet sent; its memory stays
  bool next_sent_ = false;              // what next_ holds was handed out and is over
  int64_t num_tokens_ = 0;
  int tokens_since_chunk_ = 0;
};

}  // namespace tokenbutler
