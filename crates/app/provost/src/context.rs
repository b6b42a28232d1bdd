//! What a call passes on to the calls that are made for its sake: [`CallContext`].
//!
//! A handler runs within the context of its own call. Calls that it makes inherit from it, without being told:
//!
//! | what | how |
//! |---|---|
//! | the deadline | the earlier of the inherited one and the call's own counts |
//! | `traceparent`, `tracestate` (W3C trace context) | a `traceparent` of the call's own stands, and keeps both out |
//! | keys named by [`ServerBuilder::pass_on`](crate::ServerBuilder::pass_on), such as `baggage` | one of the call's own stands |
//!
//! A context belongs to a future, not to a thread: a task or a thread that a handler starts has none, unless [`inherit`],
//! [`scope`] or [`enter`] gives it one.
//!
//! ```no_run
//! # async fn handler(audit: impl std::future::Future<Output = ()> + Send + 'static) {
//! // Bounded by the caller's deadline, and in its trace.
//! tokio::spawn(provost::context::inherit(async { /* calls */ }));
//!
//! // In its trace, but not bounded: it may go on when the call is over.
//! let context = provost::CallContext::current().without_deadline();
//! tokio::spawn(provost::context::scope(context, audit));
//! # }
//! ```

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use provost_shm::now_ns;

use crate::metadata::{MetadataError, MetadataMap};

pub(crate) const TRACEPARENT: &str = "traceparent";
pub(crate) const TRACESTATE: &str = "tracestate";
const BAGGAGE: &str = "baggage";

thread_local! {
    /// The context of the future that this thread polls.
    static CURRENT: RefCell<CallContext> = const { RefCell::new(CallContext::new()) };
}

/// What calls inherit that are made within it: a deadline, and metadata such as the trace. See [`context`](crate::context).
///
/// ```
/// use provost::{CallContext, context};
///
/// let context = CallContext::new().with_metadata("baggage", "user=ann")?;
/// context::enter(context, || {
///     assert_eq!(CallContext::current().baggage(), Some("user=ann"));
/// });
/// assert_eq!(CallContext::current(), CallContext::new());
/// # Ok::<_, provost::MetadataError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallContext {
    /// In nanoseconds of CLOCK_MONOTONIC; 0 for none.
    deadline_ns: u64,
    /// Nothing for most calls, which then cost nothing.
    carried: Option<Arc<MetadataMap>>,
}

impl CallContext {
    /// A context from which nothing is inherited.
    #[must_use]
    pub const fn new() -> CallContext {
        CallContext {
            deadline_ns: 0,
            carried: None,
        }
    }

    /// The context of the handler, or of the [`scope`], that this code runs in; an empty one outside of both.
    #[must_use]
    pub fn current() -> CallContext {
        read(CallContext::clone).unwrap_or_default()
    }

    /// How much time is left for calls within it; `None` when there is no limit.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let left_ns = self.deadline_ns.saturating_sub(now_ns());
        (self.deadline_ns != 0).then(|| Duration::from_nanos(left_ns))
    }

    /// The W3C `traceparent`, if there is one.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.metadata().get(TRACEPARENT)
    }

    /// The W3C `tracestate`, if there is one.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.metadata().get(TRACESTATE)
    }

    /// The W3C `baggage`, if there is one.
    #[must_use]
    pub fn baggage(&self) -> Option<&str> {
        self.metadata().get(BAGGAGE)
    }

    /// All metadata that calls inherit.
    #[must_use]
    pub fn metadata(&self) -> &MetadataMap {
        static NONE: MetadataMap = MetadataMap::new();
        self.carried.as_deref().unwrap_or(&NONE)
    }

    /// The same with this value of a key, in place of the one that it had.
    ///
    /// # Errors
    /// If the key or the value is not one that metadata can have.
    pub fn with_metadata(mut self, key: &str, value: &str) -> Result<CallContext, MetadataError> {
        let carried = self.carried.get_or_insert_default();
        Arc::make_mut(carried).insert(key, value)?;
        Ok(self)
    }

    /// The same with this much time from now, if it had not less before.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> CallContext {
        self.limit(deadline_in(timeout));
        self
    }

    /// The same without a deadline, for work that may go on when the call is over.
    #[must_use]
    pub fn without_deadline(self) -> CallContext {
        CallContext {
            deadline_ns: 0,
            ..self
        }
    }

    /// The context of a call that must end then (0 for never) and has passed nothing on yet.
    pub(crate) const fn until(deadline_ns: u64) -> CallContext {
        CallContext {
            deadline_ns,
            carried: None,
        }
    }

    fn limit(&mut self, deadline_ns: u64) {
        self.deadline_ns = match self.deadline_ns {
            0 => deadline_ns,
            own_ns => own_ns.min(deadline_ns),
        };
    }
}

/// A time in nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn deadline_in(timeout: Duration) -> u64 {
    now_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}

/// Runs a future within a context: calls that it makes inherit from that.
pub async fn scope<F: Future>(context: CallContext, future: F) -> F::Output {
    let mut context = context;
    let mut future = pin!(future);
    poll_fn(|task| poll_within(&mut context, || future.as_mut().poll(task))).await
}

/// Runs a future within the context that this is called in, wherever it is polled then.
pub fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> {
    scope(CallContext::current(), future)
}

/// Runs a function within a context, for threads that block.
pub fn enter<R>(context: CallContext, run: impl FnOnce() -> R) -> R {
    let mut context = context;
    poll_within(&mut context, run)
}

/// Runs a poll within a context. What the poll makes of the context stays.
pub(crate) fn poll_within<R>(context: &mut CallContext, run: impl FnOnce() -> R) -> R {
    swap(context);
    let _swap_back = SwapBack(context);
    run()
}

struct SwapBack<'a>(&'a mut CallContext);

impl Drop for SwapBack<'_> {
    fn drop(&mut self) {
        swap(self.0);
    }
}

fn swap(context: &mut CallContext) {
    // A thread that ends has none any more.
    let _ = CURRENT.try_with(|current| std::mem::swap(&mut *current.borrow_mut(), context));
}

fn read<R>(look: impl FnOnce(&CallContext) -> R) -> Option<R> {
    CURRENT.try_with(|current| look(&current.borrow())).ok()
}

/// The current deadline, in nanoseconds of CLOCK_MONOTONIC; `None` when there is none.
pub(crate) fn inherited_deadline_ns() -> Option<u64> {
    read(|current| current.deadline_ns).filter(|deadline_ns| *deadline_ns != 0)
}

/// Bounds the time of the calls that the current handler makes.
pub(crate) fn limit_current(deadline_ns: u64) {
    let _ = CURRENT.try_with(|current| current.borrow_mut().limit(deadline_ns));
}

/// Adds what is inherited, and the call does not have of its own. What finds no room is left out.
pub(crate) fn add_inherited(own: &mut MetadataMap) {
    read(|current| {
        let Some(carried) = &current.carried else {
            return;
        };
        match own.get_bin(TRACEPARENT) {
            Some(_) if carried.get_bin(TRACESTATE).is_some() => own.add_missing(&without_state(carried)),
            _ => own.add_missing(carried),
        }
    });
}

/// The state of a trace is none of another trace.
fn without_state(carried: &MetadataMap) -> MetadataMap {
    let mut rest = carried.clone();
    rest.remove(TRACESTATE);
    rest
}

/// Has calls of the current handler inherit what its own call brought: its trace, and further keys.
pub(crate) fn carry(metadata: &MetadataMap, further: &[String]) {
    let has_trace = metadata.get(TRACEPARENT).is_some_and(is_traceparent);
    let mut carried = MetadataMap::new();
    for (key, value) in metadata.iter() {
        let is_trace = has_trace && (key == TRACEPARENT || key == TRACESTATE);
        if is_trace || further.iter().any(|other| other == key) {
            // It came in a map of the same size.
            let _ = carried.append_bin(key, value);
        }
    }
    let carried = (!carried.is_empty()).then(|| Arc::new(carried));
    let _ = CURRENT.try_with(|current| current.borrow_mut().carried = carried);
}

/// Whether this is a trace's context, by version 0 of <https://www.w3.org/TR/trace-context/> or a later one.
pub(crate) fn is_traceparent(header: &str) -> bool {
    let mut fields = header.split('-');
    let mut field = |length: usize, never: char| {
        let field = fields.next().unwrap_or_default();
        let is_hex = |digit: char| matches!(digit, '0'..='9' | 'a'..='f');
        field.len() == length && field.chars().all(is_hex) && field.chars().any(|digit| digit != never)
    };
    // Flags may be anything.
    let is_valid = field(2, 'f') && field(32, '0') && field(16, '0') && field(2, '\0');
    is_valid && (fields.next().is_none() || !header.starts_with("00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn metadata(pairs: &[(&str, &str)]) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        for (key, value) in pairs {
            metadata.append(key, value).unwrap();
        }
        metadata
    }

    /// What a call inherits that brings this of its own, in a handler whose call brought that.
    fn inherited(brought: &[(&str, &str)], own: &[(&str, &str)]) -> MetadataMap {
        let further = ["baggage".to_owned()];
        let mut own = metadata(own);
        enter(CallContext::new(), || {
            carry(&metadata(brought), &further);
            add_inherited(&mut own);
        });
        own
    }

    #[test]
    fn trace_and_named_keys_are_inherited_and_others_are_not() {
        let brought = [
            ("traceparent", TRACE),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
            ("baggage", "c=3"),
            ("authorization", "secret"),
        ];
        assert_eq!(inherited(&brought, &[]), metadata(&brought[..4]));
    }

    #[test]
    fn what_a_call_has_of_its_own_stands() {
        let brought = [("traceparent", TRACE), ("tracestate", "a=1"), ("baggage", "b=2")];
        let own = [("traceparent", "its own"), ("x", "y")];
        let expected = [own[0], own[1], ("baggage", "b=2")];
        assert_eq!(inherited(&brought, &own), metadata(&expected));
        let own = [("baggage", "mine")];
        let expected = [own[0], brought[0], brought[1]];
        assert_eq!(inherited(&brought, &own), metadata(&expected));
    }

    #[test]
    fn a_malformed_trace_is_not_passed_on() {
        let zeros = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let longer = format!("{TRACE}-more");
        let later = longer.replacen("00", "01", 1);
        for malformed in ["", "00-1-2-3", zeros, &TRACE.to_uppercase(), &TRACE[1..], &longer] {
            let brought = [("traceparent", malformed), ("tracestate", "a=1")];
            assert_eq!(inherited(&brought, &[]), MetadataMap::new(), "{malformed}");
        }
        for valid in [TRACE, &*later] {
            assert_eq!(inherited(&[("traceparent", valid)], &[]).len(), 1, "{valid}");
        }
        assert!(!is_traceparent(&TRACE.replacen("00", "ff", 1)));
    }

    #[test]
    fn what_finds_no_room_is_left_out() {
        let long = "x".repeat(provost_wire::limits::METADATA_BYTES_MAX as usize - 90);
        let brought = [("traceparent", TRACE), ("tracestate", "a=1")];
        let own = [("x", &*long)];
        assert_eq!(inherited(&brought, &own).get("traceparent"), Some(TRACE));
        assert_eq!(inherited(&brought, &own).get("tracestate"), None);
    }

    #[test]
    fn a_context_ends_with_its_scope_also_by_a_panic() {
        let context = CallContext::new().with_metadata("baggage", "a=1").unwrap();
        let panics = || enter(context.clone(), || panic!("as the test wants it"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!(CallContext::current(), CallContext::new());
        let nested = enter(context.clone(), || {
            enter(CallContext::new(), CallContext::current)
        });
        assert_eq!(nested, CallContext::new());
        let spawned = enter(context.clone(), || inherit(async { CallContext::current() }));
        assert_eq!(crate::blocking::block_on(spawned), context);
    }

    #[test]
    fn the_earlier_deadline_counts() {
        let context = CallContext::new().with_timeout(Duration::from_secs(100));
        let less = context.clone().with_timeout(Duration::from_secs(10));
        let more = context.clone().with_timeout(Duration::from_secs(1000));
        assert!(less.time_left().unwrap() <= Duration::from_secs(10));
        assert_eq!(more, context);
        assert_eq!(context.without_deadline().time_left(), None);
        assert!(enter(less, inherited_deadline_ns).is_some());
    }
}
