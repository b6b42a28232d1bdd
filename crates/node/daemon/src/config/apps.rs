//! `[[app]]`: to whom the name of an app belongs, and what an app of that name may do.

use std::path::PathBuf;

use provost_wire::limits::NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};

use super::{Config, GroupAccount, UserAccount};
use crate::policies::matches;

/// Tables of one configuration, at most.
pub(super) const TABLES_MAX: usize = 4096;
/// Longest workload identity, in bytes: that of a SPIFFE id, and what goes into a handshake between nodes.
const WORKLOAD_BYTES_MAX: usize = 2048;
/// Entries of a list in a table, at most.
const ENTRIES_MAX: usize = 256;

/// `[[app]]`. With one, only apps that have a table may attach.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AppTable {
    /// The name with which apps attach; `*` stands for any run of characters, `?` for one.
    pub name: String,
    /// Users to whom the name belongs; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserAccount>,
    /// Groups to whose members it belongs, supplementary ones included; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupAccount>,
    /// Programs to which it belongs, as files; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executables: Vec<PathBuf>,
    /// Control groups to whose processes it belongs, with those below; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<String>,
    /// Units of the system's systemd to whose processes it belongs; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<String>,
    /// Services that it may bind, by patterns as in `name`.
    #[serde(default)]
    pub may_bind: Vec<String>,
    /// Services that it may connect to, by patterns as in `name`.
    #[serde(default = "all_services")]
    pub may_connect: Vec<String>,
    /// Workload identity of its apps, such as a SPIFFE id, as other nodes and policies are told; none: the SPIFFE id of the
    /// node's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Apps of this table that are attached at once; none: as `limits.apps` allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachments: Option<usize>,
    /// Connections of one app of this table; none: as `limits.connections_per_app` allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
}

fn all_services() -> Vec<String> {
    vec!["*".to_owned()]
}

/// One value of a table that cannot stand: its key, what is wrong with it, and what would be right.
pub(super) type TableProblem = (&'static str, String);

impl AppTable {
    /// What is wrong with it.
    pub(super) fn problems(&self) -> Vec<TableProblem> {
        let mut problems = Vec::new();
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            let problem =
                format!("write a name of 1 to {NAME_BYTES_MAX} bytes, with '*' for any run of characters");
            problems.push(("name", problem));
        }
        let users = self.users.iter().filter_map(UserAccount::problem);
        problems.extend(users.map(|problem| ("users", problem)));
        let groups = self.groups.iter().filter_map(GroupAccount::problem);
        problems.extend(groups.map(|problem| ("groups", problem)));
        let relative = self.executables.iter().filter(|path| !path.is_absolute());
        problems.extend(relative.map(|path| {
            let problem = format!("\"{}\" is not an absolute path", path.display());
            ("executables", problem)
        }));
        let bad_cgroups = self.cgroups.iter().filter(|path| !is_cgroup(path));
        problems.extend(bad_cgroups.map(|path| {
            let problem = format!("\"{path}\" is not a path such as \"/system.slice/kv.service\"");
            ("cgroups", problem)
        }));
        let bad_units = self.units.iter().filter(|unit| !is_unit(unit));
        problems.extend(bad_units.map(|unit| {
            let problem = format!("\"{unit}\" is not a unit such as \"kv.service\"");
            ("units", problem)
        }));
        if let Some(workload) = &self.workload
            && (workload.is_empty() || workload.len() > WORKLOAD_BYTES_MAX)
        {
            let problem = format!(
                "write an identity of 1 to {WORKLOAD_BYTES_MAX} bytes, such as \"spiffe://example.org/kv\""
            );
            problems.push(("workload", problem));
        }
        self.patterns_problems(&mut problems);
        self.numbers_problems(&mut problems);
        problems
    }

    fn patterns_problems(&self, problems: &mut Vec<TableProblem>) {
        for (key, patterns) in [("may_bind", &self.may_bind), ("may_connect", &self.may_connect)] {
            let is_bad = |pattern: &&String| pattern.is_empty() || pattern.len() > NAME_BYTES_MAX;
            problems.extend(patterns.iter().filter(is_bad).map(|pattern| {
                let problem = format!(
                    "\"{pattern}\" is not a service such as \"kv.Kv\", or a pattern such as \"kv.*\""
                );
                (key, problem)
            }));
        }
    }

    fn numbers_problems(&self, problems: &mut Vec<TableProblem>) {
        let lengths = [
            ("users", self.users.len()),
            ("groups", self.groups.len()),
            ("executables", self.executables.len()),
            ("cgroups", self.cgroups.len()),
            ("units", self.units.len()),
            ("may_bind", self.may_bind.len()),
            ("may_connect", self.may_connect.len()),
        ];
        for (key, length) in lengths {
            if length > ENTRIES_MAX {
                problems.push((
                    key,
                    format!("{length} entries: at most {ENTRIES_MAX} are allowed"),
                ));
            }
        }
        for (key, limit) in [
            ("attachments", self.attachments),
            ("connections", self.connections),
        ] {
            if limit == Some(0) {
                problems.push((
                    key,
                    "0 is out of range: write 1 or more, or leave it out".to_owned(),
                ));
            }
        }
    }
}

fn is_cgroup(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("") && path.len() > 1 && parts.all(|part| !part.is_empty() && part != "..")
}

fn is_unit(unit: &str) -> bool {
    let has_kind = unit.rsplit_once('.').is_some_and(|(name, kind)| {
        !name.is_empty() && matches!(kind, "service" | "scope" | "socket" | "mount" | "swap")
    });
    has_kind && !unit.contains('/')
}

impl Config {
    /// Whether apps may name the addresses that they connect to: unless it is configured, where nothing is proved anyway.
    #[must_use]
    pub fn allows_app_addresses(&self) -> bool {
        self.control.allow_app_addresses.unwrap_or(self.tls.is_none())
    }

    /// The table of an app of this name: the one of that very name, else the first whose pattern fits.
    #[must_use]
    pub fn app_table(&self, name: &str) -> Option<&AppTable> {
        let named = self.apps.iter().find(|table| table.name == name);
        named.or_else(|| self.apps.iter().find(|table| matches(&table.name, name)))
    }

    /// A key of one of these tables as [`KeyPlaces`] has it.
    pub(crate) fn key_of_app_table(&self, table: &AppTable, key: &str) -> String {
        let at = self.apps.iter().position(|other| other.name == table.name);
        at.map_or_else(|| "app".to_owned(), |at| format!("app[{at}].{key}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::problems;
    use super::*;

    #[test]
    fn a_table_is_read_with_its_defaults() {
        let config = Config::parse("[[app]]\nname = \"kv\"\nusers = [\"root\", 7]\n", "test").unwrap();
        let table = &config.apps[0];
        assert!(table.users[0].is(0) && table.may_bind.is_empty());
        assert_eq!(table.may_connect, ["*"]);
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn every_problem_is_named_with_its_key() {
        let text = "[[app]]\nname = \"kv\"\nusers = [\"no-such-user\"]\ngroups = [\"no-such-group\"]\n\
                    executables = [\"kv\"]\ncgroups = [\"kv\", \"/a/../b\"]\nunits = [\"kv\"]\nmay_bind = [\"\"]\n\
                    attachments = 0\n[[app]]\nname = \"kv\"\n[[app]]\nname = \"\"\n";
        let keys = [
            "app[0].users",
            "app[0].groups",
            "app[0].executables",
            "app[0].cgroups",
            "app[0].cgroups",
            "app[0].units",
            "app[0].may_bind",
            "app[0].attachments",
            "app[1].name",
            "app[2].name",
        ];
        assert_eq!(problems(text), keys);
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line() {
        let error = Config::parse("[[app]]\nname = \"kv\"\nmay_bnid = []\n", "node.toml").unwrap_err();
        let error = error.to_string();
        assert!(error.contains("line 3") && error.contains("may_bnid"), "{error}");
    }

    #[test]
    fn the_very_name_comes_before_patterns_and_they_in_their_order() {
        let text = "[[app]]\nname = \"*\"\n[[app]]\nname = \"kv-*\"\n[[app]]\nname = \"kv-1\"\n";
        let config = Config::parse(text, "test").unwrap();
        let of = |name: &str| config.app_table(name).map(|table| table.name.as_str());
        assert_eq!(
            (of("kv-1"), of("kv-2"), of("x")),
            (Some("kv-1"), Some("*"), Some("*"))
        );
        assert_eq!(Config::default().app_table("x"), None);
    }

    #[test]
    fn addresses_are_the_apps_own_affair_only_without_tls() {
        let tls = "[tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\n";
        let allows = |text: &str| Config::parse(text, "test").unwrap().allows_app_addresses();
        assert!(allows("") && !allows(tls));
        assert!(allows(&format!("{tls}[control]\nallow_app_addresses = true\n")));
        assert!(!allows("[control]\nallow_app_addresses = false\n"));
    }
}
