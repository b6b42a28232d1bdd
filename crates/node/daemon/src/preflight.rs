//! Whether a configuration would work: everything that a start or a reload with it would find wrong outside its text, such
//! as policies, libraries, certificates, schemas. Nothing is started.
//!
//! `provost config check`, `provostd --check-config`, `provost config diff`, a reload and a start all ask here, and so agree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use provost_engine::NoEvents;
use provost_tls::TlsConfigError;

use crate::audit_log::AuditLog;
use crate::certificates::NodeCertificates;
use crate::config::{Config, ConfigError, ListenAddress, Problem, Sources, TlsFiles};
use crate::grpc_certificates::{self, GrpcTlsError, NamedFiles};
use crate::log;
use crate::page_token;
use crate::policies::{Attachment, ChangeError, Maker, Registry, fit};
use crate::schemas::{BoundSchema, SchemaBounds, SchemaStore};
use crate::workload_api::WorkloadSource;

/// What is done with libraries of engines that are not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LibraryCheck {
    /// They are loaded. That runs their code, and they stay in the process.
    Load,
    /// They must be there. Policies of kinds that nobody knows yet are not checked.
    Look,
}

/// Reads a configuration and checks it whole, as a node would that starts with it.
pub fn read_configuration(sources: &Sources) -> Result<Config, ConfigError> {
    let registry = Arc::new(Registry::with_built_ins());
    sources.read_checked(&|config| problems(config, &registry, LibraryCheck::Load))
}

/// What is wrong with a configuration beyond its text.
pub(crate) fn problems(config: &Config, registry: &Arc<Registry>, libraries: LibraryCheck) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut add = |key: &str, message: String| {
        let key = key.to_owned();
        found.push(Problem { key, message });
    };
    if let Some(problem) = log::level_problem(&config.log) {
        add("log.level", problem);
    }
    for (key, path) in made_paths(config) {
        if let Some(problem) = missing_folder(&path) {
            add(&key, problem);
        }
    }
    if let Some(Err(problem)) = config
        .page
        .token_file()
        .map(|file| page_token::check_token(&file))
    {
        add("page.token_file", problem);
    }
    let audit_file = &config.observe.audit_file;
    if !audit_file.is_empty()
        && let Err(error) = AuditLog::check(audit_file.as_ref())
    {
        let message = format!(
            "{audit_file} cannot be written: {error}{}",
            permission_hint(&error)
        );
        add("observe.audit_file", message);
    }
    // What the SPIFFE Workload API says, it says to the process of the service alone.
    let workload = WorkloadSource::new(Arc::default());
    if let (Some(files), Err(error)) = (&config.tls, NodeCertificates::load(config, &workload)) {
        add(tls_key(files, &error), error.to_string());
    }
    let read = &mut |files| match files {
        NamedFiles::Listener(files) => files.load().map(drop),
        NamedFiles::Route(files) => files.load().map(drop),
    };
    for problem in grpc_certificates::problems(config, read) {
        // `Config::check` has said what is wrong with the keys.
        if let GrpcTlsError::Files { key, source } = problem {
            add(&key, source.to_string());
        }
    }
    let mut unknown_kinds = UnknownKinds::Refused;
    for (at, path) in config.engines.iter().enumerate() {
        if let Err(problem) = check_library(registry, path, libraries, &mut unknown_kinds) {
            add(&format!("engines[{at}]"), problem);
        }
    }
    let schemas = check_schemas(config, &mut add);
    let policies = PolicyCheck {
        registry,
        unknown_kinds,
        schemas: &schemas,
    };
    policies.run(config, &mut add);
    found
}

/// Where service managers make a service's folder when they start it.
const FOLDERS_MADE_AT_START: [&str; 2] = ["/run", "/var/run"];

/// Paths at which sockets and files are to be made, each with its key.
fn made_paths(config: &Config) -> Vec<(String, PathBuf)> {
    let mut paths = vec![("control.socket".to_owned(), config.control.socket.clone())];
    if let (true, Some(admin)) = (config.admin.enabled, &config.admin.socket) {
        paths.push(("admin.socket".to_owned(), admin.clone()));
    }
    // By default it is beside the control socket.
    if let (true, Some(policies)) = (config.admin.enabled, &config.admin.policies_file) {
        paths.push(("admin.policies_file".to_owned(), policies.clone()));
    }
    let mut add = |key: &str, address: Option<ListenAddress>| {
        if let Some(ListenAddress::Unix(path)) = address {
            paths.push((key.to_owned(), path));
        }
    };
    // `Config::check` has said what is wrong with addresses.
    for (at, listener) in config.grpc.listeners.iter().enumerate() {
        add(
            &format!("grpc.listener[{at}].address"),
            listener.listen_address().ok(),
        );
    }
    add("observe.listen", config.observe.address().unwrap_or_default());
    add("page.listen", config.page.address().unwrap_or_default());
    paths
}

/// What is wrong with the folder of what is to be made.
fn missing_folder(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let may_be_made = FOLDERS_MADE_AT_START.iter().any(|made| folder.starts_with(made));
    let folder_is_there = std::fs::metadata(folder).is_ok_and(|folder| folder.is_dir());
    (!may_be_made && !folder_is_there).then(|| {
        format!(
            "{}: there is no directory {}: make it, or name another path",
            path.display(),
            folder.display()
        )
    })
}

/// What is said of policies of kinds that are not known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnknownKinds {
    Refused,
    /// A library that is not loaded may have them.
    Skipped,
}

fn check_library(
    registry: &Registry,
    path: &Path,
    libraries: LibraryCheck,
    unknown_kinds: &mut UnknownKinds,
) -> Result<(), String> {
    if libraries == LibraryCheck::Load {
        return registry.load(path).map(drop).map_err(|error| error.to_string());
    }
    if registry
        .libraries()
        .iter()
        .any(|loaded| Path::new(loaded) == path)
    {
        return Ok(());
    }
    *unknown_kinds = UnknownKinds::Skipped;
    let opened = std::fs::File::open(path);
    let problem = |error| format!("{}: {error}{}", path.display(), permission_hint(&error));
    opened.map(drop).map_err(problem)
}

/// The schemas that the configuration names.
fn check_schemas(config: &Config, add: &mut dyn FnMut(&str, String)) -> Vec<Arc<BoundSchema>> {
    let bounds = SchemaBounds {
        node: config.limits.schemas,
        per_user: config.limits.schemas_per_user,
    };
    let store = SchemaStore::new(bounds, None);
    for (at, path) in config.schemas.prefetch.iter().enumerate() {
        if let Err(error) = store.prefetch(path) {
            add(&format!("schemas.prefetch[{at}]"), error.to_string());
        }
    }
    store.list()
}

/// What policies are checked with.
struct PolicyCheck<'a> {
    registry: &'a Arc<Registry>,
    unknown_kinds: UnknownKinds,
    schemas: &'a [Arc<BoundSchema>],
}

impl PolicyCheck<'_> {
    fn run(&self, config: &Config, add: &mut dyn FnMut(&str, String)) {
        let node = config.node.name.as_str().into();
        let maker = Maker::new(Arc::clone(self.registry), node, Arc::new(NoEvents));
        let named = config.policies.iter().enumerate();
        let named = named.map(|(at, kind)| (format!("policies[{at}]"), Attachment::of_kind(kind)));
        let attached = config.attachments.iter().enumerate();
        let attached = attached.map(|(at, attachment)| (format!("policy[{at}]"), attachment.clone()));
        for (key, attachment) in named.chain(attached) {
            match maker.instance(&attachment, None) {
                Ok(instance) => {
                    if let Err(unfit) = fit::unfit_for(&instance, self.schemas) {
                        add(&format!("{key}.config"), unfit.problem);
                    }
                }
                Err(error) => self.refused(&key, &error, add),
            }
        }
    }

    fn refused(&self, key: &str, error: &ChangeError, add: &mut dyn FnMut(&str, String)) {
        match error {
            // `Config::check` has said so.
            ChangeError::Invalid { .. } => {}
            ChangeError::Kind { .. } if self.unknown_kinds == UnknownKinds::Skipped => {}
            ChangeError::Kind { error, .. } => add(&format!("{key}.kind"), error.to_string()),
            ChangeError::Config { error, .. } => {
                add(&config_key(key, &error.key), error.problem.clone());
            }
            _ => add(key, error.to_string()),
        }
    }
}

fn config_key(policy: &str, key: &str) -> String {
    match key {
        "" => format!("{policy}.config"),
        key => format!("{policy}.config.{key}"),
    }
}

/// The key that names the file which is at fault.
fn tls_key(files: &TlsFiles, error: &TlsConfigError) -> &'static str {
    match error {
        // What has a certificate and no key, under two names, is wrong as the key.
        TlsConfigError::File { path, .. } if files.cert == files.key && files.key.as_ref() == Some(path) => {
            "tls.key"
        }
        TlsConfigError::File { path, .. } if files.ca.as_ref() == Some(path) => "tls.ca",
        TlsConfigError::File { path, .. } if files.cert.as_ref() == Some(path) => "tls.cert",
        TlsConfigError::File { path, .. } if files.crls.contains(path) => "tls.crls",
        TlsConfigError::Workload(_) => "tls.spiffe",
        TlsConfigError::File { .. } | TlsConfigError::Mismatch { .. } | TlsConfigError::System { .. } => {
            "tls.key"
        }
    }
}

fn permission_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            ": check as the user of the service, or change the permissions"
        }
        _ => "",
    }
}
