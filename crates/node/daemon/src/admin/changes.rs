//! Changes of policies and engines: requests as the policies' table takes them, and its reports as answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use provost_admin::v1;
use provost_policies::rate_limit;
use tokio::sync::oneshot;
use tonic::Status;

use crate::policies::warnings::{CheckedPolicy, UselessPolicy};
use crate::policies::{
    AppliesTo, Attachment, Change, ChangeError, Mode, NotLoaded, OnFault, Position, Reach, Report, Upgrade,
};

use crate::plurals::counted;
use crate::suggestion::what_is_known;
use crate::upgrade::{UpgradeError, UpgradeOrder, UpgradeRequest};

use super::desk::Desk;

/// The key that says what a limit is.
const RATE: &str = "requests_per_second";

/// Attaches a policy, or says what that would do.
pub(crate) async fn attach(desk: &Desk, asked: v1::AttachPolicyRequest) -> Result<v1::Change, Status> {
    let policy = asked
        .policy
        .ok_or_else(|| Status::invalid_argument("policy: say what is to be attached"))?;
    let attachment = attachment(policy)?;
    let mut warnings = check_fit(desk, attachment.clone()).await?;
    warnings.extend(limits_nothing(&attachment));
    let at = match asked.position {
        Some(position) => Position::At(position as usize),
        None => Position::Last,
    };
    let name = attachment.name.clone();
    let mut done = make(desk, Change::Attach { attachment, at }, mode(asked.dry_run)).await?;
    let others = desk.plane.policies.table();
    let others = others
        .entries
        .iter()
        .filter(|entry| entry.attachment.name != name);
    warnings.extend(beyond_the_last(at, others.count()));
    done.warnings.splice(0..0, warnings);
    Ok(done)
}

/// What to say of a place in the order that there is not.
fn beyond_the_last(at: Position, others: usize) -> Option<String> {
    match at {
        Position::At(at) if at > others => Some(format!(
            "there is no position {at}: {}, so it is the last, at position {others}",
            counted(
                others,
                "policy is attached beside it",
                "policies are attached beside it"
            )
        )),
        Position::At(_) | Position::Last => None,
    }
}

/// What to say of a limit without a rate. (One that says that it is unlimited is taken at its word: it counts and queues nothing, and costs
/// what a limit costs.)
fn limits_nothing(attachment: &Attachment) -> Option<String> {
    let is_meant = attachment.kind != rate_limit::KIND || attachment.config.contains_key(RATE);
    (!is_meant)
        .then(|| format!("it limits nothing: set {RATE} to a number of calls (\"unlimited\" is the default)"))
}

/// Checks a policy against the schemas that the node knows, those of apps that are not connected too: one that fits none of
/// what it is for is refused, and what else may not be meant is said.
async fn check_fit(desk: &Desk, attachment: Attachment) -> Result<Vec<String>, Status> {
    let checked = CheckedPolicy {
        known: desk.plane.connector.schemas_for(&attachment),
        beside: desk.plane.policies.table().instances().cloned().collect(),
        attachment,
    };
    let maker = desk.plane.policies.maker.for_dry_runs();
    let check = move || {
        checked.warnings(&maker).map_err(|useless| match useless {
            UselessPolicy::Config(error) => refusal(&error),
            UselessPolicy::Unfit(unfit) => {
                let message = format!("policy \"{}\": {}", checked.attachment.name, unfit.problem);
                Status::failed_precondition(message)
            }
        })
    };
    let checked = tokio::task::spawn_blocking(check).await;
    checked.map_err(|_| Status::internal("the policy could not be checked"))?
}

/// Takes a policy away.
pub(crate) async fn detach(desk: &Desk, asked: v1::DetachPolicyRequest) -> Result<v1::Change, Status> {
    let change = Change::Detach { name: asked.name };
    make(desk, change, Mode::Apply).await
}

/// Gives a policy another configuration, or says what that would do.
pub(crate) async fn set(desk: &Desk, asked: v1::SetPolicyRequest) -> Result<v1::Change, Status> {
    let config = table(&asked.config)?;
    let attached = desk.plane.policies.table();
    let warnings = match attached.find(&asked.name) {
        None => Vec::new(),
        Some(entry) => {
            let attachment = Attachment {
                config: config.clone(),
                ..entry.attachment.clone()
            };
            check_fit(desk, attachment).await?
        }
    };
    let change = Change::Set {
        name: asked.name,
        config,
    };
    let mut done = make(desk, change, mode(asked.dry_run)).await?;
    done.warnings.splice(0..0, warnings);
    Ok(done)
}

/// Puts the policies into another order.
pub(crate) async fn order(desk: &Desk, asked: v1::OrderPoliciesRequest) -> Result<v1::Change, Status> {
    let change = Change::Order { names: asked.names };
    make(desk, change, Mode::Apply).await
}

/// Loads a library. What runs is not touched by it.
pub(crate) async fn load(desk: &Desk, asked: v1::LoadEngineRequest) -> Result<v1::Change, Status> {
    if asked.path.is_empty() {
        return Err(Status::invalid_argument("path: name a library on the node"));
    }
    let registry = Arc::clone(&desk.plane.policies.maker.registry);
    let path = PathBuf::from(&asked.path);
    let loaded = tokio::task::spawn_blocking(move || registry.load(&path))
        .await
        .map_err(|_| Status::internal("the library could not be loaded"))?;
    let kind = loaded.map_err(|error| match error {
        NotLoaded::NotAdded(_) => Status::already_exists(error.to_string()),
        NotLoaded::Refused(_) => Status::failed_precondition(error.to_string()),
    })?;
    let after = format!("{} version {}", kind.name, kind.version);
    Ok(v1::Change {
        summary: format!("loaded {after} from {}", asked.path),
        number: desk.plane.policies.history.new_number(),
        after,
        ..v1::Change::default()
    })
}

/// Has a new process take the place of this one.
pub(crate) async fn replace(
    desk: &Desk,
    asked: v1::UpgradeDaemonRequest,
) -> Result<v1::UpgradeDaemonResponse, Status> {
    let request = UpgradeRequest {
        binary: (!asked.binary.is_empty()).then(|| PathBuf::from(asked.binary)),
        arguments: None,
        ready_within: (asked.timeout_ms > 0).then(|| Duration::from_millis(asked.timeout_ms.into())),
    };
    let (done, came) = oneshot::channel();
    desk.plane.restarts.order(UpgradeOrder { request, done });
    let report = came
        .await
        .map_err(|_| Status::unavailable("the service is ending"))?;
    let report = report.map_err(|error| match error {
        UpgradeError::ShuttingDown => Status::unavailable(error.to_string()),
        UpgradeError::ReadyWithin(_) => Status::invalid_argument(error.to_string()),
        UpgradeError::UnderWay | UpgradeError::Start { .. } => Status::failed_precondition(error.to_string()),
        UpgradeError::Lost { .. } => Status::data_loss(error.to_string()),
        _ => Status::aborted(error.to_string()),
    })?;
    Ok(v1::UpgradeDaemonResponse {
        pid: report.process as i32,
        version: report.version,
        prepared_ms: report.prepared.as_secs_f64() * 1e3,
        pause_ms: report.frozen.as_secs_f64() * 1e3,
        state_bytes: report.state_bytes,
        descriptors: report.descriptors as u32,
        connections: report.connections as u32,
        apps: report.apps as u32,
    })
}

/// Puts another version of an engine into datapaths.
pub(crate) async fn upgrade(desk: &Desk, asked: v1::UpgradeEngineRequest) -> Result<v1::Change, Status> {
    let reach = match (asked.connection, asked.app.as_str()) {
        (0, "") => Reach::All,
        (0, app) => Reach::App(app_name(desk, app)?),
        (connection, "") => Reach::Connection(open_connection(desk, connection)?),
        _ => {
            return Err(Status::invalid_argument(
                "name a connection or an app, not both: a connection is one app's",
            ));
        }
    };
    let change = Change::Upgrade(Upgrade {
        kind: asked.kind,
        version: (asked.version != 0).then_some(asked.version),
        policy: (!asked.policy.is_empty()).then_some(asked.policy),
        reach,
    });
    make(desk, change, Mode::Apply).await
}

/// Undoes the last upgrade of an engine.
pub(crate) async fn roll_back(desk: &Desk, asked: v1::RollbackEngineRequest) -> Result<v1::Change, Status> {
    let change = Change::Rollback { engine: asked.kind };
    make(desk, change, Mode::Apply).await
}

async fn make(desk: &Desk, change: Change, mode: Mode) -> Result<v1::Change, Status> {
    let report = desk.plane.changes.carry_out(change, mode).await;
    let mut done = report.map(answer).map_err(|error| refusal(&error))?;
    if mode == Mode::Apply {
        done.warnings.extend(lost_at_the_end(desk));
    }
    Ok(done)
}

/// What to say of a change that is not kept, where changes are to be kept.
fn lost_at_the_end(desk: &Desk) -> Option<String> {
    let policies = &desk.plane.policies;
    if !desk.plane.config.started.admin.persist {
        return None;
    }
    if policies.waits_to_keep() {
        return Some(
            "it is written to admin.policies_file as soon as the process before has let go of that: until then it is lost if the service stops"
                .to_owned(),
        );
    }
    let failure = policies.keep_failure()?;
    Some(format!(
        "it is lost when the service stops: it cannot be kept in admin.policies_file {failure}; `provost config write` \
         writes it into the configuration"
    ))
}

/// A report as the tools see it.
pub(crate) fn answer(report: Report) -> v1::Change {
    v1::Change {
        summary: report.summary,
        datapaths: report.datapaths as u32,
        pause_us_p50: report.pause_ns_p50 as f64 / 1e3,
        pause_us_max: report.pause_ns_max as f64 / 1e3,
        number: report.number,
        before: report.before,
        after: report.after,
        warnings: Vec::new(),
    }
}

/// Why nothing was changed, as a status.
pub(crate) fn refusal(error: &ChangeError) -> Status {
    let message = error.to_string();
    match error {
        ChangeError::NoSuchPolicy { .. }
        | ChangeError::NothingToUpgrade { .. }
        | ChangeError::Kind { .. } => Status::not_found(message),
        ChangeError::NameTaken { .. } => Status::already_exists(message),
        ChangeError::Invalid { .. } | ChangeError::Config { .. } | ChangeError::Order { .. } => {
            Status::invalid_argument(message)
        }
        ChangeError::TooMany { .. } | ChangeError::Overloaded => Status::resource_exhausted(message),
        ChangeError::NothingBefore { .. } | ChangeError::Unfit { .. } => Status::failed_precondition(message),
        ChangeError::Undone { .. } => Status::aborted(message),
        // Who takes it for undone would go on.
        ChangeError::NotUndone { .. } => Status::internal(message),
        ChangeError::Replaced | ChangeError::Ending => Status::unavailable(message),
    }
}

fn mode(dry_run: bool) -> Mode {
    if dry_run { Mode::DryRun } else { Mode::Apply }
}

/// The name of an app that was given by its number or its name, and that is attached.
fn app_name(desk: &Desk, app: &str) -> Result<String, Status> {
    let apps = desk.plane.apps.all();
    let by_number = app.parse().ok().and_then(|number: u64| apps.get(&number));
    let name = by_number.map_or_else(|| app.to_owned(), |app| app.name().to_owned());
    let mut names: Vec<String> = apps.values().map(|app| app.name().to_owned()).collect();
    if names.contains(&name) {
        return Ok(name);
    }
    names.sort();
    names.dedup();
    let hint = what_is_known(app, "app", &names);
    Err(Status::not_found(format!("no app \"{app}\" is attached; {hint}")))
}

/// A connection that there is.
fn open_connection(desk: &Desk, connection: u64) -> Result<u64, Status> {
    let found = desk.plane.connections.find(connection).is_some();
    let message = || format!("there is no connection {connection}: `provost datapath` lists them");
    found
        .then_some(connection)
        .ok_or_else(|| Status::not_found(message()))
}

/// A policy of the API as the table has it. Empty patterns are for everything.
pub(crate) fn attachment(policy: v1::Policy) -> Result<Attachment, Status> {
    let any = |pattern: String| match pattern.as_str() {
        "" => "*".to_owned(),
        _ => pattern,
    };
    Ok(Attachment {
        name: match policy.name.as_str() {
            "" => policy.kind.clone(),
            _ => policy.name,
        },
        version: (policy.version != 0).then_some(policy.version),
        app: any(policy.app),
        service: any(policy.service),
        methods: policy.methods,
        side: match policy.side.as_str() {
            "" | "both" => AppliesTo::Both,
            "client" => AppliesTo::Client,
            "server" => AppliesTo::Server,
            other => {
                let message = format!("side: \"{other}\" is none; write client, server or both");
                return Err(Status::invalid_argument(message));
            }
        },
        on_fault: match policy.on_fault.as_str() {
            "" | "deny" => OnFault::Deny,
            "pass" => OnFault::Pass,
            other => {
                let message = format!("on_fault: \"{other}\" is nothing; write deny or pass");
                return Err(Status::invalid_argument(message));
            }
        },
        config: table(&policy.config)?,
        kind: policy.kind,
    })
}

/// An attachment as the tools see it.
pub(crate) fn policy(attachment: &Attachment) -> v1::Policy {
    v1::Policy {
        name: attachment.name.clone(),
        kind: attachment.kind.clone(),
        version: attachment.version.unwrap_or_default(),
        // A table came from TOML, and can be written as such.
        config: toml::to_string(&attachment.config).unwrap_or_default(),
        app: attachment.app.clone(),
        service: attachment.service.clone(),
        methods: attachment.methods.clone(),
        side: match attachment.side {
            AppliesTo::Client => "client",
            AppliesTo::Server => "server",
            AppliesTo::Both => "both",
        }
        .to_owned(),
        on_fault: match attachment.on_fault {
            OnFault::Deny => "deny",
            OnFault::Pass => "pass",
        }
        .to_owned(),
    }
}

fn table(config: &str) -> Result<toml::Table, Status> {
    let table = config.parse();
    table.map_err(|error: toml::de::Error| Status::invalid_argument(format!("config: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_of_the_api_is_an_attachment_and_back() {
        let asked = v1::Policy {
            name: "limit".into(),
            kind: "rate-limit".into(),
            version: 2,
            config: "burst = 3\n".into(),
            app: "web-*".into(),
            service: "kv.Kv".into(),
            methods: vec!["Get".into()],
            side: "server".into(),
            on_fault: "pass".into(),
        };
        let attached = attachment(asked.clone()).unwrap();
        assert_eq!(policy(&attached), asked);
        let least = v1::Policy {
            kind: "null".into(),
            ..v1::Policy::default()
        };
        assert_eq!(attachment(least).unwrap(), Attachment::of_kind("null"));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let of = |change: &dyn Fn(&mut v1::Policy)| {
            let mut policy = v1::Policy::default();
            change(&mut policy);
            attachment(policy).unwrap_err().message().to_owned()
        };
        assert!(of(&|policy| policy.side = "left".into()).starts_with("side: \"left\""));
        assert!(of(&|policy| policy.on_fault = "panic".into()).starts_with("on_fault: \"panic\""));
        assert!(of(&|policy| policy.config = "burst =".into()).starts_with("config: "));
    }

    #[test]
    fn a_position_that_there_is_not_and_a_limit_of_nothing_are_said() {
        assert_eq!(beyond_the_last(Position::At(6), 6), None);
        assert_eq!(beyond_the_last(Position::Last, 0), None);
        let said = beyond_the_last(Position::At(99), 6).unwrap();
        assert!(
            said.contains("no position 99: 6 policies are") && said.ends_with("at position 6"),
            "{said}"
        );
        let mut limit = Attachment::of_kind("rate-limit");
        assert!(
            limits_nothing(&limit)
                .unwrap()
                .contains("set requests_per_second")
        );
        limit.config.insert(RATE.into(), "unlimited".into());
        assert_eq!(limits_nothing(&limit), None);
        assert_eq!(limits_nothing(&Attachment::of_kind("null")), None);
    }
}
