//! A gRPC server of Go that allows few streams at a time on a connection, and answers no call before so many are under way.
#![allow(dead_code, reason = "each test uses what it needs of it")]

use std::net::SocketAddr;
use std::sync::LazyLock;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Program, World, eventually};
use rustix::process::Signal;

use crate::languages::{LanguagePrograms, ProgramSources};

const INTEROP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../interop");

/// Built once for all tests: a program that runs cannot be written.
static PROGRAM: LazyLock<Option<LanguagePrograms>> = LazyLock::new(|| {
    let sources = ProgramSources {
        name: "together",
        folder: INTEROP.into(),
    };
    sources.go_program("together")
});

/// The program, built; none where there is no Go, said as the tests say it.
pub(crate) fn program() -> Option<&'static LanguagePrograms> {
    PROGRAM.as_ref()
}

/// How the server is started.
pub(crate) struct TogetherTerms<'a> {
    /// Streams at a time on a connection.
    pub(crate) streams: usize,
    /// Calls that are answered together.
    pub(crate) calls: usize,
    pub(crate) listen: &'a str,
    /// The files of its certificate and key, if it speaks TLS.
    pub(crate) tls: Vec<String>,
}

/// A server that runs in a process of its own.
pub(crate) struct TogetherServer {
    pub(crate) program: Program,
    pub(crate) address: SocketAddr,
}

impl TogetherServer {
    pub(crate) fn start(
        program: &LanguagePrograms,
        world: &World,
        terms: TogetherTerms<'_>,
    ) -> TogetherServer {
        let (streams, calls) = (terms.streams.to_string(), terms.calls.to_string());
        let mut command = program.command(&program.client, &[&streams, &calls, terms.listen]);
        command.args(&terms.tls);
        let name = format!("together-{}", terms.listen.replace(':', "-"));
        let server = Program::start(&name, command, world.directory());
        let mut address: Option<SocketAddr> = None;
        eventually("the server listens", WAIT_MAX, || {
            let log = server.log();
            let said = log.lines().find_map(|line| line.strip_prefix("listening at "));
            address = said.and_then(|said| said.parse().ok());
            address.is_some()
        });
        TogetherServer {
            program: server,
            address: address.unwrap(),
        }
    }

    pub(crate) fn are_under_way(&self, calls: usize) {
        let said = format!("{calls} under way\n");
        eventually("all calls are at the server", WAIT_MAX, || {
            self.program.log().contains(&said)
        });
    }

    /// Has it answer what it holds, and what comes.
    pub(crate) fn release(&self) {
        self.program.signal(Signal::USR1);
    }

    pub(crate) fn connections(&self) -> usize {
        self.program.log().matches("connection from").count()
    }
}
