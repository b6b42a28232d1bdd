// What the client and the server have in common.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "pairs.grpc.pb.h"

constexpr int kMessageBytesMax = 16 << 20;

inline std::string ErrorMessage(unsigned code) {
  return "code " + std::to_string(code) + ": grüße ☺, 100 %";
}
