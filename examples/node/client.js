// Asks for a greeting: client.js ADDRESS NAME.
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const proto = path.join(__dirname, "../../apps/hello/proto/hello.proto");
const { hello } = grpc.loadPackageDefinition(loader.loadSync(proto));

if (process.argv.length !== 4) {
  console.error("usage: client.js ADDRESS NAME");
  process.exit(2);
}
const [address, name] = process.argv.slice(2);
const greeter = new hello.Greeter(address, grpc.credentials.createInsecure());
greeter.Greet({ name }, { deadline: Date.now() + 10_000 }, (error, reply) => {
  greeter.close();
  if (error) {
    console.error(error.message);
    process.exitCode = 1;
  } else {
    console.log(reply.text);
  }
});
