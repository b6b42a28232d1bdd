//! The container's definition, held against the package that it is made of and the unit of the same service.

use std::collections::HashMap;

use super::{FILES, PROGRAMS};
use crate::workspace::Workspace;

/// The instructions of a definition: each word in capitals, with what stands behind it.
struct ContainerDefinition(Vec<(String, String)>);

impl ContainerDefinition {
    fn parse(text: &str) -> ContainerDefinition {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
        let instructions = joined.lines().filter_map(|line| line.split_once(' '));
        let owned = instructions.map(|(word, rest)| (word.to_owned(), words(rest).join(" ")));
        ContainerDefinition(owned.collect())
    }

    /// What stands behind an instruction that is there once.
    fn only(&self, word: &str) -> &str {
        let found: Vec<_> = self.0.iter().filter(|(of, _)| of == word).collect();
        assert_eq!(found.len(), 1, "{word}");
        &found[0].1
    }

    /// The strings of an instruction in its form of a list.
    fn list(&self, word: &str) -> Vec<String> {
        let text = self.only(word).trim_start_matches("CMD ");
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{word} {text}: {error}"))
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn read(path: &str) -> String {
    let path = Workspace::load().expect("the workspace").root.join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn definition() -> ContainerDefinition {
    ContainerDefinition::parse(&read("packaging/Containerfile"))
}

/// The settings of the unit; of one that stands there several times, the last.
fn unit() -> HashMap<String, String> {
    let text = read("packaging/provostd.service");
    let settings = text.lines().filter(|line| !line.starts_with('#'));
    let settings = settings.filter_map(|line| line.split_once('='));
    settings
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn the_container_starts_what_the_unit_starts_as_the_same_user() {
    let (definition, unit) = (definition(), unit());
    let mut started = definition.list("ENTRYPOINT");
    started.extend(definition.list("CMD"));
    assert_eq!(started[..2], ["/usr/bin/tini", "--"], "{started:?}");
    assert_eq!(started[2..].join(" "), unit["ExecStart"]);
    assert_eq!(definition.only("USER"), unit["User"]);
    assert!(read("packaging/sysusers.conf").contains(&format!("\nu {} ", unit["User"])));
    // As instructions are carried out in turn, it is root that installs.
    let at = |word: &str| definition.0.iter().position(|(of, _)| of == word);
    assert!(at("COPY") < at("RUN") && at("RUN") < at("USER") && at("USER") < at("ENTRYPOINT"));
}

#[test]
fn the_container_is_made_of_the_package_and_names_nothing_that_is_not_in_it() {
    let definition = definition();
    let [from, to] = words(definition.only("COPY"))[..] else {
        panic!("COPY {}", definition.only("COPY"));
    };
    assert_eq!(
        (from, to),
        ("provost_*.deb", "/tmp/"),
        "as `cargo xtask package` names it"
    );
    let run = definition.only("RUN");
    for needed in [
        "apt-get install --yes --no-install-recommends ",
        " tini ",
        // Those two programs of systemd are what the package's scripts call that must be there.
        " systemd-standalone-sysusers ",
        " systemd-standalone-tmpfiles ",
        " /tmp/provost_*.deb ",
        " install --directory --owner provost --group provost /run/provost",
    ] {
        assert!(run.contains(needed), "RUN {run}: {needed}");
    }
    let mut named = definition.list("ENTRYPOINT");
    named.extend(definition.list("CMD"));
    named.extend(definition.list("HEALTHCHECK"));
    for path in named.iter().filter(|word| word.starts_with('/')) {
        let is_program = path.strip_prefix("/usr/bin/");
        let is_program = is_program.is_some_and(|name| name == "tini" || PROGRAMS.contains(&name));
        let is_file = FILES.iter().any(|(_, to, _)| format!("/{to}") == *path);
        let is_made = read("packaging/tmpfiles.conf").contains(&format!("\nd {path} "));
        assert!(is_program || is_file || is_made, "{path}");
    }
}

#[test]
fn the_container_shares_where_apps_attach_and_what_operators_write() {
    let (definition, unit) = (definition(), unit());
    let volumes = definition.list("VOLUME");
    let runtime = format!("/run/{}", unit["RuntimeDirectory"]);
    let written = unit["ReadWritePaths"].trim_start_matches('-').to_owned();
    assert_eq!(volumes, [runtime, written]);
}
