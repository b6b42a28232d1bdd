//! libFuzzer's side of the target `saved_http2`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("saved_http2") {
        (target.run)(input);
    }
});
