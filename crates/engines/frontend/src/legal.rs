//! Which steps a call allows, for the app and for its peer.

use provost_datapath::{Body, BodyForm, Step};
use provost_wire::descriptor::Parts;
use provost_wire::metadata::{self, MetadataError};

use crate::AppRole;
use crate::calls::FrontendCall;
use crate::engine::UNREAD_BYTES_MAX;

/// A step that its call does not allow. Whoever took it is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StepViolation {
    #[error("the app's library sent the parts {0:?} in one step, which is not allowed")]
    Parts(Parts),
    #[error("the app's library sent a step of a call that was never begun")]
    NeverBegun,
    #[error("a call was begun with a number that was used before")]
    CallNumber,
    #[error("the app's library sent a message after it had ended the call's requests")]
    AfterEnd,
    #[error("the app's library sent more than one message where the method has one")]
    SecondMessage,
    #[error("the app's library ended the requests of a call without the one message that the method has")]
    NoMessage,
    #[error("the app's library sent more than the stream's window allows: wait for the reader")]
    Window,
    #[error("the app's library gave back {given} bytes of window where {unread} were unread")]
    WindowGivenBack { given: u32, unread: u64 },
    #[error("the peer sent the parts {0:?}, which its side must not send")]
    PeerParts(Parts),
    #[error("the peer sent a message after it had ended its requests")]
    PeerAfterEnd,
    #[error("the peer sent more than one message where the method has one")]
    PeerSecondMessage,
    #[error("the peer sent more than the stream's window allows")]
    PeerWindow,
    #[error("the peer sent malformed metadata")]
    PeerMetadata,
    #[error("the peer's message is in a form that this connection does not use")]
    PeerBody,
}

const CLIENT: Parts = Parts::BEGIN
    .with(Parts::MESSAGE)
    .with(Parts::END)
    .with(Parts::CANCEL)
    .with(Parts::WINDOW);
const SERVER: Parts = Parts::HEADERS
    .with(Parts::MESSAGE)
    .with(Parts::STATUS)
    .with(Parts::CANCEL)
    .with(Parts::WINDOW);

/// Parts that can be combined at all.
pub(crate) fn check_app_parts(role: AppRole, parts: Parts) -> Result<(), StepViolation> {
    if combine(sent_by(role), parts) {
        Ok(())
    } else {
        Err(StepViolation::Parts(parts))
    }
}

/// A step of the app in an open call, before its body is read.
pub(crate) fn check_app_step(call: &FrontendCall, streaming: bool, step: &Step) -> Result<(), StepViolation> {
    let parts = step.parts;
    if parts.contains(Parts::WINDOW) && u64::from(step.window_bytes) > call.unread_bytes {
        return Err(StepViolation::WindowGivenBack {
            given: step.window_bytes,
            unread: call.unread_bytes,
        });
    }
    if call.app_ended && parts.intersects(Parts::MESSAGE | Parts::END) {
        return Err(StepViolation::AfterEnd);
    }
    let message = parts.contains(Parts::MESSAGE);
    if streaming {
        return if message && call.send_window <= 0 {
            Err(StepViolation::Window)
        } else {
            Ok(())
        };
    }
    if message && call.app_messages > 0 {
        return Err(StepViolation::SecondMessage);
    }
    if parts.contains(Parts::END) && !message && call.app_messages == 0 {
        return Err(StepViolation::NoMessage);
    }
    Ok(())
}

/// A step of the peer in an open call.
pub(crate) fn check_peer_step(
    role: AppRole,
    form: BodyForm,
    call: &FrontendCall,
    streaming: bool,
    step: &Step,
) -> Result<(), StepViolation> {
    let parts = step.parts;
    let peer = match role {
        AppRole::Client => AppRole::Server,
        AppRole::Server => AppRole::Client,
    };
    if !combine(sent_by(peer), parts) {
        return Err(StepViolation::PeerParts(parts));
    }
    if call.peer_ended && parts.intersects(Parts::MESSAGE | Parts::END) {
        return Err(StepViolation::PeerAfterEnd);
    }
    if !parts.contains(Parts::MESSAGE) {
        return Ok(());
    }
    let is_of_form = match &step.body {
        Body::Received(_) => true,
        // A message of defaults has no bytes in protobuf.
        Body::Encoded(_) | Body::Empty => form == BodyForm::Protobuf,
        Body::Untrusted(_) | Body::Gathered(_) => false,
    };
    if !is_of_form {
        return Err(StepViolation::PeerBody);
    }
    match streaming {
        true if call.unread_bytes >= UNREAD_BYTES_MAX => Err(StepViolation::PeerWindow),
        false if call.peer_messages > 0 => Err(StepViolation::PeerSecondMessage),
        _ => Ok(()),
    }
}

/// Metadata that an app sends: well formed, and the reserved keys only where a status is.
pub(crate) fn check_app_metadata(block: &[u8], parts: Parts) -> Result<(), MetadataError> {
    metadata::check(block)?;
    let reserved = metadata::entries(block).any(|(key, _)| key.starts_with(':'));
    if reserved && !parts.intersects(Parts::STATUS | Parts::CANCEL) {
        Err(MetadataError::Key { at: 0 })
    } else {
        Ok(())
    }
}

fn sent_by(role: AppRole) -> Parts {
    match role {
        AppRole::Client => CLIENT,
        AppRole::Server => SERVER,
    }
}

fn combine(allowed: Parts, parts: Parts) -> bool {
    let alone = Parts::CANCEL | Parts::WINDOW;
    let single = parts.intersects(alone) && parts.0.count_ones() > 1;
    // One step has one metadata block: it is the headers' or the trailers'.
    let both = parts.contains(Parts::HEADERS | Parts::STATUS);
    parts != Parts::NONE && allowed.contains(parts) && !single && !both
}
