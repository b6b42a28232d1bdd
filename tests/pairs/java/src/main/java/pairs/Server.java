package pairs;

import com.google.protobuf.ByteString;
import io.grpc.Context;
import io.grpc.ForwardingServerCall.SimpleForwardingServerCall;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import pairs.proto.Answer;
import pairs.proto.PairsGrpc;
import pairs.proto.Question;

/** Answers as pairs.proto says: server ADDRESS. */
public final class Server extends PairsGrpc.PairsImplBase {
  static final Metadata.Key<String> TEXT = Metadata.Key.of("pair-text", Metadata.ASCII_STRING_MARSHALLER);
  static final Metadata.Key<byte[]> BYTES =
      Metadata.Key.of("pair-bytes-bin", Metadata.BINARY_BYTE_MARSHALLER);
  static final int MESSAGE_BYTES_MAX = 16 << 20;

  private final Map<ByteString, Integer> cancelled = new HashMap<>();

  private static StatusRuntimeException error(int code) {
    return Status.fromCodeValue(code)
        .withDescription("code " + code + ": grüße ☺, 100 %")
        .asRuntimeException();
  }

  private static Answer answer(Question question, int number) {
    ByteString payload = question.getPayload();
    return Answer.newBuilder().setPayload(payload).setNumber(number).setBytes(payload.size()).build();
  }

  private static void sleep(int milliseconds) {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  @Override
  public void ask(Question question, StreamObserver<Answer> answers) {
    sleep(question.getWaitMs());
    if (Context.current().isCancelled()) {
      return;
    }
    if (question.getError() != 0) {
      answers.onError(error(question.getError()));
      return;
    }
    answers.onNext(answer(question, 1));
    answers.onCompleted();
  }

  @Override
  public StreamObserver<Question> collect(StreamObserver<Answer> answers) {
    return new StreamObserver<>() {
      private int count = 0;
      private long bytes = 0;

      @Override
      public void onNext(Question question) {
        count += 1;
        bytes += question.getPayload().size();
      }

      @Override
      public void onError(Throwable error) {}

      @Override
      public void onCompleted() {
        answers.onNext(Answer.newBuilder().setNumber(count).setBytes(bytes).build());
        answers.onCompleted();
      }
    };
  }

  @Override
  public void spread(Question question, StreamObserver<Answer> answers) {
    ServerCallStreamObserver<Answer> call = (ServerCallStreamObserver<Answer>) answers;
    for (int number = 1; number <= question.getCount(); number++) {
      if (number > 1) {
        sleep(question.getWaitMs());
      }
      if (call.isCancelled()) {
        synchronized (cancelled) {
          cancelled.merge(question.getPayload(), 1, Integer::sum);
        }
        return;
      }
      answers.onNext(answer(question, number));
    }
    if (question.getError() != 0) {
      answers.onError(error(question.getError()));
    } else {
      answers.onCompleted();
    }
  }

  @Override
  public StreamObserver<Question> chat(StreamObserver<Answer> answers) {
    return new StreamObserver<>() {
      private int count = 0;

      @Override
      public void onNext(Question question) {
        count += 1;
        answers.onNext(answer(question, count));
      }

      @Override
      public void onError(Throwable error) {}

      @Override
      public void onCompleted() {
        answers.onCompleted();
      }
    };
  }

  @Override
  public void countCancelled(Question question, StreamObserver<Answer> answers) {
    int count;
    synchronized (cancelled) {
      count = cancelled.getOrDefault(question.getPayload(), 0);
    }
    answers.onNext(Answer.newBuilder().setNumber(count).build());
    answers.onCompleted();
  }

  /** Has metadata come back. */
  private static final class Echo implements ServerInterceptor {
    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(
        ServerCall<Q, A> call, Metadata came, ServerCallHandler<Q, A> next) {
      return next.startCall(
          new SimpleForwardingServerCall<>(call) {
            @Override
            public void sendHeaders(Metadata headers) {
              if (came.containsKey(TEXT)) {
                headers.put(TEXT, came.get(TEXT));
              }
              super.sendHeaders(headers);
            }

            @Override
            public void close(Status status, Metadata trailers) {
              if (came.containsKey(BYTES)) {
                trailers.put(BYTES, came.get(BYTES));
              }
              super.close(status, trailers);
            }
          },
          came);
    }
  }

  public static void main(String[] arguments) throws Exception {
    int colon = arguments[0].lastIndexOf(':');
    InetSocketAddress address =
        new InetSocketAddress(
            arguments[0].substring(0, colon), Integer.parseInt(arguments[0].substring(colon + 1)));
    NettyServerBuilder.forAddress(address)
        .maxInboundMessageSize(MESSAGE_BYTES_MAX)
        .intercept(new Echo())
        .addService(new Server())
        .build()
        .start()
        .awaitTermination();
  }
}
