//! Generates the code of the messages that protobuf's conformance tests send, as any crate would.

fn main() -> Result<(), provost_build::Error> {
    let protos = ["proto/conformance.proto", "proto/test_messages_proto3.proto"];
    provost_build::compile_protos(&protos, &["proto"])
}
