//! libFuzzer's side of the target `frame_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("frame_header") {
        (target.run)(input);
    }
});
