// Greets whoever calls: server ADDRESS.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"provost.example/greeter/hello"
)

type greeter struct {
	hello.UnimplementedGreeterServer
}

func (greeter) Greet(_ context.Context, request *hello.GreetRequest) (*hello.GreetReply, error) {
	if request.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "say who you are")
	}
	return &hello.GreetReply{Text: fmt.Sprintf("Hello, %s, from Go!", request.GetName())}, nil
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: server ADDRESS")
	}
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening at", listener.Addr())
	server := grpc.NewServer()
	hello.RegisterGreeterServer(server, greeter{})
	// A node whose route says so learns the schema from the server itself.
	reflection.Register(server)
	log.Fatal(server.Serve(listener))
}
