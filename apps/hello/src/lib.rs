//! The smallest service: the generated code of `proto/hello.proto`.
#![forbid(unsafe_code)]

provost::include_protos!();
