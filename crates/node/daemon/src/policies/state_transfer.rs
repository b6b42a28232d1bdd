//! The table of policies, handed to another process of the service: what is attached as it is now, whoever attached it,
//! and what the engines of each policy share.

use std::sync::Arc;

use provost_engine::{SharedState, VerdictLedger};
use serde::{Deserialize, Serialize};

use super::table::{Entry, Instance, Table};
use super::transport_versions::TransportVersions;
use super::{Attachment, ChangeError, Policies, Reach};

/// A table whose policies are beside it, by their place among [`SavedPolicies::instances`].
#[derive(Debug, Deserialize, Serialize)]
struct SavedTable {
    /// What the configuration said.
    configured: Vec<Attachment>,
    entries: Vec<SavedEntry>,
    transports: TransportVersions,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedEntry {
    attachment: Attachment,
    live: usize,
    exceptions: Vec<SavedException>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<u32>,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedException {
    reach: Reach,
    instance: usize,
}

/// The policies of a node, saved.
#[derive(Debug)]
pub(crate) struct SavedPolicies {
    /// The table, as TOML.
    pub(crate) table: String,
    /// Every policy that has engines, or would have.
    pub(crate) instances: Vec<SavedInstance>,
}

#[derive(Debug)]
pub(crate) struct SavedInstance {
    /// The attachment, as TOML.
    pub(crate) attachment: String,
    /// What its engines share.
    pub(crate) shared: SharedState,
}

/// Why a table cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    #[error("the table of policies cannot be read: {0}")]
    Text(#[from] toml::de::Error),
    #[error("the table of policies names policy number {0}, which is not there")]
    Instance(usize),
    #[error(transparent)]
    Change(#[from] ChangeError),
}

impl Policies {
    /// Waits for the turn of changes, which come one after the other.
    pub(crate) async fn hold(&self) -> Result<tokio::sync::SemaphorePermit<'_>, ChangeError> {
        self.turn.acquire().await.map_err(|_closed| ChangeError::Replaced)
    }

    /// Another process has taken over: a change would be lost here, so there is none any more.
    pub(crate) fn pass_on(&self) {
        self.turn.close();
    }

    pub(crate) fn save(&self) -> Result<SavedPolicies, toml::ser::Error> {
        let table = self.table();
        let mut instances = Vec::new();
        let mut number = |instance: &Arc<Instance>| {
            instances.push(Arc::clone(instance));
            instances.len() - 1
        };
        let entries = table.entries.iter().map(|entry| SavedEntry {
            attachment: entry.attachment.clone(),
            live: number(&entry.live),
            exceptions: entry
                .exceptions
                .iter()
                .map(|(reach, instance)| SavedException {
                    reach: reach.clone(),
                    instance: number(instance),
                })
                .collect(),
            before: entry.before,
        });
        let saved = SavedTable {
            configured: (*self.configured()).clone(),
            entries: entries.collect(),
            transports: table.transports.clone(),
        };
        let instances = instances.iter().map(|instance| {
            Ok::<_, toml::ser::Error>(SavedInstance {
                attachment: toml::to_string(&instance.attachment)?,
                shared: instance.policy.save(),
            })
        });
        Ok(SavedPolicies {
            table: toml::to_string(&saved)?,
            instances: instances.collect::<Result<_, _>>()?,
        })
    }

    /// Goes on with the table of another process, in place of one's own, and says what that one's configuration said.
    pub(crate) fn hot_restart(&self, saved: &SavedPolicies) -> Result<Vec<Attachment>, NotTaken> {
        let table: SavedTable = toml::from_str(&saved.table)?;
        let instance = |at: usize, verdicts: &Arc<VerdictLedger>| -> Result<Arc<Instance>, NotTaken> {
            let saved = saved.instances.get(at).ok_or(NotTaken::Instance(at))?;
            let attachment = self.still_known(toml::from_str(&saved.attachment)?);
            Ok(self
                .maker
                .make(&attachment, Some(&saved.shared), Arc::clone(verdicts))?)
        };
        let mut entries = Vec::with_capacity(table.entries.len());
        for entry in table.entries {
            let verdicts = Arc::default();
            let mut exceptions = Vec::with_capacity(entry.exceptions.len());
            for exception in entry.exceptions {
                exceptions.push((exception.reach, instance(exception.instance, &verdicts)?));
            }
            entries.push(Entry {
                attachment: self.still_known(entry.attachment),
                live: instance(entry.live, &verdicts)?,
                exceptions,
                before: entry.before,
            });
        }
        let transports = table.transports;
        self.commit(Table { entries, transports });
        Ok(table.configured)
    }

    /// The attachment, in a version that this process has.
    fn still_known(&self, mut attachment: Attachment) -> Attachment {
        let version = attachment.version;
        attachment.version = version.map(|version| self.registry().version_after(&attachment.kind, version));
        attachment
    }

    /// Goes on with what engines share by now, of the table that was taken over before.
    pub(crate) fn hot_restart_shared(&self, shared: &[SharedState]) -> Result<(), NotTaken> {
        let mut table = (*self.table()).clone();
        let mut shared = shared.iter();
        let mut again = |instance: &mut Arc<Instance>| -> Result<(), NotTaken> {
            match shared.next() {
                // What shares nothing is ready as it is: to make it again could take long.
                Some(shared) if !shared.bytes.is_empty() => {
                    let verdicts = Arc::clone(&instance.verdicts);
                    *instance = self.maker.make(&instance.attachment, Some(shared), verdicts)?;
                    Ok(())
                }
                _ => Ok(()),
            }
        };
        for entry in &mut table.entries {
            again(&mut entry.live)?;
            for (_, instance) in &mut entry.exceptions {
                again(instance)?;
            }
        }
        self.commit(table);
        Ok(())
    }
}
