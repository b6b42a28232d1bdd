package pairs;

import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.util.Arrays;
import java.util.Iterator;
import java.util.UUID;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import pairs.proto.Answer;
import pairs.proto.PairsGrpc;
import pairs.proto.Question;

/** Asks all that pairs.proto has, and says "all well": client ADDRESS. */
public final class Client {
  private static final int LARGE_BYTES = 8 << 20;
  private static final int MESSAGES = 50;
  private static final long PATIENCE_SECONDS = 60;

  private final ManagedChannel channel;

  private Client(ManagedChannel channel) {
    this.channel = channel;
  }

  private PairsGrpc.PairsBlockingStub stub() {
    return PairsGrpc.newBlockingStub(channel).withDeadlineAfter(PATIENCE_SECONDS, TimeUnit.SECONDS);
  }

  private PairsGrpc.PairsStub streams() {
    return PairsGrpc.newStub(channel).withDeadlineAfter(PATIENCE_SECONDS, TimeUnit.SECONDS);
  }

  private static void check(boolean holds, String what) {
    if (!holds) {
      throw new IllegalStateException(what);
    }
  }

  private static Question question(int bytes) {
    byte[] payload = new byte[bytes];
    Arrays.fill(payload, (byte) 'x');
    return Question.newBuilder().setPayload(ByteString.copyFrom(payload)).build();
  }

  private static void checkError(StatusRuntimeException error, int code) {
    Status status = error.getStatus();
    check(status.getCode().value() == code, "error " + code + " came as " + status);
    String message = "code " + code + ": grüße ☺, 100 %";
    check(message.equals(status.getDescription()), "error " + code + " came as " + status);
  }

  private void unary() {
    for (int bytes : new int[] {0, 1, 70_000, LARGE_BYTES}) {
      Question question = question(bytes);
      Answer answer = stub().ask(question);
      check(answer.getPayload().equals(question.getPayload()), "a payload of " + bytes + " bytes");
      check(answer.getNumber() == 1, "the number of an answer");
    }
  }

  private void metadata() {
    byte[] bytes = {0, 1, (byte) 0xff, 0, ',', (byte) 0x80};
    Metadata sent = new Metadata();
    sent.put(Server.TEXT, "a text, with = and ;");
    sent.put(Server.BYTES, bytes);
    AtomicReference<Metadata> headers = new AtomicReference<>();
    AtomicReference<Metadata> trailers = new AtomicReference<>();
    PairsGrpc.PairsBlockingStub stub =
        stub()
            .withInterceptors(
                MetadataUtils.newAttachHeadersInterceptor(sent),
                MetadataUtils.newCaptureMetadataInterceptor(headers, trailers));
    stub.ask(question(1));
    check("a text, with = and ;".equals(headers.get().get(Server.TEXT)), "metadata before the answer");
    check(Arrays.equals(bytes, trailers.get().get(Server.BYTES)), "metadata behind the answer");
  }

  private void errors() {
    for (int code = 1; code <= 16; code++) {
      try {
        stub().ask(Question.newBuilder().setError(code).build());
        check(false, "error " + code + " did not come");
      } catch (StatusRuntimeException error) {
        checkError(error, code);
      }
    }
  }

  private void deadline() {
    try {
      PairsGrpc.newBlockingStub(channel)
          .withDeadlineAfter(300, TimeUnit.MILLISECONDS)
          .ask(Question.newBuilder().setWaitMs(5_000).build());
      check(false, "no deadline");
    } catch (StatusRuntimeException error) {
      check(error.getStatus().getCode() == Status.Code.DEADLINE_EXCEEDED, "a deadline came as " + error);
    }
  }

  private static final class Answers implements ClientResponseObserver<Question, Answer> {
    private static final Object END = new Object();
    private final BlockingQueue<Object> came = new ArrayBlockingQueue<>(2 * MESSAGES + 2);
    private ClientCallStreamObserver<Question> call;

    @Override
    public void beforeStart(ClientCallStreamObserver<Question> begun) {
      call = begun;
    }

    @Override
    public void onNext(Answer answer) {
      came.add(answer);
    }

    @Override
    public void onError(Throwable error) {
      came.add(error);
    }

    @Override
    public void onCompleted() {
      came.add(END);
    }

    private Object take() throws InterruptedException {
      Object next = came.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
      check(next != null, "nothing came");
      return next;
    }

    private void takeEnd() throws InterruptedException {
      Object next = take();
      check(next == END, "instead of the end came " + next);
    }
  }

  private void upload() throws InterruptedException {
    Answers answers = new Answers();
    StreamObserver<Question> questions = streams().collect(answers);
    for (int number = 0; number < MESSAGES; number++) {
      questions.onNext(question(1_000));
    }
    questions.onNext(question(LARGE_BYTES));
    questions.onCompleted();
    check(answers.take() instanceof Answer answer
            && answer.getNumber() == MESSAGES + 1
            && answer.getBytes() == MESSAGES * 1_000L + LARGE_BYTES,
        "what was collected");
    answers.takeEnd();
  }

  private void download() {
    Question question = question(1_000).toBuilder().setCount(MESSAGES).setError(9).build();
    Iterator<Answer> answers = stub().spread(question);
    for (int number = 1; number <= MESSAGES; number++) {
      Answer answer = answers.next();
      check(answer.getNumber() == number && answer.getBytes() == 1_000, "answer " + number);
    }
    try {
      answers.hasNext();
      check(false, "the error behind answers did not come");
    } catch (StatusRuntimeException error) {
      checkError(error, 9);
    }
    Iterator<Answer> large = stub().spread(question(LARGE_BYTES).toBuilder().setCount(2).build());
    for (int number = 1; number <= 2; number++) {
      check(large.next().getPayload().size() == LARGE_BYTES, "a large answer");
    }
    check(!large.hasNext(), "more answers than asked for");
  }

  private void chat() throws InterruptedException {
    Answers answers = new Answers();
    StreamObserver<Question> questions = streams().chat(answers);
    for (int number = 1; number <= MESSAGES; number++) {
      questions.onNext(question(number));
      check(answers.take() instanceof Answer answer
              && answer.getNumber() == number
              && answer.getBytes() == number,
          "answer " + number);
    }
    questions.onCompleted();
    answers.takeEnd();
  }

  private void cancellation() throws InterruptedException {
    ByteString key = ByteString.copyFromUtf8(UUID.randomUUID().toString());
    Question question = Question.newBuilder().setPayload(key).setCount(1_000).setWaitMs(50).build();
    Answers answers = new Answers();
    streams().spread(question, answers);
    check(answers.take() instanceof Answer, "the first answer");
    answers.call.cancel("enough", null);
    for (Object next = answers.take(); !(next instanceof Throwable error
        && Status.fromThrowable(error).getCode() == Status.Code.CANCELLED); ) {
      check(next instanceof Answer, "a cancelled call came to " + next);
      next = answers.take();
    }
    Question about = Question.newBuilder().setPayload(key).build();
    long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
    while (stub().countCancelled(about).getNumber() != 1) {
      check(System.nanoTime() < until, "the server does not know that the call was cancelled");
      Thread.sleep(50);
    }
  }

  public static void main(String[] arguments) throws Exception {
    ManagedChannel channel =
        NettyChannelBuilder.forTarget(arguments[0])
            .usePlaintext()
            .maxInboundMessageSize(Server.MESSAGE_BYTES_MAX)
            .build();
    Client client = new Client(channel);
    client.unary();
    client.metadata();
    client.errors();
    client.deadline();
    client.upload();
    client.download();
    client.chat();
    client.cancellation();
    channel.shutdownNow().awaitTermination(PATIENCE_SECONDS, TimeUnit.SECONDS);
    System.out.println("all well");
  }
}
