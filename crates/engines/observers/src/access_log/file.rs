//! A log file that others may rename at any time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file names that stand for the process's own streams: opening them would fail where they are sockets.
const STDOUT: &str = "/dev/stdout";
const STDERR: &str = "/dev/stderr";

/// A file that is appended to. Before each batch it is looked whether its name still leads to it: when a rotation has
/// renamed or removed it, a new one is made. So nobody has to send a signal.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    target: LogTarget,
}

#[derive(Debug)]
enum LogTarget {
    Stdout,
    Stderr,
    File { file: File, identity: FileIdentity },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity(u64, u64);

impl LogFile {
    /// Opens a file for appending, and makes it if it is not there.
    pub fn open(path: &Path) -> io::Result<LogFile> {
        let target = match path.to_str() {
            Some(STDOUT) => LogTarget::Stdout,
            Some(STDERR) => LogTarget::Stderr,
            _ => open(path)?,
        };
        Ok(LogFile {
            path: path.to_owned(),
            target,
        })
    }

    /// Writes whole lines at once, to the file that has the name now.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        match &mut self.target {
            LogTarget::Stdout => io::stdout()
                .lock()
                .write_all(lines)
                .and_then(|()| io::stdout().flush()),
            LogTarget::Stderr => io::stderr().lock().write_all(lines),
            LogTarget::File { file, identity } => {
                if identity_of(&self.path).is_ok_and(|now| now == *identity) {
                    return file.write_all(lines);
                }
                self.target = open(&self.path)?;
                match &mut self.target {
                    LogTarget::File { file, .. } => file.write_all(lines),
                    LogTarget::Stdout | LogTarget::Stderr => Ok(()),
                }
            }
        }
    }
}

fn open(path: &Path) -> io::Result<LogTarget> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let metadata = file.metadata()?;
    Ok(LogTarget::File {
        file,
        identity: FileIdentity(metadata.dev(), metadata.ino()),
    })
}

fn identity_of(path: &Path) -> io::Result<FileIdentity> {
    let metadata = std::fs::metadata(path)?;
    Ok(FileIdentity(metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_renamed_or_removed_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = LogFile::open(&path).unwrap();
        log.append(b"1\n").unwrap();
        std::fs::rename(&path, directory.path().join("log.1")).unwrap();
        log.append(b"2\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        log.append(b"3\n").unwrap();
        log.append(b"4\n").unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!((read("log.1"), read("log")), ("1\n".into(), "3\n4\n".into()));
    }

    #[test]
    fn a_file_that_is_there_is_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, "old\n").unwrap();
        LogFile::open(&path).unwrap().append(b"new\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\nnew\n");
        assert!(LogFile::open(&directory.path().join("none/log")).is_err());
    }
}
