//! Benchmarks: `cargo xtask bench call`, `cargo xtask bench bind`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    provost_bench::main()
}
