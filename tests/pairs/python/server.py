"""Answers as pairs.proto says: server.py ADDRESS."""

import collections
import concurrent.futures
import pathlib
import sys
import time

import grpc

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
messages, services = grpc.protos_and_services("pairs.proto")

MESSAGE_BYTES_MAX = 16 << 20
CODES = {code.value[0]: code for code in grpc.StatusCode}


def answer(question, number):
    payload = question.payload
    return messages.Answer(payload=payload, number=number, bytes=len(payload))


def echo(context):
    """Has metadata come back: before the answer, and behind it."""
    came = context.invocation_metadata()
    context.send_initial_metadata([pair for pair in came if pair[0] == "pair-text"])
    context.set_trailing_metadata([pair for pair in came if pair[0] == "pair-bytes-bin"])


def fail(context, question):
    if question.error:
        context.abort(CODES[question.error], f"code {question.error}: grüße ☺, 100 %")


class Pairs(services.PairsServicer):
    def __init__(self):
        self.cancelled = collections.Counter()

    def Ask(self, question, context):
        echo(context)
        time.sleep(question.wait_ms / 1000)
        fail(context, question)
        return answer(question, 1)

    def Collect(self, questions, context):
        echo(context)
        sizes = [len(question.payload) for question in questions]
        return messages.Answer(number=len(sizes), bytes=sum(sizes))

    def Spread(self, question, context):
        echo(context)
        answered = []

        def end():
            if len(answered) < question.count:
                self.cancelled[question.payload] += 1

        # A generator is not run further when its call is cancelled.
        context.add_callback(end)
        for number in range(1, question.count + 1):
            if number > 1:
                time.sleep(question.wait_ms / 1000)
            answered.append(number)
            yield answer(question, number)
        fail(context, question)

    def Chat(self, questions, context):
        echo(context)
        for number, question in enumerate(questions, 1):
            yield answer(question, number)

    def CountCancelled(self, question, context):
        return messages.Answer(number=self.cancelled[question.payload])


def main():
    limits = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.max_send_message_length", -1)]
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=16), options=limits)
    services.add_PairsServicer_to_server(Pairs(), server)
    server.add_insecure_port(sys.argv[1])
    server.start()
    server.wait_for_termination()


main()
