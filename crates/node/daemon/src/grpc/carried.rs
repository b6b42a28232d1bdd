//! Clients that a hot restart carries: what a process says of each, and how the next one goes on with it.
//!
//! ```text
//! predecessor: carried ─► state, a duplicate of the socket ─► successor: restore ─► enter ─► (commit) ─► resume
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use provost_datapath::{FieldReader, RestoreError};
use provost_frontend_grpc::{ByteCarrier, GrpcPort, PLAIN_CARRIER, ServiceBinding, open_port_state};
use provost_runtime::NewCaller;
use provost_shm::now_ns;
use provost_tls::TlsStream;
use rustix::net::AddressFamily;

use super::GrpcAccess;
use super::clients::{CarriedConnection, GrpcClient, KnownClient, attached};
use super::listeners::GrpcListener;
use super::socket::ClientParty;
use crate::access::UNKNOWN_USER;
use crate::app_process::{AppProcess, SavedProcess};
use crate::compose::AppEndpoint;
use crate::config::GrpcListenerConfig;
use crate::connection_ends::ConnectionEnds;
use crate::permits::AppConnections;
use crate::places::{HeldPlace, network_of};
use crate::runtime::AppId;
use crate::transport::{TLS_CARRIER, TlsCarrier};

/// What another process has to know of a client beside its port.
#[derive(Clone, Debug)]
pub(crate) struct CarriedClient {
    pub(crate) name: String,
    /// The `[[grpc.listener]]` to which it came, as TOML.
    pub(crate) listener: String,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The program of an `[[app]]` that it was found to run; empty for none.
    pub(crate) program: Vec<u8>,
    /// Who it has proved to be by a certificate; empty for nobody.
    pub(crate) proved: String,
    pub(crate) origin: String,
    /// Whether it has called something, and so is an app among the others.
    pub(crate) is_admitted: bool,
    pub(crate) is_told_to_go: bool,
    pub(crate) watches: Vec<CarriedWatch>,
}

/// The port of a client of another process.
pub(crate) struct CarriedPort<'a> {
    pub(crate) state: &'a [u8],
    /// A duplicate of the socket of its connection.
    pub(crate) socket: OwnedFd,
    /// Where calls go over a connection of the node that has this number.
    pub(crate) binding_of: &'a dyn Fn(u32) -> Option<ServiceBinding>,
}

/// What a client watches of the node's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CarriedWatch {
    /// The number of its call.
    pub(crate) stream: u32,
    pub(crate) service: String,
    /// What it was told last.
    pub(crate) told: i32,
}

/// The listeners to which clients of another process came: each is read once, however many clients came there.
#[derive(Default)]
pub(crate) struct CarriedListeners(HashMap<String, Rc<GrpcListener>>);

impl CarriedListeners {
    /// The listener with this configuration.
    fn of_text(&mut self, text: &str) -> Result<Rc<GrpcListener>, String> {
        if let Some(known) = self.0.get(text) {
            return Ok(Rc::clone(known));
        }
        let config: GrpcListenerConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        let listener = Rc::new(GrpcListener::of_config(config)?);
        self.0.insert(text.to_owned(), Rc::clone(&listener));
        Ok(listener)
    }
}

/// A client of another process of which everything is there but its connections of the node.
pub(crate) struct RestoredClient {
    client: Rc<GrpcClient>,
    pub(crate) port: RefCell<GrpcPort>,
    /// Its place among the silent, if it was not admitted.
    place: Option<HeldPlace<ClientParty>>,
    carried: CarriedClient,
}

/// A client that goes on once its predecessor has left.
pub(crate) struct ResumedClient {
    client: Rc<GrpcClient>,
    place: Option<HeldPlace<ClientParty>>,
}

/// Why a client cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientNotRestored {
    /// Its state makes no sense here.
    #[error(transparent)]
    State(#[from] RestoreError),
    /// What is around it.
    #[error("{0}")]
    Other(String),
}

impl GrpcAccess {
    /// What another process has to know of a client.
    pub(crate) fn carried(&self, id: AppId) -> Option<CarriedClient> {
        let client = self.clients.find(id)?;
        let listener = client.listener().text()?.to_owned();
        let admitted = client.admitted.borrow();
        let process = admitted.as_ref().map_or(&client.process, |app| &app.process);
        let credentials = &process.credentials;
        Some(CarriedClient {
            name: client.name.clone(),
            listener,
            pid: credentials.pid,
            uid: credentials.uid,
            gid: credentials.gid,
            program: process.program_bytes(),
            proved: client.proved.to_string(),
            origin: client.origin.clone(),
            is_admitted: admitted.is_some(),
            is_told_to_go: client.is_told_to_go.get(),
            watches: self.watches.of(id),
        })
    }

    /// Makes a client of what another process has said of it. Nothing that it can see is done.
    pub(crate) fn restore(
        &self,
        id: AppId,
        carried: CarriedClient,
        port: CarriedPort<'_>,
        listeners: &mut CarriedListeners,
    ) -> Result<RestoredClient, ClientNotRestored> {
        let other = |reason: &dyn std::fmt::Display| ClientNotRestored::Other(reason.to_string());
        let listener = listeners.of_text(&carried.listener);
        let listener = listener.map_err(|error| other(&error))?;
        let CarriedPort {
            state,
            socket,
            binding_of,
        } = port;
        let place = if carried.is_admitted {
            None
        } else {
            let party = party_of(&socket, carried.uid)?;
            let place = self.clients.silent.enter(party);
            Some(place.ok_or_else(|| other(&"it has called nothing, and there is no place for it"))?)
        };
        let process = process_of(&socket, &carried);
        let mut fields = open_port_state(state)?;
        let ends = ConnectionEnds::of(&socket);
        let carrier = carrier_of(&mut fields, socket)?;
        let send_heap = self.new_share(process.credentials.uid);
        let counts = Arc::default();
        let parts = self.port_parts(&listener, carrier, &send_heap, &counts);
        let port = GrpcPort::restore(&mut fields, parts, binding_of, now_ns())?;
        fields.end()?;
        let known = KnownClient {
            id,
            listener,
            name: carried.name.clone(),
            process,
            proved: carried.proved.as_str().into(),
            origin: carried.origin.clone(),
            // One that was redirected is told to go.
            redirection: None,
            ends,
            counts,
            send_heap,
            carriage: CarriedConnection::Carried,
        };
        let runtime = self.runtimes.place(&carried.name);
        self.runtimes[runtime].place_app();
        let client = Rc::new(GrpcClient::new(known, runtime));
        client.is_told_to_go.set(carried.is_told_to_go);
        Ok(RestoredClient {
            client,
            port: RefCell::new(port),
            place,
            carried,
        })
    }

    /// The end of connections that a restored client has.
    pub(crate) fn endpoint(&self, restored: &RestoredClient) -> AppEndpoint {
        self.endpoint_of(&restored.client)
    }

    /// Puts a restored client among those that are connected. Beside it comes what its runtime polls.
    pub(crate) fn enter(
        &self,
        restored: RestoredClient,
        connections: AppConnections,
    ) -> (ResumedClient, NewCaller) {
        let RestoredClient {
            client,
            port,
            place,
            carried,
        } = restored;
        let mut port = port.into_inner();
        port.end_claims();
        let watching = port.watching_streams();
        let watches = carried.watches.into_iter();
        self.watches.resume(
            client.id,
            watches.filter(|watch| watching.contains(&watch.stream)),
        );
        if carried.is_admitted {
            let app = attached(self.endpoint_of(&client), client.process.clone(), connections);
            let app = Rc::new(app);
            self.apps.insert(Rc::clone(&app));
            client.admitted.replace(Some(app));
        }
        self.clients.insert(&client);
        let port = Box::new(port);
        let caller = NewCaller { app: client.id, port };
        (ResumedClient { client, place }, caller)
    }

    /// Goes on with clients, once their listeners serve. Those whose listener is gone, or another one, are told to go, and finish
    /// their calls.
    pub(crate) async fn resume(self: &Rc<Self>, clients: Vec<ResumedClient>) {
        for ResumedClient { client, place } in clients {
            self.begin_attending(&client, place);
            match self.listener_of(&client.listener().config) {
                Some(listener) => client.stay_with(listener),
                None => self.drain_client(&client).await,
            }
        }
        self.look_at_watched_if_any();
    }
}

/// Whose place a client takes that has called nothing.
fn party_of(socket: &OwnedFd, uid: u32) -> Result<ClientParty, ClientNotRestored> {
    if uid != UNKNOWN_USER {
        return Ok(ClientParty::User(uid));
    }
    let peer = socket
        .try_clone()
        .and_then(|socket| TcpStream::from(socket).peer_addr());
    peer.map(|peer| ClientParty::Network(network_of(peer.ip())))
        .map_err(|error| ClientNotRestored::Other(format!("its connection has ended: {error}")))
}

fn process_of(socket: &OwnedFd, carried: &CarriedClient) -> AppProcess {
    if carried.uid == UNKNOWN_USER {
        return AppProcess::unknown();
    }
    let saved = SavedProcess {
        pid: carried.pid,
        uid: carried.uid,
        gid: carried.gid,
        program: &carried.program,
    };
    AppProcess::of_saved(socket.as_fd(), saved)
}

/// What carries the bytes of a connection, by what the state of its port begins with.
fn carrier_of(
    fields: &mut FieldReader<'_>,
    socket: OwnedFd,
) -> Result<Box<dyn ByteCarrier>, ClientNotRestored> {
    let domain = rustix::net::sockopt::socket_domain(&socket);
    let domain = domain.map_err(|error| ClientNotRestored::Other(error.to_string()))?;
    match (fields.u8()?, domain) {
        (PLAIN_CARRIER, AddressFamily::UNIX) => Ok(Box::new(UnixStream::from(socket))),
        (PLAIN_CARRIER, _) => Ok(Box::new(TcpStream::from(socket))),
        (TLS_CARRIER, _) => {
            let stream = TlsStream::restore(TcpStream::from(socket), fields)?;
            Ok(Box::new(TlsCarrier(stream)))
        }
        (other, _) => {
            let reason = format!("{other} is no way to carry bytes that this version knows");
            Err(fields.damaged(reason).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_written_once_and_read_once_for_all_its_clients() {
        let mut listeners = CarriedListeners::default();
        let text = |port: u16| format!("name = \"web\"\naddress = \"127.0.0.1:{port}\"\napp = \"shop\"\n");
        let first = listeners.of_text(&text(1)).unwrap();
        let other = listeners.of_text(&text(2)).unwrap();
        for _ in 0..100 {
            assert!(Rc::ptr_eq(&first, &listeners.of_text(&text(1)).unwrap()));
        }
        assert_eq!(listeners.0.len(), 2);
        assert!(first.config != other.config);
        // The text is kept, and means the same listener.
        let (written, again) = (first.text().unwrap(), first.text().unwrap());
        assert!(std::ptr::eq(written, again));
        assert!(listeners.of_text(written).unwrap().config == first.config);
        assert!(listeners.of_text("name = 7").is_err());
    }
}
