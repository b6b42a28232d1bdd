//! Generates the code of `proto/kv.proto`.

fn main() -> Result<(), provost_build::Error> {
    provost_build::compile_protos(&["proto/kv.proto"], &["proto"])
}
