//! To whom names of apps belong, and what an app may bind and connect to: `[[app]]` of the configuration against what the
//! kernel says of the app's process. Every refusal names the table or the key that it follows from, and goes into the
//! audit log.
//!
//! ```text
//! attach ──► whose is the name? ──► bind ──► may this name? is the service another user's? ──► offered
//!                              └──► connect ──► may this name? ──► opened
//! reload ──► the same for all that is attached, bound and connected: what is not allowed any more ends, with a reason
//! ```

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use provost_engine::{AppIdentity, rfc3339};
use provost_processes::ProcessFacts;
use provost_wire::Code;
use serde::Serialize;

use crate::app_process::AppProcess;
use crate::app_registry::AttachedApp;
use crate::audit_log::{AuditLog, cut};
use crate::config::{AppTable, Config};
use crate::configuration::Configuration;
use crate::log::may_record_refusal;
use crate::policies::matches;
use crate::refusal::Refusal;
use crate::runtime::AppId;

/// What an app asked for and may not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthorityDenial {
    /// The table or the key that it follows from.
    pub(crate) rule: String,
    /// Where that stands in the configuration, if it does: `app[0].may_bind`.
    key: Option<String>,
    /// Why, and what to do.
    pub(crate) reason: String,
}

impl From<AuthorityDenial> for Refusal {
    fn from(denial: AuthorityDenial) -> Refusal {
        Refusal::new(Code::PermissionDenied, denial.reason)
    }
}

/// What an app asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppAction {
    Attach,
    Bind,
    Connect,
}

impl AppAction {
    fn name(self) -> &'static str {
        match self {
            AppAction::Attach => "attach",
            AppAction::Bind => "bind",
            AppAction::Connect => "connect",
        }
    }
}

/// Who asks, as records and refusals name it.
#[derive(Clone, Copy)]
pub(crate) struct AskingApp<'a> {
    pub(crate) app: &'a str,
    /// Its number; none while it has not attached.
    pub(crate) id: Option<AppId>,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

impl<'a> AskingApp<'a> {
    pub(crate) fn of(app: &'a AttachedApp) -> AskingApp<'a> {
        AskingApp::of_identity(&app.endpoint.identity)
    }

    fn of_identity(identity: &'a AppIdentity) -> AskingApp<'a> {
        AskingApp {
            app: &identity.name,
            id: Some(identity.id),
            pid: identity.pid,
            uid: identity.uid,
        }
    }
}

/// A record of the audit log: an app was refused something, or has lost it.
#[derive(Serialize)]
struct AuthorityRecord<'a> {
    time: &'a str,
    event: &'static str,
    node: &'a str,
    action: &'static str,
    app: String,
    pid: i32,
    uid: u32,
    service: String,
    rule: &'a str,
    outcome: &'static str,
    message: String,
    /// Refusals before this one that were left out: an app has so many in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    withheld: Option<u64>,
}

/// See the module's documentation.
pub(crate) struct AppAuthority {
    pub(crate) config: Rc<Configuration>,
    pub(crate) audit: Arc<AuditLog>,
}

impl AppAuthority {
    /// Whether a process may attach under a name; its table, if there are any.
    pub(crate) fn admit(
        &self,
        live: &Config,
        name: &str,
        process: &mut AppProcess,
    ) -> Result<Option<AppTable>, AuthorityDenial> {
        let outcome = owner(live, name, process).map(|table| table.cloned());
        let outcome = outcome.map_err(|denial| self.placed(denial));
        if let Ok(Some(table)) = &outcome {
            process.program = found_program(&table.executables, process).cloned();
        }
        outcome.inspect_err(|denial| {
            let asker = AskingApp {
                app: name,
                id: None,
                pid: process.credentials.pid,
                uid: process.credentials.uid,
            };
            self.record(AppAction::Attach, asker, "", denial);
        })
    }

    /// Whether an app may bind a service, beside apps of these users that have bound it.
    pub(crate) fn may_bind(
        &self,
        app: &AttachedApp,
        service: &str,
        bound_by: &[Rc<AttachedApp>],
    ) -> Result<(), AuthorityDenial> {
        let live = self.config.live();
        let other = bound_by.iter().find(|other| other.uid() != app.uid());
        let outcome = may_bind(&live, app.name(), service).and_then(|()| match other {
            Some(other) if live.apps.is_empty() => Err(bound_by_another(app, service, other)),
            _ => Ok(()),
        });
        let outcome = outcome.map_err(|denial| self.placed(denial));
        outcome.inspect_err(|denial| self.record(AppAction::Bind, AskingApp::of(app), service, denial))
    }

    /// Whether an app may connect to a service.
    pub(crate) fn may_connect(&self, app: &AttachedApp, service: &str) -> Result<(), AuthorityDenial> {
        self.still_may(AppAction::Connect, &app.endpoint.identity, service)
    }

    /// Whether an app may do, by the configuration in effect now, what it was allowed a while ago.
    pub(crate) fn still_may(
        &self,
        action: AppAction,
        app: &AppIdentity,
        service: &str,
    ) -> Result<(), AuthorityDenial> {
        let outcome = may(&self.config.live(), &app.name, service, action);
        let outcome = outcome.map_err(|denial| self.placed(denial));
        outcome.inspect_err(|denial| self.record(action, AskingApp::of_identity(app), service, denial))
    }

    /// Whether an app that may connect to a service may be told of it.
    pub(crate) fn may_know(&self, app: &AttachedApp, service: &str) -> bool {
        may_connect(&self.config.live(), app.name(), service).is_ok()
    }

    /// The same denial with the place of the configuration that it follows from.
    pub(crate) fn placed(&self, denial: AuthorityDenial) -> AuthorityDenial {
        AuthorityDenial {
            reason: match &denial.key {
                Some(key) => self.config.refusal_by(key, &denial.reason),
                None => self.config.refusal(&denial.reason),
            },
            ..denial
        }
    }

    /// Puts a refusal, or the end of what was allowed before, into the audit log.
    pub(crate) fn record(
        &self,
        action: AppAction,
        asker: AskingApp<'_>,
        service: &str,
        denial: &AuthorityDenial,
    ) {
        let Some(withheld) = may_record_refusal(asker.uid, asker.id) else {
            return;
        };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time = rfc3339(since.map_or(0, |since| since.as_nanos() as u64));
        let node = self.config.node_name();
        let record = AuthorityRecord {
            time: &time,
            event: "authority",
            node: &node,
            action: action.name(),
            app: cut(asker.app.to_owned()),
            pid: asker.pid,
            uid: asker.uid,
            service: cut(service.to_owned()),
            rule: &denial.rule,
            outcome: Code::PermissionDenied.name(),
            message: cut(denial.reason.clone()),
            withheld: Some(withheld).filter(|withheld| *withheld > 0),
        };
        match serde_json::to_string(&record) {
            Ok(line) => self.audit.line(line),
            Err(error) => tracing::error!(%error, "cannot write an audit record"),
        }
    }
}

/// The table of a name, if the process is one to which the name belongs. None: there are no tables.
pub(crate) fn owner<'c>(
    live: &'c Config,
    name: &str,
    process: &AppProcess,
) -> Result<Option<&'c AppTable>, AuthorityDenial> {
    if live.apps.is_empty() {
        return Ok(None);
    }
    let table = table_of(live, name)?;
    let Some(unmet) = unmet_condition(table, process) else {
        return Ok(Some(table));
    };
    let rule = rule_of(table, unmet.key);
    let reason = format!(
        "the name \"{name}\" is not this process's: {rule} of the node's configuration does not have {}",
        unmet.what
    );
    let key = Some(live.key_of_app_table(table, unmet.key));
    Err(AuthorityDenial { rule, key, reason })
}

/// The name of the first table, of those for one name, to whose conditions a process answers.
pub(crate) fn name_of<'c>(live: &'c Config, process: &AppProcess) -> Option<&'c str> {
    let mut named = live.apps.iter().filter(|table| !table.name.contains(['*', '?']));
    let table = named.find(|table| unmet_condition(table, process).is_none());
    table.map(|table| table.name.as_str())
}

/// Whether an app of this name may bind a service.
pub(crate) fn may_bind(live: &Config, app: &str, service: &str) -> Result<(), AuthorityDenial> {
    may(live, app, service, AppAction::Bind)
}

/// Whether an app of this name may connect to a service.
pub(crate) fn may_connect(live: &Config, app: &str, service: &str) -> Result<(), AuthorityDenial> {
    may(live, app, service, AppAction::Connect)
}

fn may(live: &Config, app: &str, service: &str, action: AppAction) -> Result<(), AuthorityDenial> {
    if live.apps.is_empty() {
        return Ok(());
    }
    let table = table_of(live, app)?;
    let (key, patterns, what) = match action {
        AppAction::Bind => ("may_bind", &table.may_bind, "bind"),
        AppAction::Attach | AppAction::Connect => ("may_connect", &table.may_connect, "connect to"),
    };
    if patterns.iter().any(|pattern| matches(pattern, service)) {
        return Ok(());
    }
    let rule = rule_of(table, key);
    let reason = format!(
        "the app \"{app}\" may not {what} {service}: {rule} of the node's configuration does not have it"
    );
    let key = Some(live.key_of_app_table(table, key));
    Err(AuthorityDenial { rule, key, reason })
}

fn table_of<'c>(live: &'c Config, name: &str) -> Result<&'c AppTable, AuthorityDenial> {
    live.app_table(name).ok_or_else(|| AuthorityDenial {
        rule: "[[app]]".to_owned(),
        key: None,
        reason: format!(
            "no [[app]] of the node's configuration has the name \"{name}\", so no app may attach under it: add one"
        ),
    })
}

fn rule_of(table: &AppTable, key: &str) -> String {
    format!("{key} of [[app]] \"{}\"", table.name)
}

fn bound_by_another(app: &AttachedApp, service: &str, other: &AttachedApp) -> AuthorityDenial {
    let reason = format!(
        "{service} is bound by user {} (app {} \"{}\"), and user {} may not bind it too: give each an [[app]] with may_bind \
         in the node's configuration",
        other.uid(),
        other.id(),
        other.name(),
        app.uid()
    );
    AuthorityDenial {
        rule: "a service belongs to the user who has bound it, without [[app]]".to_owned(),
        key: None,
        reason,
    }
}

/// A condition of a table that a process does not meet.
struct UnmetCondition {
    key: &'static str,
    /// What the process has instead.
    what: String,
}

fn unmet_condition(table: &AppTable, process: &AppProcess) -> Option<UnmetCondition> {
    let AppProcess {
        credentials, facts, ..
    } = process;
    let unmet = |key, what| Some(UnmetCondition { key, what });
    if !table.users.is_empty() && !credentials.is_listed(&table.users, &[]) {
        return unmet("users", format!("user {}", credentials.uid));
    }
    if !table.groups.is_empty() && !credentials.is_listed(&[], &table.groups) {
        let groups = format!(
            "group {}, nor a supplementary group of the process",
            credentials.gid
        );
        return unmet("groups", groups);
    }
    if !table.executables.is_empty() && found_program(&table.executables, process).is_none() {
        return unmet("executables", describe_executable(facts));
    }
    let cgroup = facts.cgroup.as_deref();
    let unreadable = "a control group that cannot be read".to_owned();
    if !table.cgroups.is_empty() && !cgroup.is_some_and(|own| is_in_one_of(&table.cgroups, own)) {
        return unmet(
            "cgroups",
            cgroup.map_or(unreadable, |own| format!("control group {own}")),
        );
    }
    let unit = cgroup.and_then(unit_of);
    if !table.units.is_empty() && !unit.is_some_and(|own| table.units.iter().any(|unit| unit == own)) {
        let none = "a process of no unit of the system's systemd".to_owned();
        return unmet("units", unit.map_or(none, |own| format!("unit {own}")));
    }
    None
}

/// The one of these programs that a process runs: that very file, or the one that was there when it attached.
fn found_program<'p>(paths: &'p [PathBuf], process: &AppProcess) -> Option<&'p PathBuf> {
    let executable = process.facts.executable.as_ref();
    let runs = |path: &&PathBuf| {
        process.program.as_ref() == Some(*path) || executable.is_some_and(|own| own.is_at(path))
    };
    paths.iter().find(runs)
}

fn describe_executable(facts: &ProcessFacts) -> String {
    match &facts.executable {
        Some(executable) => format!(
            "the program {}, or another file is at its path",
            executable.path.display()
        ),
        None => {
            "a program that cannot be read: to see programs of other users the service needs CAP_SYS_PTRACE"
                .to_owned()
        }
    }
}

/// Whether a control group is one of these, or below.
fn is_in_one_of(groups: &[String], own: &str) -> bool {
    let is_in = |group: &String| {
        let rest = own.strip_prefix(group.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    groups.iter().any(is_in)
}

/// The unit of the system's systemd to which a control group belongs: the first part of its path that is no slice. What is
/// behind it is that unit's own affair; a user's units are behind `user@….service`.
fn unit_of(cgroup: &str) -> Option<&str> {
    let mut parts = cgroup.split('/').filter(|part| !part.is_empty());
    let unit = parts.find(|part| !part.ends_with(".slice"))?;
    // A part that systemd escapes begins with an underscore where it could be mistaken for another file.
    let unit = unit.strip_prefix('_').unwrap_or(unit);
    unit.contains('.').then_some(unit)
}

/// What apps may do for want of tables; nothing where there are some.
pub(crate) fn openness(live: &Config) -> Option<&'static str> {
    live.apps.is_empty().then_some(
        "open: the configuration has no [[app]], so an app may attach under any name, bind any service that no other user \
         has bound, and connect to any",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Credentials;
    use crate::config::Sources;

    fn process(uid: u32, gid: u32) -> AppProcess {
        AppProcess {
            credentials: Credentials {
                pid: 7,
                uid,
                gid,
                groups: [70].into(),
            },
            facts: ProcessFacts {
                executable: None,
                cgroup: Some("/system.slice/kv.service/worker".to_owned()),
            },
            program: Some("/usr/bin/kv".into()),
        }
    }

    fn config(conditions: &str) -> Config {
        let text = format!("[[app]]\nname = \"kv\"\nmay_bind = [\"kv.*\"]\nmay_connect = []\n{conditions}\n");
        Config::parse(&text, "test").unwrap()
    }

    #[test]
    fn a_name_belongs_to_whoever_meets_every_condition() {
        let whole = "users = [1000]\ngroups = [70]\nexecutables = [\"/bin/x\", \"/usr/bin/kv\"]\n\
                     cgroups = [\"/system.slice/kv.service\"]\nunits = [\"kv.service\"]";
        assert!(owner(&config(whole), "kv", &process(1000, 5)).unwrap().is_some());
        for (condition, key) in [
            ("users = [1001]", "users"),
            ("groups = [7]", "groups"),
            ("executables = [\"/bin/sh\"]", "executables"),
            ("cgroups = [\"/system.slice/kv\"]", "cgroups"),
            ("units = [\"worker.service\", \"kv.scope\"]", "units"),
        ] {
            let denial = owner(&config(condition), "kv", &process(1000, 5)).unwrap_err();
            assert_eq!(denial.rule, format!("{key} of [[app]] \"kv\""));
            assert!(denial.reason.contains(&denial.rule), "{denial:?}");
        }
        let none = owner(&config(whole), "other", &process(1000, 5)).unwrap_err();
        assert!(none.reason.contains("no [[app]]"), "{none:?}");
    }

    #[test]
    fn what_cannot_be_read_meets_no_condition() {
        let unknown = AppProcess {
            facts: ProcessFacts::default(),
            program: None,
            ..process(1000, 5)
        };
        for condition in [
            "executables = [\"/usr/bin/kv\"]",
            "cgroups = [\"/system.slice\"]",
            "units = [\"kv.service\"]",
        ] {
            assert!(
                owner(&config(condition), "kv", &process(1000, 5)).is_ok(),
                "{condition}"
            );
            assert!(owner(&config(condition), "kv", &unknown).is_err(), "{condition}");
        }
    }

    #[test]
    fn a_unit_is_the_systems_and_no_users() {
        for (cgroup, unit) in [
            ("/system.slice/kv.service", Some("kv.service")),
            (
                "/system.slice/a.slice/kv.service/sub/b.service",
                Some("kv.service"),
            ),
            (
                "/user.slice/user-1.slice/user@1.service/app.slice/kv.service",
                Some("user@1.service"),
            ),
            ("/system.slice", None),
            ("/docker/abc", None),
            ("/", None),
        ] {
            assert_eq!(unit_of(cgroup), unit, "{cgroup}");
        }
    }

    #[test]
    fn one_apps_refusals_do_not_fill_the_audit_log() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let audit = Arc::new(AuditLog::start("n1", path.to_str().unwrap()).unwrap());
        let authority = AppAuthority {
            config: Rc::new(Configuration::new(Config::default(), Sources::default())),
            audit,
        };
        let denial = may_bind(&config(""), "kv", "bank.Bank").unwrap_err();
        let refuse = |id: AppId, times: usize| {
            let asker = AskingApp {
                app: "kv",
                id: Some(id),
                pid: 7,
                uid: 4_000_000_007,
            };
            (0..times).for_each(|_| authority.record(AppAction::Bind, asker, "bank.Bank", &denial));
        };
        refuse(1, 2_000);
        refuse(2, 1);
        drop(authority);
        let records = std::fs::read_to_string(&path).unwrap().lines().count();
        // A slow machine may give the app some more meanwhile.
        assert!((101..1_000).contains(&records), "{records}");
    }

    #[test]
    fn services_are_named_by_patterns_and_a_refusal_names_the_rule() {
        let config = config("");
        assert!(may_bind(&config, "kv", "kv.Kv").is_ok());
        let denial = may_bind(&config, "kv", "bank.Bank").unwrap_err();
        assert!(denial.reason.contains("may_bind of [[app]] \"kv\""), "{denial:?}");
        let denial = may_connect(&config, "kv", "kv.Kv").unwrap_err();
        assert!(
            denial.reason.contains("may_connect of [[app]] \"kv\""),
            "{denial:?}"
        );
        assert!(may_bind(&Config::default(), "any", "any.Any").is_ok());
        assert!(openness(&Config::default()).is_some() && openness(&config).is_none());
    }
}
