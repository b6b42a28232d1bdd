//! What crosses the boundary.

use std::ffi::c_void;

/// Version of everything in here.
pub const ENGINE_ABI: u32 = 1;
/// The symbol that a library exports, with its terminator.
pub const SYMBOL: &std::ffi::CStr = c"provost_engine";

/// What a function of either side returns: done.
pub const OK: i32 = 0;
/// Not done, for a reason that is told.
pub const REFUSED: i32 = 1;
/// The function has failed in its midst, such as by a panic; what it worked on must only be destroyed from now on.
pub const FAILED: i32 = 2;

/// [`EngineDescription::flags`]: the library turns its panics into [`FAILED`]. One without is refused.
pub const CONTAINS_PANICS: u32 = 1;

/// [`Verdict::kind`]: the step goes on.
pub const PASS: u32 = 0;
/// [`Verdict::kind`]: its call ends.
pub const DENY: u32 = 1;
/// [`Verdict::kind`]: it waits.
pub const HOLD: u32 = 2;

/// The app makes calls.
pub const SIDE_CLIENT: u8 = 0;
/// The app serves calls.
pub const SIDE_SERVER: u8 = 1;
/// From the client to the server.
pub const REQUEST: u8 = 0;
/// From the server to the client.
pub const RESPONSE: u8 = 1;

/// [`FieldValue::kind`]: the field is absent.
pub const VALUE_ABSENT: u32 = 0;
/// A truth value, in `number`.
pub const VALUE_BOOL: u32 = 1;
/// A signed integer or an enum, in `number`.
pub const VALUE_INT: u32 = 2;
/// An unsigned integer, in `number`.
pub const VALUE_UINT: u32 = 3;
/// A double (or a float, widened), in `real`.
pub const VALUE_DOUBLE: u32 = 4;
/// Text, in `bytes`.
pub const VALUE_STRING: u32 = 5;
/// Bytes.
pub const VALUE_BYTES: u32 = 6;
/// A message that is there.
pub const VALUE_MESSAGE: u32 = 7;
/// A list or a map; `number` is its length.
pub const VALUE_LIST: u32 = 8;

/// [`Metric::kind`]: only grows.
pub const METRIC_COUNTER: u32 = 0;
/// [`Metric::kind`]: goes up and down.
pub const METRIC_GAUGE: u32 = 1;
/// [`Metric::kind`]: counts of observations.
pub const METRIC_HISTOGRAM: u32 = 2;

/// Borrowed bytes; text where it says so. With a length of 0, `at` may be null.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Bytes {
    /// The first one.
    pub at: *const u8,
    /// How many.
    pub length: usize,
}

impl Bytes {
    /// None.
    pub const EMPTY: Bytes = Bytes::of(&[]);

    /// Lends bytes.
    #[must_use]
    pub const fn of(bytes: &[u8]) -> Bytes {
        Bytes {
            at: bytes.as_ptr(),
            length: bytes.len(),
        }
    }

    /// Lends text.
    #[must_use]
    pub const fn text(text: &str) -> Bytes {
        Bytes::of(text.as_bytes())
    }
}

/// Where output of any length goes; it is appended. The receiver keeps as much as it has a bound for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Sink {
    /// Passed on to `write`.
    pub to: *mut c_void,
    /// Appends bytes.
    pub write: Option<unsafe extern "C" fn(to: *mut c_void, at: *const u8, length: usize)>,
}

/// Saved state.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct State {
    /// Version of the form of `bytes`.
    pub version: u32,
    /// Zero.
    pub reserved: u32,
    /// The state.
    pub bytes: Bytes,
}

/// What a policy is configured with.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Setup {
    /// What the service offers; valid for ever.
    pub host: *const Host,
    /// For [`Host::audit`]; valid until the policy is destroyed.
    pub environment: *mut c_void,
    /// The node's name.
    pub node: Bytes,
    /// The name under which the operator attached the policy.
    pub policy: Bytes,
    /// Its configuration: TOML, one `key = value` a line.
    pub config: Bytes,
    /// What the policy in whose place it comes has left, or null.
    pub shared: *const State,
}

/// An app on a node.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct App {
    /// The name with which it attached.
    pub name: Bytes,
    /// Number of its attachment.
    pub id: u64,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Zero.
    pub reserved: u32,
}

/// Who an app is, by the names that its own node gives.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IdentityForm {
    /// The name of its node.
    pub node: Bytes,
    /// The name with which it attached there.
    pub name: Bytes,
    /// The name of its user there; empty where the number has none.
    pub user: Bytes,
    /// Its workload identity, such as a SPIFFE id; empty without one.
    pub workload: Bytes,
    /// The number of its user there.
    pub uid: u32,
    /// Zero in this version.
    pub reserved: u32,
}

/// A method of a service.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Method {
    /// Such as `Get`.
    pub name: Bytes,
    /// Such as `/kv.Kv/Get`.
    pub path: Bytes,
    /// Full name of the request message.
    pub input: Bytes,
    /// Full name of the response message.
    pub output: Bytes,
    /// 1 if the policy was attached to it.
    pub in_scope: u8,
    /// 1 if the client sends any number of messages.
    pub client_streaming: u8,
    /// 1 if the server sends any number of messages.
    pub server_streaming: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

/// A datapath.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DatapathContext {
    /// Size of this struct: a later service may know more.
    pub struct_bytes: u32,
    /// [`SIDE_CLIENT`] or [`SIDE_SERVER`].
    pub side: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Number of the connection on its node.
    pub connection: u64,
    /// Number of the runtime thread.
    pub runtime: u64,
    /// The node's name.
    pub node: Bytes,
    /// Full name of the service.
    pub service: Bytes,
    /// What the peer's certificate proves; empty where nothing was proved.
    pub peer_identity: Bytes,
    /// The peer's address; empty on the same node.
    pub peer_address: Bytes,
    /// What carries the connection, as configurations call it, such as `tcp` or `local`.
    pub transport: Bytes,
    /// A serialized `google.protobuf.FileDescriptorSet` of the service and the types that it reaches.
    pub descriptor_set: Bytes,
    /// The app whose datapath it is.
    pub app: *const App,
    /// The app at the other end, or null.
    pub peer_app: *const App,
    /// The methods, by their index.
    pub methods: *const Method,
    /// How many.
    pub method_count: usize,
    /// Who the app is. A service from before this was told ends its struct here, as `struct_bytes` says.
    pub app_identity: *const IdentityForm,
    /// Who the app at the other end is, where that is known: on this node, or on another one whose word is taken. Else null.
    pub peer_app_identity: *const IdentityForm,
}

/// Which steps a filter judges.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Watch {
    /// Parts (see [`crate::Parts`]) of those from the client.
    pub requests: u8,
    /// Parts of those from the server.
    pub responses: u8,
    /// 1 if calls are kept in mind, and their ends told.
    pub calls: u8,
    /// Zero.
    pub reserved: u8,
}

/// A step that is to be judged.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Step {
    /// Size of this struct: a later service may know more.
    pub struct_bytes: u32,
    /// Length of the message; 0 without one.
    pub message_bytes: u32,
    /// Which call of the datapath.
    pub call: u64,
    /// The time, in nanoseconds of the monotonic clock.
    pub now: u64,
    /// When the call's beginning reached the filter.
    pub begun_at: u64,
    /// Since when the step is held, if `is_held`.
    pub held_since: u64,
    /// When the call must have ended; 0 for never. Of a step that begins a call.
    pub deadline: u64,
    /// Index of its method.
    pub method: u16,
    /// Which parts it has.
    pub parts: u8,
    /// [`REQUEST`] or [`RESPONSE`].
    pub direction: u8,
    /// Its status, of a step that ends a call.
    pub status: u8,
    /// 1 if this filter has held the step.
    pub is_held: u8,
    /// 1 if large leaves of the message are still in the app's memory ([`Host::make_whole`]).
    pub is_split: u8,
    /// Zero.
    pub reserved: u8,
}

/// What a filter says of a step.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Verdict {
    /// [`PASS`], [`DENY`] or [`HOLD`].
    pub kind: u32,
    /// Of a denial: the status.
    pub code: u32,
    /// Of a hold: when to judge again.
    pub until: u64,
    /// Of a denial: what the client is told about trying again, in milliseconds; negative: not at all.
    pub retry_pushback_ms: i64,
    /// 1 if `retry_pushback_ms` counts.
    pub has_retry_pushback: u32,
    /// Zero.
    pub reserved: u32,
    /// Of a denial, or where the judgement has failed: text for people, valid until the filter is called again.
    pub reason: Bytes,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Ended {
    /// When.
    pub at: u64,
    /// Its status.
    pub code: u32,
    /// 1 if it was given up.
    pub cancelled: u8,
    /// Which way the step went that ended it.
    pub direction: u8,
    /// Zero.
    pub reserved: [u8; 2],
}

/// What is in a step.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Contents {
    /// All metadata as one block: entries, each a key's length (2 bytes), a value's (4 bytes), the key, the value.
    pub metadata: Bytes,
    /// The message in the native layout (`docs/layout.md`).
    pub message: Bytes,
    /// What the message's references count from: 0 for its first byte, else the place of that in a window, in units of 8
    /// bytes.
    pub window_at: u32,
    /// 1 if there is a message.
    pub has_message: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FieldValue {
    /// Which of the `VALUE_…` it is.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Integers (of a signed one its bits), truth values, lengths.
    pub number: u64,
    /// Doubles.
    pub real: f64,
    /// Text and bytes; valid until the step is changed or the judgement ends.
    pub bytes: Bytes,
}

/// Something that must be accounted for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Audit {
    /// What was done, such as `deny`.
    pub action: Bytes,
    /// The app on this node.
    pub app: Bytes,
    /// Such as `/kv.Kv/Get`.
    pub method: Bytes,
    /// Identity or address of the peer.
    pub peer: Bytes,
    /// Why, for people.
    pub reason: Bytes,
    /// The call on its connection.
    pub call: u64,
    /// The status that it got.
    pub code: u32,
    /// Zero.
    pub reserved: u32,
}

/// A metric. Its name stands for it: a name always has the same help, unit and kind.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Metric {
    /// Its name, as Prometheus has it.
    pub name: Bytes,
    /// One sentence.
    pub help: Bytes,
    /// Its unit as UCUM has it.
    pub unit: Bytes,
    /// One of the `METRIC_…`.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}

/// A label of a number.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Label {
    /// Its name.
    pub name: Bytes,
    /// Its value.
    pub value: Bytes,
}

/// How many observations were at most `bound`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Bucket {
    /// The bound.
    pub bound: f64,
    /// The number.
    pub count: u64,
}

/// What a metric stands at.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Measure {
    /// Which metric.
    pub metric: *const Metric,
    /// Its labels.
    pub labels: *const Label,
    /// How many.
    pub label_count: usize,
    /// Of a histogram: ascending, the last one infinite.
    pub buckets: *const Bucket,
    /// How many.
    pub bucket_count: usize,
    /// The value; of a histogram: the sum.
    pub value: f64,
    /// Of a histogram: the number of observations.
    pub count: u64,
}

/// Where measures go.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MeasureSink {
    /// Passed on to `measure`.
    pub to: *mut c_void,
    /// Takes one.
    pub measure: Option<unsafe extern "C" fn(to: *mut c_void, measure: *const Measure)>,
}

/// What the service offers to a library. Functions of steps may be called while that step is judged, functions of contexts
/// while a filter is prepared, both from the thread on which the library was called.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Host {
    /// [`ENGINE_ABI`] of the service.
    pub abi: u32,
    /// Size of this struct: a later service may offer more.
    pub struct_bytes: u32,
    /// Metadata and message of the step, as far as they are in private memory; valid until the step is changed.
    pub contents: unsafe extern "C" fn(step: *mut c_void, contents: *mut Contents) -> i32,
    /// Copies what is still in the app's memory, so that the message is whole.
    pub make_whole: unsafe extern "C" fn(step: *mut c_void) -> i32,
    /// The first value of a key. [`REFUSED`]: there is none.
    pub metadata: unsafe extern "C" fn(step: *mut c_void, key: Bytes, value: *mut Bytes) -> i32,
    /// Adds an entry to a step on its way to the wire. [`REFUSED`]: not to this step, or there is no room for it.
    pub append_metadata: unsafe extern "C" fn(step: *mut c_void, key: Bytes, value: Bytes) -> i32,
    /// Writes a value of the same length over the first one of a key. [`REFUSED`]: there is none of that length.
    pub overwrite_metadata: unsafe extern "C" fn(step: *mut c_void, key: Bytes, value: Bytes) -> i32,
    /// A field of the message by the number that [`Host::field_path`] gave. [`REFUSED`]: it is of another message.
    pub field: unsafe extern "C" fn(step: *mut c_void, path: u32, value: *mut FieldValue) -> i32,
    /// Finds a field, such as `user.name`, of the messages that go in a direction in calls of a method, and gives it a
    /// number. The problem goes to the sink.
    pub field_path: unsafe extern "C" fn(
        datapath_context: *mut c_void,
        method: u32,
        direction: u32,
        path: Bytes,
        number: *mut u32,
        problem: Sink,
    ) -> i32,
    /// Offers an event for the audit log. From any thread.
    pub audit: unsafe extern "C" fn(environment: *mut c_void, event: *const Audit),
}

/// What a library exports.
///
/// A *policy* is used by several threads at once, a *filter* by one at a time. Each function that returns a number
/// returns one of [`OK`], [`REFUSED`], [`FAILED`], and no function lets a panic or an exception out.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EngineDescription {
    /// [`ENGINE_ABI`] that the library was built for. Stays the first field in all versions.
    pub abi: u32,
    /// Size of this struct.
    pub struct_bytes: u32,
    /// Name of the kind, as configurations have it: lower-case letters, digits and `-`.
    pub kind: Bytes,
    /// What it does, in one line.
    pub summary: Bytes,
    /// A commented configuration with every key and its default, in TOML.
    pub example: Bytes,
    /// Version of the engine's code: what an operator upgrades from and to.
    pub version: u32,
    /// [`CONTAINS_PANICS`].
    pub flags: u32,
    /// The oldest saved state of a filter that it restores.
    pub state_oldest: u32,
    /// The newest.
    pub state_newest: u32,
    /// Makes a policy. On [`REFUSED`] the problem is in the sink.
    pub configure:
        Option<unsafe extern "C" fn(setup: *const Setup, policy: *mut *mut c_void, problem: Sink) -> i32>,
    /// What a policy that takes its place may continue from.
    pub policy_save: Option<unsafe extern "C" fn(policy: *mut c_void, version: *mut u32, bytes: Sink) -> i32>,
    /// Reports metrics.
    pub policy_metrics: Option<unsafe extern "C" fn(policy: *mut c_void, sink: MeasureSink) -> i32>,
    /// Ends a policy of which there is no filter any more.
    pub policy_destroy: Option<unsafe extern "C" fn(policy: *mut c_void)>,
    /// Makes a filter for a datapath and says what it watches.
    pub prepare: Option<
        unsafe extern "C" fn(
            policy: *mut c_void,
            datapath_context: *const DatapathContext,
            site_handle: *mut c_void,
            filter: *mut *mut c_void,
            watch: *mut Watch,
            problem: Sink,
        ) -> i32,
    >,
    /// Continues from the state of another version's filter. Called at most once, before anything is judged.
    pub filter_restore:
        Option<unsafe extern "C" fn(filter: *mut c_void, state: *const State, problem: Sink) -> i32>,
    /// Judges a step. `call` is a word of the filter's own for each call: 0 at first, and later what it left there. One
    /// that is not 0 is given back by `ended`.
    pub judge: Option<
        unsafe extern "C" fn(
            filter: *mut c_void,
            step: *const Step,
            step_handle: *mut c_void,
            call: *mut u64,
            verdict: *mut Verdict,
        ) -> i32,
    >,
    /// A call is over. `end` is null where it ended without another word: its beginning was denied.
    pub ended: Option<unsafe extern "C" fn(filter: *mut c_void, call: u64, end: *const Ended) -> i32>,
    /// The saved form of a call's word, if it is not 0.
    pub call_save: Option<unsafe extern "C" fn(filter: *mut c_void, call: u64, bytes: Sink) -> i32>,
    /// A word of what `call_save` gave in this or another version.
    pub call_load: Option<unsafe extern "C" fn(filter: *mut c_void, bytes: Bytes, call: *mut u64) -> i32>,
    /// The filter's own state. The filter is left as it is.
    pub filter_save: Option<unsafe extern "C" fn(filter: *mut c_void, version: *mut u32, bytes: Sink) -> i32>,
    /// Ends a filter, and all its calls' words.
    pub filter_destroy: Option<unsafe extern "C" fn(filter: *mut c_void)>,
}

// SAFETY: plain data. The bytes that it names are constants, and who calls the functions keeps to their rules.
unsafe impl Sync for EngineDescription {}
