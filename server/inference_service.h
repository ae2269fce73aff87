#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"
#include "server/lifecycle.h"
#include "server/open_streams.h"
#include "server/request_preparer.h"
#include "server/stream_writer.h"
#include "server/write_threads.h"
#include "tokenbutler/v1/inference.grpc.pb.h"

namespace tokenbutler {

struct GenerateCall;

// gRPC's service with every method taking and giving bytes: server/wire_codec parses them, so that
// a request that is no proper proto gets a proper answer.
using RawInferenceService = v1::InferenceService::WithRawCallbackMethod_Generate<
    v1::InferenceService::WithRawCallbackMethod_Tokenize<
        v1::InferenceService::WithRawCallbackMethod_Detokenize<
            v1::InferenceService::WithRawCallbackMethod_Abort<
                v1::InferenceService::WithRawCallbackMethod_GetModelInfo<
                    v1::InferenceService::WithRawCallbackMethod_GetServerInfo<
                        v1::InferenceService::WithRawCallbackMethod_GetLoad<
                            v1::InferenceService::Service>>>>>>>;

// tokenbutler.v1.InferenceService: converts, delegates, converts back. Its methods run on gRPC's
// threads and never wait: what is slow goes to the request preparer, the rest is the engine's.
class InferenceService final : public RawInferenceService {
 public:
  // Not owned; must outlive the service.
  struct Parts {
    Lifecycle* lifecycle = nullptr;
    RequestPreparer* preparer = nullptr;
    OpenStreams* streams = nullptr;
    WriteThreads* write_threads = nullptr;
    Metrics* metrics = nullptr;
    const Clock* clock = nullptr;
  };
  struct Options {
    absl::Duration stall_limit = absl::Seconds(30);
    size_t max_pending_bytes = size_t{16} << 20;
    BuildLabels build;                                 // for GetServerInfo
    std::map<std::string, std::string> configuration;  // flags in force, for GetServerInfo
  };

  InferenceService(Parts parts, Options options);

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;

 private:
  std::string DrawRequestId();
  // The call's deadline on clock_'s time.
  absl::Time Deadline(const grpc::CallbackServerContext& context) const;
  // Tokenises the prompt of a call that may have ended meanwhile, and submits it.
  void Prepare(const std::shared_ptr<StreamWriter>& writer,
               std::shared_ptr<const ServedModel> model, GenerateCall call);

  const Parts parts_;
  const Options options_;
  const absl::Time start_time_;
  const uint64_t id_prefix_;  // tells this process's drawn ids from those of its predecessors
  std::atomic<uint64_t> next_id_ = 1;
};

}  // namespace tokenbutler
