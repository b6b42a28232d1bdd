//! What must hold of any bytes whatever, for fuzzers: each function panics if it does not.

use provost_datapath::{BufferPool, FieldReader, FieldWriter};
use provost_session::Role;

use super::keys::{Keys, Suite};
use super::session::{INPUT_BYTES, TlsRead, TlsSession};

/// Bytes that a read brings at most; it varies with the input.
const READ_BYTES_MAX: usize = 1_000;

/// The two ends of a connection whose secrets are no secret.
fn ends() -> Option<(TlsSession, TlsSession)> {
    let keys = |byte: u8| Keys::new(Suite::Chacha20Poly1305Sha256, vec![byte; 32].into(), 0);
    let client = TlsSession::new(Role::Client, keys(1)?, keys(2)?);
    let server = TlsSession::new(Role::Server, keys(2)?, keys(1)?);
    Some((client, server))
}

/// Takes any bytes as what comes from a socket.
pub fn records(input: &[u8]) {
    if let Some((_, mut server)) = ends() {
        take_in(&mut server, input);
    }
}

/// Takes any bytes as what a peer seals, which knows the keys: each record is a type, a length and its text.
pub fn sealed(input: &[u8]) {
    let Some((mut client, mut server)) = ends() else {
        return;
    };
    let mut buffers = BufferPool::new();
    let mut rest = input;
    while let Some((&[content, length], after)) = rest.split_first_chunk() {
        let (text, after) = after.split_at(after.len().min(usize::from(length)));
        rest = after;
        if client.put(content, text, &mut buffers).is_err() {
            return;
        }
    }
    let sealed = client.output.bytes.clone();
    take_in(&mut server, &sealed);
    take_in(&mut client, &sealed);
}

/// Takes any bytes as the saved state of a session. One that is accepted is saved as it was.
pub fn saved(input: &[u8]) {
    let mut fields = FieldReader::new("fuzzing", input);
    let Ok(mut session) = TlsSession::restore(&mut fields) else {
        return;
    };
    if fields.is_at_end() {
        let mut again = FieldWriter::new();
        session.save(&mut again);
        assert_eq!(again.bytes, input, "a session reads as another");
    }
    take_in(&mut session, input);
}

/// A state to start from.
#[must_use]
pub fn saved_seed() -> Vec<u8> {
    let mut out = FieldWriter::new();
    if let Some((mut session, _)) = ends() {
        session.close(&mut BufferPool::new());
        session.save(&mut out);
    }
    out.bytes
}

fn take_in(session: &mut TlsSession, input: &[u8]) {
    let piece_bytes = input
        .first()
        .map_or(1, |first| 1 + usize::from(*first) * 7 % READ_BYTES_MAX);
    let mut pieces = input.chunks(piece_bytes);
    let mut text = [0; 100];
    loop {
        match session.read(&mut text) {
            Ok(TlsRead::Bytes(bytes)) => assert!((1..=text.len()).contains(&bytes)),
            Ok(TlsRead::NeedsMore) => {
                let Some(piece) = pieces.next() else { break };
                let space = session.space();
                assert!(!space.is_empty(), "there is no room for what must come");
                let bytes = piece.len().min(space.len());
                space[..bytes].copy_from_slice(&piece[..bytes]);
                session.came(bytes);
            }
            Ok(TlsRead::Closed) => break,
            Err(fault) => {
                session.complain(fault, &mut BufferPool::new());
                break;
            }
        }
        assert!(session.input.bytes.len() <= INPUT_BYTES);
    }
}
