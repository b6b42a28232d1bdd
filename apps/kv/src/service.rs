//! The service `kv.Kv` over a [`Store`].

use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec;

use provost::codegen::Stream;
use provost::{Received, Request, Response, Status, Streaming};

use crate::data::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::proto::kv_server::Kv;
use crate::proto::{
    DeleteReply, DeleteRequest, Entry, GetReply, GetRequest, LoadSummary, PutReply, PutRequest, ScanRequest,
    SyncReply, SyncRequest, scan_request, sync_reply, sync_request,
};
use crate::store::{Keys, Store, StoredValue, VersionMismatch};

/// Entries that a scan takes from the store at a time, so that it never holds the store for long.
const SCAN_BATCH: usize = 64;

/// Handlers of `kv.Kv`.
#[derive(Clone, Debug, Default)]
pub struct KvService {
    store: Arc<Store>,
}

impl KvService {
    /// Handlers that work on this store.
    #[must_use]
    pub fn new(store: Arc<Store>) -> KvService {
        KvService { store }
    }
}

impl Kv for KvService {
    async fn get(&self, request: Request<Received<GetRequest>>) -> Result<Response<GetReply>, Status> {
        let key = request.get_ref().key.as_str();
        let record = self.store.get(key).ok_or_else(|| no_such(key))?;
        Ok(Response::new(GetReply {
            entry: entry(key, &record).into(),
        }))
    }

    async fn put(&self, request: Request<Received<PutRequest>>) -> Result<Response<PutReply>, Status> {
        let request = request.get_ref();
        let Some(entry) = request.entry.as_deref() else {
            return Err(Status::invalid_argument("the request has no entry to put"));
        };
        let version = put(&self.store, entry, request.if_version.as_ref().copied())?;
        Ok(Response::new(PutReply { version }))
    }

    async fn delete(
        &self,
        request: Request<Received<DeleteRequest>>,
    ) -> Result<Response<DeleteReply>, Status> {
        let existed = self.store.delete(&request.get_ref().key);
        Ok(Response::new(DeleteReply { existed }))
    }

    type ScanStream = Scan;

    async fn scan(&self, request: Request<Received<ScanRequest>>) -> Result<Response<Scan>, Status> {
        Ok(Response::new(Scan::new(self.store.clone(), request.get_ref())))
    }

    async fn load(&self, request: Request<Streaming<Entry>>) -> Result<Response<LoadSummary>, Status> {
        let mut entries = request.into_inner();
        let mut summary = LoadSummary::default();
        while let Some(entry) = entries.message().await? {
            let version = put(&self.store, &entry, None)?;
            summary.entries += 1;
            summary.replaced += u64::from(version > 1);
            summary.key_bytes += entry.key.len() as u64;
            summary.value_bytes += entry.value.len() as u64;
        }
        Ok(Response::new(summary))
    }

    type SyncStream = Sync;

    async fn sync(&self, request: Request<Streaming<SyncRequest>>) -> Result<Response<Sync>, Status> {
        Ok(Response::new(Sync {
            store: self.store.clone(),
            actions: request.into_inner(),
        }))
    }
}

/// The entries of one scan. It sees each entry as it is when its turn comes.
pub struct Scan {
    store: Arc<Store>,
    keys: Keys,
    batch: vec::IntoIter<(String, StoredValue)>,
    last: Option<String>,
    left: usize,
}

impl Scan {
    fn new(store: Arc<Store>, request: &ScanRequest) -> Scan {
        let keys = match &request.keys {
            scan_request::Keys::NotSet => Keys::All,
            scan_request::Keys::Prefix(prefix) => Keys::Prefix(prefix.to_string()),
            scan_request::Keys::Range(range) => Keys::Range {
                first: range.first.to_string(),
                end: range.end.to_string(),
            },
        };
        let left = match request.limit {
            0 => usize::MAX,
            limit => limit as usize,
        };
        Scan {
            store,
            keys,
            batch: Vec::new().into_iter(),
            last: None,
            left,
        }
    }

    fn next_record(&mut self) -> Option<(String, StoredValue)> {
        if let Some(next) = self.batch.next() {
            return Some(next);
        }
        let from = match &self.last {
            Some(last) => Bound::Excluded(last.as_str()),
            None => self.keys.first(),
        };
        self.batch = self
            .store
            .batch(&self.keys, from, SCAN_BATCH.min(self.left))
            .into_iter();
        self.last = self.batch.as_slice().last().map(|(key, _)| key.clone());
        self.batch.next()
    }
}

impl Stream for Scan {
    type Item = Result<Entry, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let next = self.next_record();
        self.left -= 1;
        Poll::Ready(next.map(|(key, record)| Ok(entry(&key, &record))))
    }
}

/// The answers to the actions of one Sync stream.
pub struct Sync {
    store: Arc<Store>,
    actions: Streaming<SyncRequest>,
}

impl Stream for Sync {
    type Item = Result<SyncReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let action = std::task::ready!(Pin::new(&mut self.actions).poll_next(context));
        Poll::Ready(action.map(|action| carry_out(&self.store, &*action?)))
    }
}

fn carry_out(store: &Store, action: &SyncRequest) -> Result<SyncReply, Status> {
    use sync_reply::Outcome;
    use sync_request::Action;
    let outcome = match &action.action {
        Action::NotSet => {
            return Err(Status::invalid_argument(format!(
                "action {} says nothing",
                action.id
            )));
        }
        Action::Get(key) => match store.get(key) {
            Some(record) => Outcome::Found(entry(key, &record).into()),
            None => Outcome::Missing(true),
        },
        Action::Put(entry) => Outcome::Stored(put(store, entry, None)?),
        Action::Delete(key) => Outcome::Deleted(store.delete(key)),
    };
    Ok(SyncReply {
        id: action.id,
        outcome,
    })
}

fn put(store: &Store, entry: &Entry, if_version: Option<u64>) -> Result<u64, Status> {
    check(entry)?;
    let labels = entry
        .labels
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()));
    store
        .put(&entry.key, &entry.value, labels.collect(), if_version)
        .map_err(|VersionMismatch { actual }| {
            Status::aborted(format!("{} is at version {actual} now: read it again", entry.key))
        })
}

fn check(entry: &Entry) -> Result<(), Status> {
    match (entry.key.len(), entry.value.len()) {
        (0, _) => Err(Status::invalid_argument("the key is empty")),
        (bytes, _) if bytes > KEY_BYTES_MAX => Err(Status::invalid_argument(format!(
            "the key has {bytes} bytes; {KEY_BYTES_MAX} are allowed"
        ))),
        (_, bytes) if bytes > VALUE_BYTES_MAX => Err(Status::invalid_argument(format!(
            "the value of {} has {bytes} bytes; {VALUE_BYTES_MAX} are allowed",
            entry.key
        ))),
        _ => Ok(()),
    }
}

fn entry(key: &str, record: &StoredValue) -> Entry {
    let labels = record
        .labels
        .iter()
        .map(|(name, value)| (name.as_str().into(), value.as_str().into()));
    Entry {
        key: key.into(),
        value: record.value[..].into(),
        labels: labels.collect(),
        version: Some(record.version).into(),
        updated_unix_ns: record.updated_unix_ns,
    }
}

fn no_such(key: &str) -> Status {
    Status::not_found(format!("no entry with the key {key}"))
}
