//! libFuzzer's side of the target `native`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("native") {
        (target.run)(input);
    }
});
