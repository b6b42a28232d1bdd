//! A log file that others may rename at any time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, OFlags, access, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// The file names that stand for the process's own streams: opening them would fail where they are sockets.
const STDOUT: &str = "/dev/stdout";
const STDERR: &str = "/dev/stderr";

/// A file that is appended to. Before each batch it is looked whether its name still leads to it: when a rotation has
/// renamed or removed it, a new one is made. So nobody has to send a signal.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    /// None where there is no file yet, or no more.
    target: Option<LogTarget>,
}

#[derive(Debug)]
enum LogTarget {
    Stdout,
    Stderr,
    File {
        lines: WholeLines<File>,
        identity: FileIdentity,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity(u64, u64);

/// Writes lines, and after a write that ended within one, as on a full disk, begins a new one.
#[derive(Debug)]
struct WholeLines<W> {
    to: W,
    /// Whether what was written last is not the end of a line.
    is_torn: bool,
}

impl<W: Write> WholeLines<W> {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.to.write_all(b"\n")?;
            self.is_torn = false;
        }
        let mut rest = lines;
        while !rest.is_empty() {
            match self.to.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.is_torn = rest[written - 1] != b'\n';
                    rest = &rest[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl LogFile {
    /// Opens a file for appending, and makes it if it is not there.
    pub fn open(path: &Path) -> io::Result<LogFile> {
        let target = Some(open(path)?);
        let path = path.to_owned();
        Ok(LogFile { path, target })
    }

    /// Opens a file for appending. One that is not there, and can be made, is made with the first lines: who only checks whether a file
    /// can be written leaves none behind, which would be another user's than that of the service.
    pub fn open_late(path: &Path) -> io::Result<LogFile> {
        let target = match open_with(path, OpenOptions::new().append(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                check_folder_of(path)?;
                None
            }
            opened => Some(opened?),
        };
        let path = path.to_owned();
        Ok(LogFile { path, target })
    }

    /// Writes whole lines at once, to the file that has the name now.
    pub fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let target = match self.target.take().filter(|target| target.is_at(&self.path)) {
            Some(target) => self.target.insert(target),
            None => self.target.insert(open(&self.path)?),
        };
        match target {
            LogTarget::Stdout => io::stdout()
                .lock()
                .write_all(text)
                .and_then(|()| io::stdout().flush()),
            LogTarget::Stderr => io::stderr().lock().write_all(text),
            LogTarget::File { lines, .. } => lines.append(text),
        }
    }
}

impl LogTarget {
    /// Whether a file still has its name.
    fn is_at(&self, path: &Path) -> bool {
        match self {
            LogTarget::Stdout | LogTarget::Stderr => true,
            LogTarget::File { identity, .. } => identity_of(path).is_ok_and(|now| now == *identity),
        }
    }
}

fn open(path: &Path) -> io::Result<LogTarget> {
    open_with(path, OpenOptions::new().append(true).create(true))
}

fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<LogTarget> {
    match path.to_str() {
        Some(STDOUT) => return Ok(LogTarget::Stdout),
        Some(STDERR) => return Ok(LogTarget::Stderr),
        _ => {}
    }
    let file = open_at_once(options, path)?;
    let metadata = file.metadata()?;
    Ok(LogTarget::File {
        lines: WholeLines {
            to: file,
            is_torn: false,
        },
        identity: FileIdentity(metadata.dev(), metadata.ino()),
    })
}

/// Whether a file can be made in the folder of this one.
fn check_folder_of(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Opens a file to write to, and does not wait for it, as for a pipe the system does until somebody reads it. Writing waits as ever.
fn open_at_once(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let opened = options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let file = opened.map_err(|error| {
        if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) {
            io::Error::new(error.kind(), "it is a pipe that nobody reads, or a socket")
        } else {
            error
        }
    })?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

fn identity_of(path: &Path) -> io::Result<FileIdentity> {
    let metadata = std::fs::metadata(path)?;
    Ok(FileIdentity(metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

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
    fn a_file_that_is_opened_late_is_made_with_its_first_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = LogFile::open_late(&path).unwrap();
        assert!(!path.exists());
        log.append(b"1\n").unwrap();
        LogFile::open_late(&path).unwrap().append(b"2\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(log.append(b"3\n").is_ok() && path.exists());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "3\n");
        assert!(LogFile::open_late(&directory.path().join("none/log")).is_err());
        assert!(LogFile::open_late(directory.path()).is_err());
    }

    /// Takes so many bytes, and then no more until it is given room.
    #[derive(Default)]
    struct SmallDisk {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_a_full_disk_cuts_off_takes_no_other_along() {
        for (room, expected) in [(0, "3\n"), (3, "aa\n3\n"), (4, "aa\nb\n3\n"), (6, "aa\nbb\n3\n")] {
            let to = SmallDisk {
                room,
                ..SmallDisk::default()
            };
            let mut lines = WholeLines { to, is_torn: false };
            assert_eq!(lines.append(b"aa\nbb\n").is_ok(), room == 6);
            lines.to.room = 0;
            assert!(lines.append(b"2\n").is_err());
            lines.to.room = 10;
            lines.append(b"3\n").unwrap();
            assert_eq!(String::from_utf8(lines.to.taken).unwrap(), expected);
        }
    }

    #[test]
    fn a_pipe_is_opened_at_once_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        // Whoever waited would never come back: somebody reads, but only after that.
        let (told, hears) = std::sync::mpsc::sync_channel(1);
        let of_thread = path.clone();
        let opening = std::thread::spawn(move || told.send(LogFile::open(&of_thread).map(drop)));
        let opened = hears.recv_timeout(std::time::Duration::from_secs(20));
        let mut reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        opening.join().unwrap().unwrap();
        let error = opened.expect("it waits for a reader").unwrap_err();
        assert_eq!(error.to_string(), "it is a pipe that nobody reads, or a socket");
        // More than a pipe holds: it is written as it is read.
        const LINES: usize = 40_000;
        let writing =
            std::thread::spawn(move || LogFile::open(&path)?.append("lines\n".repeat(LINES).as_bytes()));
        let mut read = vec![0; 6 * LINES];
        io::Read::read_exact(&mut reader, &mut read).unwrap();
        writing.join().unwrap().unwrap();
        assert!(read.ends_with(b"lines\n"));
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
