//! libFuzzer's side of the target `frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("frames") {
        (target.run)(input);
    }
});
