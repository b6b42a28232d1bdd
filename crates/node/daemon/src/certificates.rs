//! Certificates in use: what this node proves itself with to other nodes, to gRPC clients and to gRPC servers, and whom it
//! believes there. Files are read again when they change, the last good ones kept while they are no good, and so are answers of the
//! SPIFFE Workload API. Connections that are open go on with what they began with.

use std::cell::RefCell;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use provost_admin::v1;
use provost_tls::{
    CertificateValidity, LoadedStreamTls, LoadedTls, OwnCertificate, SourceVersion, StreamClientFiles,
    StreamServerFiles, TlsConfigError, TlsSource, WorkloadIdentity,
};

use crate::config::{Config, NodeTlsOrigin};
use crate::workload_api::WorkloadSource;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A certificate ends soon when no more than this is left of it, or a quarter of its time where that is less.
const ENDS_SOON_S: i64 = 7 * 24 * 3600;

/// Files, or answers of the SPIFFE Workload API, and what they come to.
pub(crate) trait CertificateFiles: Clone + Send + 'static {
    type Loaded: Send + Sync + 'static;

    fn load(&self, workload: &WorkloadIdentity) -> Result<Self::Loaded, TlsConfigError>;

    /// Every file that it names.
    fn paths(&self) -> Vec<PathBuf>;

    /// Whether something of it comes from the Workload API.
    fn is_of_workload(&self) -> bool;

    /// Where this node's own certificate comes from, if there is one.
    fn own(&self) -> Option<CertificatePlace<'_>>;

    /// When that is valid.
    fn validity(loaded: &Self::Loaded) -> Option<CertificateValidity>;
}

/// Where a certificate comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CertificatePlace<'a> {
    File(&'a Path),
    Workload,
}

impl<'a> CertificatePlace<'a> {
    fn of(own: &'a OwnCertificate) -> CertificatePlace<'a> {
        own.file()
            .map_or(CertificatePlace::Workload, CertificatePlace::File)
    }
}

impl fmt::Display for CertificatePlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificatePlace::File(path) => write!(f, "{}", path.display()),
            CertificatePlace::Workload => f.write_str("the X.509-SVID of the SPIFFE Workload API"),
        }
    }
}

/// Files that are read again when they change.
pub(crate) struct FollowedCertificates<F: CertificateFiles> {
    files: F,
    workload: WorkloadSource,
    loaded: TlsSource<F::Loaded>,
    seen: RefCell<SeenFiles>,
}

/// What this node proves itself with to other nodes.
pub(crate) type NodeCertificates = FollowedCertificates<NodeTlsOrigin>;

/// How the files were when they were read last.
struct SeenFiles {
    stamps: SeenStamps,
    /// Why they were not taken, if they were not.
    problem: Option<String>,
}

/// What tells whether something has changed: a stamp of each file, and which answer of the Workload API it was.
#[derive(Debug, PartialEq, Eq)]
struct SeenStamps {
    files: Vec<Option<FileStamp>>,
    answer: Option<SourceVersion>,
}

/// What changes when a file is written or replaced: device, inode, length, times of change with their nanoseconds.
type FileStamp = [i64; 7];

impl CertificateFiles for NodeTlsOrigin {
    type Loaded = LoadedTls;

    fn load(&self, workload: &WorkloadIdentity) -> Result<LoadedTls, TlsConfigError> {
        match self {
            NodeTlsOrigin::Files(files) => files.load(),
            NodeTlsOrigin::Workload => LoadedTls::of_workload(workload),
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        match self {
            NodeTlsOrigin::Files(files) => files.files().map(Path::to_owned).collect(),
            NodeTlsOrigin::Workload => Vec::new(),
        }
    }

    fn is_of_workload(&self) -> bool {
        *self == NodeTlsOrigin::Workload
    }

    fn own(&self) -> Option<CertificatePlace<'_>> {
        Some(match self {
            NodeTlsOrigin::Files(files) => CertificatePlace::File(&files.cert),
            NodeTlsOrigin::Workload => CertificatePlace::Workload,
        })
    }

    fn validity(loaded: &LoadedTls) -> Option<CertificateValidity> {
        loaded.validity
    }
}

impl CertificateFiles for StreamServerFiles {
    type Loaded = LoadedStreamTls<rustls::ServerConfig>;

    fn load(&self, workload: &WorkloadIdentity) -> Result<Self::Loaded, TlsConfigError> {
        self.load_with(workload)
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.files()
    }

    fn is_of_workload(&self) -> bool {
        StreamServerFiles::is_of_workload(self)
    }

    fn own(&self) -> Option<CertificatePlace<'_>> {
        Some(CertificatePlace::of(&self.own))
    }

    fn validity(loaded: &Self::Loaded) -> Option<CertificateValidity> {
        loaded.validity
    }
}

impl CertificateFiles for StreamClientFiles {
    type Loaded = LoadedStreamTls<rustls::ClientConfig>;

    fn load(&self, workload: &WorkloadIdentity) -> Result<Self::Loaded, TlsConfigError> {
        self.load_with(workload)
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.files()
    }

    fn is_of_workload(&self) -> bool {
        StreamClientFiles::is_of_workload(self)
    }

    fn own(&self) -> Option<CertificatePlace<'_>> {
        self.own.as_ref().map(CertificatePlace::of)
    }

    fn validity(loaded: &Self::Loaded) -> Option<CertificateValidity> {
        loaded.validity
    }
}

impl<F: CertificateFiles> FollowedCertificates<F> {
    /// Reads files that were not read yet.
    pub(crate) fn read(
        files: F,
        workload: &WorkloadSource,
    ) -> Result<FollowedCertificates<F>, TlsConfigError> {
        // Looked at first: what is written while they are read is seen the next time.
        let stamps = stamps(&files, workload);
        let loaded = files.load(&workload.current())?;
        Ok(FollowedCertificates {
            workload: workload.clone(),
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
        let (files, workload) = (self.files.clone(), self.workload.clone());
        let now = tokio::task::spawn_blocking(move || stamps(&files, &workload)).await;
        if now.is_ok_and(|now| now != self.seen.borrow().stamps) {
            self.read_again().await;
        }
    }

    /// Reads the files again, and takes them if they are good.
    pub(crate) async fn read_again(&self) {
        let (files, workload) = (self.files.clone(), self.workload.clone());
        let read = tokio::task::spawn_blocking(move || {
            let stamps = stamps(&files, &workload);
            (stamps, files.load(&workload.current()))
        });
        let read = read.await;
        let Ok((stamps, read)) = read else {
            return;
        };
        let problem = match read {
            Ok(loaded) => {
                let ends_unix_s = F::validity(&loaded).map(|validity| validity.ends_unix_s);
                let file = self.files.own().map(|own| own.to_string());
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
        let ending = own.and_then(|(place, validity)| ending(validity, now_unix_s, place));
        not_taken.into_iter().chain(ending).collect()
    }
}

impl NodeCertificates {
    /// Reads the files that a configuration names; none without `[tls]`.
    pub(crate) fn load(
        config: &Config,
        workload: &WorkloadSource,
    ) -> Result<Option<Rc<NodeCertificates>>, TlsConfigError> {
        // `Config::check` has said what is wrong with the keys.
        let origin = config.tls.as_ref().and_then(|tls| tls.origin().ok());
        let read = origin.map(|origin| FollowedCertificates::read(origin, workload));
        Ok(read.transpose()?.map(Rc::new))
    }

    /// What this node proves itself with.
    pub(crate) fn describe(&self) -> v1::Certificates {
        let loaded = self.current();
        let validity = loaded.validity.as_ref();
        let of_files = match &self.files {
            NodeTlsOrigin::Workload => v1::Certificates::default(),
            NodeTlsOrigin::Files(files) => {
                let path = |path: &Path| path.display().to_string();
                v1::Certificates {
                    certificate_file: path(&files.cert),
                    key_file: path(&files.key),
                    authorities_file: path(&files.ca),
                    revocation_files: files.crls.iter().map(|file| path(file)).collect(),
                    ..v1::Certificates::default()
                }
            }
        };
        let trusted = self.files.is_of_workload().then(|| self.workload.current());
        let trusted = trusted.iter().flat_map(|workload| workload.trust_domains());
        v1::Certificates {
            enabled: true,
            identity: loaded.identity.name().to_owned(),
            begins_unix_s: validity.map_or(0, |validity| validity.begins_unix_s),
            ends_unix_s: validity.map_or(0, |validity| validity.ends_unix_s),
            warnings: self.warnings(),
            trust_domains: trusted.map(str::to_owned).collect(),
            ..of_files
        }
    }
}

impl<F: CertificateFiles> FollowedCertificates<F> {
    /// The certificate that it proves something with, if it has one.
    pub(crate) fn describe_own(&self, used_for: &str) -> Option<v1::UsedCertificate> {
        let validity = F::validity(&self.current());
        Some(v1::UsedCertificate {
            used_for: used_for.to_owned(),
            file: self.files.own()?.to_string(),
            ends_unix_s: validity.map_or(0, |validity| validity.ends_unix_s),
        })
    }
}

/// A warning of a certificate that has ended, or ends soon.
fn ending(validity: CertificateValidity, now_unix_s: i64, place: CertificatePlace<'_>) -> Option<String> {
    let left_s = validity.ends_unix_s - now_unix_s;
    let lasts_s = validity.ends_unix_s - validity.begins_unix_s;
    if left_s <= 0 {
        return Some(format!(
            "certificates: {place} has ended: new connections with this node are refused until it is replaced"
        ));
    }
    if left_s > ENDS_SOON_S.min(lasts_s / 4) {
        return None;
    }
    let (days, hours) = (left_s / 86_400, left_s % 86_400 / 3600);
    let what = match place {
        CertificatePlace::File(_) => "replace it, it is read by itself",
        CertificatePlace::Workload => "the agent should have given another one by now, look at its log",
    };
    Some(format!(
        "certificates: {place} ends in {days} d {hours} h: {what}"
    ))
}

fn stamps(files: &impl CertificateFiles, workload: &WorkloadSource) -> SeenStamps {
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
    SeenStamps {
        files: files.paths().iter().map(stamp).collect(),
        answer: files.is_of_workload().then(|| workload.version()),
    }
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
            ending(
                validity,
                lasts_s - left_s,
                CertificatePlace::File(Path::new("cert.pem")),
            )
        };
        assert_eq!(warning(365 * DAY, 8 * DAY), None);
        assert!(warning(365 * DAY, 6 * DAY).unwrap().contains("6 d 0 h"));
        assert_eq!(warning(DAY, DAY / 2), None);
        assert!(warning(DAY, DAY / 5).unwrap().contains("0 d 4 h"));
        assert!(warning(DAY, 0).unwrap().contains("has ended"));
    }
}
