//! A send heap that is nearly full.

use std::process::Command;

use provost::shared::{Bytes, heap_bytes_max, heap_bytes_used};

const HEAP_BYTES: usize = 1 << 20;

/// Runs this test once more, with a heap of its own.
fn run_with_small_heap(test: &str) {
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args(["--exact", test]);
    run.env("PROVOST_SEND_HEAP_BYTES", HEAP_BYTES.to_string());
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn what_a_thread_keeps_for_its_next_messages_does_not_fill_the_heap() {
    if std::env::var_os("PROVOST_SEND_HEAP_BYTES").is_none() {
        return run_with_small_heap("what_a_thread_keeps_for_its_next_messages_does_not_fill_the_heap");
    }
    assert_eq!(heap_bytes_max(), HEAP_BYTES as u64);
    let large = || Bytes::try_zeroed(7 << 17);
    assert!(large().is_ok());
    for bytes in [1 << 10, 4 << 10, 16 << 10] {
        let blocks: Vec<Bytes> = (0..16).map(|_| Bytes::zeroed(bytes)).collect();
        drop(blocks);
        assert!(large().is_ok(), "after blocks of {bytes} bytes");
    }
    assert_eq!(heap_bytes_used(), 0);
}
