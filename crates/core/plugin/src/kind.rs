//! A loaded kind of policy, and policies of it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use provost_engine::abi::{
    Bytes, ContextForm, EngineDescription, Label, METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM, Measure,
    MeasureSink, OK, REFUSED, Setup, Sink, State, Watch as RawWatch,
};
use provost_engine::{
    AttachError, ConfigError, DatapathContext, Environment, FilterEngine, FilterEngineParts,
    MetricDescription, MetricSink, MetricType, Parts, Policy, PolicyKind, SharedState, Start, Watch,
};

use crate::LoadError;
use crate::filter::LoadedFilter;
use crate::host::{ContextHandle, HOST};
use crate::lent::{BoundedBytes, TEXT_BYTES_MAX, items, slice, text};

/// A name of a kind, in bytes.
const KIND_BYTES_MAX: usize = 64;
/// An example of a configuration, in bytes.
const EXAMPLE_BYTES_MAX: usize = 64 << 10;
/// What a policy's datapaths share, saved, in bytes.
const SHARED_BYTES_MAX: usize = 64 << 20;
/// Metrics that a library has, at most: each is kept for ever.
const METRICS_MAX: usize = 256;
/// Labels of a number, and buckets of a histogram, at most.
const ITEMS_MAX: usize = 256;
/// Numbers that a policy reports at once, at most.
const MEASURES_MAX: usize = 65_536;

/// The functions of a library; all are there.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    pub(crate) configure: unsafe extern "C" fn(*const Setup, *mut *mut c_void, Sink) -> i32,
    policy_save: unsafe extern "C" fn(*mut c_void, *mut u32, Sink) -> i32,
    policy_metrics: unsafe extern "C" fn(*mut c_void, MeasureSink) -> i32,
    policy_destroy: unsafe extern "C" fn(*mut c_void),
    prepare: unsafe extern "C" fn(
        *mut c_void,
        *const provost_engine::abi::DatapathContext,
        *mut c_void,
        *mut *mut c_void,
        *mut RawWatch,
        Sink,
    ) -> i32,
    pub(crate) filter_restore: unsafe extern "C" fn(*mut c_void, *const State, Sink) -> i32,
    pub(crate) judge: unsafe extern "C" fn(
        *mut c_void,
        *const provost_engine::abi::Step,
        *mut c_void,
        *mut u64,
        *mut provost_engine::abi::Verdict,
    ) -> i32,
    pub(crate) ended: unsafe extern "C" fn(*mut c_void, u64, *const provost_engine::abi::Ended) -> i32,
    pub(crate) call_save: unsafe extern "C" fn(*mut c_void, u64, Sink) -> i32,
    pub(crate) call_load: unsafe extern "C" fn(*mut c_void, Bytes, *mut u64) -> i32,
    pub(crate) filter_save: unsafe extern "C" fn(*mut c_void, *mut u32, Sink) -> i32,
    pub(crate) filter_destroy: unsafe extern "C" fn(*mut c_void),
}

impl Functions {
    fn of(raw: &EngineDescription) -> Result<Functions, &'static str> {
        Ok(Functions {
            configure: raw.configure.ok_or("configure")?,
            policy_save: raw.policy_save.ok_or("policy_save")?,
            policy_metrics: raw.policy_metrics.ok_or("policy_metrics")?,
            policy_destroy: raw.policy_destroy.ok_or("policy_destroy")?,
            prepare: raw.prepare.ok_or("prepare")?,
            filter_restore: raw.filter_restore.ok_or("filter_restore")?,
            judge: raw.judge.ok_or("judge")?,
            ended: raw.ended.ok_or("ended")?,
            call_save: raw.call_save.ok_or("call_save")?,
            call_load: raw.call_load.ok_or("call_load")?,
            filter_save: raw.filter_save.ok_or("filter_save")?,
            filter_destroy: raw.filter_destroy.ok_or("filter_destroy")?,
        })
    }
}

/// A kind that a library brings.
pub(crate) struct LoadedKind {
    pub(crate) name: &'static str,
    summary: &'static str,
    example: &'static str,
    pub(crate) version: u32,
    /// Versions of a filter's state that it restores.
    pub(crate) states: std::ops::RangeInclusive<u32>,
    pub(crate) functions: Functions,
    metrics: Mutex<HashMap<String, &'static MetricDescription>>,
}

impl LoadedKind {
    /// Checks a description. (What it names is kept for ever: there are few libraries.)
    pub(crate) fn of(path: &Path, raw: &EngineDescription) -> Result<LoadedKind, LoadError> {
        let refused = |reason: String| LoadError::Description {
            path: path.to_owned(),
            reason,
        };
        let functions = Functions::of(raw)
            .map_err(|missing| refused(format!("its description has no function `{missing}`")))?;
        let name = constant(raw.kind, KIND_BYTES_MAX)
            .filter(|name| is_kind(name))
            .ok_or_else(|| {
                refused("its kind must have a name of lower-case letters, digits and '-'".to_owned())
            })?;
        let summary = constant(raw.summary, TEXT_BYTES_MAX)
            .ok_or_else(|| refused("its summary is no text, or too long".to_owned()))?;
        let example = constant(raw.example, EXAMPLE_BYTES_MAX)
            .ok_or_else(|| refused("its example is no text, or too long".to_owned()))?;
        if raw.state_oldest > raw.state_newest {
            return Err(refused("it restores no version of its state".to_owned()));
        }
        Ok(LoadedKind {
            name,
            summary,
            example,
            version: raw.version,
            states: raw.state_oldest..=raw.state_newest,
            functions,
            metrics: Mutex::default(),
        })
    }

    /// The description of a metric by its name; `None` if there are too many, or it is none.
    fn metric(&self, raw: &provost_engine::abi::Metric) -> Option<&'static MetricDescription> {
        let mut known = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the library lends the texts of a metric that it reports.
        let name = unsafe { text(raw.name) };
        if let Some(known) = known.get(&name) {
            return Some(known);
        }
        if known.len() >= METRICS_MAX {
            return None;
        }
        // SAFETY: as above.
        let (help, unit) = unsafe { (text(raw.help), text(raw.unit)) };
        let kind = match raw.kind {
            METRIC_COUNTER => MetricType::Counter,
            METRIC_GAUGE => MetricType::Gauge,
            METRIC_HISTOGRAM => MetricType::Histogram,
            _ => return None,
        };
        let description: &'static MetricDescription = Box::leak(Box::new(MetricDescription {
            name: name.clone().leak(),
            help: help.leak(),
            kind,
            unit: unit.leak(),
        }));
        known.insert(name, description);
        Some(description)
    }
}

fn is_kind(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// A text of a description, kept.
fn constant(bytes: Bytes, bytes_max: usize) -> Option<&'static str> {
    if bytes.length > bytes_max {
        return None;
    }
    // SAFETY: a description names readable bytes.
    let text = std::str::from_utf8(unsafe { slice(bytes) }).ok()?;
    Some(text.to_owned().leak())
}

impl PolicyKind for &'static LoadedKind {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn example(&self) -> &'static str {
        self.example
    }

    fn configure(
        &self,
        config: &toml::Table,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        let kind = *self;
        let mut environment = Box::new(environment.clone());
        let text = toml::to_string(config).map_err(|error| ConfigError::new("", error.to_string()))?;
        let shared = shared.map(|shared| State {
            version: shared.version,
            reserved: 0,
            bytes: Bytes::of(&shared.bytes),
        });
        let setup = Setup {
            host: &raw const HOST,
            environment: (&raw mut *environment).cast(),
            node: Bytes::text(&environment.node),
            policy: Bytes::text(&environment.policy),
            config: Bytes::text(&text),
            shared: shared.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
        };
        let (mut raw, mut problem) = (null_mut(), BoundedBytes::new(TEXT_BYTES_MAX));
        // SAFETY: the setup is whole, and what it names is alive; the environment until the policy is destroyed.
        let result = unsafe { (kind.functions.configure)(&setup, &mut raw, problem.sink()) };
        match result {
            OK if !raw.is_null() => Ok(Arc::new(LoadedPolicy(Arc::new(Handle {
                kind,
                raw,
                failed: AtomicBool::new(false),
                _environment: environment,
            })))),
            OK => Err(ConfigError::new("", "the library made no policy of it")),
            _ => Err(ConfigError::new("", problem.text())),
        }
    }
}

/// A policy that a library has made. Its filters share it, so it goes after the last of them.
pub(crate) struct Handle {
    pub(crate) kind: &'static LoadedKind,
    raw: *mut c_void,
    /// A function of the policy's own has failed: the library is not asked for it any more.
    failed: AtomicBool,
    /// What the library was lent.
    _environment: Box<Environment>,
}

// SAFETY: the ABI says that several threads may use a policy.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: `configure` made it, nobody uses it any more, and it is destroyed once.
        unsafe { (self.kind.functions.policy_destroy)(self.raw) }
    }
}

impl Handle {
    fn may_ask(&self) -> bool {
        !self.failed.load(Ordering::Relaxed)
    }

    fn note(&self, result: i32) -> bool {
        if result != OK && result != REFUSED {
            self.failed.store(true, Ordering::Relaxed);
        }
        result == OK
    }
}

struct LoadedPolicy(Arc<Handle>);

impl Policy for LoadedPolicy {
    fn prepare(&self, datapath_context: &DatapathContext) -> Result<Start, AttachError> {
        let handle = &self.0;
        if !handle.may_ask() {
            return Err(AttachError::new("the policy has failed: configure it anew"));
        }
        let form = ContextForm::of(datapath_context);
        let mut lent = ContextHandle {
            datapath_context,
            fields: Vec::new(),
        };
        let (mut raw, mut watch) = (null_mut(), RawWatch::default());
        let mut problem = BoundedBytes::new(TEXT_BYTES_MAX);
        let lent_raw = (&raw mut lent).cast();
        // SAFETY: `configure` made the policy; the datapath context is whole, and what it names is alive.
        let result = unsafe {
            let prepare = handle.kind.functions.prepare;
            prepare(
                handle.raw,
                &form.raw(),
                lent_raw,
                &mut raw,
                &mut watch,
                problem.sink(),
            )
        };
        if !handle.note(result) || raw.is_null() {
            return Err(AttachError::new(problem.text()));
        }
        let watch = Watch {
            requests: Parts(watch.requests),
            responses: Parts(watch.responses),
            calls: watch.calls != 0,
        };
        let parts = FilterEngineParts {
            kind: handle.kind.name,
            version: handle.kind.version,
            datapath_context: datapath_context.clone(),
            filter: LoadedFilter::new(Arc::clone(handle), raw, watch, lent.fields),
        };
        Ok(Box::new(move |saved| {
            Ok(Box::new(FilterEngine::start(parts, saved)?))
        }))
    }

    fn save(&self) -> SharedState {
        if !self.0.may_ask() {
            return SharedState::default();
        }
        let (mut version, mut bytes) = (0, BoundedBytes::new(SHARED_BYTES_MAX));
        // SAFETY: `configure` made the policy.
        let result = unsafe { (self.0.kind.functions.policy_save)(self.0.raw, &mut version, bytes.sink()) };
        match bytes.whole() {
            Some(bytes) if self.0.note(result) => SharedState { version, bytes },
            _ => SharedState::default(),
        }
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        if !self.0.may_ask() {
            return;
        }
        let mut scrape = Scrape {
            kind: self.0.kind,
            sink,
            left: MEASURES_MAX,
        };
        let raw = MeasureSink {
            to: (&raw mut scrape).cast(),
            measure: Some(measure),
        };
        // SAFETY: `configure` made the policy; the scrape lives until it returns.
        let result = unsafe { (self.0.kind.functions.policy_metrics)(self.0.raw, raw) };
        self.0.note(result);
    }
}

/// What a measure's sink points to.
struct Scrape<'a> {
    kind: &'static LoadedKind,
    sink: &'a mut dyn MetricSink,
    left: usize,
}

unsafe extern "C" fn measure(to: *mut c_void, measure: *const Measure) {
    // SAFETY: `to` is the scrape of a sink that is in use; the library lends a measure and what it names.
    let (scrape, measure) = unsafe { (&mut *to.cast::<Scrape<'_>>(), &*measure) };
    if scrape.left == 0 || measure.label_count > ITEMS_MAX || measure.bucket_count > ITEMS_MAX {
        return;
    }
    scrape.left -= 1;
    // SAFETY: as above.
    let metric = unsafe { measure.metric.as_ref() }.and_then(|metric| scrape.kind.metric(metric));
    let Some(metric) = metric else { return };
    // SAFETY: as above.
    let (labels, buckets) = unsafe {
        let label = |label: &Label| (text(label.name), text(label.value));
        let labels = items(measure.labels, measure.label_count).iter().map(label);
        (
            labels.collect::<Vec<_>>(),
            items(measure.buckets, measure.bucket_count),
        )
    };
    let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (&**name, &**value)).collect();
    match metric.kind {
        MetricType::Histogram => {
            let buckets: Vec<(f64, u64)> = buckets
                .iter()
                .map(|bucket| (bucket.bound, bucket.count))
                .collect();
            scrape
                .sink
                .histogram(metric, &labels, &buckets, measure.value, measure.count);
        }
        MetricType::Counter | MetricType::Gauge => scrape.sink.number(metric, &labels, measure.value),
    }
}
