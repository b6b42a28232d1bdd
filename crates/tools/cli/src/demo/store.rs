//! The key-value server of the demonstration.

use std::sync::Arc;

use provost::Server;
use provost_kv::proto::kv_server::KvServer;
use provost_kv::service::KvService;
use provost_kv::store::Store;

use super::wire::Event;
use super::worker::{self, WorkerError};

/// Serves `kv.Kv` from an empty store until the input ends.
pub(crate) fn run() -> Result<(), WorkerError> {
    let service = KvServer::new(KvService::new(Arc::new(Store::default())));
    todo!()
}
