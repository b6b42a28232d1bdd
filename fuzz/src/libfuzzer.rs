//! libFuzzer's side of all targets: runs the one that the variable `PROVOST_FUZZ_TARGET` names. `cargo xtask fuzz --deep`
//! builds and starts it.
#![no_main]
#![forbid(unsafe_code)]

use std::sync::OnceLock;

use provost_allocations::CountingAllocator;
use provost_fuzz::Target;
use provost_fuzz::driver::{Summary, attempt};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn chosen() -> &'static Target {
    static CHOSEN: OnceLock<&Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("PROVOST_FUZZ_TARGET").unwrap_or_default();
        let target =
            provost_fuzz::target(&name).expect("PROVOST_FUZZ_TARGET names a target: provost-fuzz list");
        // What a process makes once, such as the memory of its messages, is not charged to the first input.
        if let Some(seed) = (target.seeds)().first() {
            (target.run)(seed);
        }
        target
    })
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Err(failure) = attempt(chosen(), input, &mut Summary::default()) {
        panic!("{}: {}", chosen().name, failure.why);
    }
});
