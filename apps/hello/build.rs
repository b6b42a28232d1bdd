//! Generates the code of `proto/hello.proto`.

fn main() -> Result<(), provost_build::Error> {
    provost_build::compile_protos(&["proto/hello.proto"], &["proto"])
}
