"""Does in Python what go/steady does: steady.py ADDRESS KEY."""

import itertools
import os
import pathlib
import queue
import signal
import sys
import threading
import time

import grpc

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "e2e/proto"))
messages, services = grpc.protos_and_services("probe.proto")

CALLERS = 3
CALL_PAUSE = 0.001
PROGRESS_EVERY = 100
POUR_BYTES = 3_000
CHAT_BYTES = 2_000


def fail(what):
    print(what, file=sys.stderr, flush=True)
    os._exit(1)


class Load:
    def __init__(self, channel, key):
        self.probe = services.ProbeStub(channel)
        self.key = key
        self.over = threading.Event()
        self.done = itertools.count(1)
        self.calls = [0] * CALLERS

    def goes_on(self):
        done = next(self.done)
        if done % PROGRESS_EVERY == 0:
            print(f"{done} done", file=sys.stderr, flush=True)
        return not self.over.is_set()

    def call(self, caller):
        while self.goes_on():
            self.probe.Hold(messages.HoldRequest(key=self.key))
            self.calls[caller] += 1
            time.sleep(CALL_PAUSE)

    def pour(self):
        question = messages.PourRequest(key=self.key + "-pour", count=2**32 - 1, bytes=POUR_BYTES)
        drops = self.probe.Pour(question)
        for number in itertools.count(1):
            if not self.goes_on():
                drops.cancel()
                return
            came = next(drops).number
            if came != number:
                fail(f"message {number} of Pour came as {came}")
            time.sleep(CALL_PAUSE)

    def chat(self):
        said = queue.Queue()
        answers = self.probe.Chat(iter(said.get, None))
        for number in itertools.count(1):
            if not self.goes_on():
                break
            drop = messages.Drop(number=number, payload=bytes(CHAT_BYTES))
            said.put(drop)
            answer = next(answers)
            if answer != drop:
                fail(f"message {number} of Chat came as {answer.number}")
            time.sleep(CALL_PAUSE)
        said.put(None)
        if next(answers, None) is not None or answers.code() != grpc.StatusCode.OK:
            fail(f"Chat ended with {answers.code()}")


def runs(of, *arguments):
    def run():
        try:
            of(*arguments)
        except Exception as error:
            fail(f"{of.__name__}: {error!r}")

    return threading.Thread(target=run)


def end_with_the_test():
    sys.stdin.buffer.read()
    os._exit(1)


def main():
    address, key = sys.argv[1:]
    with grpc.insecure_channel(address) as channel:
        load = Load(channel, key)
        signal.signal(signal.SIGTERM, lambda *_: load.over.set())
        threading.Thread(target=end_with_the_test, daemon=True).start()
        all_of_it = [runs(load.call, caller) for caller in range(CALLERS)] + [runs(load.pour), runs(load.chat)]
        for thread in all_of_it:
            thread.start()
        for thread in all_of_it:
            thread.join()
        print(f"carried out: {sum(load.calls)}", file=sys.stderr, flush=True)
    # The thread that reads would be waited for.
    os._exit(0)


main()
