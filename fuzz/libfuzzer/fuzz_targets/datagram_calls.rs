//! libFuzzer's side of the target `datagram_calls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("datagram_calls") {
        (target.run)(input);
    }
});
