// Asks all that pairs.proto has, and says "all well": client ADDRESS.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"provost.example/pairs/proto"
)

const (
	largeBytes      = 8 << 20
	messages        = 50
	messageBytesMax = 16 << 20
	patience        = 60 * time.Second
)

func check(holds bool, format string, arguments ...any) {
	if !holds {
		log.Fatalf(format, arguments...)
	}
}

func within(limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), limit)
}

func question(size int) *proto.Question {
	return &proto.Question{Payload: bytes.Repeat([]byte("x"), size)}
}

func checkFailure(err error, code uint32) {
	came := status.Convert(err)
	wanted := fmt.Sprintf("code %d: grüße ☺, 100 %%", code)
	check(came.Code() == codes.Code(code) && came.Message() == wanted, "error %d came as %v", code, err)
}

func unary(ctx context.Context, pairs proto.PairsClient) {
	for _, size := range []int{0, 1, 70_000, largeBytes} {
		asked := question(size)
		answer, err := pairs.Ask(ctx, asked)
		check(err == nil, "%d bytes: %v", size, err)
		check(bytes.Equal(answer.GetPayload(), asked.GetPayload()), "a payload of %d bytes", size)
		check(answer.GetNumber() == 1, "the number of an answer")
	}
}

func metadataBothWays(ctx context.Context, pairs proto.PairsClient) {
	const text, binary = "a text, with = and ;", "\x00\x01\xff\x00,\x80"
	ctx = metadata.AppendToOutgoingContext(ctx, "pair-text", text, "pair-bytes-bin", binary)
	var headers, trailers metadata.MD
	_, err := pairs.Ask(ctx, question(1), grpc.Header(&headers), grpc.Trailer(&trailers))
	check(err == nil, "metadata: %v", err)
	check(fmt.Sprint(headers.Get("pair-text")) == "["+text+"]", "metadata before the answer: %v", headers)
	check(fmt.Sprint(trailers.Get("pair-bytes-bin")) == "["+binary+"]", "metadata behind the answer: %v", trailers)
}

func failures(ctx context.Context, pairs proto.PairsClient) {
	for code := uint32(1); code <= 16; code++ {
		_, err := pairs.Ask(ctx, &proto.Question{Error: code})
		checkFailure(err, code)
	}
}

func deadline(pairs proto.PairsClient) {
	ctx, cancel := within(300 * time.Millisecond)
	defer cancel()
	_, err := pairs.Ask(ctx, &proto.Question{WaitMs: 5_000})
	check(status.Code(err) == codes.DeadlineExceeded, "a deadline came as %v", err)
}

func upload(ctx context.Context, pairs proto.PairsClient) {
	stream, err := pairs.Collect(ctx)
	check(err == nil, "an upload: %v", err)
	for range messages {
		err := stream.Send(question(1_000))
		check(err == nil, "an upload: %v", err)
	}
	err = stream.Send(question(largeBytes))
	check(err == nil, "a large upload: %v", err)
	sum, err := stream.CloseAndRecv()
	check(err == nil, "the end of an upload: %v", err)
	check(sum.GetNumber() == messages+1 && sum.GetBytes() == messages*1_000+largeBytes, "what was collected: %d", sum.GetBytes())
}

func download(ctx context.Context, pairs proto.PairsClient) {
	asked := question(1_000)
	asked.Count, asked.Error = messages, 9
	stream, err := pairs.Spread(ctx, asked)
	check(err == nil, "a download: %v", err)
	for number := uint32(1); number <= messages; number++ {
		answer, err := stream.Recv()
		check(err == nil && answer.GetNumber() == number && answer.GetBytes() == 1_000, "answer %d: %v", number, err)
	}
	_, err = stream.Recv()
	checkFailure(err, 9)
	asked = question(largeBytes)
	asked.Count = 2
	stream, err = pairs.Spread(ctx, asked)
	check(err == nil, "a large download: %v", err)
	for range 2 {
		answer, err := stream.Recv()
		check(err == nil && len(answer.GetPayload()) == largeBytes, "a large answer: %v", err)
	}
	_, err = stream.Recv()
	check(err == io.EOF, "instead of the end came %v", err)
}

func chat(ctx context.Context, pairs proto.PairsClient) {
	stream, err := pairs.Chat(ctx)
	check(err == nil, "a chat: %v", err)
	for number := 1; number <= messages; number++ {
		err := stream.Send(question(number))
		check(err == nil, "a chat: %v", err)
		answer, err := stream.Recv()
		check(err == nil && answer.GetNumber() == uint32(number) && answer.GetBytes() == uint64(number), "answer %d: %v", number, err)
	}
	check(stream.CloseSend() == nil, "the end of questions")
	_, err = stream.Recv()
	check(err == io.EOF, "instead of the end came %v", err)
}

func cancellation(ctx context.Context, pairs proto.PairsClient) {
	key := []byte(fmt.Sprintf("go %d %d", os.Getpid(), time.Now().UnixNano()))
	cancelled, cancel := context.WithCancel(ctx)
	stream, err := pairs.Spread(cancelled, &proto.Question{Payload: key, Count: 1_000, WaitMs: 50})
	check(err == nil, "a stream to cancel: %v", err)
	_, err = stream.Recv()
	check(err == nil, "the first answer: %v", err)
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	check(status.Code(err) == codes.Canceled, "a cancelled call came to %v", err)
	for {
		count, err := pairs.CountCancelled(ctx, &proto.Question{Payload: key})
		check(err == nil, "the server does not know that the call was cancelled: %v", err)
		if count.GetNumber() == 1 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func main() {
	connection, err := grpc.NewClient(
		os.Args[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)),
	)
	check(err == nil, "%v", err)
	pairs := proto.NewPairsClient(connection)
	ctx, cancel := within(patience)
	defer cancel()
	unary(ctx, pairs)
	metadataBothWays(ctx, pairs)
	failures(ctx, pairs)
	deadline(pairs)
	upload(ctx, pairs)
	download(ctx, pairs)
	chat(ctx, pairs)
	cancellation(ctx, pairs)
	fmt.Println("all well")
}
