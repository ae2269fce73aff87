#include "server/write_threads.h"

#include <utility>

namespace tokenbutler {

WriteThreads::WriteThreads(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WriteThreads::~WriteThreads() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void WriteThreads::WriteSoon(std::shared_ptr<WritableStream> stream) {
  MutexLock lock(&mutex_);
  if (stream->is_listed_) return;
  stream->is_listed_ = true;
  WritableStream* const added = stream.get();
  (first_ == nullptr ? first_ : last_->next_) = std::move(stream);
  last_ = added;
  wake_.Signal();
}

std::shared_ptr<WritableStream> WriteThreads::Next() {
  MutexLock lock(&mutex_);
  while (first_ == nullptr && !stopping_) wake_.Wait(&mutex_);
  std::shared_ptr<WritableStream> stream = std::move(first_);
  if (stream == nullptr) return nullptr;
  first_ = std::move(stream->next_);
  // From here on it may be named again: what was pushed before is seen by the call that follows.
  stream->is_listed_ = false;
  return stream;
}

void WriteThreads::Loop() {
  while (const std::shared_ptr<WritableStream> stream = Next()) stream->WriteReady();
}

}  // namespace tokenbutler
