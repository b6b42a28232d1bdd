// Calls bench.Echo/Call over one connection, from one thread: client ADDRESS BYTES CALLS_IN_FLIGHT SECONDS.
// Says, as JSON, how many calls ended well, how many did not, and how long they took in nanoseconds.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "bench.grpc.pb.h"

using std::chrono::duration_cast;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

namespace {

struct Call {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<bench::EchoResponse>> reader;
  bench::EchoResponse response;
  grpc::Status status;
  steady_clock::time_point began;

  void Begin(bench::Echo::Stub& stub, const bench::EchoRequest& request, grpc::CompletionQueue& queue) {
    context = std::make_unique<grpc::ClientContext>();
    began = steady_clock::now();
    reader = stub.AsyncCall(context.get(), request, &queue);
    reader->Finish(&response, &status, this);
  }
};

std::int64_t Quantile(const std::vector<std::int64_t>& sorted, double quantile) {
  if (sorted.empty()) {
    return 0;
  }
  const auto at = static_cast<size_t>(quantile * static_cast<double>(sorted.size()));
  return sorted[std::min(at, sorted.size() - 1)];
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::cerr << "client ADDRESS BYTES CALLS_IN_FLIGHT SECONDS" << std::endl;
    return 2;
  }
  bench::EchoRequest request;
  request.set_payload(std::string(std::strtoul(arguments[2], nullptr, 10), 'x'));
  std::vector<Call> calls(std::strtoul(arguments[3], nullptr, 10));
  const double seconds = std::strtod(arguments[4], nullptr);

  auto stub = bench::Echo::NewStub(grpc::CreateChannel(arguments[1], grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  std::vector<std::int64_t> latencies;
  std::uint64_t errors = 0;
  const auto began = steady_clock::now();
  const auto end = began + duration_cast<nanoseconds>(std::chrono::duration<double>(seconds));
  for (Call& call : calls) {
    call.Begin(*stub, request, queue);
  }
  size_t under_way = calls.size();
  void* tag = nullptr;
  bool ok = false;
  while (under_way > 0 && queue.Next(&tag, &ok)) {
    Call& call = *static_cast<Call*>(tag);
    const auto now = steady_clock::now();
    if (ok && call.status.ok()) {
      latencies.push_back(duration_cast<nanoseconds>(now - call.began).count());
    } else if (errors++ < 3) {
      std::cerr << "call failed: " << call.status.error_message() << std::endl;
    }
    if (now < end) {
      call.Begin(*stub, request, queue);
    } else {
      --under_way;
    }
  }
  const std::chrono::duration<double> took = steady_clock::now() - began;
  std::sort(latencies.begin(), latencies.end());
  const double sum = std::accumulate(latencies.begin(), latencies.end(), 0.0);
  const size_t answered = latencies.size();
  std::cout << "{\"seconds\": " << took.count() << ", \"count\": " << answered << ", \"errors\": " << errors
            << ", \"mean\": " << (answered == 0 ? 0.0 : sum / static_cast<double>(answered))
            << ", \"fastest\": " << Quantile(latencies, 0.0) << ", \"p50\": " << Quantile(latencies, 0.5)
            << ", \"p90\": " << Quantile(latencies, 0.9) << ", \"p99\": " << Quantile(latencies, 0.99) << "}"
            << std::endl;
  return 0;
}
