//! The library on top of the endpoint: what its handlers cost, in the event loop and in a thread of their own.

use provost_datagram_rpc::{Handlers, Rpc, RpcConfig, Turn};

use super::calls::{ECHO, Rules};
use super::part::Part;
use super::plan::{Answers, SMALL_BYTES};
use super::wires::Named;
use crate::failure::Failure;
use crate::machine;

/// Answers calls until the client has ended.
pub(crate) fn serve<W>(wire: W, part: &Part) -> Result<(), Failure>
where
    W: Named + 'static,
    W::Address: Send + 'static,
{
    let mut handlers = Handlers::new();
    match part.work.answers {
        Answers::Worker => handlers.worker(ECHO, |work| {
            let mut response = [0; SMALL_BYTES];
            let bytes = response.len().min(work.bytes().len());
            response[..bytes].copy_from_slice(&work.bytes()[..bytes]);
            work.respond(&response[..bytes]);
            0
        }),
        _ => handlers.dispatch(ECHO, |(), context, request| {
            let request_bytes = request.bytes();
            let response = &request_bytes[..request_bytes.len().min(SMALL_BYTES)];
            // A session that has ended in between wants no answer.
            let _ = context.respond(request.handle(), 0, response);
        }),
    };
    let config = RpcConfig {
        datagram: Rules::of(part).config(),
        workers: 1,
        ..RpcConfig::default()
    };
    let mut rpc =
        Rpc::new(config, wire, (), handlers).map_err(|error| Failure::role("server", error.to_string()))?;
    machine::pin(&[part.core])?;
    loop {
        match rpc.run_once() {
            Ok(Turn::Idle) => part.pause.take(),
            Ok(Turn::Busy) => {}
            Err(_) => return Ok(()),
        }
    }
}
