#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tokenbutler {

// A stream as the threads that write to clients see it.
class WritableStream {
 public:
  virtual ~WritableStream() = default;

  // Starts to write what there is to write. Must not wait for the client. On a write thread, and on
  // another one at the same time when the stream was named again meanwhile.
  virtual void WriteReady() = 0;

 private:
  friend class WriteThreads;

  // Under the mutex of the WriteThreads that list it.
  bool is_listed_ = false;
  std::shared_ptr<WritableStream> next_;  // listed behind it
};

// The threads that write streams to their clients, so that the engine thread need not: it only
// leaves an event in the stream's queue and names the stream here. The list of named streams runs
// through the streams themselves, so it is as long as it has to be and naming one allocates
// nothing. Knows neither gRPC nor protobuf.
class WriteThreads {
 public:
  // One thread wakes once for what a step of the engine has for all its streams; more only pay when
  // converting and sending messages takes a whole processor.
  explicit WriteThreads(int num_threads = 1);
  // Lets each stream that is still listed write once more.
  ~WriteThreads();
  WriteThreads(const WriteThreads&) = delete;
  WriteThreads& operator=(const WriteThreads&) = delete;

  // Soon WriteReady() is called, in the order in which streams are named; once for all calls until
  // it begins. Never waits. Any thread, from WriteReady(), too.
  void WriteSoon(std::shared_ptr<WritableStream> stream) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  // The stream that was named first, taken from the list; waits for one. Null: shut down.
  std::shared_ptr<WritableStream> Next() ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  CondVar wake_;
  std::shared_ptr<WritableStream> first_ ABSL_GUARDED_BY(mutex_);  // of the list; null: empty
  WritableStream* last_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tokenbutler
