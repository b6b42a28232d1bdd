//! The built-in driver: seeds, mutated without feedback, as fast as they go. An input that makes a target panic is
//! kept in a file, and its path printed; `--replay FILE` runs it again.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Target;
use provost_allocations::peak_bytes_of_process_during;
use provost_random::SeededRandom;

/// Inputs are not grown past this.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// Mutations stacked on one seed.
const MUTATIONS_MAX: usize = 8;
/// Inputs kept besides the seeds, so that mutations reach further than a stack of them.
const POOL_MAX: usize = 512;
/// An input that takes longer is a hang: the slowest target takes far less than a hundredth of it.
const INPUT_TIME_MAX: Duration = Duration::from_secs(5);
/// What an input may have allocated at once: inputs are 64 KiB at most, and every bound that a target configures is below.
const ALLOCATED_BYTES_MAX: u64 = 64 << 20;
/// Numbers on which range checks go wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0xffff_ffff_ffff_fff8,
    0xffff_ffff_ffff_ffff,
];

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub inputs: u64,
    /// The longest that one of them took.
    pub slowest: Duration,
    /// The most bytes that one of them had allocated at once.
    pub peak_bytes: u64,
}

/// How a target failed.
#[derive(Debug)]
pub struct Failure {
    pub why: String,
    pub input: Vec<u8>,
}

/// Runs a target on mutated seeds for `time`; the same `seed` tries the same inputs in the same order.
pub fn drive(target: &Target, time: Duration, seed: u64) -> Result<Summary, Failure> {
    let mut random = SeededRandom::new(seed);
    let mut pool = (target.seeds)();
    let (end, mut summary) = (Instant::now() + time, Summary::default());
    for input in pool.clone() {
        attempt(target, &input, &mut summary)?;
    }
    let (seeds, mut seen) = (pool.len(), HashSet::new());
    while Instant::now() < end {
        let mut input = random.pick(&pool).clone();
        for _ in 0..=random.index(MUTATIONS_MAX) {
            mutate(&mut input, &pool, &mut random);
        }
        input.truncate(INPUT_BYTES_MAX);
        attempt(target, &input, &mut summary)?;
        if pool.len() < seeds + POOL_MAX && seen.insert(shape(&input)) {
            pool.push(input);
        } else if random.index(64) == 0 && pool.len() > seeds {
            let at = seeds + random.index(pool.len() - seeds);
            pool[at] = input;
        }
    }
    Ok(summary)
}

/// Runs a target on one input and says how it failed, if it did: by a panic, or by the time or memory that it took. (Memory
/// is counted in programs that have a `provost_allocations::CountingAllocator`.)
pub fn attempt(target: &Target, input: &[u8], summary: &mut Summary) -> Result<(), Failure> {
    let began = Instant::now();
    let mut outcome = Ok(());
    let peak_bytes = peak_bytes_of_process_during(|| {
        outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    });
    let took = began.elapsed();
    summary.inputs += 1;
    summary.slowest = summary.slowest.max(took);
    summary.peak_bytes = summary.peak_bytes.max(peak_bytes);
    let failed = |why: String| {
        Err(Failure {
            why,
            input: input.to_vec(),
        })
    };
    match outcome {
        Err(panic) => failed(format!("panicked: {}", panic_text(panic.as_ref()))),
        Ok(()) => over_bounds(took, peak_bytes).map_or(Ok(()), failed),
    }
}

/// What an input took too much of, if it did.
fn over_bounds(took: Duration, peak_bytes: u64) -> Option<String> {
    if took > INPUT_TIME_MAX {
        Some(format!("took {took:?}"))
    } else if peak_bytes > ALLOCATED_BYTES_MAX {
        Some(format!("had {peak_bytes} bytes allocated at once"))
    } else {
        None
    }
}

/// Keeps a failing input in `folder`, under a name made of its contents.
pub fn keep(folder: &Path, target: &Target, input: &[u8]) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    let path = folder.join(format!("{}-{:016x}", target.name, hasher.finish()));
    std::fs::write(&path, input)?;
    Ok(path)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

/// Tells inputs apart roughly (length and a few bytes), so that the pool keeps different ones.
fn shape(input: &[u8]) -> (usize, u64) {
    let mut hasher = DefaultHasher::new();
    input
        .iter()
        .step_by(input.len() / 16 + 1)
        .for_each(|byte| (byte >> 4).hash(&mut hasher));
    (input.len(), hasher.finish())
}

fn mutate(input: &mut Vec<u8>, pool: &[Vec<u8>], random: &mut SeededRandom) {
    let at = random.index(input.len());
    match random.index(9) {
        0 if !input.is_empty() => input[at] ^= 1 << random.index(8),
        1 if !input.is_empty() => input[at] = random.number() as u8,
        2 if !input.is_empty() => {
            input[at] = input[at].wrapping_add(if random.index(2) == 0 { 1 } else { 255 })
        }
        3 => input.truncate(at),
        4 if !input.is_empty() => {
            let end = (at + 1 + random.index(16)).min(input.len());
            input.drain(at..end);
        }
        5 => overwrite_number(input, random),
        6 if input.len() < INPUT_BYTES_MAX => {
            let run = vec![random.number() as u8; 1 + random.index(32)];
            input.splice(at..at, run);
        }
        7 => splice(input, random.pick(pool).as_slice(), at, random),
        _ => copy_within(input, random),
    }
}

/// Lays an edge number, or one near the input's own length, over a field of 1, 2, 4 or 8 bytes.
fn overwrite_number(input: &mut [u8], random: &mut SeededRandom) {
    let width = 1 << random.index(4);
    if input.len() < width {
        return;
    }
    let near = (input.len() + random.index(17)).saturating_sub(8) as u64;
    let number = if random.index(3) == 0 {
        near
    } else {
        *random.pick(&EDGES)
    };
    let slots = input.len() - width + 1;
    // Most formats here align their fields.
    let at = if random.index(4) == 0 {
        random.index(slots)
    } else {
        random.index(slots.div_ceil(4)) * 4
    };
    if let Some(field) = input.get_mut(at..at + width) {
        field.copy_from_slice(&number.to_le_bytes()[..width]);
    }
}

fn splice(input: &mut Vec<u8>, other: &[u8], at: usize, random: &mut SeededRandom) {
    let from = random.index(other.len());
    let bytes = random.index((other.len() - from).min(256) + 1);
    if input.len() + bytes <= INPUT_BYTES_MAX {
        input.splice(at..at, other[from..from + bytes].iter().copied());
    }
}

fn copy_within(input: &mut [u8], random: &mut SeededRandom) {
    let bytes = random.index(input.len().min(64) + 1);
    let places = input.len() - bytes + 1;
    let (from, to) = (random.index(places), random.index(places));
    input.copy_within(from..from + bytes, to);
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    #[global_allocator]
    static ALLOCATOR: provost_allocations::CountingAllocator = provost_allocations::CountingAllocator;

    /// What the greedy one takes counts for the whole process, and so for the other one's inputs.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    const GREEDY: Target = Target {
        name: "greedy",
        run: |_| drop(std::hint::black_box(vec![1_u8; ALLOCATED_BYTES_MAX as usize + 1])),
        seeds: || vec![Vec::new()],
    };

    #[test]
    fn an_input_that_takes_too_much_memory_or_time_is_found() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = drive(&GREEDY, Duration::ZERO, 1).unwrap_err();
        assert!(failure.why.contains("bytes allocated at once"), "{}", failure.why);
        let slow = over_bounds(INPUT_TIME_MAX + Duration::from_nanos(1), 0);
        assert!(slow.is_some_and(|why| why.starts_with("took")));
        assert_eq!(over_bounds(INPUT_TIME_MAX, ALLOCATED_BYTES_MAX), None);
    }

    const PICKY: Target = Target {
        name: "picky",
        run: |input| {
            assert!(
                input.len() < 4 || input[3] != 0xff,
                "a byte that it does not like"
            )
        },
        seeds: || vec![vec![0; 16]],
    };

    #[test]
    fn a_panic_is_found_and_its_input_replays() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let failure = drive(&PICKY, Duration::from_secs(60), 1).unwrap_err();
        let again = attempt(&PICKY, &failure.input, &mut Summary::default());
        std::panic::set_hook(hook);
        assert!(failure.why.contains("does not like"), "{}", failure.why);
        assert!(again.is_err());
    }
}
