//! libFuzzer's side of the target `tls_records`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("tls_records") {
        (target.run)(input);
    }
});
