//! Where a member keeps what it must not forget: records behind each other, each with a checksum.
//!
//! A record is `length (4), checksum (8), kind (1), body`; the checksum is SipHash-1-3 over kind and body. A file whose
//! last record is cut short was being written when its machine stopped: that record counts as never written. Damage
//! anywhere else is an error, and so is a length that no record has there.

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use raft::prelude::{Entry, HardState, Snapshot};
use rustix::fs::{FlockOperation, flock};
use siphasher::sip::SipHasher13;

use crate::codec::{PutBytes, RecordReader};
use crate::operation::REQUEST_BYTES_MAX;
use crate::peer_message::{put_entry, put_snapshot, take_entry, take_snapshot};

/// Bytes before a record's kind.
const HEAD_BYTES: usize = 12;
/// Bytes of a record's kind and body at most, but for the first one, which may be a snapshot.
const RECORD_BYTES_MAX: usize = REQUEST_BYTES_MAX + 64;
const FILE_NAME: &str = "journal";
const FILE_NAME_NEXT: &str = "journal.next";
const FILE_NAME_LOCK: &str = "lock";

/// What keeps a journal's bytes.
pub trait JournalMedium {
    /// Everything that was kept.
    ///
    /// # Errors
    /// If it cannot be read.
    fn load(&mut self) -> io::Result<Vec<u8>>;

    /// Puts bytes behind what is there. They may be lost until the next [`JournalMedium::sync`].
    ///
    /// # Errors
    /// If they cannot be written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Has everything survive that was appended.
    ///
    /// # Errors
    /// If that cannot be said.
    fn sync(&mut self) -> io::Result<()>;

    /// Puts these bytes in the place of everything, wholly or not at all, to survive.
    ///
    /// # Errors
    /// If that cannot be done; then what was there is still there.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Keeps nothing: a member's memory is all there is, as in eRPC's replicated store (NSDI '19, section 7.1). A member that
/// has stopped must not come back under its number, since it no longer knows for whom it voted.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryOnly;

impl JournalMedium for MemoryOnly {
    fn load(&mut self) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn append(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn replace(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// A file in a folder of its own.
#[derive(Debug)]
pub struct JournalFolder {
    path: PathBuf,
    file: File,
    /// Held, so that no other process writes here.
    _lock: File,
}

impl JournalFolder {
    /// The journal in this folder, which is made where there is none.
    ///
    /// # Errors
    /// If the folder or the file cannot be made, or another process has it.
    pub fn open(path: &Path) -> io::Result<JournalFolder> {
        make_folder(path)?;
        let lock = File::create(path.join(FILE_NAME_LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            let told = format!("{}: is another member using this folder? {error}", path.display());
            io::Error::new(io::Error::from(error).kind(), told)
        })?;
        // Of a process that was killed before it was whole.
        remove_if_there(&path.join(FILE_NAME_NEXT))?;
        let file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path.join(FILE_NAME))?;
        let folder = JournalFolder {
            path: path.to_owned(),
            file,
            _lock: lock,
        };
        folder.sync_folder()?;
        Ok(folder)
    }

    /// So that names of files survive, not only what is in them.
    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl JournalMedium for JournalFolder {
    fn load(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path.join(FILE_NAME))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let next = self.path.join(FILE_NAME_NEXT);
        let replaced = write_new(&next, bytes).and_then(|file| {
            std::fs::rename(&next, self.path.join(FILE_NAME))?;
            Ok(file)
        });
        if replaced.is_err() {
            // What it has taken of a disk that is full is of use elsewhere.
            let _ = remove_if_there(&next);
        }
        self.file = replaced?;
        self.sync_folder()
    }
}

/// Makes a folder, and those around it that are not there, so that their names survive.
fn make_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let around = path.parent().filter(|around| !around.as_os_str().is_empty());
    let around = around.unwrap_or(Path::new("."));
    make_folder(around)?;
    match std::fs::create_dir(path) {
        // Another member has made it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made?,
    }
    File::open(around)?.sync_all()
}

/// A file with these bytes, which survive. What is written to it next comes behind them.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(file)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// What one record says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JournalRecord {
    /// Term, vote and commit are these from here on.
    State(HardState),
    /// This entry is in the log, and none after it.
    Entry(Entry),
    /// The log begins after this state of the store.
    Snapshot(Snapshot),
}

/// What is wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read or written.
    #[error("the journal cannot be read or written: {0}; check the disk, then start the member again")]
    Io(#[from] io::Error),
    /// Something that was written is not as it was written.
    #[error(
        "the journal is damaged at byte {at}: the member can neither go on with it nor come back without it, as it no \
         longer knows for whom it voted; leave it stopped, the others go on as long as most of them are there"
    )]
    Damaged {
        /// Where the first bad record begins.
        at: usize,
    },
}

/// Puts a record behind others.
pub(crate) fn put_record(bytes: &mut Vec<u8>, record: &JournalRecord) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; HEAD_BYTES]);
    match record {
        JournalRecord::State(state) => {
            bytes.put_u8(1);
            bytes.put_u64(state.term);
            bytes.put_u64(state.vote);
            bytes.put_u64(state.commit);
        }
        JournalRecord::Entry(entry) => {
            bytes.put_u8(2);
            put_entry(bytes, entry);
        }
        JournalRecord::Snapshot(snapshot) => {
            bytes.put_u8(3);
            put_snapshot(bytes, snapshot);
        }
    }
    let content = start + HEAD_BYTES;
    let length = (bytes.len() - content) as u32;
    let checksum = checksum(&bytes[content..]);
    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    bytes[start + 4..content].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

/// All records, and of how many bytes they are; what is behind those is the beginning of one that was never finished.
pub(crate) fn records(bytes: &[u8]) -> Result<(Vec<JournalRecord>, usize), JournalError> {
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some((content_bytes, checksum_told)) = head(&bytes[at..]) {
        let content = at + HEAD_BYTES;
        let Some(body) = bytes.get(content..content + content_bytes) else {
            if at > 0 && content_bytes > RECORD_BYTES_MAX {
                return Err(JournalError::Damaged { at });
            }
            break;
        };
        let record = (checksum(body) == checksum_told).then(|| record(body)).flatten();
        match record {
            Some(record) => records.push(record),
            // The last one, or zeros that the file was lengthened by and that were never overwritten.
            None if content + content_bytes == bytes.len() || bytes[at..].iter().all(|byte| *byte == 0) => {
                break;
            }
            None => return Err(JournalError::Damaged { at }),
        }
        at = content + content_bytes;
    }
    Ok((records, at))
}

fn head(bytes: &[u8]) -> Option<(usize, u64)> {
    let mut reader = RecordReader::new(bytes);
    Some((reader.u32()? as usize, reader.u64()?))
}

fn record(body: &[u8]) -> Option<JournalRecord> {
    let mut reader = RecordReader::new(body);
    let record = match reader.u8()? {
        1 => JournalRecord::State(HardState {
            term: reader.u64()?,
            vote: reader.u64()?,
            commit: reader.u64()?,
            ..HardState::default()
        }),
        2 => JournalRecord::Entry(take_entry(&mut reader)?),
        3 => JournalRecord::Snapshot(take_snapshot(&mut reader)?),
        _ => return None,
    };
    reader.finish(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64) -> JournalRecord {
        let mut entry = Entry::default();
        (entry.term, entry.index) = (1, index);
        entry.data = format!("entry {index}").into_bytes().into();
        JournalRecord::Entry(entry)
    }

    fn journal() -> (Vec<JournalRecord>, Vec<u8>) {
        let mut state = HardState::default();
        (state.term, state.vote, state.commit) = (3, 2, 1);
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().mut_conf_state().voters = vec![1];
        snapshot.data = b"state".to_vec().into();
        let all = vec![
            entry(1),
            JournalRecord::State(state),
            JournalRecord::Snapshot(snapshot),
            entry(2),
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|record| put_record(&mut bytes, record));
        (all, bytes)
    }

    #[test]
    fn whatever_is_cut_off_what_was_whole_before_is_read() {
        let (all, bytes) = journal();
        assert_eq!(records(&bytes).unwrap(), (all.clone(), bytes.len()));
        for end in 0..bytes.len() {
            let (read, read_bytes) = records(&bytes[..end]).unwrap();
            assert!(read_bytes <= end && all.starts_with(&read), "{end} bytes");
        }
        let lengthened = [&bytes[..], &[0; 64]].concat();
        assert_eq!(records(&lengthened).unwrap(), (all, bytes.len()));
    }

    #[test]
    fn damage_before_the_last_record_is_an_error_that_says_where() {
        let (_, mut bytes) = journal();
        bytes[HEAD_BYTES + 3] ^= 1;
        assert!(matches!(records(&bytes), Err(JournalError::Damaged { at: 0 })));

        // A length that goes beyond the file, before the last record.
        let (all, bytes) = journal();
        let mut first = Vec::new();
        put_record(&mut first, &all[0]);
        let at = first.len();
        for bit in 18..32 {
            let mut damaged = bytes.clone();
            damaged[at + bit / 8] ^= 1 << (bit % 8);
            let read = records(&damaged);
            assert!(
                matches!(read, Err(JournalError::Damaged { at: found }) if found == at),
                "bit {bit}: {read:?}"
            );
        }
    }

    #[test]
    fn a_file_keeps_what_is_appended_and_what_replaced_it() {
        let temporary = tempfile::tempdir().unwrap();
        let mut folder = JournalFolder::open(temporary.path()).unwrap();
        folder.append(b"one").unwrap();
        folder.replace(b"two").unwrap();
        folder.append(b" and three").unwrap();
        folder.sync().unwrap();
        assert!(JournalFolder::open(temporary.path()).is_err(), "it is in use");
        drop(folder);
        let mut folder = JournalFolder::open(temporary.path()).unwrap();
        assert_eq!(folder.load().unwrap(), b"two and three");
    }

    #[test]
    fn a_rewrite_that_was_not_finished_leaves_nothing() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("of/member");
        let mut folder = JournalFolder::open(&path).unwrap();
        folder.append(b"one").unwrap();
        folder.sync().unwrap();
        // What it is to take the place of is no file any more.
        let (journal, aside, next) = (
            path.join(FILE_NAME),
            path.join("aside"),
            path.join(FILE_NAME_NEXT),
        );
        std::fs::rename(&journal, &aside).unwrap();
        std::fs::create_dir_all(journal.join("full")).unwrap();
        folder.replace(b"two").unwrap_err();
        assert!(!next.exists());
        std::fs::remove_dir_all(&journal).unwrap();
        std::fs::rename(&aside, &journal).unwrap();
        folder.append(b" and more").unwrap();
        drop(folder);
        // A process that is killed removes nothing; the next one does.
        std::fs::write(&next, b"tw").unwrap();
        let mut folder = JournalFolder::open(&path).unwrap();
        assert!(!next.exists());
        assert_eq!(folder.load().unwrap(), b"one and more");
    }
}
