// A server that allows few streams at a time on a connection, and answers no call before so many are under way on all connections
// together: together STREAMS CALLS. It says its address, each connection, and how many calls
// are under way.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// Messages as the bytes that they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(of any) ([]byte, error) { return *of.(*[]byte), nil }

func (bytesCodec) Unmarshal(bytes []byte, to any) error {
	*to.(*[]byte) = append([]byte(nil), bytes...)
	return nil
}

// Tells of each connection.
type connections struct{}

func (connections) TagConn(ctx context.Context, of *stats.ConnTagInfo) context.Context {
	fmt.Fprintf(os.Stderr, "connection from %s\n", of.RemoteAddr)
	return ctx
}
func (connections) HandleConn(context.Context, stats.ConnStats)                     {}
func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (connections) HandleRPC(context.Context, stats.RPCStats)                       {}

func numberOf(argument string) int {
	number, err := strconv.Atoi(argument)
	if err != nil {
		log.Fatal(err)
	}
	return number
}

func main() {
	streams, calls := numberOf(os.Args[1]), numberOf(os.Args[2])
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	var (
		lock     sync.Mutex
		underWay int
		enough   = make(chan struct{})
	)
	answer := func(_ any, stream grpc.ServerStream) error {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil && err != io.EOF {
			return err
		}
		lock.Lock()
		underWay++
		fmt.Fprintf(os.Stderr, "%d under way\n", underWay)
		if underWay == calls {
			close(enough)
		}
		lock.Unlock()
		select {
		case <-enough:
		case <-stream.Context().Done():
			lock.Lock()
			underWay--
			lock.Unlock()
			return stream.Context().Err()
		}
		none := []byte{}
		return stream.SendMsg(&none)
	}
	server := grpc.NewServer(
		grpc.MaxConcurrentStreams(uint32(streams)),
		grpc.ForceServerCodec(bytesCodec{}),
		grpc.StatsHandler(connections{}),
		grpc.UnknownServiceHandler(answer),
	)
	fmt.Fprintf(os.Stderr, "listening at %s\n", listener.Addr())
	go func() {
		// It ends with the test, which holds the other end.
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.Fatal(server.Serve(listener))
}
