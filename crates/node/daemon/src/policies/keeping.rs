//! Keeping what operators make of the policies at run time, and going on with it at the next start.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::file_lock::{NotLocked, PolicyFileLock};
use super::kept::{self, KeptPolicies};
use super::{Attachment, Change, ChangeError, Policies, Table};

/// How long the process before may hold the policies file once this one has taken over; it is ending.
const PREDECESSOR_ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Between two looks whether it does.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where policies that operators have changed are kept, and what came of that.
#[derive(Default)]
pub(super) struct PolicyKeeping {
    path: Option<PathBuf>,
    lock: Option<PolicyFileLock>,
    /// What the file has, if that is known: a change that leaves it as it is writes nothing.
    written: Option<KeptPolicies>,
    failure: Option<String>,
    /// The process before has the file still.
    waits: bool,
    lost: Option<String>,
}

/// Why a start does not go on with what operators had made of the policies.
#[derive(Debug, thiserror::Error)]
pub enum PoliciesNotKept {
    /// The file cannot be read, or is damaged.
    #[error(
        "admin.policies_file {file}: {source}. Policies that operators had made at run time may be in it, also such that deny \
         calls, so the service does not start without them: mend the file, or, to start with the policies of the \
         configuration alone, move it away: mv {file} {file}.bad",
        file = path.display()
    )]
    Damaged {
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// It cannot be kept beside what takes its place.
    #[error("admin.policies_file {}: {source}", path.display())]
    Aside {
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is another service's.
    #[error(
        "admin.policies_file {}: {holder}, keeps its policies there: name another file, each service needs its own",
        path.display()
    )]
    Shared {
        path: PathBuf,
        /// Which service that is.
        holder: String,
    },
}

/// Where policies are kept, and for which service.
pub(crate) struct PolicyFile<'a> {
    pub(crate) path: &'a Path,
    pub(crate) control_socket: &'a Path,
    /// Whether a start goes on with what it has (`admin.persist`).
    pub(crate) is_persistent: bool,
}

impl Policies {
    /// Goes on with what the process before has kept, where that is wanted and fits; from now on, keeps what operators make of the
    /// policies.
    pub(crate) fn take_up(&self, file: &PolicyFile<'_>) -> Result<(), PoliciesNotKept> {
        // Where a start fails, the file is free at once, whoever still knows of the policies.
        self.take_up_file(file).inspect_err(|_| self.keep_no_more())
    }

    fn take_up_file(&self, file: &PolicyFile<'_>) -> Result<(), PoliciesNotKept> {
        let path = || file.path.to_path_buf();
        match PolicyFileLock::take(file.path, file.control_socket) {
            Ok(lock) => self.keeping.borrow_mut().lock = Some(lock),
            Err(NotLocked::Held { holder }) => return Err(PoliciesNotKept::Shared { path: path(), holder }),
            Err(NotLocked::Failed(error)) => warn_of_no_lock(file.path, &error),
        }
        match KeptPolicies::read(file.path) {
            Ok(Some(kept)) if file.is_persistent => self.go_on_with(kept, file.path)?,
            Ok(Some(kept)) => self.leave_behind(&kept),
            Ok(None) => {}
            Err(source) if file.is_persistent => {
                return Err(PoliciesNotKept::Damaged { path: path(), source });
            }
            Err(error) => {
                let aside = kept::set_aside(file.path, "bad");
                let aside = aside.map_or_else(
                    |error| error.to_string(),
                    |aside| format!("it is kept as {}", aside.display()),
                );
                let path = file.path.display();
                tracing::error!(%path, %error, aside, "what operators had made of the policies cannot be read");
                self.keeping.borrow_mut().lost = Some(format!(
                    "what operators had done at run time before the last end of the service cannot be read: {path}: {error}; \
                     {aside}"
                ));
            }
        }
        self.keep_in(path());
        Ok(())
    }

    /// From now on, keeps what operators make of the policies in this file.
    pub(crate) fn keep_in(&self, path: PathBuf) {
        let mut keeping = self.keeping.borrow_mut();
        (keeping.path, keeping.waits) = (Some(path), false);
        drop(keeping);
        self.keep();
    }

    /// Leaves the file to the process that has taken over, or to the next start.
    pub(crate) fn keep_no_more(&self) {
        let mut keeping = self.keeping.borrow_mut();
        (keeping.path, keeping.lock) = (None, None);
    }

    /// What the configuration has counts: says what was lost.
    fn leave_behind(&self, kept: &KeptPolicies) {
        let done = kept.differences();
        tracing::warn!(
            done,
            "policies that operators had changed at run time are as configured again"
        );
        self.keeping.borrow_mut().lost = Some(format!(
            "the last end of the service has lost what operators had done at run time ({done}): `provost config write` keeps \
             such changes, or admin.persist = true"
        ));
    }

    /// Attaches what was kept, unless the configuration has become another. What is not attached is kept aside, and said.
    fn go_on_with(&self, kept: KeptPolicies, path: &Path) -> Result<(), PoliciesNotKept> {
        let done = kept.differences();
        let refused = if *self.configured() == kept.configured {
            match self.fitting(&kept) {
                (Ok(table), unfit) => {
                    tracing::info!(done, "policies are as operators had made them at run time");
                    self.commit(table);
                    if unfit.is_empty() {
                        return Ok(());
                    }
                    format!(
                        "not all policies are as operators had made them at run time: {}",
                        unfit.join("; ")
                    )
                }
                (Err(error), _) => format!("what operators had done at run time ({done}) is undone: {error}"),
            }
        } else {
            format!(
                "what operators had done at run time ({done}) is undone: the policies of the configuration are not those \
                 of then any more, and they count"
            )
        };
        let aside = kept::set_aside(path, "old").map_err(|source| PoliciesNotKept::Aside {
            path: path.to_path_buf(),
            source,
        })?;
        let aside = aside.display();
        tracing::error!(kept = %aside, "{refused}");
        self.keeping.borrow_mut().lost = Some(format!(
            "{refused}. {aside} has them as they were: attach again what is still wanted, and `provost config write` puts it \
             into the configuration"
        ));
        Ok(())
    }

    /// The table of what was kept, and what is wrong with policies that cannot be attached any more: they are as configured, or not
    /// there.
    fn fitting(&self, kept: &KeptPolicies) -> (Result<Table, ChangeError>, Vec<String>) {
        let dry = self.maker.for_dry_runs();
        let mut unfit = Vec::new();
        let mut attachments: Vec<Attachment> = Vec::with_capacity(kept.policy.len());
        for wanted in &kept.policy {
            let Err(error) = dry.instance(wanted, None) else {
                attachments.push(wanted.clone());
                continue;
            };
            let configured = kept.configured.iter().find(|one| one.name == wanted.name);
            let instead = if configured.is_some() {
                "is as configured"
            } else {
                "is not attached"
            };
            unfit.push(format!("\"{}\" {instead}: {error}", wanted.name));
            attachments.extend(configured.cloned());
        }
        let table = self.maker.changed(&self.table(), &Change::Apply { attachments });
        (table, unfit)
    }

    /// What a start has lost of what operators had made of the policies, until they change them again.
    pub(crate) fn lost(&self) -> Option<String> {
        self.keeping.borrow().lost.clone()
    }

    pub(super) fn forget_loss(&self) {
        self.keeping.borrow_mut().lost = None;
    }

    /// Why what operators make of the policies is not kept, if it is not.
    pub(crate) fn keep_failure(&self) -> Option<String> {
        self.keeping.borrow().failure.clone()
    }

    /// Whether the process before has the file still, so that what is made now is written a little later.
    pub(crate) fn waits_to_keep(&self) -> bool {
        self.keeping.borrow().waits
    }

    pub(super) fn keep(&self) {
        let mut keeping = self.keeping.borrow_mut();
        let Some(path) = &keeping.path else { return };
        let now = self.made_at_run_time();
        if keeping.written.as_ref() == Some(&now) {
            return;
        }
        let failure = now.write(path).err();
        keeping.failure = failure.map(|error| format!("{}: {error}", path.display()));
        keeping.written = keeping.failure.is_none().then_some(now);
    }

    /// The policies as they are, beside those of the configuration.
    pub(crate) fn made_at_run_time(&self) -> KeptPolicies {
        KeptPolicies {
            configured: self.configured().to_vec(),
            policy: self.effective(),
        }
    }
}

fn warn_of_no_lock(path: &Path, error: &io::Error) {
    let path = path.display();
    tracing::warn!(%path, %error, "whether another service keeps its policies in the same file cannot be seen");
}

/// Keeps policies in a file as soon as the process before, whose place this one has taken, has let it go.
pub(crate) async fn keep_after_predecessor(policies: Rc<Policies>, path: PathBuf, control_socket: PathBuf) {
    let until = Instant::now() + PREDECESSOR_ENDS_WITHIN;
    loop {
        match PolicyFileLock::take(&path, &control_socket) {
            Ok(lock) => {
                policies.keeping.borrow_mut().lock = Some(lock);
                break;
            }
            Err(NotLocked::Held { .. }) if Instant::now() < until => {
                policies.keeping.borrow_mut().waits = true;
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(NotLocked::Held { holder }) => {
                let failure = format!("{}: {holder}, keeps its policies there", path.display());
                tracing::error!(failure, "what operators make of the policies is not kept");
                let mut keeping = policies.keeping.borrow_mut();
                (keeping.failure, keeping.waits) = (Some(failure), false);
                return;
            }
            Err(NotLocked::Failed(error)) => {
                warn_of_no_lock(&path, &error);
                break;
            }
        }
    }
    policies.keep_in(path);
}
