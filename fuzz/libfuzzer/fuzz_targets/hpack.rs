//! libFuzzer's side of the target `hpack`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("hpack") {
        (target.run)(input);
    }
});
