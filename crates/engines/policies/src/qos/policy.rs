//! The policy once it is attached: a board for each runtime, and what was counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use provost_engine::{
    AttachError, ConfigError, Counter, DatapathContext, Environment, FilterPolicy, MetricDescription,
    MetricSink, MetricType, Nanos, SharedState, TimeHistogram,
};

use crate::qos::board::RuntimeBoard;
use crate::qos::config::{EXAMPLE, QosConfig, QosRules};
use crate::qos::engine::QosEngine;
use crate::qos::{KIND, VERSION};

static MESSAGES: MetricDescription = MetricDescription {
    name: "provost_qos_messages_total",
    help: "Messages that went by, by what they count as.",
    kind: MetricType::Counter,
    unit: "{message}",
};
static HELD: MetricDescription = MetricDescription {
    name: "provost_qos_held",
    help: "Large messages, and what follows them of their calls, that wait while others have their turn.",
    kind: MetricType::Gauge,
    unit: "{step}",
};
static HOLD: MetricDescription = MetricDescription {
    name: "provost_qos_hold_seconds",
    help: "How long large messages waited that had to.",
    kind: MetricType::Histogram,
    unit: "s",
};
static STARVED: MetricDescription = MetricDescription {
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
    shared: Arc<QosShared>,
    boards: Mutex<BTreeMap<usize, Arc<RuntimeBoard>>>,
}

pub(crate) struct QosShared {
    pub(crate) rules: QosRules,
    pub(crate) small: Counter,
    pub(crate) large: Counter,
    pub(crate) starved: Counter,
    pub(crate) held: AtomicU64,
    pub(crate) holds: TimeHistogram,
}

impl Qos {
    fn board(&self, datapath_context: &DatapathContext) -> Arc<RuntimeBoard> {
        let mut boards = self.boards.lock().unwrap_or_else(PoisonError::into_inner);
        let board = boards
            .entry(datapath_context.runtime)
            .or_insert_with(|| Arc::new(RuntimeBoard::new()));
        Arc::clone(board)
    }
}

impl FilterPolicy for Qos {
    const KIND: &'static str = KIND;
    const VERSION: u32 = VERSION;
    const SUMMARY: &'static str =
        "lets small calls and near deadlines go first among the apps of one runtime";
    const EXAMPLE: &'static str = EXAMPLE;
    const METRICS: &'static [&'static MetricDescription] = &[&MESSAGES, &HELD, &HOLD, &STARVED];
    type Config = QosConfig;
    type Filter = QosEngine;

    fn configure(
        config: QosConfig,
        _environment: &Environment,
        _shared: Option<&SharedState>,
    ) -> Result<Qos, ConfigError> {
        Ok(Qos {
            shared: Arc::new(QosShared {
                rules: config.check()?,
                small: Counter::new(),
                large: Counter::new(),
                starved: Counter::new(),
                held: AtomicU64::new(0),
                holds: TimeHistogram::new(HOLD_BOUNDS_NS),
            }),
            boards: Mutex::default(),
        })
    }

    fn filter(&self, datapath_context: &DatapathContext) -> Result<QosEngine, AttachError> {
        let shared = Arc::clone(&self.shared);
        Ok(QosEngine::new(
            shared,
            self.board(datapath_context),
            datapath_context.clone(),
        ))
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
