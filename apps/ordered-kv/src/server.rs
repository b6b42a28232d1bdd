//! The store's handlers.

use std::sync::Arc;

use provost_datagram_rpc::{Context, Handlers, Request, Wire, Work};

use crate::protocol::{
    ABSENT, DELETE, DONE, FULL, GET, INVALID, PAIR_BYTES, PUT, RANGE, RANGE_KEYS_MAX, SCAN, SCAN_KEYS_MAX,
    key_of, pair, pair_of, span, span_of,
};
use crate::tree::Tree;

/// Where scans and ranges run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scans {
    /// In worker threads: reads go on meanwhile.
    InWorkers,
    /// In the event loop: everything waits meanwhile. It is there to compare with.
    InDispatch,
}

/// A few bytes and how many they are, so that a read takes no memory.
type Small = ([u8; 8], usize);

/// Handlers for servers over wires with such addresses. Several servers may share a tree.
#[must_use]
pub fn handlers<W: Wire>(tree: &Arc<Tree>, scans: Scans) -> Handlers<W::Address, ()> {
    let mut handlers = Handlers::new();
    at_once::<W>(&mut handlers, GET, tree, get);
    at_once::<W>(&mut handlers, PUT, tree, put);
    at_once::<W>(&mut handlers, DELETE, tree, delete);
    for (request_type, act) in [(SCAN, scan as fn(&Tree, &[u8]) -> (u16, Vec<u8>)), (RANGE, range)] {
        let tree = Arc::clone(tree);
        match scans {
            Scans::InWorkers => handlers.worker(request_type, move |work: &mut Work| {
                let (status, response) = act(&tree, work.bytes());
                work.respond(&response);
                status
            }),
            Scans::InDispatch => handlers.dispatch(request_type, move |(), context, request| {
                let (status, response) = act(&tree, request.bytes());
                // Who is gone needs no answer.
                let _ = context.respond(request.handle(), status, &response);
            }),
        };
    }
    handlers
}

fn at_once<W: Wire>(
    handlers: &mut Handlers<W::Address, ()>,
    request_type: u16,
    tree: &Arc<Tree>,
    act: fn(&Tree, &[u8]) -> (u16, Small),
) {
    let tree = Arc::clone(tree);
    let handler = move |(): &mut (), context: &mut Context<'_, W::Address, ()>, request: &mut Request<'_>| {
        let (status, (bytes, length)) = act(&tree, request.bytes());
        // Who is gone needs no answer.
        let _ = context.respond(request.handle(), status, &bytes[..length]);
    };
    handlers.dispatch(request_type, handler);
}

const NOTHING: Small = ([0; 8], 0);

fn get(tree: &Tree, request: &[u8]) -> (u16, Small) {
    match key_of(request).map(|key| tree.get(key)) {
        Some(Some(value)) => (DONE, (value.to_le_bytes(), 8)),
        Some(None) => (ABSENT, NOTHING),
        None => (INVALID, NOTHING),
    }
}

fn put(tree: &Tree, request: &[u8]) -> (u16, Small) {
    match pair_of(request).map(|(key, value)| tree.put(key, value)) {
        Some(Ok(())) => (DONE, NOTHING),
        Some(Err(_)) => (FULL, NOTHING),
        None => (INVALID, NOTHING),
    }
}

fn delete(tree: &Tree, request: &[u8]) -> (u16, Small) {
    match key_of(request).map(|key| tree.delete(key)) {
        Some(true) => (DONE, NOTHING),
        Some(false) => (ABSENT, NOTHING),
        None => (INVALID, NOTHING),
    }
}

fn scan(tree: &Tree, request: &[u8]) -> (u16, Vec<u8>) {
    let Some((first, keys)) = span_of(request, SCAN_KEYS_MAX) else {
        return (INVALID, Vec::new());
    };
    let scanned = tree.scan(first, keys);
    (DONE, span(scanned.sum, scanned.keys).to_vec())
}

fn range(tree: &Tree, request: &[u8]) -> (u16, Vec<u8>) {
    let Some((first, keys)) = span_of(request, RANGE_KEYS_MAX) else {
        return (INVALID, Vec::new());
    };
    let mut pairs = Vec::with_capacity(keys * PAIR_BYTES);
    tree.range(first, keys)
        .for_each(|(key, value)| pairs.extend_from_slice(&pair(key, value)));
    (DONE, pairs)
}
