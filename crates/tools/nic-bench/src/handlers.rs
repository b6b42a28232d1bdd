//! What servers do with requests, and who does it: a model of two ways to run handlers, and a store whose operations are measured here.

use std::collections::HashMap;
use std::time::Instant;

use provost_random::{SeededRandom, fraction};

/// Nanoseconds that a line takes from one core's cache to another's: assumed, as for two cores of one socket.
const HOP_NS: f64 = 70.0;
/// What writing or finding such a line costs the core that polls, in nanoseconds: assumed.
const QUEUE_NS: f64 = 15.0;
/// Every so many calls one is long, where handlers are of two kinds.
const LONG_EVERY: u64 = 10;
/// Keys of the store that is measured.
const STORE_KEYS: usize = 200_000;
/// Of 100 operations of it, so many read (memcached's usual mix).
const READS_PERCENT: u64 = 95;
/// The skew of its keys, where they are skewed (Zipf's exponent; YCSB's and Dagger's).
const SKEW: f64 = 0.99;

/// Which thread of a server runs its handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandlerThreads {
    /// The thread that polls the ring runs them itself.
    Polling,
    /// So many others, each on a core, to which the thread that polls hands requests.
    Workers(usize),
}

/// How long a handler takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum HandlerTime {
    Same {
        ns: f64,
    },
    /// One call in ten takes longer.
    Mixed {
        short_ns: f64,
        long_ns: f64,
    },
}

/// How a server handles calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HandlerModel {
    pub(crate) threads: HandlerThreads,
    pub(crate) time: HandlerTime,
}

impl HandlerModel {
    /// Answers at once with what was asked.
    pub(crate) const ECHO: HandlerModel = HandlerModel {
        threads: HandlerThreads::Polling,
        time: HandlerTime::Same { ns: 0.0 },
    };

    fn handler_ns(&self, tag: u64) -> f64 {
        match self.time {
            HandlerTime::Same { ns } => ns,
            HandlerTime::Mixed { long_ns, .. } if tag.is_multiple_of(LONG_EVERY) => long_ns,
            HandlerTime::Mixed { short_ns, .. } => short_ns,
        }
    }
}

/// The threads of one server core.
#[derive(Debug)]
pub(crate) struct HandlerPool {
    model: HandlerModel,
    /// When each worker has done what it was given.
    workers_free_ns: Vec<f64>,
}

/// When a call's response can be sent, and until when the core that polls is busy with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HandledCall {
    pub(crate) done_ns: f64,
    pub(crate) polling_free_ns: f64,
}

impl HandlerPool {
    pub(crate) fn new(model: HandlerModel) -> HandlerPool {
        let workers = match model.threads {
            HandlerThreads::Polling => 0,
            HandlerThreads::Workers(workers) => workers,
        };
        HandlerPool {
            model,
            workers_free_ns: vec![0.0; workers],
        }
    }

    /// Whether the core that polls goes on while handlers run.
    pub(crate) fn has_workers(&self) -> bool {
        !self.workers_free_ns.is_empty()
    }

    /// Handles a call that the core that polls has taken at this time.
    pub(crate) fn handle(&mut self, tag: u64, now_ns: f64) -> HandledCall {
        let handler_ns = self.model.handler_ns(tag);
        let eldest = self
            .workers_free_ns
            .iter_mut()
            .min_by(|one, other| one.total_cmp(other));
        let Some(free_ns) = eldest else {
            return HandledCall {
                done_ns: now_ns + handler_ns,
                polling_free_ns: now_ns + handler_ns,
            };
        };
        *free_ns = free_ns.max(now_ns + QUEUE_NS + HOP_NS) + handler_ns;
        HandledCall {
            done_ns: *free_ns + HOP_NS,
            // Handing it over, and finding its end.
            polling_free_ns: now_ns + 2.0 * QUEUE_NS,
        }
    }
}

/// Keys and values of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKeys {
    /// Keys and values of 8 bytes each, all asked for alike.
    Tiny,
    /// Keys of 16 bytes, values of 32.
    Small,
    /// Keys and values of 8 bytes, some of which are asked for far more often than others.
    TinySkewed,
}

impl StoreKeys {
    pub(crate) const ALL: [StoreKeys; 3] = [StoreKeys::Tiny, StoreKeys::Small, StoreKeys::TinySkewed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            StoreKeys::Tiny => "tiny",
            StoreKeys::Small => "small",
            StoreKeys::TinySkewed => "tiny, skewed",
        }
    }

    fn bytes(self) -> (usize, usize) {
        match self {
            StoreKeys::Tiny | StoreKeys::TinySkewed => (8, 8),
            StoreKeys::Small => (16, 32),
        }
    }

    /// Bytes of a request and its response, which are as long: method, key and value.
    pub(crate) fn payload_bytes(self) -> usize {
        let (key_bytes, value_bytes) = self.bytes();
        key_bytes + value_bytes
    }

    /// The number of a key, from a drawn number below 1.
    fn draw(self, drawn: f64) -> usize {
        let keys = STORE_KEYS as f64;
        let rank = match self {
            // The inverse of the continuous form of Zipf's law.
            StoreKeys::TinySkewed => {
                let exponent = 1.0 - SKEW;
                ((keys.powf(exponent) - 1.0) * drawn + 1.0).powf(1.0 / exponent) - 1.0
            }
            _ => drawn * keys,
        };
        // Neighbours in rank are none in memory.
        (rank as usize).min(STORE_KEYS - 1).wrapping_mul(7_919) % STORE_KEYS
    }

    fn key(self, number: usize) -> Vec<u8> {
        let mut key = (number as u64).to_le_bytes().to_vec();
        key.resize(self.bytes().0, 0x5a);
        key
    }
}

/// Nanoseconds of an operation of a store in memory, measured on this machine: what a handler of a key-value service takes.
pub(crate) fn measure_store(keys: StoreKeys, operations: usize) -> f64 {
    let value = vec![7_u8; keys.bytes().1];
    let mut store: HashMap<Vec<u8>, Vec<u8>> = (0..STORE_KEYS)
        .map(|number| (keys.key(number), value.clone()))
        .collect();
    let mut random = SeededRandom::new(1);
    let asked: Vec<(Vec<u8>, bool)> = (0..operations)
        .map(|_| {
            let key = keys.key(keys.draw(fraction(random.number())));
            (key, random.number() % 100 < READS_PERCENT)
        })
        .collect();
    let began = Instant::now();
    let mut found = 0_usize;
    for (key, is_read) in &asked {
        if *is_read {
            found += store.get(key).map_or(0, Vec::len);
        } else if let Some(kept) = store.get_mut(key) {
            kept.copy_from_slice(&value);
        }
    }
    let ns = began.elapsed().as_nanos() as f64;
    assert!(found > 0, "keys that were put are found");
    ns / operations as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_leave_the_polling_core_free_and_take_calls_in_turn() {
        let time = HandlerTime::Mixed {
            short_ns: 100.0,
            long_ns: 5_000.0,
        };
        let mut polling = HandlerPool::new(HandlerModel {
            threads: HandlerThreads::Polling,
            time,
        });
        assert_eq!(polling.handle(0, 0.0).polling_free_ns, 5_000.0);
        assert_eq!(polling.handle(1, 0.0).done_ns, 100.0);
        let mut workers = HandlerPool::new(HandlerModel {
            threads: HandlerThreads::Workers(2),
            time,
        });
        let (long, short) = (workers.handle(0, 0.0), workers.handle(1, 0.0));
        assert!(
            long.polling_free_ns < 100.0 && short.done_ns < 500.0,
            "{long:?} {short:?}"
        );
        // Both workers are busy: the third waits for the one that is free first.
        assert!(workers.handle(2, 0.0).done_ns > short.done_ns);
    }

    #[test]
    fn skewed_keys_are_some_keys_mostly_and_others_are_all_alike() {
        let most_frequent = |keys: StoreKeys| {
            let mut random = SeededRandom::new(3);
            let mut counts = vec![0; STORE_KEYS];
            (0..100_000).for_each(|_| counts[keys.draw(fraction(random.number()))] += 1);
            counts.into_iter().max().unwrap_or(0)
        };
        assert!(most_frequent(StoreKeys::Tiny) < 20);
        assert!(most_frequent(StoreKeys::TinySkewed) > 2_000);
    }
}
