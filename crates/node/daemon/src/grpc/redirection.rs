//! Clients whose connections the kernel has redirected to a listener: where they were going, and that they are not the node's own.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use provost_net::transparent::{redirected_from, taken_from};
use provost_wire::Code;
use tokio::net::TcpStream;

use super::listeners::GrpcListener;
use crate::config::{ListenAddress, TransparentMode};
use crate::refusal::Refusal;
use crate::transport::is_own_dial;

/// A connection that was going elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientRedirection {
    /// Whose connection it is.
    client: SocketAddr,
    /// Where it was going.
    pub(super) destination: SocketAddr,
}

impl ClientRedirection {
    /// Where a connection was going that has come to a listener; none, at one that takes connections of its own.
    ///
    /// # Errors
    /// The listener takes redirected ones only, and nobody has redirected this one.
    pub(super) fn of(
        stream: &TcpStream,
        client: SocketAddr,
        listener: &GrpcListener,
    ) -> io::Result<Option<ClientRedirection>> {
        let Some(mode) = listener.config.transparent else {
            return Ok(None);
        };
        // The same socket, as the standard library has it.
        let duplicate = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?);
        let destination = match (mode, &listener.address) {
            (TransparentMode::Redirect, _) => redirected_from(&duplicate)?,
            (TransparentMode::Tproxy, ListenAddress::Tcp(own)) => taken_from(&duplicate, *own)?,
            (TransparentMode::Tproxy, ListenAddress::Unix(_)) => None,
        };
        let destination = destination.ok_or_else(|| {
            io::Error::other(
                "it was not redirected, and the listener is transparent: connect where the server is",
            )
        })?;
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        Ok(Some(ClientRedirection { client, destination }))
    }

    /// Refuses what this node has dialled itself: its calls would come back here for ever. Asked with the first call, when whoever
    /// dialled has noted it.
    pub(super) fn check_is_of_others(&self) -> Result<(), Refusal> {
        if !is_own_dial(self.client, self.destination) {
            return Ok(());
        }
        let message = format!(
            "a connection of this node to {} was redirected to the node itself: have the rule leave out what grpc.mark marks, \
             or what the service's user sends",
            self.destination
        );
        Err(Refusal::new(Code::FailedPrecondition, message))
    }
}
