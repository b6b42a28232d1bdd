//! libFuzzer's side of the target `http2_server`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("http2_server") {
        (target.run)(input);
    }
});
