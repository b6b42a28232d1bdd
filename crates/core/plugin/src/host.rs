//! What the service offers to libraries.

use std::ffi::c_void;
use std::sync::Arc;

use provost_engine::abi::{
    Audit, Bytes, Contents, ENGINE_ABI, FieldValue, Host, OK, REFUSED, Sink, VALUE_ABSENT, VALUE_BOOL,
    VALUE_BYTES, VALUE_DOUBLE, VALUE_INT, VALUE_LIST, VALUE_MESSAGE, VALUE_STRING, VALUE_UINT,
};
use provost_engine::{AuditEvent, Code, DatapathContext, Direction, Environment, FieldPath, StepView, Value};

use crate::lent::{slice, text};

/// Fields that one filter reads, at most.
const FIELDS_MAX: usize = 1024;

pub(crate) static HOST: Host = Host {
    abi: ENGINE_ABI,
    struct_bytes: size_of::<Host>() as u32,
    contents,
    make_whole,
    metadata,
    append_metadata,
    overwrite_metadata,
    field,
    field_path,
    audit,
};

/// What a step's handle points to.
pub(crate) struct StepHandle<'a, 'v> {
    pub(crate) view: &'a mut StepView<'v>,
    pub(crate) fields: &'a [ReadField],
}

/// What a datapath context's handle points to.
pub(crate) struct ContextHandle<'a> {
    pub(crate) datapath_context: &'a DatapathContext,
    pub(crate) fields: Vec<ReadField>,
}

/// A field that a filter reads.
pub(crate) struct ReadField {
    method: u16,
    direction: Direction,
    path: FieldPath,
}

/// The step of a handle, for the time of one call of the library.
///
/// # Safety
/// The handle is one that the library was given for the step that it judges now.
unsafe fn step_of<'a>(step: *mut c_void) -> &'a mut StepHandle<'a, 'a> {
    // SAFETY: the caller's promise; the library uses it in the thread that judges, and nothing else does meanwhile.
    unsafe { &mut *step.cast::<StepHandle<'a, 'a>>() }
}

unsafe extern "C" fn contents(step: *mut c_void, contents: *mut Contents) -> i32 {
    // SAFETY: the library passes its step and a place.
    let (step, place) = unsafe { (step_of(step), &mut *contents) };
    let contents = step.view.contents();
    *place = Contents {
        metadata: Bytes::of(contents.metadata),
        message: contents
            .message
            .map_or(Bytes::EMPTY, |view| Bytes::of(view.bytes())),
        window_at: contents.message.map_or(0, |view| view.window_at()),
        // Of a message that is still protobuf nothing can be read before the step is whole.
        has_message: u8::from(
            contents.message.is_some() || contents.protobuf.is_some() || contents.is_compressed,
        ),
        reserved: [0; 3],
    };
    OK
}

unsafe extern "C" fn make_whole(step: *mut c_void) -> i32 {
    // SAFETY: the library passes its step.
    let step = unsafe { step_of(step) };
    result(step.view.make_whole())
}

unsafe extern "C" fn metadata(step: *mut c_void, key: Bytes, value: *mut Bytes) -> i32 {
    // SAFETY: the library passes its step, a key and a place.
    let (step, key, place) = unsafe { (step_of(step), slice(key), &mut *value) };
    match std::str::from_utf8(key)
        .ok()
        .and_then(|key| step.view.metadata(key))
    {
        Some(value) => {
            *place = Bytes::of(value);
            OK
        }
        None => REFUSED,
    }
}

unsafe extern "C" fn append_metadata(step: *mut c_void, key: Bytes, value: Bytes) -> i32 {
    // SAFETY: the library passes its step, a key and a value.
    let (step, key, value) = unsafe { (step_of(step), slice(key), slice(value)) };
    let key = std::str::from_utf8(key);
    result(key.is_ok_and(|key| step.view.append_metadata(key, value).is_ok()))
}

unsafe extern "C" fn overwrite_metadata(step: *mut c_void, key: Bytes, value: Bytes) -> i32 {
    // SAFETY: the library passes its step, a key and a value.
    let (step, key, value) = unsafe { (step_of(step), slice(key), slice(value)) };
    let key = std::str::from_utf8(key);
    result(key.is_ok_and(|key| step.view.overwrite_metadata(key, value)))
}

unsafe extern "C" fn field(step: *mut c_void, path: u32, value: *mut FieldValue) -> i32 {
    // SAFETY: the library passes its step and a place.
    let (step, place) = unsafe { (step_of(step), &mut *value) };
    let Some(field) = step.fields.get(path as usize) else {
        return REFUSED;
    };
    if (field.method, field.direction) != (step.view.method_index(), step.view.direction()) {
        return REFUSED;
    }
    match step.view.field(&field.path) {
        Ok(found) => {
            *place = value_of(found);
            OK
        }
        Err(_) => REFUSED,
    }
}

fn value_of(value: Option<Value<'_>>) -> FieldValue {
    let (mut number, mut real, mut bytes) = (0, 0.0, Bytes::EMPTY);
    let kind = match value {
        None => VALUE_ABSENT,
        Some(Value::Bool(value)) => {
            number = u64::from(value);
            VALUE_BOOL
        }
        Some(Value::Int(value)) => {
            number = value as u64;
            VALUE_INT
        }
        Some(Value::Enum(value)) => {
            number = i64::from(value) as u64;
            VALUE_INT
        }
        Some(Value::Uint(value)) => {
            number = value;
            VALUE_UINT
        }
        Some(Value::Float(value)) => {
            real = f64::from(value);
            VALUE_DOUBLE
        }
        Some(Value::Double(value)) => {
            real = value;
            VALUE_DOUBLE
        }
        Some(Value::String(value)) => {
            bytes = Bytes::text(value);
            VALUE_STRING
        }
        Some(Value::Bytes(value)) => {
            bytes = Bytes::of(value);
            VALUE_BYTES
        }
        Some(Value::Message) => VALUE_MESSAGE,
        Some(Value::List(length)) => {
            number = u64::from(length);
            VALUE_LIST
        }
    };
    FieldValue {
        kind,
        reserved: 0,
        number,
        real,
        bytes,
    }
}

unsafe extern "C" fn field_path(
    datapath_context: *mut c_void,
    method: u32,
    direction: u32,
    path: Bytes,
    number: *mut u32,
    problem: Sink,
) -> i32 {
    // SAFETY: the library passes the datapath context for which it prepares a filter, a path and a place.
    let (handle, path, place) = unsafe {
        (
            &mut *datapath_context.cast::<ContextHandle<'_>>(),
            text(path),
            &mut *number,
        )
    };
    match handle.find(method, direction, &path) {
        Ok(found) => {
            *place = found;
            OK
        }
        Err(reason) => {
            if let Some(write) = problem.write {
                // SAFETY: the library made the sink for this call.
                unsafe { write(problem.to, reason.as_ptr(), reason.len()) };
            }
            REFUSED
        }
    }
}

impl ContextHandle<'_> {
    fn find(&mut self, method: u32, direction: u32, path: &str) -> Result<u32, String> {
        let direction = match direction {
            0 => Direction::Request,
            1 => Direction::Response,
            other => return Err(format!("{other} is no direction")),
        };
        let method = u16::try_from(method).map_err(|_| format!("there is no method {method}"))?;
        let message = self.datapath_context.message(method, direction);
        let message = message.ok_or_else(|| format!("there is no method {method}"))?;
        let path = self.datapath_context.tables.field_path(message, path);
        let path = path.map_err(|error| error.to_string())?;
        if self.fields.len() >= FIELDS_MAX {
            return Err(format!("a filter reads {FIELDS_MAX} fields at most"));
        }
        self.fields.push(ReadField {
            method,
            direction,
            path,
        });
        Ok(self.fields.len() as u32 - 1)
    }
}

unsafe extern "C" fn audit(environment: *mut c_void, event: *const Audit) {
    // SAFETY: the library passes the environment of a policy that has not been destroyed, and an event.
    let (environment, event) = unsafe { (&*environment.cast::<Environment>(), &*event) };
    // SAFETY: as above.
    let (action, app, method, peer, reason) = unsafe {
        (
            text(event.action),
            text(event.app),
            text(event.method),
            text(event.peer),
            text(event.reason),
        )
    };
    environment.events.audit(AuditEvent {
        policy: Arc::clone(&environment.policy),
        action: match &*action {
            "deny" => "deny",
            "pass" => "pass",
            "hold" => "hold",
            _ => "other",
        },
        app: app.into(),
        method: method.into(),
        peer: peer.into(),
        call: event.call,
        code: Code::ALL
            .get(event.code as usize)
            .copied()
            .unwrap_or(Code::Unknown),
        reason: reason.into(),
    });
}

fn result(done: bool) -> i32 {
    if done { OK } else { REFUSED }
}
