//! Clients and servers in other languages, each built with its own tools and its own gRPC library.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use provost_e2e::Node;

use crate::ROLE;
use crate::grpc_client::place;

/// Where the versions of the libraries of Python and Node are written down.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// The programs of one language, ready to be run.
pub(crate) struct LanguagePrograms {
    pub(crate) language: &'static str,
    pub(crate) client: Vec<OsString>,
    pub(crate) server: Vec<OsString>,
    /// Where libraries of Node are found.
    modules: PathBuf,
}

impl LanguagePrograms {
    pub(crate) fn command(&self, program: &[OsString], arguments: &[&str]) -> Command {
        let mut command = Command::new(&program[0]);
        command
            .args(&program[1..])
            .args(arguments)
            .env("NODE_PATH", &self.modules);
        command
    }
}

/// Programs of the same purpose, a folder for each language.
pub(crate) struct ProgramSources {
    /// What the folder of this build is called that what is built of them goes to.
    pub(crate) name: &'static str,
    pub(crate) folder: PathBuf,
}

/// A folder of this build for what a language needs.
fn folder(purpose: &str, language: &str) -> PathBuf {
    let folder = Path::new(ROLE).with_file_name(purpose).join(language);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs what prepares programs; `None` where the tool is missing or does not find what it needs, said as the tests say it.
pub(crate) fn prepared(command: &mut Command, tool: &str, remedy: &str) -> Option<Output> {
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            provost_skip::missing(tool, remedy);
            None
        }
        output => {
            let output = output.unwrap();
            if output.status.success() {
                return Some(output);
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            provost_skip::missing(&format!("{tool}: {said}"), remedy);
            None
        }
    }
}

impl ProgramSources {
    fn sources(&self, language: &str) -> PathBuf {
        self.folder.join(language)
    }

    pub(crate) fn go(&self) -> Option<LanguagePrograms> {
        let folder = folder(self.name, "go");
        let mut build = Command::new("go");
        build.current_dir(self.sources("go"));
        build
            .args(["build", "-o"])
            .arg(&folder)
            .args(["./client", "./server"]);
        prepared(&mut build, "go", "https://go.dev/dl")?;
        Some(LanguagePrograms {
            language: "Go",
            client: vec![folder.join("client").into()],
            server: vec![folder.join("server").into()],
            modules: PathBuf::new(),
        })
    }

    /// One program of Go, as a client.
    pub(crate) fn go_program(&self, name: &str) -> Option<LanguagePrograms> {
        let folder = folder(self.name, "go");
        let mut build = Command::new("go");
        build.current_dir(self.sources("go"));
        build.args(["build", "-o"]).arg(&folder).arg(format!("./{name}"));
        prepared(&mut build, "go", "https://go.dev/dl")?;
        Some(LanguagePrograms {
            language: "Go",
            client: vec![folder.join(name).into()],
            server: Vec::new(),
            modules: PathBuf::new(),
        })
    }

    pub(crate) fn python(&self) -> Option<LanguagePrograms> {
        let folder = folder("example-programs", "python");
        let python = folder.join("bin/python");
        let has_grpc = |python: &Path| {
            let output = Command::new(python).args(["-c", "import grpc_tools"]).output();
            output.is_ok_and(|output| output.status.success())
        };
        if !has_grpc(&python) {
            let remedy = "Python 3 with venv, and grpcio from PyPI";
            prepared(
                Command::new("python3").args(["-m", "venv"]).arg(&folder),
                "python3",
                remedy,
            )?;
            let mut install = Command::new(folder.join("bin/pip"));
            install.args(["install", "--quiet", "--requirement"]);
            let requirements = Path::new(EXAMPLES).join("python/requirements.txt");
            prepared(install.arg(requirements), "pip", remedy)?;
        }
        let run = |file: &str| vec![python.clone().into(), self.sources("python").join(file).into()];
        Some(LanguagePrograms {
            language: "Python",
            client: run("client.py"),
            server: run("server.py"),
            modules: PathBuf::new(),
        })
    }

    pub(crate) fn node(&self) -> Option<LanguagePrograms> {
        let folder = folder("example-programs", "node");
        let modules = folder.join("node_modules");
        if !modules.join("@grpc/grpc-js/package.json").exists() {
            let package = Path::new(EXAMPLES).join("node/package.json");
            std::fs::copy(package, folder.join("package.json")).unwrap();
            let mut install = Command::new("npm");
            install
                .current_dir(&folder)
                .args(["install", "--no-audit", "--no-fund"]);
            prepared(
                &mut install,
                "npm",
                "Node.js with npm, and @grpc/grpc-js from its registry",
            )?;
        }
        prepared(
            Command::new("node").arg("--version"),
            "node",
            "https://nodejs.org",
        )?;
        let run = |file: &str| vec!["node".into(), self.sources("node").join(file).into()];
        Some(LanguagePrograms {
            language: "Node",
            client: run("client.js"),
            server: run("server.js"),
            modules,
        })
    }

    pub(crate) fn java(&self) -> Option<LanguagePrograms> {
        let folder = folder(self.name, "java");
        let mut build = Command::new("mvn");
        build.current_dir(self.sources("java"));
        build.args(["--quiet", "--batch-mode", "package"]);
        build.arg(format!("-Dbuild.folder={}", folder.display()));
        prepared(&mut build, "mvn", "a JDK, and Maven")?;
        let classes = format!("{0}/pairs-1.jar:{0}/libraries/*", folder.display());
        let run = |class: &str| -> Vec<OsString> {
            ["java", "-classpath", &classes, class]
                .map(OsString::from)
                .to_vec()
        };
        Some(LanguagePrograms {
            language: "Java",
            client: run("pairs.Client"),
            server: run("pairs.Server"),
            modules: PathBuf::new(),
        })
    }

    pub(crate) fn cpp(&self) -> Option<LanguagePrograms> {
        let folder = folder(self.name, "cpp");
        let mut build = Command::new("make");
        build.current_dir(self.sources("cpp"));
        build.args(["--silent", &format!("BUILD={}", folder.display())]);
        prepared(
            &mut build,
            "make",
            "make, g++, libgrpc++-dev, libprotobuf-dev and protobuf-compiler-grpc",
        )?;
        Some(LanguagePrograms {
            language: "C++",
            client: vec![folder.join("client").into()],
            server: vec![folder.join("server").into()],
            modules: PathBuf::new(),
        })
    }
}

/// Where clients of a node connect, without the scheme.
pub(crate) fn place_of(node: &Node) -> String {
    place(node, "web").trim_start_matches("http://").to_owned()
}

/// An address at which nobody listens just now.
pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}
