//! How long a block takes: `cargo run --release -p provost-heap --example pace`.
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u32 = 10_000_000;

fn main() {
    for bytes in [64, 1000, 8000, 100_000] {
        let mut heap = provost_heap::Heap::new(256 << 20);
        let mut live = [0; 64];
        live.iter_mut()
            .for_each(|slot| *slot = heap.allocate(bytes).unwrap_or(0));
        let start = Instant::now();
        for round in 0..ROUNDS {
            let slot = &mut live[(round.wrapping_mul(2_654_435_761) >> 26) as usize];
            heap.free(black_box(*slot)).expect("it is live");
            *slot = heap.allocate(black_box(bytes)).expect("one was just freed");
        }
        let pair_ns = start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS);
        println!("{bytes} bytes: {pair_ns:.1} ns to free one block and allocate another");
    }
}
