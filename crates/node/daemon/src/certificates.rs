//! Certificates in use: what this node proves itself with to other nodes, to gRPC clients and to gRPC servers, and whom it
//! believes there. Files are read again when they change, the last good ones kept while they are no good. Connections that are
//! open go on with what they began with.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use provost_admin::v1;
use provost_tls::{
    CertificateValidity, LoadedStreamTls, LoadedTls, StreamClientFiles, StreamServerFiles, TlsConfig,
    TlsConfigError, TlsSource,
};

use crate::config::Config;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A certificate ends soon when no more than this is left of it, or a quarter of its time where that is less.
const ENDS_SOON_S: i64 = 7 * 24 * 3600;

/// Files, and what they come to.
pub(crate) trait CertificateFiles: Clone + Send + 'static {
    type Loaded: Send + Sync + 'static;

    fn load(&self) -> Result<Self::Loaded, TlsConfigError>;

    /// Every file that it names.
    fn paths(&self) -> Vec<PathBuf>;

    /// That of this node's own certificate, if there is one.
    fn own(&self) -> Option<&Path>;

    /// When that is valid.
    fn validity(loaded: &Self::Loaded) -> Option<CertificateValidity>;
}

/// Files that are read again when they change.
pub(crate) struct FollowedCertificates<F: CertificateFiles> {
    files: F,
    loaded: TlsSource<F::Loaded>,
    seen: RefCell<SeenFiles>,
}

/// What this node proves itself with to other nodes.
pub(crate) type NodeCertificates = FollowedCertificates<TlsConfig>;

/// How the files were when they were read last.
struct SeenFiles {
    stamps: Vec<Option<FileStamp>>,
    /// Why they were not taken, if they were not.
    problem: Option<String>,
}

/// What changes when a file is written or replaced: device, inode, length, times of change with their nanoseconds.
type FileStamp = [i64; 7];

impl CertificateFiles for TlsConfig {
    type Loaded = LoadedTls;

    fn load(&self) -> Result<LoadedTls, TlsConfigError> {
        TlsConfig::load(self)
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.files().map(Path::to_owned).collect()
    }

    fn own(&self) -> Option<&Path> {
        Some(&self.cert)
    }

    fn validity(loaded: &LoadedTls) -> Option<CertificateValidity> {
        loaded.validity
    }
}

impl CertificateFiles for StreamServerFiles {
    type Loaded = LoadedStreamTls<rustls::ServerConfig>;

    fn load(&self) -> Result<Self::Loaded, TlsConfigError> {
        StreamServerFiles::load(self)
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.files()
    }

    fn own(&self) -> Option<&Path> {
        Some(&self.cert)
    }

    fn validity(loaded: &Self::Loaded) -> Option<CertificateValidity> {
        loaded.validity
    }
}

impl CertificateFiles for StreamClientFiles {
    type Loaded = LoadedStreamTls<rustls::ClientConfig>;

    fn load(&self) -> Result<Self::Loaded, TlsConfigError> {
        StreamClientFiles::load(self)
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.files()
    }

    fn own(&self) -> Option<&Path> {
        self.own.as_ref().map(|(cert, _)| cert.as_path())
    }

    fn validity(loaded: &Self::Loaded) -> Option<CertificateValidity> {
        loaded.validity
    }
}

impl<F: CertificateFiles> FollowedCertificates<F> {
    /// Reads files that were not read yet.
    pub(crate) fn read(files: F) -> Result<FollowedCertificates<F>, TlsConfigError> {
        // Looked at first: what is written while they are read is seen the next time.
        let stamps = stamps(&files);
        let loaded = files.load()?;
        Ok(FollowedCertificates {
            loaded: TlsSource::new(Arc::new(loaded)),
            seen: RefCell::new(SeenFiles {
                stamps,
                problem: None,
            }),
            files,
        })
    }

    /// What new connections are made and accepted with.
    pub(crate) fn current(&self) -> Arc<F::Loaded> {
        self.loaded.current()
    }

    /// The same, for whoever connects from another thread, later.
    pub(crate) fn source(&self) -> TlsSource<F::Loaded> {
        self.loaded.clone()
    }

    /// Reads the files again whenever they have changed, for ever.
    pub(crate) async fn follow(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look().await;
        }
    }

    /// Reads the files again if they have changed.
    pub(crate) async fn look(&self) {
        let files = self.files.clone();
        let now = tokio::task::spawn_blocking(move || stamps(&files)).await;
        if now.is_ok_and(|now| now != self.seen.borrow().stamps) {
            self.read_again().await;
        }
    }

    /// Reads the files again, and takes them if they are good.
    pub(crate) async fn read_again(&self) {
        let files = self.files.clone();
        let read = tokio::task::spawn_blocking(move || (stamps(&files), files.load())).await;
        let Ok((stamps, read)) = read else {
            return;
        };
        let problem = match read {
            Ok(loaded) => {
                let ends_unix_s = F::validity(&loaded).map(|validity| validity.ends_unix_s);
                let file = self.files.own().map(|file| file.display().to_string());
                tracing::info!(file, ends_unix_s, "certificates were read again");
                self.loaded.replace(Arc::new(loaded));
                None
            }
            Err(error) => {
                tracing::error!(%error, "certificates were not taken: the last good ones stay");
                Some(error.to_string())
            }
        };
        *self.seen.borrow_mut() = SeenFiles { stamps, problem };
    }

    /// When the certificate in use ends, in seconds since 1970.
    pub(crate) fn ends_unix_s(&self) -> Option<i64> {
        F::validity(&self.current()).map(|validity| validity.ends_unix_s)
    }

    /// What an operator should look at.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let problem = self.seen.borrow().problem.clone();
        let not_taken = problem.map(|problem| {
            format!(
                "certificates: {problem}: the last good ones are in use; mend the file, it is read by itself"
            )
        });
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now_unix_s = now.map_or(0, |now| now.as_secs() as i64);
        let own = self.files.own().zip(F::validity(&self.current()));
        let ending = own.and_then(|(file, validity)| ending(validity, now_unix_s, file));
        not_taken.into_iter().chain(ending).collect()
    }
}

impl NodeCertificates {
    /// Reads the files that a configuration names; none without `[tls]`.
    pub(crate) fn load(config: &Config) -> Result<Option<Rc<NodeCertificates>>, TlsConfigError> {
        let Some(tls) = &config.tls else {
            return Ok(None);
        };
        let files = TlsConfig {
            ca: tls.ca.clone(),
            cert: tls.cert.clone(),
            key: tls.key.clone(),
            crls: tls.crls.clone(),
        };
        FollowedCertificates::read(files).map(|read| Some(Rc::new(read)))
    }

    /// What this node proves itself with.
    pub(crate) fn describe(&self) -> v1::Certificates {
        let loaded = self.current();
        let path = |path: &Path| path.display().to_string();
        let validity = loaded.validity.as_ref();
        v1::Certificates {
            enabled: true,
            identity: loaded.identity.name().to_owned(),
            certificate_file: path(&self.files.cert),
            key_file: path(&self.files.key),
            authorities_file: path(&self.files.ca),
            revocation_files: self.files.crls.iter().map(|file| path(file)).collect(),
            begins_unix_s: validity.map_or(0, |validity| validity.begins_unix_s),
            ends_unix_s: validity.map_or(0, |validity| validity.ends_unix_s),
            warnings: self.warnings(),
            others: Vec::new(),
        }
    }
}

impl<F: CertificateFiles> FollowedCertificates<F> {
    /// The certificate that it proves something with, if it has one.
    pub(crate) fn describe_own(&self, used_for: &str) -> Option<v1::UsedCertificate> {
        let validity = F::validity(&self.current());
        Some(v1::UsedCertificate {
            used_for: used_for.to_owned(),
            file: self.files.own()?.display().to_string(),
            ends_unix_s: validity.map_or(0, |validity| validity.ends_unix_s),
        })
    }
}

/// A warning of a certificate that has ended, or ends soon.
fn ending(validity: CertificateValidity, now_unix_s: i64, file: &Path) -> Option<String> {
    let file = file.display();
    let left_s = validity.ends_unix_s - now_unix_s;
    let lasts_s = validity.ends_unix_s - validity.begins_unix_s;
    if left_s <= 0 {
        return Some(format!(
            "certificates: {file} has ended: new connections with this node are refused until it is replaced"
        ));
    }
    if left_s > ENDS_SOON_S.min(lasts_s / 4) {
        return None;
    }
    let (days, hours) = (left_s / 86_400, left_s % 86_400 / 3600);
    Some(format!(
        "certificates: {file} ends in {days} days and {hours} hours: replace it, it is read by itself"
    ))
}

fn stamps(files: &impl CertificateFiles) -> Vec<Option<FileStamp>> {
    let stamp = |path: &PathBuf| -> Option<FileStamp> {
        let file = std::fs::metadata(path).ok()?;
        Some([
            file.dev() as i64,
            file.ino() as i64,
            file.size() as i64,
            file.mtime(),
            file.mtime_nsec(),
            file.ctime(),
            file.ctime_nsec(),
        ])
    };
    files.paths().iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_warned_of_when_a_week_or_a_quarter_of_its_time_is_left() {
        const DAY: i64 = 86_400;
        let warning = |lasts_s: i64, left_s: i64| {
            let validity = CertificateValidity {
                begins_unix_s: 0,
                ends_unix_s: lasts_s,
            };
            ending(validity, lasts_s - left_s, Path::new("cert.pem"))
        };
        assert_eq!(warning(365 * DAY, 8 * DAY), None);
        assert!(
            warning(365 * DAY, 6 * DAY)
                .unwrap()
                .contains("6 days and 0 hours")
        );
        assert_eq!(warning(DAY, DAY / 2), None);
        assert!(warning(DAY, DAY / 5).unwrap().contains("0 days and 4 hours"));
        assert!(warning(DAY, 0).unwrap().contains("has ended"));
    }
}
