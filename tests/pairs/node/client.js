// Asks all that pairs.proto has, and says "all well": client.js ADDRESS.
const assert = require("node:assert");
const crypto = require("node:crypto");
const path = require("node:path");
const { once } = require("node:events");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const LARGE_BYTES = 8 << 20;
const MESSAGES = 50;
const MESSAGE_BYTES_MAX = 16 << 20;
const PATIENCE_MS = 60_000;

const { pairs } = grpc.loadPackageDefinition(
  loader.loadSync(path.join(__dirname, "../pairs.proto"), { keepCase: true, longs: Number, defaults: true }),
);
const client = new pairs.Pairs(process.argv[2], grpc.credentials.createInsecure(), {
  "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
  "grpc.max_send_message_length": -1,
});

const within = (milliseconds) => ({ deadline: Date.now() + milliseconds });
const patience = () => within(PATIENCE_MS);
const payload = (bytes) => Buffer.alloc(bytes, "x");
const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// The answer of a unary call; its error is thrown.
function ask(method, question, metadata = new grpc.Metadata(), options = patience()) {
  const seen = { headers: null, trailers: null };
  return new Promise((done, failed) => {
    const call = client[method](question, metadata, options, (error, answer) => {
      // The status comes behind the answer.
      setImmediate(() => (error ? failed(error) : done({ answer, ...seen })));
    });
    call.on("metadata", (headers) => (seen.headers = headers));
    call.on("status", (status) => (seen.trailers = status.metadata));
  });
}

function checkError(error, code) {
  assert.strictEqual(error.code, code);
  assert.strictEqual(error.details, `code ${code}: grüße ☺, 100 %`);
}

async function unary() {
  for (const bytes of [0, 1, 70_000, LARGE_BYTES]) {
    const { answer } = await ask("Ask", { payload: payload(bytes) });
    assert(answer.payload.equals(payload(bytes)), `a payload of ${bytes} bytes`);
    assert.strictEqual(answer.number, 1);
  }
}

async function metadata() {
  const [text, binary] = ["a text, with = and ;", Buffer.from([0, 1, 255, 0, 44, 128])];
  const sent = new grpc.Metadata();
  sent.add("pair-text", text);
  sent.add("pair-bytes-bin", binary);
  const { headers, trailers } = await ask("Ask", { payload: payload(1) }, sent);
  assert.deepStrictEqual(headers.get("pair-text"), [text]);
  assert.deepStrictEqual(trailers.get("pair-bytes-bin"), [binary]);
}

async function errors() {
  for (let code = 1; code <= 16; code += 1) {
    await assert.rejects(ask("Ask", { error: code }), (error) => checkError(error, code) === undefined);
  }
}

async function deadline() {
  const late = ask("Ask", { wait_ms: 5_000 }, new grpc.Metadata(), within(300));
  await assert.rejects(late, { code: grpc.status.DEADLINE_EXCEEDED });
}

async function upload() {
  const answered = new Promise((done, failed) => {
    const call = client.Collect(patience(), (error, answer) => (error ? failed(error) : done(answer)));
    for (let number = 0; number < MESSAGES; number += 1) {
      call.write({ payload: payload(1_000) });
    }
    call.end({ payload: payload(LARGE_BYTES) });
  });
  const { number, bytes } = await answered;
  assert.deepStrictEqual([number, bytes], [MESSAGES + 1, MESSAGES * 1_000 + LARGE_BYTES]);
}

// All that comes on a stream, and the error behind it.
function read(call) {
  const came = { answers: [], error: null };
  return new Promise((done) => {
    call.on("data", (answer) => came.answers.push(answer));
    call.on("error", (error) => done({ ...came, error }));
    call.on("end", () => setTimeout(() => done(came), 100));
  });
}

async function download() {
  const question = { payload: payload(1_000), count: MESSAGES, error: 9 };
  const { answers, error } = await read(client.Spread(question, patience()));
  assert.strictEqual(answers.length, MESSAGES);
  answers.forEach((answer, at) => assert.deepStrictEqual([answer.number, answer.bytes], [at + 1, 1_000]));
  checkError(error, 9);
  const large = await read(client.Spread({ payload: payload(LARGE_BYTES), count: 2 }, patience()));
  assert.strictEqual(large.error, null);
  assert.deepStrictEqual(large.answers.map((answer) => answer.payload.length), [LARGE_BYTES, LARGE_BYTES]);
}

async function chat() {
  const call = client.Chat(patience());
  for (let number = 1; number <= MESSAGES; number += 1) {
    call.write({ payload: payload(number) });
    const [answer] = await once(call, "data");
    assert.deepStrictEqual([answer.number, answer.bytes], [number, number]);
  }
  call.end();
  const [status] = await once(call, "status");
  assert.strictEqual(status.code, grpc.status.OK);
}

async function cancellation() {
  const key = crypto.randomBytes(16);
  const call = client.Spread({ payload: key, count: 1_000, wait_ms: 50 }, patience());
  await once(call, "data");
  call.cancel();
  const [error] = await once(call, "error");
  assert.strictEqual(error.code, grpc.status.CANCELLED);
  const until = Date.now() + PATIENCE_MS;
  while ((await ask("CountCancelled", { payload: key })).answer.number !== 1) {
    assert(Date.now() < until, "the server does not know that the call was cancelled");
    await sleep(50);
  }
}

async function main() {
  for (const part of [unary, metadata, errors, deadline, upload, download, chat, cancellation]) {
    await part();
  }
  client.close();
  console.log("all well");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
