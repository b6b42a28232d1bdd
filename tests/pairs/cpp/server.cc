// Answers as pairs.proto says: server ADDRESS.
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "pairs.h"

using grpc::ServerContext;
using grpc::Status;

namespace {

Status Error(unsigned code) {
  return Status(static_cast<grpc::StatusCode>(code), ErrorMessage(code));
}

pairs::Answer AnswerOf(const pairs::Question& question, unsigned number) {
  pairs::Answer answer;
  answer.set_payload(question.payload());
  answer.set_number(number);
  answer.set_bytes(question.payload().size());
  return answer;
}

// Has metadata come back: before the answer, and behind it.
void Echo(ServerContext* context) {
  for (const auto& [key, value] : context->client_metadata()) {
    const std::string name(key.data(), key.size()), text(value.data(), value.size());
    if (name == "pair-text") context->AddInitialMetadata(name, text);
    if (name == "pair-bytes-bin") context->AddTrailingMetadata(name, text);
  }
}

void Wait(unsigned milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

class Server final : public pairs::Pairs::Service {
  Status Ask(ServerContext* context, const pairs::Question* question, pairs::Answer* answer) override {
    Echo(context);
    Wait(question->wait_ms());
    if (question->error() != 0) return Error(question->error());
    *answer = AnswerOf(*question, 1);
    return Status::OK;
  }

  Status Collect(ServerContext* context, grpc::ServerReader<pairs::Question>* questions,
                 pairs::Answer* sum) override {
    Echo(context);
    pairs::Question question;
    while (questions->Read(&question)) {
      sum->set_number(sum->number() + 1);
      sum->set_bytes(sum->bytes() + question.payload().size());
    }
    return Status::OK;
  }

  Status Spread(ServerContext* context, const pairs::Question* question,
                grpc::ServerWriter<pairs::Answer>* answers) override {
    Echo(context);
    for (unsigned number = 1; number <= question->count(); ++number) {
      if (number > 1) Wait(question->wait_ms());
      if (context->IsCancelled() || !answers->Write(AnswerOf(*question, number))) {
        const std::lock_guard<std::mutex> guard(lock_);
        ++cancelled_[question->payload()];
        return Status::CANCELLED;
      }
    }
    return question->error() != 0 ? Error(question->error()) : Status::OK;
  }

  Status Chat(ServerContext* context,
              grpc::ServerReaderWriter<pairs::Answer, pairs::Question>* stream) override {
    Echo(context);
    pairs::Question question;
    for (unsigned number = 1; stream->Read(&question); ++number) {
      if (!stream->Write(AnswerOf(question, number))) break;
    }
    return Status::OK;
  }

  Status CountCancelled(ServerContext*, const pairs::Question* question, pairs::Answer* answer) override {
    const std::lock_guard<std::mutex> guard(lock_);
    answer->set_number(cancelled_[question->payload()]);
    return Status::OK;
  }

  std::mutex lock_;
  std::map<std::string, unsigned> cancelled_;
};

}  // namespace

int main(int, char** arguments) {
  Server service;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.AddListeningPort(arguments[1], grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  builder.BuildAndStart()->Wait();
}
