//! The key-value server of the demonstration.

use std::sync::{Arc, OnceLock};
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
    let told = Arc::new(OnceLock::new());
    let shutdown = std::future::poll_fn(|context| match told.get() {
        Some(Err(_)) => Poll::Ready(()),
        _ => input.as_mut().poll(context),
    });
    let tells = Arc::clone(&told);
    let tell = move || {
        let _ = tells.get_or_init(|| worker::send_event(&Event::Ready { address: None }));
    };
    let service = KvServer::new(KvService::new(Arc::new(Store::default())));
    Server::builder()
        .add_service(service)
        .on_ready(tell)
        .serve_blocking_with_shutdown(shutdown)
        .map_err(|status: Status| WorkerError::Service(status.to_string()))?;
    let told = Arc::into_inner(told).and_then(OnceLock::into_inner);
    told.unwrap_or(Ok(()))
}
