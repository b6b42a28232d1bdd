// gRPC's interoperability cases about compression, which its Go programs do not have: a server and a client that keep to
// doc/interop-test-descriptions.md, but that a stream's messages are all compressed or none is.
//
//	compressed serve          serves grpc.testing.TestService at a port of 127.0.0.1 that it says
//	compressed CASE ADDRESS   carries out a case against a server
package main

import (
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	testing "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

const (
	caseMax       = 40 * time.Second
	requestBytes  = 271828
	responseBytes = 314159
)

// gRPC's "deflate" is zlib.
type deflate struct{}

func (deflate) Name() string { return "deflate" }

func (deflate) Compress(to io.Writer) (io.WriteCloser, error) { return zlib.NewWriter(to), nil }

func (deflate) Decompress(from io.Reader) (io.Reader, error) { return zlib.NewReader(from) }

type lastMessageKey struct{}

// Notes whether the last message that came for a call was compressed: payloads are zeros, so that it is shorter then.
type watch struct{}

func (watch) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (watch) HandleConn(context.Context, stats.ConnStats)                       {}

func (watch) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	if ctx.Value(lastMessageKey{}) != nil {
		return ctx
	}
	return noting(ctx)
}

func (watch) HandleRPC(ctx context.Context, of stats.RPCStats) {
	if payload, is := of.(*stats.InPayload); is {
		lastMessage(ctx).Store(payload.CompressedLength != payload.Length)
	}
}

func noting(ctx context.Context) context.Context {
	return context.WithValue(ctx, lastMessageKey{}, &atomic.Bool{})
}

func lastMessage(ctx context.Context) *atomic.Bool {
	return ctx.Value(lastMessageKey{}).(*atomic.Bool)
}

type server struct {
	testing.UnimplementedTestServiceServer
}

func cameAsExpected(ctx context.Context, expected *testing.BoolValue) error {
	if expected != nil && expected.Value != lastMessage(ctx).Load() {
		return status.Error(codes.InvalidArgument, "a message is not compressed as it says")
	}
	return nil
}

func compress(ctx context.Context, asked *testing.BoolValue) error {
	name := encoding.Identity
	if asked.GetValue() {
		name = gzip.Name
	}
	return grpc.SetSendCompressor(ctx, name)
}

func payload(bytes int32) *testing.Payload {
	return &testing.Payload{Body: make([]byte, bytes)}
}

func (server) UnaryCall(ctx context.Context, asked *testing.SimpleRequest) (*testing.SimpleResponse, error) {
	if err := cameAsExpected(ctx, asked.ExpectCompressed); err != nil {
		return nil, err
	}
	if err := compress(ctx, asked.ResponseCompressed); err != nil {
		return nil, err
	}
	return &testing.SimpleResponse{Payload: payload(asked.ResponseSize)}, nil
}

func (server) StreamingInputCall(stream testing.TestService_StreamingInputCallServer) error {
	var sum int32
	for {
		asked, err := stream.Recv()
		if err == io.EOF {
			return stream.SendAndClose(&testing.StreamingInputCallResponse{AggregatedPayloadSize: sum})
		}
		if err != nil {
			return err
		}
		if err := cameAsExpected(stream.Context(), asked.ExpectCompressed); err != nil {
			return err
		}
		sum += int32(len(asked.Payload.GetBody()))
	}
}

func (server) StreamingOutputCall(
	asked *testing.StreamingOutputCallRequest,
	stream testing.TestService_StreamingOutputCallServer,
) error {
	for at, of := range asked.ResponseParameters {
		if at == 0 {
			if err := compress(stream.Context(), of.Compressed); err != nil {
				return err
			}
		}
		if err := stream.Send(&testing.StreamingOutputCallResponse{Payload: payload(of.Size)}); err != nil {
			return err
		}
	}
	return nil
}

func serve() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	serving := grpc.NewServer(grpc.StatsHandler(watch{}))
	testing.RegisterTestServiceServer(serving, server{})
	fmt.Fprintf(os.Stderr, "interop server listening on %s\n", listener.Addr())
	log.Fatal(serving.Serve(listener))
}

type client struct {
	testing.TestServiceClient
}

// By which a call's messages are compressed.
func by(encoding string) []grpc.CallOption {
	if encoding == "" {
		return nil
	}
	return []grpc.CallOption{grpc.UseCompressor(encoding)}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func mustBe(what string, is, expected any) {
	if is != expected {
		log.Fatalf("%s: %v is not %v", what, is, expected)
	}
}

func (of client) unary(ctx context.Context, says bool, encoding string) (*testing.SimpleResponse, error) {
	return of.UnaryCall(ctx, &testing.SimpleRequest{
		ResponseSize:     responseBytes,
		Payload:          payload(requestBytes),
		ExpectCompressed: &testing.BoolValue{Value: says},
	}, by(encoding)...)
}

func (of client) clientUnary(ctx context.Context) {
	_, err := of.unary(ctx, true, "")
	mustBe("a message that is not compressed as it says", status.Code(err), codes.InvalidArgument)
	for _, encoding := range []string{gzip.Name, "deflate", ""} {
		reply, err := of.unary(ctx, encoding != "", encoding)
		must(err)
		mustBe("the payload by "+encoding, len(reply.Payload.GetBody()), responseBytes)
	}
}

func (of client) clientStreaming(ctx context.Context) {
	for _, stream := range []struct {
		says     bool
		encoding string
		code     codes.Code
	}{{true, "", codes.InvalidArgument}, {true, gzip.Name, codes.OK}, {false, "", codes.OK}} {
		sending, err := of.StreamingInputCall(ctx, by(stream.encoding)...)
		must(err)
		for _, bytes := range []int32{27182, 45904} {
			// It fails where the server has said already what is wrong.
			sending.Send(&testing.StreamingInputCallRequest{
				Payload:          payload(bytes),
				ExpectCompressed: &testing.BoolValue{Value: stream.says},
			})
		}
		reply, err := sending.CloseAndRecv()
		mustBe("a stream by "+stream.encoding, status.Code(err), stream.code)
		if err == nil {
			mustBe("the sum", reply.AggregatedPayloadSize, int32(27182+45904))
		}
	}
}

func (of client) serverUnary(ctx context.Context) {
	for _, compressed := range []bool{true, false} {
		ctx := noting(ctx)
		reply, err := of.UnaryCall(ctx, &testing.SimpleRequest{
			ResponseSize:       responseBytes,
			Payload:            payload(requestBytes),
			ResponseCompressed: &testing.BoolValue{Value: compressed},
		})
		must(err)
		mustBe("the payload", len(reply.Payload.GetBody()), responseBytes)
		mustBe("compressed", lastMessage(ctx).Load(), compressed)
	}
}

func (of client) serverStreaming(ctx context.Context) {
	for _, compressed := range []bool{true, false} {
		ctx, sizes := noting(ctx), []int32{31415, 92653}
		asked := &testing.StreamingOutputCallRequest{}
		for _, size := range sizes {
			asked.ResponseParameters = append(asked.ResponseParameters, &testing.ResponseParameters{
				Size:       size,
				Compressed: &testing.BoolValue{Value: compressed},
			})
		}
		replies, err := of.StreamingOutputCall(ctx, asked)
		must(err)
		for _, size := range sizes {
			reply, err := replies.Recv()
			must(err)
			mustBe("the payload", int32(len(reply.Payload.GetBody())), size)
			mustBe("compressed", lastMessage(ctx).Load(), compressed)
		}
		_, err = replies.Recv()
		mustBe("the end", err, io.EOF)
	}
}

func main() {
	encoding.RegisterCompressor(deflate{})
	if os.Args[1] == "serve" {
		serve()
	}
	connection, err := grpc.NewClient(
		os.Args[2],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(watch{}),
	)
	must(err)
	of := client{testing.NewTestServiceClient(connection)}
	cases := map[string]func(context.Context){
		"client_compressed_unary":     of.clientUnary,
		"client_compressed_streaming": of.clientStreaming,
		"server_compressed_unary":     of.serverUnary,
		"server_compressed_streaming": of.serverStreaming,
	}
	carryOut := cases[os.Args[1]]
	if carryOut == nil {
		log.Fatal("there is no such case")
	}
	ctx, cancel := context.WithTimeout(context.Background(), caseMax)
	defer cancel()
	carryOut(ctx)
}
