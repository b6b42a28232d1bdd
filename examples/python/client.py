"""Asks for a greeting: client.py ADDRESS NAME."""

import pathlib
import sys

import grpc

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "apps/hello/proto"))
messages, services = grpc.protos_and_services("hello.proto")


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: client.py ADDRESS NAME")
    with grpc.insecure_channel(sys.argv[1]) as channel:
        greeter = services.GreeterStub(channel)
        try:
            reply = greeter.Greet(messages.GreetRequest(name=sys.argv[2]), timeout=10)
        except grpc.RpcError as error:
            sys.exit(f"{error.code().name}: {error.details()}")
        print(reply.text)


main()
