// Greets whoever calls: server.js ADDRESS.
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const proto = path.join(__dirname, "../../apps/hello/proto/hello.proto");
const { hello } = grpc.loadPackageDefinition(loader.loadSync(proto));

function greet(call, answer) {
  if (call.request.name) {
    answer(null, { text: `Hello, ${call.request.name}, from Node!` });
  } else {
    answer({ code: grpc.status.INVALID_ARGUMENT, details: "say who you are" });
  }
}

if (process.argv.length !== 3) {
  console.error("usage: server.js ADDRESS");
  process.exit(2);
}
const address = process.argv[2];
const server = new grpc.Server();
server.addService(hello.Greeter.service, { Greet: greet });
server.bindAsync(address, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) {
    throw error;
  }
  console.log("listening at", address);
});
