//! The admin API's Unix socket: bounded connections, each with what the kernel says of its peer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::transport::server::Connected;

use crate::access::Credentials;

/// Connections of operators' tools, at most; more wait in the socket's queue.
const CONNECTIONS_MAX: usize = 64;
/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 64;
/// How long a failed accept (no descriptors) is left alone.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket, listening.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl AdminSocket {
    /// Listens at a path, which gets these permission bits. A socket that a dead process has left there is replaced;
    /// one that answers is not.
    pub(crate) fn bind(path: &Path, mode: u32) -> io::Result<AdminSocket> {
        let address = SocketAddrUnix::new(path)?;
        let mode = Mode::from_raw_mode(mode);
        let socket = new_socket()?;
        // The path is born with the socket's mode less the umask, so it is never wider than asked.
        rustix::fs::fchmod(&socket, mode)?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) if is_dead(path, &address) => {
                std::fs::remove_file(path)?;
                rustix::net::bind(&socket, &address)?;
            }
            result => result?,
        }
        rustix::fs::chmod(path, mode)?;
        rustix::net::listen(&socket, BACKLOG)?;
        AdminSocket::listening(socket, path)
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

    /// Where it is.
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
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            waiting: None,
        }
    }
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Whether the path is a socket at which nobody answers.
fn is_dead(path: &Path, address: &SocketAddrUnix) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = || {
        let probe = new_socket()?;
        rustix::net::connect(&probe, address)
    };
    is_socket && refused() == Err(Errno::CONNREFUSED)
}

type Waiting = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// Connections as they come, at most [`CONNECTIONS_MAX`] at once.
pub(crate) struct Incoming {
    listener: UnixListener,
    closing: watch::Receiver<bool>,
    places: Arc<Semaphore>,
    waiting: Option<Waiting>,
}

impl Stream for Incoming {
    type Item = io::Result<AdminStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let (places, closing) = (&this.places, &this.closing);
        let waiting = this.waiting.get_or_insert_with(|| {
            let (places, mut closing) = (Arc::clone(places), closing.clone());
            Box::pin(async move {
                // A quiesce barrier that is gone is not closed: the service is ending.
                let _ = closing.wait_for(|is_closing| !is_closing).await;
                places.acquire_owned().await.ok()
            })
        });
        let place = ready!(waiting.as_mut().poll(context));
        this.waiting = None;
        if *this.closing.borrow() {
            drop(place);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // The place is given back to `waiting` when no connection is there yet.
        match this.listener.poll_accept(context) {
            Poll::Pending => {
                this.waiting = Some(Box::pin(std::future::ready(place)));
                Poll::Pending
            }
            Poll::Ready(Ok((stream, _))) => Poll::Ready(Some(AdminStream::new(stream, place))),
            Poll::Ready(Err(error)) => {
                tracing::warn!(%error, "cannot accept a connection to the admin API");
                let mut pause = Box::pin(async move {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    place
                });
                // Polled once, so that its timer wakes this task.
                let _ = pause.as_mut().poll(context);
                this.waiting = Some(pause);
                Poll::Pending
            }
        }
    }
}

/// A connection to the admin API.
pub(crate) struct AdminStream {
    stream: UnixStream,
    peer: Credentials,
    _place: Option<OwnedSemaphorePermit>,
}

impl AdminStream {
    fn new(stream: UnixStream, place: Option<OwnedSemaphorePermit>) -> io::Result<AdminStream> {
        let credentials = stream.peer_cred()?;
        let peer = Credentials {
            pid: credentials.pid().unwrap_or_default(),
            uid: credentials.uid(),
            gid: credentials.gid(),
        };
        Ok(AdminStream {
            stream,
            peer,
            _place: place,
        })
    }
}

impl Connected for AdminStream {
    type ConnectInfo = Credentials;

    fn connect_info(&self) -> Credentials {
        self.peer
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
