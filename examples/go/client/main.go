// Asks for a greeting: client ADDRESS NAME.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"provost.example/greeter/hello"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: client ADDRESS NAME")
	}
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	deadline, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	reply, err := hello.NewGreeterClient(connection).Greet(deadline, &hello.GreetRequest{Name: os.Args[2]})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.GetText())
}
