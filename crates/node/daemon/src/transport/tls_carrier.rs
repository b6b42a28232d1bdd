//! What carries HTTP/2 within TLS, for those who call and for those who are called.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use provost_datapath::FieldWriter;
use provost_tls::TlsStream;

/// A stream within TLS that says of itself what a plain socket needs not say: where bytes are that its poller does not know of.
pub(crate) struct TlsCarrier<S: Read + Write>(pub(crate) TlsStream<S>);

impl<S: Read + Write + AsFd + Send> provost_transport_grpc::ByteCarrier for TlsCarrier<S> {
    fn read_ready(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut self.0, into)
    }

    fn write_ready(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(pieces)
    }

    fn flush_ready(&mut self) -> io::Result<()> {
        Write::flush(&mut self.0)
    }

    fn waits_for_peer(&self) -> bool {
        self.0.waits_for_peer()
    }

    fn has_more(&self) -> bool {
        self.0.has_more()
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        self.0.can_be_saved().then(|| self.0.as_fd())
    }

    fn save(&self, out: &mut FieldWriter) {
        out.u8(TLS_CARRIER);
        self.0.save(out);
    }
}

/// How the state of a port, or of a link, says that its bytes are within TLS; the session follows.
pub(crate) const TLS_CARRIER: u8 = 1;

impl<S: Read + Write + AsFd + Send> provost_frontend_grpc::ByteCarrier for TlsCarrier<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut self.0, into)
    }

    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Write::flush(&mut self.0)
    }

    fn has_more(&self) -> bool {
        self.0.has_more()
    }

    fn descriptor(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }

    fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        self.0.can_be_saved().then(|| self.0.as_fd())
    }

    fn save(&self, out: &mut FieldWriter) {
        out.u8(TLS_CARRIER);
        self.0.save(out);
    }
}
