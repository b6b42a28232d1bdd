// Answers as pairs.proto says: server ADDRESS.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"provost.example/pairs/proto"
)

const messageBytesMax = 16 << 20

type pairs struct {
	proto.UnimplementedPairsServer
	lock      sync.Mutex
	cancelled map[string]uint32
}

func failure(code uint32) error {
	return status.Error(codes.Code(code), fmt.Sprintf("code %d: grüße ☺, 100 %%", code))
}

func answer(question *proto.Question, number uint32) *proto.Answer {
	payload := question.GetPayload()
	return &proto.Answer{Payload: payload, Number: number, Bytes: uint64(len(payload))}
}

// What comes back of a client's metadata: before the answer, and behind it.
func echoed(ctx context.Context) (metadata.MD, metadata.MD) {
	came, _ := metadata.FromIncomingContext(ctx)
	headers, trailers := metadata.MD{}, metadata.MD{}
	headers.Append("pair-text", came.Get("pair-text")...)
	trailers.Append("pair-bytes-bin", came.Get("pair-bytes-bin")...)
	return headers, trailers
}

func echoUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	headers, trailers := echoed(ctx)
	if err := grpc.SetHeader(ctx, headers); err != nil {
		return nil, err
	}
	if err := grpc.SetTrailer(ctx, trailers); err != nil {
		return nil, err
	}
	return next(ctx, request)
}

func echoStream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	headers, trailers := echoed(stream.Context())
	if err := stream.SetHeader(headers); err != nil {
		return err
	}
	stream.SetTrailer(trailers)
	return next(server, stream)
}

func wait(ctx context.Context, milliseconds uint32) error {
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(time.Duration(milliseconds) * time.Millisecond):
		return nil
	}
}

func (*pairs) Ask(ctx context.Context, question *proto.Question) (*proto.Answer, error) {
	if err := wait(ctx, question.GetWaitMs()); err != nil {
		return nil, err
	}
	if question.GetError() != 0 {
		return nil, failure(question.GetError())
	}
	return answer(question, 1), nil
}

func (*pairs) Collect(stream grpc.ClientStreamingServer[proto.Question, proto.Answer]) error {
	sum := &proto.Answer{}
	for {
		question, err := stream.Recv()
		if err == io.EOF {
			return stream.SendAndClose(sum)
		}
		if err != nil {
			return err
		}
		sum.Number++
		sum.Bytes += uint64(len(question.GetPayload()))
	}
}

func (server *pairs) Spread(question *proto.Question, stream grpc.ServerStreamingServer[proto.Answer]) error {
	for number := uint32(1); number <= question.GetCount(); number++ {
		if number > 1 {
			if err := wait(stream.Context(), question.GetWaitMs()); err != nil {
				server.lock.Lock()
				server.cancelled[string(question.GetPayload())]++
				server.lock.Unlock()
				return err
			}
		}
		if err := stream.Send(answer(question, number)); err != nil {
			return err
		}
	}
	if question.GetError() != 0 {
		return failure(question.GetError())
	}
	return nil
}

func (*pairs) Chat(stream grpc.BidiStreamingServer[proto.Question, proto.Answer]) error {
	for number := uint32(1); ; number++ {
		question, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(answer(question, number)); err != nil {
			return err
		}
	}
}

func (server *pairs) CountCancelled(_ context.Context, question *proto.Question) (*proto.Answer, error) {
	server.lock.Lock()
	defer server.lock.Unlock()
	return &proto.Answer{Number: server.cancelled[string(question.GetPayload())]}, nil
}

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(messageBytesMax),
		grpc.UnaryInterceptor(echoUnary),
		grpc.StreamInterceptor(echoStream),
	)
	proto.RegisterPairsServer(server, &pairs{cancelled: map[string]uint32{}})
	log.Fatal(server.Serve(listener))
}
