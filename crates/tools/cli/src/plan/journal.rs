//! What a run of a plan has done, on disk, so that a run that was cut short can be gone on with or undone.
//!
//! One JSON object a line. How a step is undone is written before the step is done.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use provost_admin::v1::Policy;
use serde::{Deserialize, Serialize};

use provost_terminal::failure::{Exit, Failure};

/// How a step is undone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Undo {
    Detach {
        name: String,
    },
    Attach {
        policy: Box<Policy>,
        position: u32,
    },
    Set {
        name: String,
        config: String,
    },
    Order {
        names: Vec<String>,
    },
    Rollback {
        kind: String,
    },
    DaemonUpgrade {
        binary: String,
    },
    Run {
        command: Vec<String>,
        timeout_s: f64,
    },
    /// It cannot be, or need not.
    Nothing {
        because: String,
    },
}

/// What happened to a step, or to the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Event {
    /// A run of the plan begins.
    Begun,
    Started,
    Done,
    /// What had to hold after it did.
    Checked,
    /// It was not done, so there is nothing to undo.
    Refused,
    Undone,
    UndoFailed,
    /// All steps are done.
    Finished,
    /// All that was done is undone.
    Reverted,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Seconds since 1970.
    pub(crate) at_unix_s: u64,
    /// Fingerprint of the plan's text.
    pub(crate) plan: String,
    pub(crate) event: Event,
    /// Index of the step, from 1; 0 for the plan.
    pub(crate) step: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) undo: Option<Undo>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
}

/// Where a step stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Standing {
    /// It may be done or not: the run was cut short.
    Started(Undo),
    Done(Undo),
    Checked(Undo),
}

impl Standing {
    /// How it is undone.
    pub(crate) fn undo(&self) -> &Undo {
        let (Standing::Started(undo) | Standing::Done(undo) | Standing::Checked(undo)) = self;
        undo
    }
}

/// The journal of a plan.
pub(crate) struct Journal {
    file: Option<File>,
    path: PathBuf,
    plan: String,
    /// Steps that are not undone, by index.
    pub(crate) standing: BTreeMap<usize, Standing>,
    /// Whether the last run came to an end, one way or the other.
    pub(crate) settled: bool,
    /// Whether the steps are those of this plan's text.
    pub(crate) is_of_this_plan: bool,
}

impl Journal {
    /// Reads what earlier runs have left; nothing is written yet.
    pub(crate) fn read(path: &Path, plan_text: &str) -> Result<Journal, Failure> {
        // A line that was cut off may end within a character.
        let text = match std::fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(wrong(path, &error)),
        };
        let mut journal = Journal {
            file: None,
            path: path.to_path_buf(),
            plan: fingerprint(plan_text),
            standing: BTreeMap::new(),
            settled: true,
            is_of_this_plan: true,
        };
        // The last line may be half written: what it was about had not begun.
        for entry in text
            .lines()
            .filter_map(|line| serde_json::from_str::<Entry>(line).ok())
        {
            journal.apply(&entry);
        }
        Ok(journal)
    }

    fn apply(&mut self, entry: &Entry) {
        let undo = || match &entry.undo {
            Some(undo) => undo.clone(),
            None => Undo::Nothing {
                because: "the journal does not say how".to_owned(),
            },
        };
        match entry.event {
            Event::Begun => {
                self.standing.clear();
                self.settled = false;
                self.is_of_this_plan = entry.plan == self.plan;
            }
            Event::Started => {
                self.standing.insert(entry.step, Standing::Started(undo()));
            }
            Event::Done => {
                if let Some(Standing::Started(undo)) = self.standing.get(&entry.step).cloned() {
                    self.standing.insert(entry.step, Standing::Done(undo));
                }
            }
            Event::Checked => {
                if let Some(standing) = self.standing.get_mut(&entry.step) {
                    *standing = Standing::Checked(standing.undo().clone());
                }
            }
            Event::Refused | Event::Undone => {
                self.standing.remove(&entry.step);
            }
            Event::UndoFailed => {}
            Event::Finished | Event::Reverted => self.settled = true,
        }
    }

    /// Writes a line, and waits until it is on disk.
    pub(crate) fn write(
        &mut self,
        event: Event,
        step: usize,
        undo: Option<Undo>,
        message: &str,
    ) -> Result<(), Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let entry = Entry {
            at_unix_s: now.as_secs(),
            plan: self.plan.clone(),
            event,
            step,
            undo,
            message: message.to_owned(),
        };
        self.apply(&entry);
        let line = serde_json::to_string(&entry).map_err(|error| Failure::failed(error.to_string()))?;
        let file = self.open()?;
        let written = file
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| file.sync_data());
        written.map_err(|error| {
            // Half of the line may be there.
            self.file = None;
            wrong(&self.path, &error)
        })
    }

    fn open(&mut self) -> Result<&mut File, Failure> {
        if self.file.is_none() {
            let opened = open_at_a_line(&self.path);
            self.file = Some(opened.map_err(|error| wrong(&self.path, &error))?);
        }
        self.file.as_mut().ok_or_else(|| Failure::failed("no journal"))
    }
}

/// Opens a file for lines to come. A last one that is half written does not take the next with it.
fn open_at_a_line(path: &Path) -> std::io::Result<File> {
    let mut file = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .open(path)?;
    let bytes = file.metadata()?.len();
    let mut last = *b"\n";
    if bytes > 0 {
        file.read_exact_at(&mut last, bytes - 1)?;
    }
    if last != *b"\n" {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

fn wrong(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("the journal {}: {error}", path.display()))
}

/// Tells one text from another (FNV-1a).
fn fingerprint(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detach() -> Undo {
        Undo::Detach { name: "limit".into() }
    }

    #[test]
    fn a_run_that_was_cut_short_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.log");
        let mut first = Journal::read(&path, "text").unwrap();
        assert!(first.settled && !path.exists());
        first.write(Event::Begun, 0, None, "").unwrap();
        first.write(Event::Started, 1, Some(detach()), "").unwrap();
        first.write(Event::Done, 1, None, "").unwrap();
        first.write(Event::Started, 2, Some(detach()), "").unwrap();
        drop(first);
        // As a crash leaves it.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"at_unix_s\":1,\"text\":\"half a character: \xc3")
            .unwrap();
        let mut again = Journal::read(&path, "text").unwrap();
        assert!(!again.settled && again.is_of_this_plan);
        assert_eq!(again.standing[&1], Standing::Done(detach()));
        assert_eq!(again.standing[&2], Standing::Started(detach()));
        // Whoever goes on writes behind the half of a line, and is read back too.
        again.write(Event::Started, 3, Some(detach()), "").unwrap();
        again.write(Event::Done, 3, None, "").unwrap();
        let resumed = Journal::read(&path, "text").unwrap();
        assert_eq!(resumed.standing.get(&3), Some(&Standing::Done(detach())));
        assert_eq!(resumed.standing.len(), 3);
        assert!(!Journal::read(&path, "another text").unwrap().is_of_this_plan);
    }

    #[test]
    fn what_was_undone_stands_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.log");
        let mut journal = Journal::read(&path, "text").unwrap();
        journal.write(Event::Begun, 0, None, "").unwrap();
        journal.write(Event::Started, 1, Some(detach()), "").unwrap();
        journal.write(Event::Done, 1, None, "").unwrap();
        journal.write(Event::Undone, 1, None, "").unwrap();
        journal.write(Event::Reverted, 0, None, "").unwrap();
        assert!(journal.standing.is_empty() && journal.settled);
    }
}
