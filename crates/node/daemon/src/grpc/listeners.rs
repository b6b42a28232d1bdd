//! The listeners of a node: opened at its start, taken over from the process before, or changed by a reload.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_admin::v1;
use provost_frontend_grpc::NodeMethods;
use provost_grpc::CountedCalls;
use provost_net::transparent::take_for_others;
use tokio::task::AbortHandle;

use super::GrpcAccess;
use super::node_services;
use super::redirection::ClientRedirection;
use super::socket::{ArrivedClient, open};
use crate::config::{Config, GrpcListenerConfig, ListenAddress, TransparentMode};
use crate::fresh_sockets::FreshSockets;
use crate::grpc_certificates::ListenerTlsSource;
use crate::log::{self, EventSubject};
use crate::places::{let_losers_go, network_of};
use crate::stream_listener::{AcceptedStream, StreamListener, listening_hint};

/// After an error of accept, such as having no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Between two log lines about errors of accept.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// A listener that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "grpc.listener \"{name}\" {address}: {source}{}",
    listening_hint(address, source)
)]
pub struct NotListening {
    /// What the configuration calls it.
    pub name: String,
    /// Where it was to listen.
    pub address: String,
    /// What the system said.
    pub source: io::Error,
}

/// The sockets of a configuration's listeners.
pub(crate) type GrpcSockets = Vec<(GrpcListenerConfig, StreamListener)>;

/// A socket of the process before, and what its listener and the configured address were called there.
pub(crate) struct InheritedSocket {
    pub(crate) key: String,
    pub(crate) socket: OwnedFd,
}

/// The listeners at which clients are let in, by what their sockets are called.
#[derive(Default)]
pub(super) struct OpenListeners(RefCell<BTreeMap<String, OpenListener>>, Cell<u64>);

impl OpenListeners {
    /// The number of the next one.
    fn next_number(&self) -> u64 {
        self.1.set(self.1.get() + 1);
        self.1.get()
    }
}

/// A listener at which clients are let in.
struct OpenListener {
    listener: Rc<GrpcListener>,
    /// The same socket, for a process that takes over.
    socket: OwnedFd,
    accepting: AbortHandle,
}

/// What is known of a listener by those who came there.
pub(super) struct GrpcListener {
    pub(super) config: GrpcListenerConfig,
    /// What they are accepted with, if it has TLS.
    pub(super) tls: Option<ListenerTlsSource>,
    pub(super) address: ListenAddress,
    /// By which it is told apart from others of this process.
    pub(super) number: u64,
    /// What has become of the calls of clients that are gone.
    pub(super) ended_calls: Cell<CountedCalls>,
    /// Its configuration as TOML, once a hot restart has asked for it.
    text: OnceCell<Option<String>>,
    /// What the node answers itself there, once somebody has come.
    methods: OnceCell<NodeMethods>,
}

impl GrpcListener {
    /// One at which nobody is let in: what was said of it holds for clients that came there when another process had it.
    pub(super) fn of_config(config: GrpcListenerConfig) -> Result<GrpcListener, String> {
        Ok(GrpcListener {
            address: config.listen_address()?,
            tls: None,
            number: 0,
            ended_calls: Cell::default(),
            text: OnceCell::new(),
            methods: OnceCell::new(),
            config,
        })
    }

    /// The methods that the node answers itself there: made once, however many clients have come there.
    pub(super) fn methods(&self) -> NodeMethods {
        let make = || node_services::methods_of(&self.config.node_services);
        Arc::clone(self.methods.get_or_init(make))
    }

    /// Its configuration as TOML. It is written once, however many clients have come there.
    pub(super) fn text(&self) -> Option<&str> {
        let write = || toml::to_string(&self.config).ok();
        self.text.get_or_init(write).as_deref()
    }
}

/// What a reload is to make of the listeners: everything that can fail was done.
pub(crate) struct PreparedListeners {
    /// Listeners whose sockets are fresh.
    opened: GrpcSockets,
    /// Listeners that keep their sockets.
    kept: Vec<GrpcListenerConfig>,
    /// The files of the fresh ones, until the configuration counts.
    files: FreshSockets,
}

/// Opens the sockets of a configuration, but for those that the process before had.
pub(crate) fn open_all(
    config: &Config,
    mut inherited: Vec<InheritedSocket>,
    fresh: &FreshSockets,
) -> Result<GrpcSockets, NotListening> {
    let mut open_one = |config: &GrpcListenerConfig| {
        let key = config.socket_key();
        match inherited.iter().position(|socket| socket.key == key) {
            Some(at) => {
                let address = config.listen_address().map_err(io::Error::other)?;
                StreamListener::listening(inherited.swap_remove(at).socket, address)
            }
            None => open(config).inspect(|listener| fresh.add_listener(listener)),
        }
    };
    let listeners = config.grpc.listeners.iter();
    listeners
        .map(|config| match open_one(config) {
            Ok(socket) => Ok((config.clone(), socket)),
            Err(source) => Err(not_listening(config, source)),
        })
        .collect()
}

fn not_listening(config: &GrpcListenerConfig, source: io::Error) -> NotListening {
    NotListening {
        name: config.name.clone(),
        address: config.address.clone(),
        source,
    }
}

impl GrpcAccess {
    /// Lets clients in at these sockets.
    pub(crate) fn serve(self: &Rc<Self>, sockets: GrpcSockets) {
        for (config, socket) in sockets {
            let (name, address) = (config.name.clone(), config.address.clone());
            if let Err(error) = self.serve_at(config, socket) {
                tracing::error!(name, address, %error, "gRPC clients cannot be let in at a socket");
            }
        }
    }

    fn serve_at(self: &Rc<Self>, config: GrpcListenerConfig, socket: StreamListener) -> io::Result<()> {
        let key = config.socket_key();
        let duplicate = socket.descriptor().try_clone_to_owned()?;
        let node = self.config.started.tls.as_ref();
        let listener = Rc::new(GrpcListener {
            tls: self.connector.peers.grpc.of_listener(node, &config),
            address: socket.address(),
            number: self.listeners.next_number(),
            ended_calls: Cell::default(),
            text: OnceCell::new(),
            methods: OnceCell::new(),
            config,
        });
        tracing::info!(name = listener.config.name, address = %listener.address, "serving gRPC clients");
        let accepting = Rc::clone(self).accept(Rc::clone(&listener), socket);
        let open = OpenListener {
            accepting: tokio::task::spawn_local(accepting).abort_handle(),
            listener,
            socket: duplicate,
        };
        self.listeners.0.borrow_mut().insert(key, open);
        Ok(())
    }

    /// Lets clients in at one socket, for ever.
    async fn accept(self: Rc<Self>, listener: Rc<GrpcListener>, socket: StreamListener) {
        let mut complained: Option<Instant> = None;
        loop {
            let (accepted, guard) = self.barrier.enter_with(|| socket.accept()).await;
            let redirection = match &accepted {
                Ok(AcceptedStream::Tcp(stream, address)) => {
                    match ClientRedirection::of(stream, *address, &listener) {
                        Ok(redirection) => redirection,
                        Err(error) => {
                            refuse_redirection(&listener, *address, &error);
                            continue;
                        }
                    }
                }
                _ => None,
            };
            let accepted = match accepted {
                Ok(AcceptedStream::Tcp(stream, address)) if listener.config.tls.is_some() => {
                    self.welcome(&listener, stream, address, redirection);
                    drop(guard);
                    let_losers_go().await;
                    continue;
                }
                accepted => accepted,
            };
            match accepted.and_then(|stream| ArrivedClient::of_stream(stream, redirection)) {
                Ok(client) => {
                    self.let_in(&listener, client).await;
                    drop(guard);
                    let_losers_go().await;
                }
                Err(error) => {
                    drop(guard);
                    if complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
                        let name = &listener.config.name;
                        tracing::warn!(name, %error, "cannot let a gRPC client in: trying again");
                        complained = Some(Instant::now());
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Does all that can fail of making the listeners those of another configuration.
    pub(crate) fn prepare(&self, config: &Config) -> Result<PreparedListeners, NotListening> {
        let open_now = self.listeners.0.borrow();
        let mut prepared = PreparedListeners {
            opened: Vec::new(),
            kept: Vec::new(),
            files: FreshSockets::default(),
        };
        for wanted in &config.grpc.listeners {
            if open_now.contains_key(&wanted.socket_key()) {
                prepared.kept.push(wanted.clone());
                continue;
            }
            let socket = open(wanted).map_err(|source| not_listening(wanted, source))?;
            prepared.files.add_listener(&socket);
            prepared.opened.push((wanted.clone(), socket));
        }
        Ok(prepared)
    }

    /// Makes the listeners what was prepared. Clients of those that are gone or changed are told to go, and finish their
    /// calls.
    pub(crate) async fn change_listeners(self: &Rc<Self>, prepared: PreparedListeners) {
        prepared.files.stay();
        let mut before = std::mem::take(&mut *self.listeners.0.borrow_mut());
        let mut drained = Vec::new();
        for wanted in prepared.kept {
            let Some(open) = before.remove(&wanted.socket_key()) else {
                continue;
            };
            if open.listener.config == wanted {
                self.listeners.0.borrow_mut().insert(wanted.socket_key(), open);
                continue;
            }
            drained.push(Rc::clone(&open.listener));
            self.serve_again(wanted, open);
        }
        for closed in before.into_values() {
            tracing::info!(
                name = closed.listener.config.name,
                "no longer serving gRPC clients"
            );
            closed.close();
            drained.push(closed.listener);
        }
        self.serve(prepared.opened);
        for listener in drained {
            self.drain_clients_of(&listener).await;
        }
    }

    /// Goes on at a socket whose listener has changed otherwise.
    fn serve_again(self: &Rc<Self>, wanted: GrpcListenerConfig, open: OpenListener) {
        open.accepting.abort();
        let (name, address) = (wanted.name.clone(), open.listener.address.clone());
        let served = adjust(&wanted, &address, &open.socket)
            .and_then(|()| StreamListener::listening(open.socket, address))
            .and_then(|socket| self.serve_at(wanted, socket));
        if let Err(error) = served {
            tracing::error!(name, %error, "gRPC clients cannot be let in at a socket that has changed");
        }
    }

    /// Lets no clients in any more, at any socket.
    pub(crate) fn stop_accepting(&self) {
        let listeners = std::mem::take(&mut *self.listeners.0.borrow_mut());
        listeners.values().for_each(OpenListener::close);
    }

    /// The listeners at which clients are let in.
    pub(super) fn open_listeners(&self) -> Vec<Rc<GrpcListener>> {
        let listeners = self.listeners.0.borrow();
        listeners.values().map(|open| Rc::clone(&open.listener)).collect()
    }

    /// The names of the listeners, each with 0.
    pub(super) fn listener_names(&self) -> BTreeMap<String, usize> {
        let listeners = self.listeners.0.borrow();
        let names = listeners.values().map(|open| open.listener.config.name.clone());
        names.map(|name| (name, 0)).collect()
    }

    /// Whether clients are let in at a listener still, as it was when they came.
    pub(super) fn is_current(&self, listener: &Rc<GrpcListener>) -> bool {
        let listeners = self.listeners.0.borrow();
        listeners
            .values()
            .any(|open| Rc::ptr_eq(&open.listener, listener))
    }

    /// The listener at which clients are let in by this configuration.
    pub(super) fn listener_of(&self, config: &GrpcListenerConfig) -> Option<Rc<GrpcListener>> {
        let listeners = self.listeners.0.borrow();
        let open = listeners.get(&config.socket_key())?;
        (open.listener.config == *config).then(|| Rc::clone(&open.listener))
    }

    /// The names of those with TLS.
    pub(super) fn secure_listener_names(&self) -> impl Iterator<Item = String> {
        let listeners = self.listeners.0.borrow();
        let secure = listeners
            .values()
            .filter(|open| open.listener.config.tls.is_some());
        let names: Vec<String> = secure.map(|open| open.listener.config.name.clone()).collect();
        names.into_iter()
    }

    /// Where they are, and how many clients each has.
    pub(crate) fn describe_listeners(&self) -> Vec<v1::GrpcListener> {
        let clients = self.clients_by_listener();
        let listeners = self.listeners.0.borrow();
        let describe = |open: &OpenListener| v1::GrpcListener {
            name: open.listener.config.name.clone(),
            address: open.listener.address.to_string(),
            clients: clients
                .get(&open.listener.config.name)
                .map_or(0, |count| *count as u32),
            tls: open.listener.config.tls_words().to_owned(),
        };
        listeners.values().map(describe).collect()
    }

    /// Duplicates of the sockets, for a process that takes over.
    pub(crate) fn sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        let listeners = self.listeners.0.borrow();
        let duplicate = |(key, open): (&String, &OpenListener)| {
            Ok(InheritedSocket {
                key: key.clone(),
                socket: open.socket.try_clone()?,
            })
        };
        listeners.iter().map(duplicate).collect()
    }
}

impl OpenListener {
    /// Takes it away, with the file of a Unix socket.
    fn close(&self) {
        self.accepting.abort();
        if let ListenAddress::Unix(path) = &self.listener.address {
            // It is gone when somebody has removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Says that a connection to a transparent listener is closed.
fn refuse_redirection(listener: &GrpcListener, client: SocketAddr, error: &io::Error) {
    if log::may_log(EventSubject::Peer(network_of(client.ip()))) {
        let name = &listener.config.name;
        tracing::info!(listener = name, %client, %error, "refused a gRPC client");
    }
}

/// Gives a socket that stays the permissions that its listener has now.
fn adjust(config: &GrpcListenerConfig, address: &ListenAddress, socket: &OwnedFd) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    match address {
        ListenAddress::Tcp(address) if config.transparent == Some(TransparentMode::Tproxy) => {
            take_for_others(socket, *address)
        }
        ListenAddress::Tcp(_) => Ok(()),
        ListenAddress::Unix(path) => {
            let mode = std::fs::Permissions::from_mode(config.socket_mode());
            std::fs::set_permissions(path, mode)
        }
    }
}
