//! What a service has lent to this library, as the rest of the crate knows it.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use provost_marshal::{Tables, View};
use provost_schema::Schema;
use provost_wire::metadata::{self, MetadataError};

use super::types::{
    App, Audit, Bytes, Contents as RawContents, DatapathContext as RawDatapathContext, Host, IdentityForm,
    Method, OK, SIDE_CLIENT, Step as RawStep,
};
use crate::view::{Contents, MetadataFull};
use crate::{
    AppIdentity, AttestedApp, AuditEvent, Code, DatapathContext, EventSink, MethodContext, PeerIdentity, Side,
};

/// A step that is in the service.
pub(crate) struct RemoteStep<'a> {
    pub(crate) step: &'a RawStep,
    host: &'a Host,
    /// What the service knows the step by.
    handle: *mut c_void,
    is_split: bool,
}

impl<'a> RemoteStep<'a> {
    pub(super) fn new(step: &'a RawStep, host: &'a Host, handle: *mut c_void) -> RemoteStep<'a> {
        RemoteStep {
            step,
            host,
            handle,
            is_split: step.is_split != 0,
        }
    }
}

impl RemoteStep<'_> {
    pub(crate) fn status(&self) -> Code {
        Code::ALL
            .get(usize::from(self.step.status))
            .copied()
            .unwrap_or(Code::Unknown)
    }

    pub(crate) fn is_split(&self) -> bool {
        self.is_split
    }

    pub(crate) fn contents(&mut self) -> Contents<'_> {
        let mut raw = RawContents {
            metadata: Bytes::EMPTY,
            message: Bytes::EMPTY,
            window_at: 0,
            has_message: 0,
            reserved: [0; 3],
        };
        // SAFETY: the step is being judged, so its handle is valid.
        if unsafe { (self.host.contents)(self.handle, &mut raw) } != OK {
            raw.has_message = 0;
        }
        // SAFETY: both are valid until the step is changed, which takes this borrow to be over.
        let (metadata, message) = unsafe { (slice(raw.metadata), slice(raw.message)) };
        Contents {
            metadata,
            message: (raw.has_message != 0).then(|| View::relocated(message, raw.window_at)),
            // What the service has as protobuf, it decodes when the step is to be whole.
            protobuf: None,
            is_compressed: false,
        }
    }

    pub(crate) fn make_whole(&mut self) -> bool {
        if !self.is_split {
            return false;
        }
        self.is_split = false;
        // SAFETY: the step is being judged, so its handle is valid.
        unsafe { (self.host.make_whole)(self.handle) == OK }
    }

    pub(crate) fn append_metadata(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataFull> {
        metadata::entry_bytes(key, value)?;
        let (key, value) = (Bytes::text(key), Bytes::of(value));
        // SAFETY: the step is being judged, so its handle is valid.
        match unsafe { (self.host.append_metadata)(self.handle, key, value) } {
            OK => Ok(()),
            _ if self.contents().metadata.len() + key.length + value.length < METADATA_SURELY_FITS => {
                Err(MetadataFull::Inbound)
            }
            _ => Err(MetadataError::TooMany.into()),
        }
    }

    pub(crate) fn overwrite_metadata(&mut self, key: &str, value: &[u8]) -> bool {
        let (key, value) = (Bytes::text(key), Bytes::of(value));
        // SAFETY: the step is being judged, so its handle is valid.
        unsafe { (self.host.overwrite_metadata)(self.handle, key, value) == OK }
    }
}

/// Metadata of fewer bytes is refused only by a step that takes none.
const METADATA_SURELY_FITS: usize = 256;

/// The audit log of the service. It is closed when the policy goes, though somebody may still hold it.
pub(super) struct RemoteEvents(RwLock<Environment>);

struct Environment {
    host: &'static Host,
    handle: *mut c_void,
}

// SAFETY: the service lets events be offered from any thread.
unsafe impl Send for Environment {}
// SAFETY: as above.
unsafe impl Sync for Environment {}

impl RemoteEvents {
    pub(super) fn new(host: &'static Host, handle: *mut c_void) -> RemoteEvents {
        RemoteEvents(RwLock::new(Environment { host, handle }))
    }

    /// From now on events go nowhere.
    pub(super) fn close(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).handle = null_mut();
    }
}

impl EventSink for RemoteEvents {
    fn audit(&self, event: AuditEvent) {
        let environment = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if environment.handle.is_null() {
            return;
        }
        let event = Audit {
            action: Bytes::text(event.action),
            app: Bytes::text(&event.app),
            method: Bytes::text(&event.method),
            peer: Bytes::text(&event.peer),
            reason: Bytes::text(&event.reason),
            call: event.call,
            code: event.code as u32,
            reserved: 0,
        };
        // SAFETY: the policy has not been destroyed, as its handle would be null.
        unsafe { (environment.host.audit)(environment.handle, &event) }
    }
}

/// Reads a datapath context. The schema is made anew, and its tables: they are this library's own.
///
/// # Safety
/// What `raw` points to, and what is in there, is as [`RawDatapathContext`] says.
pub(super) unsafe fn datapath_context(
    raw: *const RawDatapathContext,
    node: &Arc<str>,
) -> Result<DatapathContext, String> {
    // SAFETY: the caller's promise.
    let lent = unsafe { Lent::of(raw) }.ok_or("the service named no datapath context")?;
    let service = lent.service;
    let schema = Schema::from_descriptor_set(lent.descriptor_set);
    let schema = schema.map_err(|error| format!("the service's schema: {error}"))?;
    let schema = schema.for_service(&service);
    let schema = schema.ok_or_else(|| format!("the service {service} is not in its schema"))?;
    let tables = Tables::compile(&schema).map_err(|error| format!("the service's schema: {error}"))?;
    let known = schema
        .service(&service)
        .map(|known| &known.methods[..])
        .unwrap_or_default();
    if known.len() != lent.methods.len() {
        return Err(format!("{service} has other methods than its schema"));
    }
    let methods = known
        .iter()
        .zip(&lent.methods)
        .map(|(method, lent)| MethodContext {
            name: lent.name.clone(),
            path: lent.path.clone(),
            input: method.input,
            output: method.output,
            client_streaming: method.client_streaming,
            server_streaming: method.server_streaming,
        });
    Ok(DatapathContext {
        node: Arc::clone(node),
        app: lent.app,
        side: lent.side,
        methods: methods.collect(),
        scope: lent.methods.iter().map(|method| method.in_scope).collect(),
        service,
        schema: Arc::new(schema),
        tables: Arc::new(tables),
        peer: lent.peer,
        connection: lent.connection,
        runtime: lent.runtime,
        // The service counts, on its side.
        verdicts: Arc::default(),
    })
}

/// What a datapath context lends, as far as it is not the schema's.
struct Lent<'a> {
    service: Arc<str>,
    descriptor_set: &'a [u8],
    methods: Vec<LentMethod>,
    app: Arc<AppIdentity>,
    side: Side,
    peer: PeerIdentity,
    connection: u64,
    runtime: usize,
}

struct LentMethod {
    name: Arc<str>,
    path: Arc<str>,
    in_scope: bool,
}

impl<'a> Lent<'a> {
    /// # Safety
    /// As for [`datapath_context`].
    unsafe fn of(raw: *const RawDatapathContext) -> Option<Lent<'a>> {
        // SAFETY: the caller's promise.
        unsafe {
            let raw = &whole(raw)?;
            let method = |raw: &Method| LentMethod {
                name: text(raw.name),
                path: text(raw.path),
                in_scope: raw.in_scope != 0,
            };
            Some(Lent {
                service: text(raw.service),
                descriptor_set: slice(raw.descriptor_set),
                methods: items(raw.methods, raw.method_count).iter().map(method).collect(),
                app: app(raw.app, raw.app_identity)?,
                side: match raw.side {
                    SIDE_CLIENT => Side::Client,
                    _ => Side::Server,
                },
                peer: PeerIdentity {
                    identity: text(raw.peer_identity),
                    address: text(raw.peer_address),
                    transport: transport(&text(raw.transport)),
                    app: app(raw.peer_app, raw.peer_app_identity),
                    attested: attested(raw),
                },
                connection: raw.connection,
                runtime: usize::try_from(raw.runtime).unwrap_or(usize::MAX),
            })
        }
    }
}

/// Names of transports that are kept, at most.
const TRANSPORTS_MAX: usize = 64;

/// The name of a transport, kept for ever: a service has few of them.
fn transport(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    if names.len() >= TRANSPORTS_MAX {
        return "other";
    }
    let name = String::leak(name.to_owned());
    names.insert(name);
    name
}

/// A datapath context in the form of this version: what an older service does not tell is null.
///
/// # Safety
/// As for [`datapath_context`].
unsafe fn whole(raw: *const RawDatapathContext) -> Option<RawDatapathContext> {
    if raw.is_null() {
        return None;
    }
    let mut whole = MaybeUninit::<RawDatapathContext>::zeroed();
    // SAFETY: the struct has as many bytes as its first field says, and not more than `whole` are copied; zeros are null
    // pointers, empty texts and small numbers, so `whole` is initialized with or without the rest.
    unsafe {
        let bytes = (*raw.cast::<u32>() as usize).min(size_of::<RawDatapathContext>());
        copy_nonoverlapping(raw.cast::<u8>(), whole.as_mut_ptr().cast::<u8>(), bytes);
        Some(whole.assume_init())
    }
}

/// The app of another node at the other end, if that node's word is taken.
///
/// # Safety
/// As for [`datapath_context`].
unsafe fn attested(raw: &RawDatapathContext) -> Option<Arc<AttestedApp>> {
    if !raw.peer_app.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let identity = unsafe { raw.peer_app_identity.as_ref() }?;
    // SAFETY: as above.
    let text = |bytes: Bytes| unsafe { text(bytes) };
    Some(Arc::new(AttestedApp {
        node: text(identity.node),
        name: text(identity.name),
        user: text(identity.user),
        uid: identity.uid,
        workload: text(identity.workload),
    }))
}

/// # Safety
/// As for [`datapath_context`].
unsafe fn app(raw: *const App, identity: *const IdentityForm) -> Option<Arc<AppIdentity>> {
    // SAFETY: the caller's promise.
    let (raw, identity) = unsafe { (raw.as_ref()?, identity.as_ref()) };
    let of_identity = |field: fn(&IdentityForm) -> Bytes| {
        let bytes = identity.map_or(Bytes::EMPTY, field);
        // SAFETY: the caller's promise.
        unsafe { text(bytes) }
    };
    Some(Arc::new(AppIdentity {
        id: raw.id,
        // SAFETY: the caller's promise.
        name: unsafe { text(raw.name) },
        pid: raw.pid,
        uid: raw.uid,
        gid: raw.gid,
        user: of_identity(|identity| identity.user),
        workload: of_identity(|identity| identity.workload),
    }))
}

/// Borrowed bytes.
///
/// # Safety
/// They are readable, and not written, as long as the borrow lasts.
pub(super) unsafe fn slice<'a>(bytes: Bytes) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { items(bytes.at, bytes.length) }
}

/// Borrowed text, copied. What is no UTF-8 is replaced.
///
/// # Safety
/// As for [`slice`].
pub(super) unsafe fn text(bytes: Bytes) -> Arc<str> {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { slice(bytes) }).into()
}

/// Borrowed items.
///
/// # Safety
/// As for [`slice`].
unsafe fn items<'a, T>(at: *const T, count: usize) -> &'a [T] {
    if at.is_null() || count == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(at, count) }
    }
}

#[cfg(all(test, feature = "rig"))]
mod tests {
    use super::super::ContextForm;
    use super::*;
    use crate::rig::Service;

    const PROTO: &str = "syntax = \"proto3\"; package t; message M {} service S { rpc Get(M) returns (M); }";

    fn with_callers() -> DatapathContext {
        let mut context = Service::from_source(PROTO).datapath_context(Side::Server);
        context.peer.attested = Some(Arc::new(AttestedApp {
            node: "far".into(),
            name: "till".into(),
            user: "shop".into(),
            uid: 1001,
            workload: "spiffe://example.org/till".into(),
        }));
        context.peer.transport = "carrier pigeon";
        Arc::make_mut(&mut context.app).workload = "spiffe://example.org/shop".into();
        context
    }

    #[test]
    fn who_calls_and_who_is_called_cross_the_boundary() {
        let context = with_callers();
        let form = ContextForm::of(&context);
        // SAFETY: the form is whole, and is borrowed.
        let crossed = unsafe { datapath_context(&form.raw(), &context.node) }.unwrap();
        assert_eq!((&crossed.peer, &crossed.app), (&context.peer, &context.app));
        assert_eq!(crossed.peer_node().map(|node| &**node), Some("far"));
    }

    #[test]
    fn a_service_that_does_not_tell_is_read_as_far_as_it_does() {
        let context = with_callers();
        let form = ContextForm::of(&context);
        let mut raw = form.raw();
        raw.struct_bytes = std::mem::offset_of!(RawDatapathContext, app_identity) as u32;
        // SAFETY: as above; fewer bytes are told than there are.
        let crossed = unsafe { datapath_context(&raw, &context.node) }.unwrap();
        assert_eq!((&crossed.peer.attested, &*crossed.app.workload), (&None, ""));
        assert_eq!(crossed.peer.address, context.peer.address);
    }
}
