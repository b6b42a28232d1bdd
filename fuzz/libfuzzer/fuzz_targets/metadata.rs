//! libFuzzer's side of the target `metadata`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("metadata") {
        (target.run)(input);
    }
});
