#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"

namespace google::protobuf {
class Message;
}

namespace tokenbutler {

// gRPC's bytes <-> protobuf. Done here and not by gRPC, which answers a request that cannot be
// parsed (a proto3 string that is not UTF-8, say) with a bare UNIMPLEMENTED.

// INVALID_ARGUMENT naming the first string field whose bytes are not UTF-8 and the position in it,
// or saying that the bytes are no such message.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace tokenbutler
