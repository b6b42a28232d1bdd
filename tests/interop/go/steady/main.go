// Calls probe.Probe without pause until it is told to end (SIGTERM): unary calls, a stream of responses, and a stream both ways, each
// over its whole time. Nothing may fail, be lost or come twice: steady ADDRESS KEY. It says how far it has come, and at the
// end how many unary calls were carried out.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	callers       = 3
	callPause     = time.Millisecond
	progressEvery = 100
	pourBytes     = 3_000
	chatBytes     = 2_000
)

// Messages as the bytes that they are: what the tests' service needs of protobuf is little.
type message []byte

type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(of any) ([]byte, error) { return *of.(*message), nil }

func (bytesCodec) Unmarshal(bytes []byte, to any) error {
	*to.(*message) = append(message(nil), bytes...)
	return nil
}

func text(field protowire.Number, value string) message {
	return protowire.AppendString(protowire.AppendTag(nil, field, protowire.BytesType), value)
}

func number(field protowire.Number, value uint64) message {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), value)
}

// The number of a Drop, which is its first field.
func dropNumber(drop message) uint64 {
	field, kind, tagBytes := protowire.ConsumeTag(drop)
	value, valueBytes := protowire.ConsumeVarint(drop[max(tagBytes, 0):])
	if field != 1 || kind != protowire.VarintType || valueBytes < 0 {
		log.Fatalf("no number in %q", drop)
	}
	return value
}

type load struct {
	channel *grpc.ClientConn
	key     string
	over    atomic.Bool
	done    atomic.Int64
	calls   atomic.Int64
}

func (l *load) goesOn() bool {
	if done := l.done.Add(1); done%progressEvery == 0 {
		fmt.Fprintf(os.Stderr, "%d done\n", done)
	}
	return !l.over.Load()
}

func must(what string, err error) {
	if err != nil {
		log.Fatalf("%s: %v", what, err)
	}
}

func (l *load) call() {
	question := text(1, l.key)
	for l.goesOn() {
		var answer message
		must("a call", l.channel.Invoke(context.Background(), "/probe.Probe/Hold", &question, &answer))
		l.calls.Add(1)
		time.Sleep(callPause)
	}
}

func (l *load) stream(ctx context.Context, method string, description grpc.StreamDesc) grpc.ClientStream {
	stream, err := l.channel.NewStream(ctx, &description, "/probe.Probe/"+method)
	must(method, err)
	return stream
}

func (l *load) pour() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream := l.stream(ctx, "Pour", grpc.StreamDesc{ServerStreams: true})
	question := append(append(text(1, l.key+"-pour"), number(2, math.MaxUint32)...), number(3, pourBytes)...)
	must("Pour", stream.SendMsg(&question))
	must("Pour", stream.CloseSend())
	for next := uint64(1); l.goesOn(); next++ {
		var drop message
		must("a message of Pour", stream.RecvMsg(&drop))
		if came := dropNumber(drop); came != next {
			log.Fatalf("message %d of Pour came as %d", next, came)
		}
		time.Sleep(callPause)
	}
}

func (l *load) chat() {
	stream := l.stream(context.Background(), "Chat", grpc.StreamDesc{ServerStreams: true, ClientStreams: true})
	payload := text(2, string(make([]byte, chatBytes)))
	for next := uint64(1); l.goesOn(); next++ {
		said := append(number(1, next), payload...)
		must("a message to Chat", stream.SendMsg(&said))
		var answer message
		must("a message of Chat", stream.RecvMsg(&answer))
		if came := dropNumber(answer); came != next || len(answer) != len(said) {
			log.Fatalf("message %d of Chat came as %d", next, came)
		}
		time.Sleep(callPause)
	}
	must("the end of Chat", stream.CloseSend())
	var more message
	if err := stream.RecvMsg(&more); err != io.EOF {
		log.Fatalf("Chat ended with %v", err)
	}
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: steady ADDRESS KEY")
	}
	channel, err := grpc.NewClient(os.Args[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{})))
	must("a channel", err)
	l := &load{channel: channel, key: os.Args[2]}
	var all sync.WaitGroup
	for range callers {
		all.Go(l.call)
	}
	all.Go(l.pour)
	all.Go(l.chat)
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	// A test that is gone has closed it.
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	<-told
	l.over.Store(true)
	all.Wait()
	fmt.Fprintf(os.Stderr, "carried out: %d\n", l.calls.Load())
}
