//! The certificates of `[[grpc.listener]]` and of `[[route]]` to gRPC servers: one set for all that name the same files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use provost_admin::v1;
use provost_tls::{LoadedStreamTls, StreamClientFiles, StreamServerFiles, TlsConfigError, TlsSource};

use crate::certificates::{CertificateFiles, FollowedCertificates};
use crate::config::{Config, GrpcListenerConfig, RouteConfig, TlsFiles};
use crate::workload_api::WorkloadSource;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

type CertificateSets<F> = BTreeMap<F, Rc<FollowedCertificates<F>>>;
/// What connections of gRPC clients are accepted with.
pub(crate) type ListenerTlsSource = TlsSource<LoadedStreamTls<rustls::ServerConfig>>;
/// What connections to gRPC servers are made with.
pub(crate) type RouteTlsSource = TlsSource<LoadedStreamTls<rustls::ClientConfig>>;

/// See the module's documentation.
pub(crate) struct GrpcCertificates {
    workload: WorkloadSource,
    sets: RefCell<GrpcCertificateSets>,
}

/// The sets of one configuration.
#[derive(Clone, Default)]
pub(crate) struct GrpcCertificateSets {
    listeners: CertificateSets<StreamServerFiles>,
    routes: CertificateSets<StreamClientFiles>,
}

/// Why a configuration's certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GrpcTlsError {
    /// Those of `[tls]` are no good.
    #[error("tls: {0}")]
    Node(#[from] TlsConfigError),
    /// Its keys contradict each other.
    #[error("{key} {problem}")]
    Key {
        /// The key at fault.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Its files are no good.
    #[error("{key}: {source}")]
    Files {
        /// The table that names them.
        key: String,
        /// What is wrong with them.
        source: TlsConfigError,
    },
}

impl GrpcCertificates {
    /// Reads all files that a configuration names.
    pub(crate) fn load(config: &Config, workload: WorkloadSource) -> Result<GrpcCertificates, GrpcTlsError> {
        let certificates = GrpcCertificates {
            workload,
            sets: RefCell::default(),
        };
        let sets = certificates.prepare(config)?;
        certificates.put(sets);
        Ok(certificates)
    }

    /// The sets of another configuration: those that are there already, and the others, read.
    pub(crate) fn prepare(&self, config: &Config) -> Result<GrpcCertificateSets, GrpcTlsError> {
        let before = self.sets.borrow();
        let mut next = GrpcCertificateSets::default();
        let mut found = problems(config, &mut |set| match set {
            NamedFiles::Listener(files) => self.take_over(&before.listeners, &mut next.listeners, files),
            NamedFiles::Route(files) => self.take_over(&before.routes, &mut next.routes, files),
        });
        found.pop().map_or(Ok(next), Err)
    }

    /// Puts the sets of a configuration into use.
    pub(crate) fn put(&self, sets: GrpcCertificateSets) {
        *self.sets.borrow_mut() = sets;
    }

    /// What clients are accepted with at a listener, if it has TLS. It serves those who came there also when a reload has put
    /// other files in its place.
    pub(crate) fn of_listener(
        &self,
        node: Option<&TlsFiles>,
        listener: &GrpcListenerConfig,
    ) -> Option<ListenerTlsSource> {
        let files = listener.tls_files(node)?.ok()?;
        let sets = self.sets.borrow();
        sets.listeners.get(&files).map(|set| set.source())
    }

    /// What connections of a route are made with. The error says why there is nothing.
    pub(crate) fn of_route(
        &self,
        node: Option<&TlsFiles>,
        route: &RouteConfig,
    ) -> Result<RouteTlsSource, String> {
        let files = route.tls_files(node).and_then(Result::ok);
        let sets = self.sets.borrow();
        let set = files.and_then(|files| sets.routes.get(&files).map(|set| set.source()));
        set.ok_or_else(|| {
            format!(
                "the certificates of the route of {} are not loaded",
                route.service
            )
        })
    }

    /// Reads files again whenever they have changed, for ever.
    pub(crate) async fn follow(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let sets = self.sets.borrow().clone();
            for set in sets.listeners.values() {
                set.look().await;
            }
            for set in sets.routes.values() {
                set.look().await;
            }
        }
    }

    /// Reads all files again.
    pub(crate) async fn read_again(&self) {
        let sets = self.sets.borrow().clone();
        for set in sets.listeners.values() {
            set.read_again().await;
        }
        for set in sets.routes.values() {
            set.read_again().await;
        }
    }

    /// The certificates that it has of its own.
    pub(crate) fn describe(&self) -> Vec<v1::UsedCertificate> {
        let sets = self.sets.borrow();
        let listeners = sets.listeners.values();
        let listeners = listeners.filter_map(|set| set.describe_own("to gRPC clients"));
        let routes = sets.routes.values();
        let routes = routes.filter_map(|set| set.describe_own("to gRPC servers"));
        let mut all: Vec<v1::UsedCertificate> = listeners.chain(routes).collect();
        // Sets may differ in what they believe, and have the same certificate.
        all.sort_by(|one, other| (&one.used_for, &one.file).cmp(&(&other.used_for, &other.file)));
        all.dedup();
        all
    }

    /// What an operator should look at.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let sets = self.sets.borrow();
        let listeners = sets.listeners.values().flat_map(|set| set.warnings());
        let routes = sets.routes.values().flat_map(|set| set.warnings());
        let mut all: Vec<String> = listeners.chain(routes).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Takes a set over from the configuration before, or reads it.
    fn take_over<F: CertificateFiles + Ord>(
        &self,
        before: &CertificateSets<F>,
        next: &mut CertificateSets<F>,
        files: F,
    ) -> Result<(), TlsConfigError> {
        if next.contains_key(&files) {
            return Ok(());
        }
        let set = match before.get(&files) {
            Some(set) => Rc::clone(set),
            None => Rc::new(FollowedCertificates::read(files.clone(), &self.workload)?),
        };
        next.insert(files, set);
        Ok(())
    }
}

/// Files that a listener or a route names.
pub(crate) enum NamedFiles {
    Listener(StreamServerFiles),
    Route(StreamClientFiles),
}

/// What is wrong with the certificates of a configuration, after all of it was given to `read`.
pub(crate) fn problems(
    config: &Config,
    read: &mut dyn FnMut(NamedFiles) -> Result<(), TlsConfigError>,
) -> Vec<GrpcTlsError> {
    let listeners = config
        .grpc
        .listeners
        .iter()
        .enumerate()
        .filter_map(|(at, listener)| {
            let files = listener.tls_files(config.tls.as_ref())?;
            Some((format!("grpc.listener[{at}]"), files.map(NamedFiles::Listener)))
        });
    let routes = config.routes.iter().enumerate().filter_map(|(at, route)| {
        let files = route.tls_files(config.tls.as_ref())?;
        Some((format!("route[{at}]"), files.map(NamedFiles::Route)))
    });
    let mut problems = Vec::new();
    for (table, files) in listeners.chain(routes) {
        match files {
            Err((key, problem)) => problems.push(GrpcTlsError::Key {
                key: format!("{table}.{key}"),
                problem,
            }),
            Ok(files) => problems.extend(read(files).err().map(|source| GrpcTlsError::Files {
                key: format!("{table}.tls"),
                source,
            })),
        }
    }
    problems
}
