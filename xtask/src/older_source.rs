//! The files of an earlier commit, beside what cargo builds.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{Workspace, WorkspaceError, run};

/// Where an earlier commit is unpacked, and what is built of it is kept.
pub(crate) struct OlderSource<'a> {
    commit: &'a str,
    /// What belongs to the commit.
    pub(crate) folder: PathBuf,
}

impl<'a> OlderSource<'a> {
    pub(crate) fn of(workspace: &Workspace, commit: &'a str) -> OlderSource<'a> {
        OlderSource {
            commit,
            folder: workspace.target.join("older").join(commit),
        }
    }

    /// Writes its files, and says where they are.
    pub(crate) fn unpack(&self, workspace: &Workspace) -> Result<PathBuf, WorkspaceError> {
        let source = self.folder.join("source");
        let archive = self.folder.join("source.tar");
        run(Command::new("mkdir").arg("-p").arg(&source))?;
        run(Command::new("git")
            .current_dir(&workspace.root)
            .args(["archive", "--format=tar", "--output"])
            .args([archive.as_os_str(), self.commit.as_ref()]))?;
        run(Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .arg("-C")
            .arg(&source))?;
        Ok(source)
    }
}
