// Answers as pairs.proto says: server.js ADDRESS.
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const MESSAGE_BYTES_MAX = 16 << 20;

const { pairs } = grpc.loadPackageDefinition(
  loader.loadSync(path.join(__dirname, "../pairs.proto"), { keepCase: true, longs: Number, defaults: true }),
);
const cancelled = new Map();

const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

function answer(question, number) {
  return { payload: question.payload, number, bytes: question.payload.length };
}

function failure(code, metadata) {
  return { code, details: `code ${code}: grüße ☺, 100 %`, metadata };
}

// Has metadata come back before the answer; what comes back behind it is returned.
function echo(call) {
  const headers = new grpc.Metadata();
  const trailers = new grpc.Metadata();
  call.metadata.get("pair-text").forEach((value) => headers.add("pair-text", value));
  call.metadata.get("pair-bytes-bin").forEach((value) => trailers.add("pair-bytes-bin", value));
  call.sendMetadata(headers);
  return trailers;
}

async function ask(call, done) {
  const trailers = echo(call);
  await sleep(call.request.wait_ms);
  if (call.request.error) {
    done(failure(call.request.error, trailers));
  } else {
    done(null, answer(call.request, 1), trailers);
  }
}

function collect(call, done) {
  const trailers = echo(call);
  let number = 0;
  let bytes = 0;
  call.on("data", (question) => {
    number += 1;
    bytes += question.payload.length;
  });
  call.on("end", () => done(null, { number, bytes }, trailers));
}

async function spread(call) {
  const trailers = echo(call);
  for (let number = 1; number <= call.request.count; number += 1) {
    if (number > 1) {
      await sleep(call.request.wait_ms);
    }
    if (call.cancelled) {
      const key = call.request.payload.toString("hex");
      cancelled.set(key, (cancelled.get(key) ?? 0) + 1);
      return;
    }
    if (!call.write(answer(call.request, number))) {
      await Promise.race([new Promise((done) => call.once("drain", done)), sleep(10_000)]);
    }
  }
  if (call.request.error) {
    call.emit("error", failure(call.request.error, trailers));
  } else {
    call.end(trailers);
  }
}

function chat(call) {
  const trailers = echo(call);
  let number = 0;
  call.on("data", (question) => {
    number += 1;
    call.write(answer(question, number));
  });
  call.on("end", () => call.end(trailers));
}

function countCancelled(call, done) {
  done(null, { number: cancelled.get(call.request.payload.toString("hex")) ?? 0 });
}

const server = new grpc.Server({
  "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
  "grpc.max_send_message_length": -1,
});
server.addService(pairs.Pairs.service, {
  Ask: ask,
  Collect: collect,
  Spread: spread,
  Chat: chat,
  CountCancelled: countCancelled,
});
server.bindAsync(process.argv[2], grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) {
    throw error;
  }
});
