//! libFuzzer's side of the target `insight_alibaba`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("insight_alibaba") {
        (target.run)(input);
    }
});
