//! libFuzzer's side of the target `protobuf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("protobuf") {
        (target.run)(input);
    }
});
