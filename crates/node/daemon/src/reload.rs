//! The configuration while the node runs: what is in effect, reading it again, writing back what was changed meanwhile.
//!
//! A reload reads and checks everything before it changes anything. It makes policies, routes, limits of what is to
//! come, and the log's level what the files say, also where an operator has changed policies at run time; what needs a
//! restart is said in the log. A configuration that is refused changes nothing, and the last good one stays.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use crate::config::{Config, ConfigChange, ConfigError, Sources, TakesEffect, diff};
use crate::control_plane::ControlPlane;
use crate::enforcement;
use crate::grpc::NotListening;
use crate::grpc_certificates::GrpcTlsError;
use crate::migration::RouteFollower;
use crate::permits::ConnectionBounds;
use crate::policies::{Attachment, Change, ChangeError, Mode, Report};
use crate::preflight::{self, LibraryCheck};

/// File of a configuration directory into which policies are written back.
const WRITTEN_FILE: &str = "90-policies.toml";

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What differed from what was in effect.
    pub changes: Vec<ConfigChange>,
    /// What became of the policies.
    pub policies: Report,
    /// What it has undone that operators had done at run time, and policies that may not do what was meant.
    pub warnings: Vec<String>,
}

/// Why a configuration was not taken, or not written. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// It is not a good configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its policies cannot be attached.
    #[error(transparent)]
    Policy(#[from] ChangeError),
    /// A listener for gRPC clients could not be opened.
    #[error(transparent)]
    Grpc(#[from] NotListening),
    /// The certificates of gRPC are no good.
    #[error(transparent)]
    GrpcTls(#[from] GrpcTlsError),
    /// There are no files to write to.
    #[error(
        "the service was started without configuration files: start it with --config-dir DIR or --config FILE"
    )]
    NoFiles,
    /// A file could not be written.
    #[error("{}: {source}", path.display())]
    Write {
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Reads the configuration again and makes it the one in effect.
pub(crate) async fn reload(plane: &ControlPlane) -> Result<Reloaded, ReloadError> {
    let _turn = plane.config.turn().await;
    let outcome = take_up(plane).await;
    if !matches!(
        outcome,
        Err(ReloadError::Policy(ChangeError::Replaced | ChangeError::Ending))
    ) {
        let mut state = plane.config.state();
        state.read_at = SystemTime::now();
        state.error = outcome.as_ref().err().map(ToString::to_string);
    }
    match &outcome {
        Ok(reloaded) => {
            tracing::info!(
                changes = reloaded.changes.len(),
                "the configuration was read again"
            );
            for warning in &reloaded.warnings {
                tracing::warn!("{warning}");
            }
        }
        Err(ReloadError::Policy(ChangeError::Replaced)) => {
            tracing::info!("another process has taken over: the configuration is for that one to read");
        }
        Err(ReloadError::Policy(ChangeError::Ending)) => {
            tracing::info!("the service is ending: the configuration is not read again");
        }
        Err(error) => tracing::error!(%error, "the configuration was refused: the last good one stays"),
    }
    outcome
}

/// Brings policies to what the configuration says, in a process that has taken over from one whose configuration said
/// something else. What was changed at run time stays if it did not.
pub(crate) fn apply_configured(plane: &ControlPlane, before: &[Attachment]) {
    let attachments = plane.config.started.all_attachments();
    if attachments == before {
        return;
    }
    let plane = plane.clone();
    tokio::task::spawn_local(async move {
        let _turn = plane.config.turn().await;
        let change = Change::Apply {
            attachments: attachments.clone(),
        };
        plane.policies.maker.set_configured(&attachments);
        match plane.changes.carry_out(change, Mode::Apply).await {
            Ok(_) => {
                plane.policies.set_configured(attachments);
                tracing::info!("policies are as the configuration of this process says");
            }
            Err(error) => {
                tracing::error!(%error, "policies stay as those of the process before: the configuration's do not fit");
            }
        }
    });
}

async fn take_up(plane: &ControlPlane) -> Result<Reloaded, ReloadError> {
    // A process that gets ready to take over reads the same files, and opens listeners that are new in them: not meanwhile.
    let turn = plane.policies.hold().await?;
    check_not_draining(plane)?;
    let new = read_whole(plane, LibraryCheck::Load).await?;
    check_not_draining(plane)?;
    let changes = diff(&effective(plane), &new);
    let attachments = new.all_attachments();
    let change = Change::Apply {
        attachments: attachments.clone(),
    };
    let next = plane.config.started.with_live_keys_of(&new);
    let listeners = plane.grpc.prepare(&new)?;
    let certificates = plane.peers.grpc.prepare(&next)?;
    let undone = plane.policies.made_at_run_time().undone_by(&attachments);
    plane.policies.maker.set_configured(&attachments);
    let policies = plane
        .changes
        .carry_out_held(&turn, change, Mode::Apply)
        .await
        .inspect_err(|_| {
            let configured = plane.policies.configured();
            plane.policies.maker.set_configured(&configured);
        })?;
    plane.policies.set_configured(attachments);
    // From here on nothing can fail.
    crate::log::set_level(&new.log);
    plane
        .connections
        .permits
        .set_bounds(ConnectionBounds::from(&next.limits));
    let before = plane.config.set_live(next);
    plane.peers.grpc.put(certificates);
    // The new listeners serve before anything else comes in between; clients of others may take their time to go.
    drop(turn);
    if check_not_draining(plane).is_ok() {
        plane.grpc.change_listeners(listeners).await;
    }
    plane.relays.follow_routes();
    plane.connector.learn_schemas_ahead();
    enforcement::enforce(plane);
    let follower = RouteFollower {
        connector: Rc::clone(&plane.connector),
        changes: Rc::clone(&plane.changes),
        before,
    };
    follower.start();
    for change in &changes {
        if change.takes_effect == TakesEffect::Restarted {
            let (before, after) = (&change.before, &change.after);
            tracing::warn!(
                key = change.key,
                before,
                after,
                "takes effect when the service is started again"
            );
        }
    }
    if let Some(certificates) = &plane.peers.certificates {
        certificates.read_again().await;
    }
    plane.peers.grpc.read_again().await;
    let checked = plane.checked_policies();
    let checking = tokio::task::spawn_blocking(move || checked.warnings());
    let warnings = undone.into_iter().chain(checking.await.unwrap_or_default());
    Ok(Reloaded {
        changes,
        policies,
        warnings: warnings.collect(),
    })
}

/// A node that lets nobody in any more would open the listeners of the files again.
fn check_not_draining(plane: &ControlPlane) -> Result<(), ChangeError> {
    if plane.connections.is_draining() {
        return Err(ChangeError::Ending);
    }
    Ok(())
}

/// Reads the files and checks them whole.
async fn read_whole(plane: &ControlPlane, libraries: LibraryCheck) -> Result<Config, ReloadError> {
    let sources = plane.config.sources();
    let registry = Arc::clone(&plane.policies.maker.registry);
    let read = move || sources.read_checked(&|config| preflight::problems(config, &registry, libraries));
    let read = tokio::task::spawn_blocking(read).await;
    Ok(read.map_err(|_| ChangeError::Ending)??)
}

/// What a reload would change: to the files that the node was started with, or to these in their place.
pub(crate) async fn preview(
    plane: &ControlPlane,
    files: Option<BTreeMap<String, String>>,
) -> Result<Vec<ConfigChange>, ReloadError> {
    let new = match files {
        None => read_whole(plane, LibraryCheck::Look).await?,
        // Whoever brings these may not let the node open files for him: his own command has checked what they name.
        Some(files) => {
            let sources = plane.config.sources();
            let read = tokio::task::spawn_blocking(move || sources.read_files(&files)).await;
            read.map_err(|_| ChangeError::Ending)??
        }
    };
    Ok(diff(&effective(plane), &new))
}

/// The configuration in effect, with the policies as they are now.
pub(crate) fn effective(plane: &ControlPlane) -> Config {
    let live = plane.config.live();
    let attachments = plane.policies.effective();
    if attachments == live.all_attachments() {
        return (*live).clone();
    }
    Config {
        policies: Vec::new(),
        attachments,
        ..(*live).clone()
    }
}

/// The configuration in effect, in TOML.
pub(crate) fn effective_toml(plane: &ControlPlane) -> String {
    // A configuration came from TOML, and can be written as such.
    toml::to_string(&effective(plane)).unwrap_or_default()
}

/// Writes the policies as they are now into the files that the node was started with, and says where. They go into one
/// file; others lose theirs. (And their comments, if they had policies: each is kept beside as `NAME.bak`.)
pub(crate) async fn write_back(plane: &ControlPlane) -> Result<PathBuf, ReloadError> {
    let _turn = plane.config.turn().await;
    let sources = plane.config.sources();
    let path = written_file(&sources)?;
    // No change comes meanwhile, here or in a process that has taken over: what that one writes is not to be undone.
    let _unchanged = plane.policies.hold().await?;
    let attachments = plane.policies.effective();
    let (target, wrote) = (path.clone(), attachments.clone());
    let written = tokio::task::spawn_blocking(move || write(&sources, &target, wrote)).await;
    written.map_err(|_| ChangeError::Ending)??;
    plane.policies.set_configured(attachments.clone());
    let live = Config {
        policies: Vec::new(),
        attachments,
        ..(*plane.config.live()).clone()
    };
    plane.config.set_live(live);
    tracing::info!(path = %path.display(), "wrote the policies back");
    Ok(path)
}

/// The file into which policies are written back.
fn written_file(sources: &Sources) -> Result<PathBuf, ReloadError> {
    match (&sources.directory, &sources.file) {
        (Some(directory), _) => Ok(directory.join(WRITTEN_FILE)),
        (None, Some(file)) => Ok(file.clone()),
        (None, None) => Err(ReloadError::NoFiles),
    }
}

fn write(sources: &Sources, target: &Path, attachments: Vec<Attachment>) -> Result<(), ReloadError> {
    let listing = crate::policies::to_toml(attachments);
    let mut next: BTreeMap<String, String> = sources.texts()?.into_iter().collect();
    let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
    for (name, text) in &next {
        // What is half written now is not to be lost.
        let mut table: toml::Table = toml::from_str(text).map_err(|source| ConfigError::Syntax {
            origin: name.clone(),
            source: Box::new(source),
        })?;
        let has_policies = table.remove("policy").is_some() | table.remove("policies").is_some();
        if has_policies || target == Path::new(name) {
            files.insert(name.into(), table.to_string());
        }
    }
    let rest = files.entry(target.to_path_buf()).or_default();
    if !rest.is_empty() {
        rest.push('\n');
    }
    rest.push_str(&listing);
    // What would be read next is checked before a file is touched.
    next.extend(
        files
            .iter()
            .map(|(path, text)| (path.display().to_string(), text.clone())),
    );
    sources.read_files(&next)?;
    replace_all(&files, target)
}

/// Puts texts in the places of files. Nothing is replaced before all of them are on the disk, with what was there; then `first` is, so that
/// no policy is ever in none of the files.
fn replace_all(files: &BTreeMap<PathBuf, String>, first: &Path) -> Result<(), ReloadError> {
    let failed = |path: &Path, source| ReloadError::Write {
        path: path.to_path_buf(),
        source,
    };
    let mut drafts = Vec::with_capacity(files.len());
    for (path, text) in files {
        drafts.push(FileDraft::write(path, text).map_err(|source| failed(path, source))?);
    }
    drafts.sort_by_key(|draft| draft.path != first);
    for draft in &drafts {
        draft.put().map_err(|source| failed(&draft.path, source))?;
    }
    Ok(())
}

/// What is to take the place of a file, and a copy of what is there, both beside it on the disk. They are gone with this.
struct FileDraft {
    path: PathBuf,
    fresh: PathBuf,
    /// The copy, and what it is to be called.
    kept: Option<[PathBuf; 2]>,
}

impl FileDraft {
    fn write(path: &Path, text: &str) -> std::io::Result<FileDraft> {
        let beside = |extension: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(extension);
            PathBuf::from(name)
        };
        let draft = FileDraft {
            path: path.to_path_buf(),
            fresh: beside(".new"),
            kept: path.exists().then(|| [beside(".bak.new"), beside(".bak")]),
        };
        std::fs::write(&draft.fresh, text)?;
        std::fs::File::open(&draft.fresh)?.sync_all()?;
        if let Some([copy, _]) = &draft.kept {
            std::fs::set_permissions(&draft.fresh, std::fs::metadata(path)?.permissions())?;
            std::fs::copy(path, copy)?;
            std::fs::File::open(copy)?.sync_all()?;
        }
        Ok(draft)
    }

    fn put(&self) -> std::io::Result<()> {
        if let Some([copy, name]) = &self.kept {
            std::fs::rename(copy, name)?;
        }
        std::fs::rename(&self.fresh, &self.path)
    }
}

impl Drop for FileDraft {
    fn drop(&mut self) {
        // They have taken their places, or are of no use to anybody.
        let _ = std::fs::remove_file(&self.fresh);
        if let Some([copy, _]) = &self.kept {
            let _ = std::fs::remove_file(copy);
        }
    }
}
