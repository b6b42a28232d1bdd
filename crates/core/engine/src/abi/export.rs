//! The functions that a library exports, made from a [`FilterPolicy`].

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use slab::Slab;

use super::remote::{self, RemoteEvents, RemoteStep, slice, text};
use super::types::{
    Bucket, Label, METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM, Measure, MeasureSink, Metric,
};
use super::types::{
    Bytes, CONTAINS_PANICS, DENY, DatapathContext as RawDatapathContext, ENGINE_ABI, Ended as RawEnded,
    EngineDescription, FAILED, HOLD, Host, OK, PASS, REFUSED, RESPONSE, Setup, Sink, State, Step as RawStep,
    Verdict as RawVerdict, Watch as RawWatch,
};

use crate::view::{StepSource, StepView};
use crate::{
    Code, DatapathContext, Direction, Ended, Environment, Filter, FilterPolicy, FilterState,
    MetricDescription, MetricSink, MetricType, SharedState, Verdict,
};

/// What [`crate::export_engine!`] exports.
#[must_use]
pub const fn description<P: FilterPolicy<Filter: Filter>>() -> EngineDescription {
    EngineDescription {
        abi: ENGINE_ABI,
        struct_bytes: size_of::<EngineDescription>() as u32,
        kind: Bytes::text(P::KIND),
        summary: Bytes::text(P::SUMMARY),
        example: Bytes::text(P::EXAMPLE),
        version: P::VERSION,
        flags: if cfg!(panic = "unwind") {
            CONTAINS_PANICS
        } else {
            0
        },
        state_oldest: *P::STATE_VERSIONS.start(),
        state_newest: *P::STATE_VERSIONS.end(),
        configure: Some(configure::<P>),
        policy_save: Some(policy_save::<P>),
        policy_metrics: Some(policy_metrics::<P>),
        policy_destroy: Some(policy_destroy::<P>),
        prepare: Some(prepare::<P>),
        filter_restore: Some(filter_restore::<P>),
        judge: Some(judge::<P>),
        ended: Some(ended::<P>),
        call_save: Some(call_save::<P>),
        call_load: Some(call_load::<P>),
        filter_save: Some(filter_save::<P>),
        filter_destroy: Some(filter_destroy::<P>),
    }
}

/// Exports a [`FilterPolicy`] from a library that a service loads: `export_engine!(MyPolicy);` in a crate of the type
/// `cdylib`.
#[macro_export]
macro_rules! export_engine {
    ($policy:ty) => {
        /// What a service looks for when it loads this library.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static provost_engine: $crate::abi::EngineDescription = $crate::abi::description::<$policy>();
    };
}

struct ExportedPolicy<P> {
    policy: P,
    host: &'static Host,
    node: Arc<str>,
    events: Arc<RemoteEvents>,
}

struct ExportedFilter<P: FilterPolicy<Filter: Filter>> {
    filter: P::Filter,
    host: &'static Host,
    datapath_context: DatapathContext,
    calls: Slab<<P::Filter as Filter>::Call>,
    /// The last verdict's, lent to the service.
    reason: Cow<'static, str>,
    condition: Condition,
}

/// Whether a filter may still be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Sound,
    /// It has panicked.
    Failed,
}

/// Whether a filter's calls need a number: some keep nothing.
const fn keeps_calls<P: FilterPolicy<Filter: Filter>>() -> bool {
    size_of::<<P::Filter as Filter>::Call>() != 0
}

unsafe extern "C" fn configure<P: FilterPolicy<Filter: Filter>>(
    setup: *const Setup,
    policy: *mut *mut c_void,
    problem: Sink,
) -> i32 {
    note_panics();
    guarded(problem, || {
        // SAFETY: the service passes a setup as its type says, and a place for the policy.
        let (setup, host, place) =
            unsafe { (setup.as_ref(), setup.as_ref().map(|s| s.host), policy.as_mut()) };
        let (Some(setup), Some(host), Some(place)) = (setup, host, place) else {
            return Err("the service passed no setup".to_owned());
        };
        // SAFETY: as above; what the service offers stays.
        let host = unsafe { host.as_ref() }.ok_or("the service offers nothing")?;
        // SAFETY: as above.
        let (node, name, config, shared) = unsafe {
            (
                text(setup.node),
                text(setup.policy),
                text(setup.config),
                setup.shared.as_ref(),
            )
        };
        let config: toml::Table = toml::from_str(&config).map_err(|error| error.message().to_owned())?;
        let config = crate::parse_config(&config).map_err(|error| error.to_string())?;
        let events = Arc::new(RemoteEvents::new(host, setup.environment));
        let environment = Environment {
            node: Arc::clone(&node),
            policy: name,
            place: "".into(),
            events: events.clone(),
        };
        let shared = shared.map(|shared| SharedState {
            version: shared.version,
            // SAFETY: as above.
            bytes: unsafe { slice(shared.bytes) }.to_vec(),
        });
        let made = P::configure(config, &environment, shared.as_ref()).map_err(|error| error.to_string())?;
        let made = ExportedPolicy {
            policy: made,
            host,
            node,
            events,
        };
        *place = Box::into_raw(Box::new(made)).cast();
        Ok(())
    })
}

unsafe extern "C" fn policy_save<P: FilterPolicy<Filter: Filter>>(
    policy: *mut c_void,
    version: *mut u32,
    bytes: Sink,
) -> i32 {
    guarded(NOWHERE, || {
        // SAFETY: `configure` made the policy, and it has not been destroyed.
        let exported = unsafe { &*policy.cast::<ExportedPolicy<P>>() };
        let state = exported.policy.save();
        // SAFETY: the service passes a place for the version.
        unsafe { *version = state.version };
        write(bytes, &state.bytes);
        Ok(())
    })
}

unsafe extern "C" fn policy_metrics<P: FilterPolicy<Filter: Filter>>(
    policy: *mut c_void,
    sink: MeasureSink,
) -> i32 {
    guarded(NOWHERE, || {
        // SAFETY: `configure` made the policy, and it has not been destroyed.
        let exported = unsafe { &*policy.cast::<ExportedPolicy<P>>() };
        exported.policy.metrics(&mut RemoteMetrics(sink));
        Ok(())
    })
}

unsafe extern "C" fn policy_destroy<P: FilterPolicy<Filter: Filter>>(policy: *mut c_void) {
    guarded(NOWHERE, || {
        // SAFETY: `configure` made the policy, and the service does not use it any more.
        let exported = unsafe { Box::from_raw(policy.cast::<ExportedPolicy<P>>()) };
        exported.events.close();
        drop(exported);
        Ok(())
    });
}

unsafe extern "C" fn prepare<P: FilterPolicy<Filter: Filter>>(
    policy: *mut c_void,
    datapath_context: *const RawDatapathContext,
    _site_handle: *mut c_void,
    filter: *mut *mut c_void,
    watch: *mut RawWatch,
    problem: Sink,
) -> i32 {
    guarded(problem, || {
        // SAFETY: `configure` made the policy, and it has not been destroyed.
        let exported = unsafe { &*policy.cast::<ExportedPolicy<P>>() };
        // SAFETY: the service passes a datapath context as its type says.
        let datapath_context = unsafe { remote::datapath_context(datapath_context, &exported.node) }?;
        let made = exported
            .policy
            .filter(&datapath_context)
            .map_err(|error| error.to_string())?;
        let watched = made.watch();
        let made = ExportedFilter::<P> {
            filter: made,
            host: exported.host,
            datapath_context,
            calls: Slab::new(),
            reason: Cow::Borrowed(""),
            condition: Condition::Sound,
        };
        // SAFETY: the service passes places for both.
        unsafe {
            *watch = RawWatch {
                requests: watched.requests.0,
                responses: watched.responses.0,
                calls: u8::from(watched.calls),
                reserved: 0,
            };
            *filter = Box::into_raw(Box::new(made)).cast();
        }
        Ok(())
    })
}

unsafe extern "C" fn filter_restore<P: FilterPolicy<Filter: Filter>>(
    filter: *mut c_void,
    state: *const State,
    problem: Sink,
) -> i32 {
    with_filter::<P>(filter, problem, |exported| {
        // SAFETY: the service passes a state as its type says.
        let state = unsafe { state.as_ref() }.ok_or("no state")?;
        let state = FilterState {
            version: state.version,
            // SAFETY: as above.
            bytes: unsafe { slice(state.bytes) }.to_vec(),
        };
        exported.filter.restore(&state).map_err(|error| error.to_string())
    })
}

unsafe extern "C" fn judge<P: FilterPolicy<Filter: Filter>>(
    filter: *mut c_void,
    step: *const RawStep,
    step_handle: *mut c_void,
    call: *mut u64,
    verdict: *mut RawVerdict,
) -> i32 {
    // SAFETY: `prepare` made the filter, it has not been destroyed, and this thread alone uses it; the service passes a
    // step, a call's word and a place for the verdict.
    let (exported, step, call, place) = unsafe {
        (
            &mut *filter.cast::<ExportedFilter<P>>(),
            &*step,
            &mut *call,
            &mut *verdict,
        )
    };
    if exported.condition == Condition::Failed {
        return FAILED;
    }
    let verdict = match contained(|| exported.judge(step, step_handle, call)) {
        Ok(verdict) => verdict,
        Err(panic) => {
            exported.condition = Condition::Failed;
            Verdict::Fault(panic.into())
        }
    };
    match verdict {
        Verdict::Pass => place.kind = PASS,
        Verdict::Hold { until } => {
            place.kind = HOLD;
            place.until = until;
        }
        Verdict::Deny(denial) => {
            exported.reason = denial.reason;
            *place = RawVerdict {
                kind: DENY,
                code: denial.code as u32,
                until: 0,
                retry_pushback_ms: denial.retry_pushback_ms.unwrap_or_default(),
                has_retry_pushback: u32::from(denial.retry_pushback_ms.is_some()),
                reserved: 0,
                reason: Bytes::text(&exported.reason),
            };
        }
        Verdict::Fault(reason) => {
            exported.reason = reason;
            place.reason = Bytes::text(&exported.reason);
            return FAILED;
        }
    }
    OK
}

impl<P: FilterPolicy<Filter: Filter>> ExportedFilter<P> {
    fn judge(&mut self, step: &RawStep, handle: *mut c_void, call: &mut u64) -> Verdict {
        let mut view = StepView {
            source: StepSource::Remote(RemoteStep::new(step, self.host, handle)),
            datapath_context: &self.datapath_context,
            now: step.now,
            direction: direction(step.direction),
            method: step.method,
            begun_at: step.begun_at,
            held_since: (step.is_held != 0).then_some(step.held_since),
        };
        if !keeps_calls::<P>() {
            return self.filter.judge(&mut Default::default(), &mut view);
        }
        if *call == 0 {
            *call = number_of(self.calls.insert(Default::default()));
        }
        match place_of(*call).and_then(|place| self.calls.get_mut(place)) {
            Some(state) => self.filter.judge(state, &mut view),
            None => Verdict::Fault("the service named a call that the engine does not know".into()),
        }
    }
}

/// The number by which the service names what is kept of a call: never 0.
fn number_of(place: usize) -> u64 {
    place as u64 + 1
}

fn place_of(number: u64) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

unsafe extern "C" fn ended<P: FilterPolicy<Filter: Filter>>(
    filter: *mut c_void,
    call: u64,
    end: *const RawEnded,
) -> i32 {
    with_filter::<P>(filter, NOWHERE, |exported| {
        let state = if keeps_calls::<P>() {
            place_of(call)
                .and_then(|place| exported.calls.try_remove(place))
                .unwrap_or_default()
        } else {
            Default::default()
        };
        // SAFETY: the service passes an end as its type says, or null.
        match unsafe { end.as_ref() } {
            Some(end) => exported.filter.ended(state, &ended_of(end)),
            None => exported.filter.forget(state),
        }
        Ok(())
    })
}

unsafe extern "C" fn call_save<P: FilterPolicy<Filter: Filter>>(
    filter: *mut c_void,
    call: u64,
    bytes: Sink,
) -> i32 {
    with_filter::<P>(filter, NOWHERE, |exported| {
        let mut saved = Vec::new();
        if let Some(state) = place_of(call).and_then(|place| exported.calls.get(place)) {
            exported.filter.save_call(state, &mut saved);
        }
        write(bytes, &saved);
        Ok(())
    })
}

unsafe extern "C" fn call_load<P: FilterPolicy<Filter: Filter>>(
    filter: *mut c_void,
    bytes: Bytes,
    call: *mut u64,
) -> i32 {
    with_filter::<P>(filter, NOWHERE, |exported| {
        // SAFETY: the service lends the bytes.
        let state = exported.filter.load_call(unsafe { slice(bytes) });
        let state = state.ok_or_else(String::new)?;
        if keeps_calls::<P>() {
            // SAFETY: the service passes a place for the word.
            unsafe { *call = number_of(exported.calls.insert(state)) };
        }
        Ok(())
    })
}

unsafe extern "C" fn filter_save<P: FilterPolicy<Filter: Filter>>(
    filter: *mut c_void,
    version: *mut u32,
    bytes: Sink,
) -> i32 {
    with_filter::<P>(filter, NOWHERE, |exported| {
        let state = exported.filter.save();
        // SAFETY: the service passes a place for the version.
        unsafe { *version = state.version };
        write(bytes, &state.bytes);
        Ok(())
    })
}

unsafe extern "C" fn filter_destroy<P: FilterPolicy<Filter: Filter>>(filter: *mut c_void) {
    guarded(NOWHERE, || {
        // SAFETY: `prepare` made the filter, and the service does not use it any more.
        drop(unsafe { Box::from_raw(filter.cast::<ExportedFilter<P>>()) });
        Ok(())
    });
}

/// Runs what works on a filter; one that has panicked is not asked any more.
fn with_filter<P: FilterPolicy<Filter: Filter>>(
    filter: *mut c_void,
    problem: Sink,
    body: impl FnOnce(&mut ExportedFilter<P>) -> Result<(), String>,
) -> i32 {
    // SAFETY: `prepare` made the filter, it has not been destroyed, and this thread alone uses it: so the service promises
    // of each function that calls this one.
    let exported = unsafe { &mut *filter.cast::<ExportedFilter<P>>() };
    if exported.condition == Condition::Failed {
        return FAILED;
    }
    let result = guarded(problem, || body(exported));
    if result == FAILED {
        exported.condition = Condition::Failed;
    }
    result
}

/// Runs what may fail or panic, and tells why.
fn guarded(problem: Sink, body: impl FnOnce() -> Result<(), String>) -> i32 {
    match contained(body) {
        Ok(Ok(())) => OK,
        Ok(Err(reason)) => {
            write(problem, reason.as_bytes());
            REFUSED
        }
        Err(panic) => {
            write(problem, panic.as_bytes());
            FAILED
        }
    }
}

thread_local! {
    /// Whether the service has called the library on this thread, and is told of its panics.
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
    /// What the last panic of this thread said, and where.
    static LAST_PANIC: Cell<Option<String>> = const { Cell::new(None) };
}

/// Runs what may panic. What the panic said. Its payload is kept for ever, as dropping it could panic again.
fn contained<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    let outer = IS_CONTAINED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(body));
    IS_CONTAINED.set(outer);
    done.map_err(|payload| {
        std::mem::forget(payload);
        LAST_PANIC.take().unwrap_or_else(|| "it panicked".to_owned())
    })
}

/// Notes panics of which the service is told instead of printing them with all that led to them: that would take a datapath's
/// thread a long time. (The library has its own standard library, so this is about its panics alone.)
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_CONTAINED.get() {
                return print(info);
            }
            let place = info
                .location()
                .map(|place| format!(" at {}:{}", place.file(), place.line()));
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            let text = text.unwrap_or("for an unknown reason");
            LAST_PANIC.set(Some(format!("it panicked{}: {text}", place.unwrap_or_default())));
        }));
    });
}

const NOWHERE: Sink = Sink {
    to: std::ptr::null_mut(),
    write: None,
};

fn write(sink: Sink, bytes: &[u8]) {
    if let Some(write) = sink.write {
        // SAFETY: the service made the sink for this call, and takes any bytes.
        unsafe { write(sink.to, bytes.as_ptr(), bytes.len()) }
    }
}

fn direction(number: u8) -> Direction {
    match number {
        RESPONSE => Direction::Response,
        _ => Direction::Request,
    }
}

fn ended_of(end: &RawEnded) -> Ended {
    let code = Code::ALL.get(end.code as usize).copied();
    Ended {
        code: code.unwrap_or(Code::Unknown),
        at: end.at,
        cancelled: end.cancelled != 0,
        direction: direction(end.direction),
    }
}

struct RemoteMetrics(MeasureSink);

impl RemoteMetrics {
    fn measure(
        &mut self,
        metric: &'static MetricDescription,
        labels: &[(&str, &str)],
        measure: impl FnOnce(*const Metric, &[Label]) -> Measure,
    ) {
        let raw = Metric {
            name: Bytes::text(metric.name),
            help: Bytes::text(metric.help),
            unit: Bytes::text(metric.unit),
            kind: match metric.kind {
                MetricType::Counter => METRIC_COUNTER,
                MetricType::Gauge => METRIC_GAUGE,
                MetricType::Histogram => METRIC_HISTOGRAM,
            },
            reserved: 0,
        };
        let labels: Vec<Label> = labels
            .iter()
            .map(|(name, value)| Label {
                name: Bytes::text(name),
                value: Bytes::text(value),
            })
            .collect();
        let measure = measure(&raw, &labels);
        if let Some(take) = self.0.measure {
            // SAFETY: the service made the sink for this call, and all that the measure names is alive.
            unsafe { take(self.0.to, &measure) }
        }
    }
}

impl MetricSink for RemoteMetrics {
    fn number(&mut self, metric: &'static MetricDescription, labels: &[(&str, &str)], value: f64) {
        self.measure(metric, labels, |metric, labels| Measure {
            metric,
            labels: labels.as_ptr(),
            label_count: labels.len(),
            buckets: std::ptr::null(),
            bucket_count: 0,
            value,
            count: 0,
        });
    }

    fn histogram(
        &mut self,
        metric: &'static MetricDescription,
        labels: &[(&str, &str)],
        cumulative: &[(f64, u64)],
        sum: f64,
        count: u64,
    ) {
        let buckets: Vec<Bucket> = cumulative
            .iter()
            .map(|(bound, count)| Bucket {
                bound: *bound,
                count: *count,
            })
            .collect();
        self.measure(metric, labels, |metric, labels| Measure {
            metric,
            labels: labels.as_ptr(),
            label_count: labels.len(),
            buckets: buckets.as_ptr(),
            bucket_count: buckets.len(),
            value: sum,
            count,
        });
    }
}
