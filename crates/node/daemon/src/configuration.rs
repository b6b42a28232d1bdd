//! The configuration while the node runs: what it was started with, what is in effect, and where it came from.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use provost_wire::Code;
use tokio::sync::{Mutex, MutexGuard};

use crate::config::{Config, Sources};
use crate::permits::TooMany;
use crate::refusal::Refusal;

/// See the module's documentation.
pub(crate) struct Configuration {
    /// What the node was started with. Keys that a reload may change are read from [`Configuration::live`].
    pub(crate) started: Config,
    /// With those keys as they are now.
    live: RefCell<Rc<Config>>,
    node: Arc<str>,
    state: RefCell<ConfigState>,
    /// Held by whoever reads it again, or writes it back.
    turn: Mutex<()>,
}

/// What is known of the configuration's files.
pub(crate) struct ConfigState {
    /// Where it comes from.
    pub(crate) sources: Sources,
    /// When it was read last, with success or not.
    pub(crate) read_at: SystemTime,
    /// Why it was refused then, if it was: what was read before is in effect.
    pub(crate) error: Option<String>,
}

impl Configuration {
    pub(crate) fn new(started: Config, sources: Sources) -> Configuration {
        Configuration {
            node: started.node.name.as_str().into(),
            live: RefCell::new(Rc::new(started.clone())),
            state: RefCell::new(ConfigState {
                sources,
                read_at: SystemTime::now(),
                error: None,
            }),
            turn: Mutex::new(()),
            started,
        }
    }

    pub(crate) fn node_name(&self) -> Arc<str> {
        Arc::clone(&self.node)
    }

    /// The configuration in effect.
    pub(crate) fn live(&self) -> Rc<Config> {
        Rc::clone(&self.live.borrow())
    }

    /// Puts another one into effect; the one before.
    pub(crate) fn set_live(&self, config: Config) -> Rc<Config> {
        self.live.replace(Rc::new(config))
    }

    /// The turn of whoever reads it again or writes it back: one after the other, so that each goes by what the one before has left.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Where it comes from.
    pub(crate) fn sources(&self) -> Sources {
        self.state.borrow().sources.clone()
    }

    /// A refusal by a rule of the configuration, with the place of the configuration behind it.
    pub(crate) fn refusal(&self, reason: impl std::fmt::Display) -> String {
        format!("{reason} ({})", self.state.borrow().sources.place())
    }

    /// A refusal by a key of the configuration, with the file and the line of it behind it, or where it could stand.
    pub(crate) fn refusal_by(&self, key: &str, reason: impl std::fmt::Display) -> String {
        match self.live().places.find(key) {
            Some(place) => format!("{reason} ({place})"),
            None => format!(
                "{reason} (by default, without {key}: {})",
                self.state.borrow().sources.place()
            ),
        }
    }

    /// What has no room because of a key of the configuration.
    pub(crate) fn over_limit(&self, key: &str, reason: impl std::fmt::Display) -> Refusal {
        Refusal::new(Code::ResourceExhausted, self.refusal_by(key, reason))
    }

    /// A connection of an app of this name for which there is no room.
    pub(crate) fn too_many_connections(&self, app: &str, error: TooMany) -> Refusal {
        let live = self.live();
        let per_app = || "limits.connections_per_app".to_owned();
        let table = live.app_table(app);
        let of_table = table.map(|table| live.key_of_app_table(table, "connections"));
        let key = match error {
            TooMany::Node(_) => "limits.connections".to_owned(),
            TooMany::User(_) => "limits.connections_per_user".to_owned(),
            TooMany::App(_) => per_app(),
            TooMany::Table(_) => of_table.unwrap_or_default(),
            // By whichever bounds the app's.
            TooMany::Peer { of_app, .. } if of_app == live.limits.connections_per_app => per_app(),
            TooMany::Peer { .. } => of_table.unwrap_or_default(),
        };
        self.over_limit(&key, error)
    }

    /// What is known of its files.
    pub(crate) fn state(&self) -> RefMut<'_, ConfigState> {
        self.state.borrow_mut()
    }
}
