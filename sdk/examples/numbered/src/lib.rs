//! Numbers the calls of each datapath in their metadata, and goes on counting when another version takes its place.
//!
//! The features make versions of it that tests upgrade to, and ones that fail in each way that an engine can.
#![deny(unsafe_code)]

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use provost_engine::{
    AttachError, CallState, ConfigError, DatapathContext, Ended, Environment, Filter, FilterPolicy,
    FilterState, MetricDescription, MetricSink, MetricType, RestoreError, SharedState, StepView, Verdict,
    Watch,
};

#[cfg(not(feature = "other-abi"))]
provost_engine::export_engine!(Numbered);

#[cfg(feature = "other-abi")]
mod other_abi;

const VERSION: u32 = match () {
    () if cfg!(feature = "version-2") => 2,
    () if cfg!(feature = "panics") => 3,
    () if cfg!(feature = "panics-elsewhere") => 4,
    () if cfg!(feature = "other-state") => 5,
    () if cfg!(feature = "fails-restore") => 6,
    () => 1,
};
const STATE_VERSION: u32 = if cfg!(feature = "other-state") { 7 } else { 1 };
/// The step at which the version that panics does so.
const STEPS_BEFORE_PANIC: u64 = 2;

static CALLS: MetricDescription = MetricDescription {
    name: "example_numbered_calls_total",
    help: "Calls that were numbered.",
    kind: MetricType::Counter,
    unit: "{call}",
};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Config {
    #[serde(default = "default_key")]
    key: String,
}

fn fail_on_purpose() {
    if cfg!(feature = "panics-elsewhere") {
        panic!("told to");
    }
}

fn fail_in_a_thread() {
    panic!("told to, in a thread");
}

fn default_key() -> String {
    "x-call-number".to_owned()
}

struct Numbered {
    key: Arc<str>,
    calls: Arc<AtomicU64>,
}

impl FilterPolicy for Numbered {
    const KIND: &'static str = "numbered";
    const VERSION: u32 = VERSION;
    const SUMMARY: &'static str = "numbers the calls of each connection";
    const EXAMPLE: &'static str = "key = \"x-call-number\"  # the metadata that bears the number";
    const STATE_VERSIONS: RangeInclusive<u32> = STATE_VERSION..=STATE_VERSION;
    type Config = Config;
    type Filter = Counting;

    fn configure(
        config: Config,
        _environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Numbered, ConfigError> {
        assert!(config.key != "panic", "told to");
        if config.key == "panic-in-a-thread" {
            let _ = std::thread::spawn(fail_in_a_thread).join();
        }
        let calls = shared.and_then(|shared| shared.bytes.as_slice().try_into().ok());
        Ok(Numbered {
            key: config.key.into(),
            calls: Arc::new(AtomicU64::new(calls.map_or(0, u64::from_le_bytes))),
        })
    }

    fn filter(&self, _site: &DatapathContext) -> Result<Counting, AttachError> {
        assert!(&*self.key != "panic-at-prepare", "told to");
        Ok(Counting {
            key: Arc::clone(&self.key),
            calls: Arc::clone(&self.calls),
            last: 0,
            steps: 0,
        })
    }

    fn save(&self) -> SharedState {
        fail_on_purpose();
        SharedState {
            version: 1,
            bytes: self.calls.load(Ordering::Relaxed).to_le_bytes().to_vec(),
        }
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        fail_on_purpose();
        let calls = self.calls.load(Ordering::Relaxed);
        sink.number(&CALLS, &[("key", &self.key)], calls as f64);
    }
}

struct Counting {
    key: Arc<str>,
    calls: Arc<AtomicU64>,
    last: u64,
    steps: u64,
}

/// The number of a call.
#[derive(Default)]
struct Number(u64);

impl CallState for Number {
    fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn load(saved: &[u8]) -> Option<Number> {
        if saved.is_empty() {
            Some(Number(0))
        } else {
            Some(Number(u64::from_le_bytes(saved.try_into().ok()?)))
        }
    }
}

impl Filter for Counting {
    type Call = Number;

    fn watch(&self) -> Watch {
        Watch::ALL
    }

    fn judge(&mut self, call: &mut Number, step: &mut StepView<'_>) -> Verdict {
        self.steps += 1;
        assert!(
            !cfg!(feature = "panics") || self.steps <= STEPS_BEFORE_PANIC,
            "told to panic at step {}",
            self.steps
        );
        if call.0 == 0 {
            self.last += 1;
            self.calls.fetch_add(1, Ordering::Relaxed);
            call.0 = self.last;
        }
        // (Of the steps towards the app, those take metadata that begin a call; the others are counted all the same.)
        let _ = step.append_metadata(&self.key, call.0.to_string().as_bytes());
        Verdict::Pass
    }

    fn ended(&mut self, call: Number, _end: &Ended) {
        fail_on_purpose();
        assert!(call.0 != 0, "a call without a number");
    }

    fn save(&self) -> FilterState {
        fail_on_purpose();
        FilterState {
            version: STATE_VERSION,
            bytes: self.last.to_le_bytes().to_vec(),
        }
    }

    fn restore(&mut self, state: &FilterState) -> Result<(), RestoreError> {
        let damaged = |reason: &str| RestoreError::Damaged {
            kind: "numbered",
            reason: reason.to_owned(),
        };
        if cfg!(feature = "fails-restore") {
            return Err(damaged("this version likes no state"));
        }
        let bytes = state.bytes.as_slice().try_into();
        self.last = u64::from_le_bytes(bytes.map_err(|_| damaged("it has not 8 bytes"))?);
        Ok(())
    }
}
