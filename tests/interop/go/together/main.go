// A server that allows few streams at a time on a connection, and answers no call before so many are under way on all connections
// together, or SIGUSR1 comes: together STREAMS CALLS LISTEN [CERTIFICATE KEY]. It says its address, each connection, and how many calls
// are under way.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
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
	listener, err := net.Listen("tcp", os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	var (
		lock     sync.Mutex
		underWay int
		enough   = make(chan struct{})
	)
	release := sync.OnceFunc(func() { close(enough) })
	released := make(chan os.Signal, 1)
	signal.Notify(released, syscall.SIGUSR1)
	go func() {
		<-released
		release()
	}()
	answer := func(_ any, stream grpc.ServerStream) error {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil && err != io.EOF {
			return err
		}
		lock.Lock()
		underWay++
		fmt.Fprintf(os.Stderr, "%d under way\n", underWay)
		if underWay == calls {
			release()
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
	options := []grpc.ServerOption{
		grpc.MaxConcurrentStreams(uint32(streams)),
		grpc.ForceServerCodec(bytesCodec{}),
		grpc.StatsHandler(connections{}),
		grpc.UnknownServiceHandler(answer),
	}
	if len(os.Args) > 4 {
		secure, err := credentials.NewServerTLSFromFile(os.Args[4], os.Args[5])
		if err != nil {
			log.Fatal(err)
		}
		options = append(options, grpc.Creds(secure))
	}
	server := grpc.NewServer(options...)
	fmt.Fprintf(os.Stderr, "listening at %s\n", listener.Addr())
	go func() {
		// It ends with the test, which holds the other end.
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.Fatal(server.Serve(listener))
}
