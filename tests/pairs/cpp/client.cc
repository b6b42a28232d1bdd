// Asks all that pairs.proto has, and says "all well": client ADDRESS.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "pairs.h"

using grpc::ClientContext;
using grpc::Status;
using pairs::Answer;
using pairs::Question;
using std::chrono::milliseconds;
using std::chrono::system_clock;

namespace {

constexpr size_t kLargeBytes = 8 << 20;
constexpr unsigned kMessages = 50;
constexpr milliseconds kPatience{60'000};

void Check(bool holds, const std::string& what) {
  if (!holds) {
    std::cerr << what << std::endl;
    std::exit(1);
  }
}

void CheckOk(const Status& status, const std::string& what) {
  Check(status.ok(), what + ": " + std::to_string(status.error_code()) + " " + status.error_message());
}

void CheckError(const Status& status, unsigned code) {
  const bool is_that = static_cast<unsigned>(status.error_code()) == code && status.error_message() == ErrorMessage(code);
  Check(is_that, "error " + std::to_string(code) + " came as " + std::to_string(status.error_code()) + " " + status.error_message());
}

std::unique_ptr<ClientContext> Within(milliseconds limit) {
  auto context = std::make_unique<ClientContext>();
  context->set_deadline(system_clock::now() + limit);
  return context;
}

Question QuestionOf(size_t bytes) {
  Question question;
  question.set_payload(std::string(bytes, 'x'));
  return question;
}

using Stub = pairs::Pairs::Stub;

void Unary(Stub& stub) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{70'000}, kLargeBytes}) {
    const Question question = QuestionOf(bytes);
    Answer answer;
    CheckOk(stub.Ask(Within(kPatience).get(), question, &answer), "unary");
    Check(answer.payload() == question.payload() && answer.number() == 1, "an answer");
  }
}

void Metadata(Stub& stub) {
  const std::string text = "a text, with = and ;", bytes("\x00\x01\xff\x00,\x80", 6);
  auto context = Within(kPatience);
  context->AddMetadata("pair-text", text);
  context->AddMetadata("pair-bytes-bin", bytes);
  Answer answer;
  CheckOk(stub.Ask(context.get(), QuestionOf(1), &answer), "metadata");
  const auto& headers = context->GetServerInitialMetadata();
  const auto& trailers = context->GetServerTrailingMetadata();
  const auto before = headers.find("pair-text"), behind = trailers.find("pair-bytes-bin");
  Check(before != headers.end() && std::string(before->second.data(), before->second.size()) == text, "metadata before the answer");
  Check(behind != trailers.end() && std::string(behind->second.data(), behind->second.size()) == bytes, "metadata behind the answer");
}

void Errors(Stub& stub) {
  for (unsigned code = 1; code <= 16; ++code) {
    Question question;
    question.set_error(code);
    Answer answer;
    CheckError(stub.Ask(Within(kPatience).get(), question, &answer), code);
  }
}

void Deadline(Stub& stub) {
  Question question;
  question.set_wait_ms(5'000);
  Answer answer;
  const Status status = stub.Ask(Within(milliseconds(300)).get(), question, &answer);
  Check(status.error_code() == grpc::DEADLINE_EXCEEDED, "a deadline came as " + status.error_message());
}

void Upload(Stub& stub) {
  auto context = Within(kPatience);
  Answer sum;
  auto questions = stub.Collect(context.get(), &sum);
  for (unsigned number = 0; number < kMessages; ++number) Check(questions->Write(QuestionOf(1'000)), "an upload");
  Check(questions->Write(QuestionOf(kLargeBytes)), "a large upload");
  questions->WritesDone();
  CheckOk(questions->Finish(), "the end of an upload");
  Check(sum.number() == kMessages + 1 && sum.bytes() == kMessages * 1'000 + kLargeBytes, "what was collected");
}

void Download(Stub& stub) {
  Question question = QuestionOf(1'000);
  question.set_count(kMessages);
  question.set_error(9);
  auto context = Within(kPatience);
  auto answers = stub.Spread(context.get(), question);
  Answer answer;
  for (unsigned number = 1; number <= kMessages; ++number) {
    Check(answers->Read(&answer) && answer.number() == number && answer.bytes() == 1'000, "answer " + std::to_string(number));
  }
  Check(!answers->Read(&answer), "more answers than asked for");
  CheckError(answers->Finish(), 9);
  question = QuestionOf(kLargeBytes);
  question.set_count(2);
  context = Within(kPatience);
  answers = stub.Spread(context.get(), question);
  for (unsigned number = 1; number <= 2; ++number) {
    Check(answers->Read(&answer) && answer.payload().size() == kLargeBytes, "a large answer");
  }
  Check(!answers->Read(&answer), "more large answers than asked for");
  CheckOk(answers->Finish(), "the end of a download");
}

void Chat(Stub& stub) {
  auto context = Within(kPatience);
  auto stream = stub.Chat(context.get());
  Answer answer;
  for (unsigned number = 1; number <= kMessages; ++number) {
    Check(stream->Write(QuestionOf(number)) && stream->Read(&answer), "a chat");
    Check(answer.number() == number && answer.bytes() == number, "answer " + std::to_string(number));
  }
  stream->WritesDone();
  Check(!stream->Read(&answer), "more answers than questions");
  CheckOk(stream->Finish(), "the end of a chat");
}

void Cancellation(Stub& stub) {
  Question question;
  question.set_payload("c++ " + std::to_string(system_clock::now().time_since_epoch().count()));
  question.set_count(1'000);
  question.set_wait_ms(50);
  auto context = Within(kPatience);
  auto answers = stub.Spread(context.get(), question);
  Answer answer;
  Check(answers->Read(&answer), "the first answer");
  context->TryCancel();
  while (answers->Read(&answer)) {
  }
  Check(answers->Finish().error_code() == grpc::CANCELLED, "what a cancelled call came to");
  Question about;
  about.set_payload(question.payload());
  const auto until = system_clock::now() + kPatience;
  do {
    Check(system_clock::now() < until, "the server does not know that the call was cancelled");
    std::this_thread::sleep_for(milliseconds(50));
    CheckOk(stub.CountCancelled(Within(kPatience).get(), about, &answer), "the count of cancelled calls");
  } while (answer.number() != 1);
}

}  // namespace

int main(int, char** arguments) {
  grpc::ChannelArguments limits;
  limits.SetMaxReceiveMessageSize(kMessageBytesMax);
  const auto channel = grpc::CreateCustomChannel(arguments[1], grpc::InsecureChannelCredentials(), limits);
  const auto stub = pairs::Pairs::NewStub(channel);
  for (const auto& ask : {Unary, Metadata, Errors, Deadline, Upload, Download, Chat, Cancellation}) ask(*stub);
  std::cout << "all well" << std::endl;
}
