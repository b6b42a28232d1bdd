//! libFuzzer's side of the target `expression`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("expression") {
        (target.run)(input);
    }
});
