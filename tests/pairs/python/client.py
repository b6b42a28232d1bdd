"""Asks all that pairs.proto has, and says "all well": client.py ADDRESS."""

import pathlib
import queue
import sys
import time
import uuid

import grpc

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
messages, services = grpc.protos_and_services("pairs.proto")

LARGE_BYTES = 8 << 20
MESSAGES = 50
MESSAGE_BYTES_MAX = 16 << 20
PATIENCE = 60
CODES = {code.value[0]: code for code in grpc.StatusCode}


def check(holds, what):
    if not holds:
        sys.exit(what)


def question(size, **more):
    return messages.Question(payload=b"x" * size, **more)


def error_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    return sys.exit("no error came")


def check_error(error, code):
    wanted = f"code {code}: grüße ☺, 100 %"
    check(error.code() == CODES[code] and error.details() == wanted, f"error {code} came as {error}")


def unary(pairs):
    for size in [0, 1, 70_000, LARGE_BYTES]:
        answer = pairs.Ask(question(size), timeout=PATIENCE)
        check(answer.payload == b"x" * size and answer.number == 1, f"an answer of {size} bytes")


def metadata(pairs):
    text, binary = "a text, with = and ;", b"\x00\x01\xff\x00,\x80"
    sent = [("pair-text", text), ("pair-bytes-bin", binary)]
    _, call = pairs.Ask.with_call(question(1), metadata=sent, timeout=PATIENCE)
    check(("pair-text", text) in call.initial_metadata(), "metadata before the answer")
    check(("pair-bytes-bin", binary) in call.trailing_metadata(), "metadata behind the answer")


def errors(pairs):
    for code in range(1, 17):
        ask = lambda: pairs.Ask(messages.Question(error=code), timeout=PATIENCE)
        check_error(error_of(ask), code)


def deadline(pairs):
    error = error_of(lambda: pairs.Ask(messages.Question(wait_ms=5_000), timeout=0.3))
    check(error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, f"a deadline came as {error}")


def upload(pairs):
    questions = [question(1_000)] * MESSAGES + [question(LARGE_BYTES)]
    total = pairs.Collect(iter(questions), timeout=PATIENCE)
    check(total.number == MESSAGES + 1 and total.bytes == MESSAGES * 1_000 + LARGE_BYTES, "what was collected")


def download(pairs):
    answers = pairs.Spread(question(1_000, count=MESSAGES, error=9), timeout=PATIENCE)
    for number in range(1, MESSAGES + 1):
        answer = next(answers)
        check(answer.number == number and answer.bytes == 1_000, f"answer {number}")
    check_error(error_of(lambda: next(answers)), 9)
    large = list(pairs.Spread(question(LARGE_BYTES, count=2), timeout=PATIENCE))
    check([len(answer.payload) for answer in large] == [LARGE_BYTES] * 2, "large answers")


def chat(pairs):
    questions = queue.Queue()
    answers = pairs.Chat(iter(questions.get, None), timeout=PATIENCE)
    for number in range(1, MESSAGES + 1):
        questions.put(question(number))
        answer = next(answers)
        check(answer.number == number and answer.bytes == number, f"answer {number}")
    questions.put(None)
    check(next(answers, None) is None, "more answers than questions")


def cancellation(pairs):
    key = uuid.uuid4().bytes
    answers = pairs.Spread(messages.Question(payload=key, count=1_000, wait_ms=50), timeout=PATIENCE)
    next(answers)
    answers.cancel()
    check(answers.code() == grpc.StatusCode.CANCELLED, f"a cancelled call came to {answers.code()}")
    until = time.monotonic() + PATIENCE
    while pairs.CountCancelled(messages.Question(payload=key), timeout=PATIENCE).number != 1:
        check(time.monotonic() < until, "the server does not know that the call was cancelled")
        time.sleep(0.05)


def main():
    limits = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(sys.argv[1], options=limits) as channel:
        pairs = services.PairsStub(channel)
        for ask in [unary, metadata, errors, deadline, upload, download, chat, cancellation]:
            ask(pairs)
    print("all well")


main()
