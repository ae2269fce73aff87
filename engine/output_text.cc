#include "engine/output_text.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/incremental_decoder.h"

namespace tokenbutler {
namespace {

bool IsContinuationByte(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

bool Contains(absl::Span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

OutputText::OutputText(const Tokenizer* tokenizer, OutputTextOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      decoder_(
          std::make_unique<IncrementalDecoder>(tokenizer, options_.output.skip_special_tokens)) {
  if (!options_.stop.strings.empty()) matcher_.emplace(options_.stop.strings);
  next_.index = options_.index;
}

OutputText::~OutputText() = default;
OutputText::OutputText(OutputText&&) noexcept = default;
OutputText& OutputText::operator=(OutputText&&) noexcept = default;

OutputText::Update OutputText::Append(int32_t token_id, PositionLogprobs logprobs) {
  ForgetSentChunk();
  ++num_tokens_;
  ++tokens_since_chunk_;
  if (options_.output.return_token_ids) next_.token_ids.push_back(token_id);
  if (options_.logprobs) next_.logprobs.push_back(std::move(logprobs));

  if (std::optional<StopEvent> stop = StopTokenEvent(token_id)) {
    if (!options_.stop.include_in_output) return Finish(std::move(stop));
    // The token's own text is wanted: a stop string in it has no say any more.
    Absorb(decoder_->Push(token_id), /*match=*/false);
    Absorb(decoder_->Finish(), /*match=*/false);
    return {TakeChunk(/*last=*/true), std::move(stop)};
  }
  if (std::optional<StopEvent> stop = Absorb(decoder_->Push(token_id), may_stop())) {
    return {TakeChunk(/*last=*/true), std::move(stop)};
  }
  return {TakeChunk(/*last=*/false), std::nullopt};
}

OutputText::Update OutputText::Flush() {
  ForgetSentChunk();
  return Finish(std::nullopt);
}

void OutputText::ForgetSentChunk() {
  if (!std::exchange(next_sent_, false)) return;
  next_.text.clear();
  next_.token_ids.clear();
  next_.logprobs.clear();
}

OutputText::Update OutputText::Finish(std::optional<StopEvent> stop) {
  if (std::optional<StopEvent> earlier = Absorb(decoder_->Finish(), may_stop())) {
    stop = std::move(earlier);
  }
  return {TakeChunk(/*last=*/true), std::move(stop)};
}

std::optional<StopEvent> OutputText::StopTokenEvent(int32_t token_id) const {
  if (!may_stop()) return std::nullopt;
  StopEvent event;
  event.matched_token_id = token_id;
  if (!options_.stop.ignore_eos && Contains(tokenizer_->eos_ids(), token_id)) {
    event.reason = FinishReason::kEos;
    return event;
  }
  if (Contains(options_.stop.token_ids, token_id)) {
    event.reason = FinishReason::kStopToken;
    return event;
  }
  return std::nullopt;
}

std::optional<StopEvent> OutputText::Absorb(std::string_view text, bool match) {
  if (!matcher_.has_value()) {
    pending_.append(text);
    return std::nullopt;
  }
  const std::optional<StopMatcher::Match> found = matcher_->Advance(text, match);
  if (!found.has_value()) {
    pending_.append(text);
    return std::nullopt;
  }
  pending_.append(text.substr(0, found->end));
  if (!options_.stop.include_in_output) pending_.resize(pending_.size() - found->length);
  StopEvent event;
  event.reason = FinishReason::kStopString;
  event.matched_stop_string = options_.stop.strings[found->string_index];
  return event;
}

const OutputChunk* OutputText::TakeChunk(bool last) {
  if (!last && tokens_since_chunk_ < options_.output.stream_interval) return nullptr;
  size_t end = pending_.size();
  if (!last && matcher_.has_value()) {
    end -= matcher_->held_back();
    while (end > sent_ && end < pending_.size() && IsContinuationByte(pending_[end])) --end;
  }
  if (end == sent_ && next_.token_ids.empty() && next_.logprobs.empty()) return nullptr;

  next_.text.assign(pending_, sent_, end - sent_);
  next_sent_ = true;
  sent_ = end;
  tokens_since_chunk_ = 0;
  // Dropping the sent part only when it is the larger one keeps the moves linear in the text.
  if (sent_ * 2 >= pending_.size()) {
    pending_.erase(0, sent_);
    sent_ = 0;
  }
  return &next_;
}

}  // namespace tokenbutler
