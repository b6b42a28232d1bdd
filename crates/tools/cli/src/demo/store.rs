//! The key-value server of the demonstration.

use std::sync::Arc;
use std::task::Poll;

use provost::{Server, Status};
use provost_kv::proto::kv_server::KvServer;
use provost_kv::service::KvService;
use provost_kv::store::Store;

use super::wire::Event;
use super::worker::{self, WorkerError};

/// Serves `kv.Kv` from an empty store until the input ends.
pub(crate) fn run() -> Result<(), WorkerError> {
    let input = worker::input_end();
    let mut input = std::pin::pin!(input);
    let mut told = None;
    // The end of the service is first asked about when the service has begun.
    let shutdown = std::future::poll_fn(|context| {
        let told = told.get_or_insert_with(|| worker::send_event(&Event::Ready { address: None }));
        match told {
            Ok(()) => input.as_mut().poll(context),
            Err(_) => Poll::Ready(()),
        }
    });
    let service = KvServer::new(KvService::new(Arc::new(Store::default())));
    Server::builder()
        .add_service(service)
        .serve_blocking_with_shutdown(shutdown)
        .map_err(|status: Status| WorkerError::Service(status.to_string()))?;
    told.unwrap_or(Ok(()))
}
