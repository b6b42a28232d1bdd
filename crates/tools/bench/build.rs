//! Generates the code of `proto/bench.proto`.

fn main() -> Result<(), provost_build::Error> {
    provost_build::compile_protos(&["proto/bench.proto"], &["proto"])
}
