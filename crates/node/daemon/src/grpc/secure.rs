//! Clients that come to a listener with TLS: from their first byte to the end of the handshake.
//!
//! ```text
//! socket ─► silent (keeps its socket alone) ──first byte──► shaking (one of few, on a thread) ──► a client as any other
//!               └──others have come, or its time is over──► closed ◄──┘ proves nothing, speaks no TLS
//! ```

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_tls::TlsStream;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tracing::Instrument;

use super::GrpcAccess;
use super::listeners::GrpcListener;
use super::redirection::ClientRedirection;
use super::socket::{ArrivedClient, ClientParty};
use crate::app_process::AppProcess;
use crate::connection_ends::ConnectionEnds;
use crate::log::{self, EventSubject};
use crate::peers;
use crate::places::{BoundedPlaces, network_of};
use crate::quiesce_barrier::{Closed, NotClosed};
use crate::transport::{TlsCarrier, finish_handshake};

/// The first byte of a TLS connection: a record of a handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// Bytes that are looked at of a client that does not speak TLS.
const LOOKED_AT_BYTES: usize = 16;

/// Clients with which hands are shaken.
pub(super) struct SecureArrivals {
    shaking: Arc<BoundedPlaces<ClientParty>>,
    under_way: watch::Sender<usize>,
    /// Whether those that are through may come in while the barrier closes: they are told to go like the others.
    may_still_enter: Cell<bool>,
    /// Connections that came to nothing, by listener.
    refused: Cell<BTreeMap<String, u64>>,
}

impl SecureArrivals {
    pub(super) fn new(handshakes: usize) -> SecureArrivals {
        SecureArrivals {
            shaking: BoundedPlaces::new(peers::shaking(handshakes)),
            under_way: watch::Sender::new(0),
            may_still_enter: Cell::new(true),
            refused: Cell::default(),
        }
    }

    fn count_refusal(&self, listener: &str) {
        let mut refused = self.refused.take();
        *refused.entry(listener.to_owned()).or_default() += 1;
        self.refused.set(refused);
    }
}

/// A handshake that is under way, until it is dropped.
struct HandshakeCount(Rc<GrpcAccess>);

impl Drop for HandshakeCount {
    fn drop(&mut self) {
        self.0.secure.under_way.send_modify(|count| *count -= 1);
    }
}

impl GrpcAccess {
    /// Shakes hands with a client that has come, and lets it in.
    pub(super) fn welcome(
        self: &Rc<Self>,
        listener: &Rc<GrpcListener>,
        stream: TcpStream,
        address: SocketAddr,
        redirection: Option<ClientRedirection>,
    ) {
        self.secure.under_way.send_modify(|count| *count += 1);
        let under_way = HandshakeCount(Rc::clone(self));
        let (access, listener) = (Rc::clone(self), Rc::clone(listener));
        let span = tracing::info_span!("accept", peer = %address);
        let welcoming = async move {
            match access.shake_hands(&listener, stream, address).await {
                Ok(client) => {
                    let client = ArrivedClient {
                        redirection,
                        ..client
                    };
                    let _guard = if access.secure.may_still_enter.get() {
                        None
                    } else {
                        Some(access.barrier.enter().await)
                    };
                    if access.connector.connections.is_draining() {
                        return;
                    }
                    access.let_in(&listener, client).await;
                    if !access.is_current(&listener) {
                        access.drain_clients_of(&listener).await;
                    }
                }
                Err(reason) => {
                    let name = &listener.config.name;
                    access.secure.count_refusal(name);
                    if log::may_log(EventSubject::Peer(network_of(address.ip()))) {
                        let reason = &*log::cut(&reason);
                        tracing::info!(listener = name, reason, "refused a gRPC client");
                    }
                }
            }
            drop(under_way);
        };
        tokio::task::spawn_local(welcoming.instrument(span));
    }

    async fn shake_hands(
        &self,
        listener: &GrpcListener,
        stream: TcpStream,
        address: SocketAddr,
    ) -> Result<ArrivedClient, String> {
        let live = self.config.live();
        let deadline = Instant::now() + Duration::from_millis(live.timeouts.handshake_ms);
        let party = ClientParty::Network(network_of(address.ip()));
        let mut place = self.clients.silent.enter(party).ok_or("there is no place")?;
        let mut said = [0; LOOKED_AT_BYTES];
        let speaking = tokio::time::timeout_at(deadline.into(), stream.peek(&mut said));
        let count = tokio::select! {
            biased;
            spoken = speaking => spoken.map_err(|_| "it has said nothing")?,
            () = place.lost() => return Err("it has said nothing, and others have come".to_owned()),
        };
        let count = count.map_err(|error| error.to_string())?;
        speaks_tls(&said[..count])?;
        let shaking = self.secure.shaking.enter_until(party, deadline);
        let mut shaking = tokio::select! {
            biased;
            shaking = shaking => shaking.ok_or("too many handshakes are under way")?,
            () = place.lost() => return Err("too many clients wait for a handshake".to_owned()),
        };
        drop(place);
        let tls = listener.tls.as_ref();
        let tls = tls.ok_or("the listener's certificates are not loaded")?;
        let config = Arc::clone(&tls.current().config);
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let stream = stream.into_std().map_err(|error| error.to_string())?;
        let stop = stream.try_clone().map_err(|error| error.to_string())?;
        let mut handshake = self.connector.threads.client_handshakes.run(move || {
            let mut stream = TlsStream::server(stream, config).map_err(|error| error.to_string())?;
            finish_handshake(&mut stream, deadline).map_err(|error| error.to_string())?;
            Ok::<_, String>(stream)
        });
        let ended = tokio::select! {
            biased;
            ended = &mut handshake => ended,
            () = shaking.lost() => {
                // It fails only where the connection has ended already.
                let _ = stop.shutdown(std::net::Shutdown::Both);
                return Err("its handshake took long, and others have come".to_owned());
            }
        };
        let stream = ended.map_err(|_| "the handshake was cut short")??;
        Ok(arrived(stream, party, address))
    }

    /// Closes the barrier, before all clients are told to go. Those whose handshakes end meanwhile are let in, also where an
    /// earlier process was to take over and did not.
    pub(crate) async fn close_barrier(&self, limit: Duration) -> Result<Closed<'_>, NotClosed> {
        self.secure.may_still_enter.set(true);
        self.barrier.close(limit).await
    }

    /// Waits until no handshake is under way, or for so long: those that are over then are let in. Later ones wait until
    /// the barrier is open again.
    pub(super) async fn end_handshakes(&self, wait: Duration) {
        let mut under_way = self.secure.under_way.subscribe();
        // Its sender is beside us.
        let _ = tokio::time::timeout(wait, under_way.wait_for(|count| *count == 0)).await;
        self.secure.may_still_enter.set(false);
    }

    /// How many connections to each listener with TLS came to nothing, before their clients could call.
    pub(crate) fn refused_handshakes(&self) -> BTreeMap<String, u64> {
        let refused = self.secure.refused.take();
        self.secure.refused.set(refused.clone());
        let mut counts: BTreeMap<String, u64> = self.secure_listener_names().map(|name| (name, 0)).collect();
        for (name, count) in &mut counts {
            *count = refused.get(name).copied().unwrap_or(0);
        }
        counts
    }
}

/// Whether a client that has said this speaks TLS.
fn speaks_tls(said: &[u8]) -> Result<(), &'static str> {
    match said {
        [HANDSHAKE_RECORD, ..] => Ok(()),
        [] => Err("it closed the connection before it said anything"),
        [b'P', b'R', b'I', ..] => Err("it speaks cleartext HTTP/2, and the listener has TLS"),
        [b'A'..=b'Z', ..] => {
            Err("it speaks cleartext HTTP/1, and the listener has TLS and gRPC needs HTTP/2")
        }
        _ => Err("it does not speak TLS"),
    }
}

fn arrived(stream: TlsStream<std::net::TcpStream>, party: ClientParty, address: SocketAddr) -> ArrivedClient {
    let proved = stream.identity().name().to_owned();
    let origin = if proved.is_empty() {
        format!("{address} (TLS)")
    } else {
        format!("{address} (TLS, {proved})")
    };
    ArrivedClient {
        ends: ConnectionEnds::of(&stream),
        carrier: Box::new(TlsCarrier(stream)),
        process: AppProcess::unknown(),
        party,
        origin,
        proved,
        redirection: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_without_tls_are_told_apart_by_what_they_say() {
        assert!(speaks_tls(&[22, 3, 1]).is_ok());
        for (said, words) in [
            (&b"PRI * HTTP/2.0"[..], "cleartext HTTP/2"),
            (b"POST /a HTTP/1.1", "cleartext HTTP/1,"),
            (b"\x00\x00", "does not speak TLS"),
            (b"", "before it said anything"),
        ] {
            assert!(speaks_tls(said).unwrap_err().contains(words), "{words}");
        }
    }
}
