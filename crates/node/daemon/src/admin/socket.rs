//! The admin API's Unix socket: bounded connections, each with what the kernel says of its peer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::transport::server::Connected;

use crate::access::Credentials;
use crate::places::{BoundedPlaces, PlaceBounds, PlacedStream, let_losers_go};
use crate::stream_listener::{SocketMode, UnixSocketTerms, bind_unix};

/// Connections of operators' tools. When there are more, one of the user who has most of them makes room.
const CONNECTIONS: PlaceBounds = PlaceBounds {
    all: 64,
    per_party: 64,
    grace: Duration::ZERO,
};
/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 64;
/// How long a failed accept (no descriptors) is left alone.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl AdminSocket {
    /// Listens at a path, which gets these permission bits. A socket that a dead process has left there is replaced;
    /// one that answers is not.
    pub(crate) fn bind(path: &Path, mode: u32) -> io::Result<AdminSocket> {
        let terms = UnixSocketTerms {
            mode: SocketMode::Exactly(mode),
            backlog: BACKLOG,
        };
        AdminSocket::listening(bind_unix(path, terms)?, path)
    }

    /// Goes on with a socket that listens already.
    pub(crate) fn listening(socket: OwnedFd, path: &Path) -> io::Result<AdminSocket> {
        let listener = std::os::unix::net::UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        Ok(AdminSocket {
            listener: UnixListener::from_std(listener)?,
            path: path.to_path_buf(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What a process that replaces this one takes over.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The connections that come while the quiesce barrier is open. While it is closed another process is about to serve them:
    /// they wait for it, or for the quiesce barrier to open again.
    pub(crate) fn incoming(self, closing: watch::Receiver<bool>) -> Incoming {
        Incoming {
            listener: self.listener,
            closing,
            places: BoundedPlaces::new(CONNECTIONS),
            waiting: None,
        }
    }
}

type BarrierWait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Connections as they come, at most [`CONNECTIONS`] at once.
pub(crate) struct Incoming {
    listener: UnixListener,
    closing: watch::Receiver<bool>,
    places: Arc<BoundedPlaces<u32>>,
    waiting: Option<BarrierWait>,
}

impl Stream for Incoming {
    type Item = io::Result<AdminStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            let closing = &this.closing;
            let waiting = this.waiting.get_or_insert_with(|| {
                let mut closing = closing.clone();
                Box::pin(async move {
                    // A quiesce barrier that is gone is not closed: the service is ending.
                    let _ = closing.wait_for(|is_closing| !is_closing).await;
                })
            });
            ready!(waiting.as_mut().poll(context));
            this.waiting = None;
            if *this.closing.borrow() {
                continue;
            }
            match ready!(this.listener.poll_accept(context)) {
                Ok((stream, _)) => {
                    this.waiting = Some(Box::pin(let_losers_go()));
                    if let Some(placed) = AdminStream::new(stream, &this.places).transpose() {
                        return Poll::Ready(Some(placed));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the admin API");
                    this.waiting = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

/// A connection to the admin API.
pub(crate) struct AdminStream {
    stream: PlacedStream<UnixStream, u32>,
    peer: Credentials,
}

impl AdminStream {
    /// `None` when there is no place for it.
    fn new(stream: UnixStream, places: &Arc<BoundedPlaces<u32>>) -> io::Result<Option<AdminStream>> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().unwrap_or_default();
        let peer = Credentials::at_socket(&stream, pid, credentials.uid(), credentials.gid())?;
        let uid = peer.uid;
        let placed = |place| AdminStream {
            stream: PlacedStream::new(stream, place),
            peer,
        };
        Ok(places.enter(uid).map(placed))
    }
}

impl Connected for AdminStream {
    type ConnectInfo = Credentials;

    fn connect_info(&self) -> Credentials {
        self.peer.clone()
    }
}

impl AsyncRead for AdminStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for AdminStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let first = AdminSocket::bind(&path, 0o600).unwrap();
        assert_eq!(first.path(), path);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refused = AdminSocket::bind(&path, 0o600).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        AdminSocket::bind(&path, 0o600).unwrap();
    }

    #[tokio::test]
    async fn a_socket_that_listens_already_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let first = AdminSocket::bind(&path, 0o600).unwrap();
        let taken = first.descriptor().try_clone_to_owned().unwrap();
        drop(first);
        let mut incoming = AdminSocket::listening(taken, &path)
            .unwrap()
            .incoming(watch::channel(false).1);
        let _client = UnixStream::connect(&path).await.unwrap();
        let next = std::future::poll_fn(|context| Pin::new(&mut incoming).poll_next(context)).await;
        let peer = next.unwrap().unwrap().connect_info();
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.pid as u32, std::process::id());
    }

    #[tokio::test]
    async fn connections_that_ask_for_nothing_keep_nobody_out() {
        use tokio::io::AsyncWriteExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let mut incoming = AdminSocket::bind(&path, 0o600)
            .unwrap()
            .incoming(watch::channel(false).1);
        let mut next = async || {
            let next = std::future::poll_fn(|context| Pin::new(&mut incoming).poll_next(context));
            tokio::time::timeout(Duration::from_secs(20), next)
                .await
                .unwrap()
                .unwrap()
                .unwrap()
        };
        let mut silent = Vec::new();
        for _ in 0..3 * CONNECTIONS.all {
            let client = UnixStream::connect(&path).await.unwrap();
            silent.push((client, next().await));
        }
        let mut client = UnixStream::connect(&path).await.unwrap();
        let mut served = next().await;
        client.write_all(&[7; 200]).await.unwrap();
        let mut read = [0; 200];
        tokio::io::AsyncReadExt::read_exact(&mut served, &mut read)
            .await
            .unwrap();
        let mut lost = 0;
        for (_, server) in &mut silent {
            let read = tokio::io::AsyncReadExt::read(server, &mut read);
            let read = tokio::time::timeout(Duration::from_millis(1), read).await;
            lost += usize::from(matches!(read, Ok(Err(_))));
        }
        assert_eq!(lost, 2 * CONNECTIONS.all + 1);
    }

    #[tokio::test]
    async fn connections_wait_while_the_barrier_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let (quiesce_barrier, closing) = watch::channel(false);
        let mut incoming = AdminSocket::bind(&path, 0o600).unwrap().incoming(closing);
        let mut next = async || {
            let next = std::future::poll_fn(|context| Pin::new(&mut incoming).poll_next(context));
            tokio::time::timeout(Duration::from_millis(200), next).await
        };
        assert!(next().await.is_err());
        quiesce_barrier.send_replace(true);
        let _client = UnixStream::connect(&path).await.unwrap();
        assert!(next().await.is_err());
        quiesce_barrier.send_replace(false);
        next().await.unwrap().unwrap().unwrap();
    }
}
