//! libFuzzer's side of the target `value_list`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = provost_fuzz::target("value_list") {
        (target.run)(input);
    }
});
