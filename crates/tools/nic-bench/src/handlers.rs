//! Who handles requests, and how long that takes: a model of two ways to run handlers.

use crate::store::{OperationTimes, StoreKeys};

/// Nanoseconds that a line takes from one core's cache to another's: assumed, as for two cores of one socket.
const HOP_NS: f64 = 70.0;
/// What writing or finding such a line costs the core that polls, in nanoseconds: assumed.
const QUEUE_NS: f64 = 15.0;
/// Every so many calls one is long, where handlers are of two kinds.
const LONG_EVERY: u64 = 10;

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
    /// As the store's operations that calls ask for.
    Store(StoreKeys, OperationTimes),
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
            HandlerTime::Store(keys, times) if keys.reads(tag) => times.read_ns,
            HandlerTime::Store(_, times) => times.write_ns,
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
    fn a_call_crosses_to_its_worker_and_back_and_costs_the_polling_core_both_ends() {
        let mut workers = HandlerPool::new(HandlerModel {
            threads: HandlerThreads::Workers(1),
            time: HandlerTime::Same { ns: 100.0 },
        });
        let handled = workers.handle(0, 1_000.0);
        assert_eq!(handled.done_ns, 1_000.0 + QUEUE_NS + HOP_NS + 100.0 + HOP_NS);
        assert_eq!(handled.polling_free_ns, 1_000.0 + 2.0 * QUEUE_NS);
    }
}
