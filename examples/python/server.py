"""Greets whoever calls: server.py ADDRESS."""

import concurrent.futures
import pathlib
import sys

import grpc

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "apps/hello/proto"))
messages, services = grpc.protos_and_services("hello.proto")


class Greeter(services.GreeterServicer):
    def Greet(self, request, context):
        if not request.name:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "say who you are")
        return messages.GreetReply(text=f"Hello, {request.name}, from Python!")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: server.py ADDRESS")
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=4))
    services.add_GreeterServicer_to_server(Greeter(), server)
    server.add_insecure_port(sys.argv[1])
    server.start()
    print("listening at", sys.argv[1], flush=True)
    server.wait_for_termination()


main()
