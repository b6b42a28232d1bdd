//! The policy once it is attached: a board for each runtime, and what was counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use provost_engine::{
    AttachError, Counter, MetricDescription, MetricSink, MetricType, Nanos, Policy, Site, Start,
    TimeHistogram,
};

use crate::board::Board;
use crate::config::Rules;
use crate::engine::QosEngine;

const MESSAGES: MetricDescription = MetricDescription {
    name: "provost_qos_messages_total",
    help: "Messages that went by, by what they count as.",
    kind: MetricType::Counter,
    unit: "{message}",
};
const HELD: MetricDescription = MetricDescription {
    name: "provost_qos_held",
    help: "Large messages, and what follows them of their calls, that wait while others have their turn.",
    kind: MetricType::Gauge,
    unit: "{step}",
};
const HOLD: MetricDescription = MetricDescription {
    name: "provost_qos_hold_seconds",
    help: "How long large messages waited that had to.",
    kind: MetricType::Histogram,
    unit: "s",
};
const STARVED: MetricDescription = MetricDescription {
    name: "provost_qos_starved_total",
    help: "Large messages that went on because they had waited for starvation_bound_us.",
    kind: MetricType::Counter,
    unit: "{message}",
};

/// Upper bounds of the histogram: 1 µs to 1 s.
const HOLD_BOUNDS_NS: &[Nanos] = &[
    1_000,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
];

/// What the engines share.
pub(crate) struct Qos {
    shared: Arc<Shared>,
    boards: Mutex<BTreeMap<usize, Arc<Board>>>,
}

pub(crate) struct Shared {
    pub(crate) rules: Rules,
    pub(crate) small: Counter,
    pub(crate) large: Counter,
    pub(crate) starved: Counter,
    pub(crate) held: AtomicU64,
    pub(crate) holds: TimeHistogram,
}

impl Qos {
    pub(crate) fn new(rules: Rules) -> Qos {
        Qos {
            shared: Arc::new(Shared {
                rules,
                small: Counter::new(),
                large: Counter::new(),
                starved: Counter::new(),
                held: AtomicU64::new(0),
                holds: TimeHistogram::new(HOLD_BOUNDS_NS),
            }),
            boards: Mutex::default(),
        }
    }

    fn board(&self, site: &Site) -> Arc<Board> {
        let mut boards = self.boards.lock().unwrap_or_else(PoisonError::into_inner);
        let board = boards
            .entry(site.runtime)
            .or_insert_with(|| Arc::new(Board::new()));
        Arc::clone(board)
    }
}

impl Policy for Qos {
    fn prepare(&self, site: &Site) -> Result<Start, AttachError> {
        let engine = QosEngine::new(Arc::clone(&self.shared), self.board(site), site.clone());
        Ok(Box::new(move |saved| Ok(Box::new(engine.start(saved)?))))
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        let shared = &*self.shared;
        shared.small.report(&MESSAGES, &[("size", "small")], sink);
        shared.large.report(&MESSAGES, &[("size", "large")], sink);
        let held = shared.held.load(Ordering::Relaxed);
        sink.number(&HELD, &[], held as f64);
        shared.holds.report(&HOLD, &[], sink);
        shared.starved.report(&STARVED, &[], sink);
    }
}
