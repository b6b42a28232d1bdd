//! The engine, its binding, and its saved state.

use std::sync::Arc;

use provost_engine::{Context, Engine, Ports, Progress, RestoreError, SavedState};
use provost_marshal::Tables;
use provost_schema::MessageId;

/// [`Engine::kind`] of this engine.
pub const KIND: &str = "marshalling";

/// Which end of its calls an app is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It makes the calls.
    Client,
    /// It serves them.
    Server,
}

/// How messages go over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// In the native layout: both ends have the same schema.
    Native,
    /// As protobuf.
    Protobuf,
}

/// The messages of one method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodTypes {
    /// What the client sends.
    pub input: MessageId,
    /// What the server sends.
    pub output: MessageId,
}

/// What the engine needs to know of its connection.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Tables of the app's own schema.
    pub tables: Arc<Tables>,
    /// The service's methods, by index.
    pub methods: Arc<[MethodTypes]>,
    /// Which end the app is.
    pub side: Side,
    /// The connection's encoding.
    pub encoding: Encoding,
    /// The longest message that passes, in bytes.
    pub message_bytes_max: u32,
}

/// The engine of one datapath.
pub struct Marshalling {
    binding: Binding,
}

impl Marshalling {
    /// An engine for a connection without calls.
    #[must_use]
    pub fn new(binding: Binding) -> Marshalling {
        Marshalling { binding }
    }

    /// Continues from what an engine of any version saved.
    pub fn restore(state: &SavedState, binding: Binding) -> Result<Marshalling, RestoreError> {
        let _ = state;
        Ok(Marshalling { binding })
    }
}

impl Engine for Marshalling {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn do_work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        let _ = (&self.binding, ports, context);
        Progress::Idle
    }

    fn decompose(self: Box<Self>) -> SavedState {
        SavedState {
            kind: KIND.to_owned(),
            version: 1,
            bytes: Vec::new(),
        }
    }
}
