//! A plan's file: which nodes, which steps, what has to hold after each.

use std::collections::BTreeMap;
use std::fmt::Formatter;
use std::path::{Path, PathBuf};

use provost_admin::v1::Policy;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use provost_terminal::failure::{Exit, Failure};

/// Steps and nodes of a plan, at most each.
const ENTRIES_MAX: usize = 1000;
/// Longest time that a check or a command may take, in seconds.
const TIME_S_MAX: f64 = 86_400.0;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// What it is for.
    #[serde(default)]
    pub(crate) name: String,
    /// The nodes, by the names that steps use.
    #[serde(default)]
    pub(crate) nodes: BTreeMap<String, NodeAddress>,
    /// In the order in which they are done.
    #[serde(rename = "step", default)]
    pub(crate) steps: Vec<Step>,
}

/// How a node is reached: one of `socket` alone, or `ssh`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeAddress {
    /// Its admin socket: on this machine, or with `ssh` on that one.
    pub(crate) socket: Option<PathBuf>,
    /// Another machine, as ssh names it: `user@host`.
    pub(crate) ssh: Option<String>,
    /// The ssh program and its options.
    #[serde(default = "ssh_command")]
    pub(crate) ssh_command: Vec<String>,
    /// The `provost` program on the other machine.
    #[serde(default = "provost_program")]
    pub(crate) provost: String,
}

fn ssh_command() -> Vec<String> {
    ["ssh", "-o", "BatchMode=yes"].map(str::to_owned).into()
}

fn provost_program() -> String {
    "provost".to_owned()
}

/// A step: one action, and what has to hold after it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Step {
    /// The node on which it is done.
    #[serde(default)]
    pub(crate) node: String,
    /// What it is for.
    #[serde(default)]
    pub(crate) name: String,
    attach: Option<Attach>,
    detach: Option<Detach>,
    set: Option<Set>,
    order: Option<Order>,
    upgrade: Option<Upgrade>,
    daemon_upgrade: Option<DaemonUpgrade>,
    load: Option<Load>,
    run: Option<Run>,
    /// What has to hold after it.
    #[serde(rename = "check", default)]
    pub(crate) checks: Vec<Check>,
}

/// What a step does.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Attach(Attach),
    Detach(Detach),
    Set(Set),
    Order(Order),
    Upgrade(Upgrade),
    DaemonUpgrade(DaemonUpgrade),
    Load(Load),
    Run(Run),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attach {
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    version: u32,
    #[serde(default)]
    app: String,
    #[serde(default)]
    service: String,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    side: String,
    #[serde(default)]
    on_fault: String,
    #[serde(default)]
    config: toml::Table,
    /// How many policies come before it; all without.
    pub(crate) position: Option<u32>,
}

impl Attach {
    /// As the admin API has it.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            name: if self.name.is_empty() {
                self.kind.clone()
            } else {
                self.name.clone()
            },
            kind: self.kind.clone(),
            version: self.version,
            config: toml::to_string(&self.config).unwrap_or_default(),
            app: self.app.clone(),
            service: self.service.clone(),
            methods: self.methods.clone(),
            side: self.side.clone(),
            on_fault: self.on_fault.clone(),
        }
    }
}

/// Takes a policy away.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Detach {
    pub(crate) name: String,
}

/// Gives a policy another configuration, whole.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Set {
    pub(crate) name: String,
    config: toml::Table,
}

impl Set {
    pub(crate) fn config(&self) -> String {
        toml::to_string(&self.config).unwrap_or_default()
    }
}

/// Puts the policies into another order.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    pub(crate) names: Vec<String>,
}

/// Puts another version of an engine into live datapaths.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upgrade {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) version: u32,
    #[serde(default)]
    pub(crate) policy: String,
    #[serde(default)]
    pub(crate) app: String,
    #[serde(default)]
    pub(crate) connection: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DaemonUpgrade {
    /// The new program; without it the one that runs, as it is on disk now.
    #[serde(default)]
    pub(crate) binary: String,
    /// The program by which the step is undone; without it, it cannot be.
    #[serde(default)]
    pub(crate) undo_binary: String,
    /// How long the new process may take, in milliseconds; 0 for the daemon's default.
    #[serde(default)]
    pub(crate) timeout_ms: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Load {
    pub(crate) path: String,
}

/// Runs a command on this machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    #[serde(deserialize_with = "words")]
    pub(crate) command: Vec<String>,
    /// The command by which it is undone; without it, nothing is.
    #[serde(default, deserialize_with = "words")]
    pub(crate) undo: Vec<String>,
    /// How long each may take.
    #[serde(default = "command_timeout_s")]
    pub(crate) timeout_s: f64,
}

/// A program and its arguments: no shell takes a line apart.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct WordsVisitor;

    impl<'de> Visitor<'de> for WordsVisitor {
        type Value = Vec<String>;

        fn expecting(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("a list of a program and its arguments, such as [\"sh\", \"-c\", \"exit 1\"]")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, words: A) -> Result<Vec<String>, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(words))
        }
    }

    deserializer.deserialize_seq(WordsVisitor)
}

fn command_timeout_s() -> f64 {
    60.0
}

/// Something that has to hold. What is given has to hold together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Check {
    /// Of which node; without it, of the step's.
    #[serde(default)]
    pub(crate) node: String,
    /// It may take so long until it begins to hold.
    #[serde(default = "within_s")]
    pub(crate) within_s: f64,
    /// It has to hold for so long.
    #[serde(default)]
    pub(crate) for_s: f64,
    #[serde(default)]
    pub(crate) serving: bool,
    /// At most this share of the calls fails, 0 to 1.
    pub(crate) error_rate_max: Option<f64>,
    /// The slowest method's 99th percentile is at most this.
    pub(crate) latency_p99_us_max: Option<f64>,
    /// At least so many calls per second.
    pub(crate) rate_min: Option<f64>,
    /// Of which calls: patterns with `*`.
    #[serde(default = "any")]
    pub(crate) app: String,
    #[serde(default = "any")]
    pub(crate) service: String,
    #[serde(default = "any")]
    pub(crate) method: String,
    /// A command on this machine that has to succeed.
    #[serde(default, deserialize_with = "words")]
    pub(crate) command: Vec<String>,
}

fn within_s() -> f64 {
    5.0
}

fn any() -> String {
    "*".to_owned()
}

impl Check {
    /// Whether it needs to look at calls.
    pub(crate) fn looks_at_calls(&self) -> bool {
        self.error_rate_max.is_some() || self.latency_p99_us_max.is_some() || self.rate_min.is_some()
    }
}

impl Plan {
    /// Reads and checks a file; also its text.
    pub(crate) fn load(path: &Path) -> Result<(Plan, String), Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        let plan = Plan::parse(&text).map_err(|failure| failure.within(&path.display().to_string()))?;
        Ok((plan, text))
    }

    pub(crate) fn parse(text: &str) -> Result<Plan, Failure> {
        let invalid = |message: String| Failure::new(Exit::Refused, message);
        let plan: Plan = toml::from_str(text).map_err(|error| invalid(error.to_string()))?;
        let mut problems = Vec::new();
        if plan.steps.is_empty() {
            problems.push("it has no [[step]]".to_owned());
        }
        if plan.steps.len() > ENTRIES_MAX || plan.nodes.len() > ENTRIES_MAX {
            problems.push(format!("more than {ENTRIES_MAX} steps or nodes"));
        }
        for (name, node) in &plan.nodes {
            if node.socket.is_none() && node.ssh.is_none() {
                problems.push(format!("nodes.{name}: give it a socket or ssh"));
            }
            if node.ssh_command.is_empty() {
                problems.push(format!("nodes.{name}.ssh_command: name a program"));
            }
        }
        for (at, step) in plan.steps.iter().enumerate() {
            let found = plan.problems_of(step);
            problems.extend(
                found
                    .into_iter()
                    .map(|problem| format!("step {}: {problem}", at + 1)),
            );
        }
        if problems.is_empty() {
            Ok(plan)
        } else {
            Err(invalid(problems.join("\n  ")))
        }
    }

    fn problems_of(&self, step: &Step) -> Vec<String> {
        let mut problems = Vec::new();
        let actions = step.actions();
        if actions.len() != 1 {
            problems.push(format!(
                "it has {} actions; give it one of attach, detach, set, order, upgrade, daemon-upgrade, load, run",
                actions.len()
            ));
        }
        let is_local = step.run.is_some();
        let mut node_problem = |node: &str, is_needed: bool| {
            if (is_needed || !node.is_empty()) && !self.nodes.contains_key(node) {
                let known: Vec<_> = self.nodes.keys().map(String::as_str).collect();
                problems.push(format!(
                    "there is no node \"{node}\"; [nodes] has {}",
                    known.join(", ")
                ));
            }
        };
        node_problem(&step.node, !is_local);
        for check in &step.checks {
            let needs_node = check.serving || check.looks_at_calls();
            node_problem(&check.node, needs_node && step.node.is_empty());
        }
        for check in &step.checks {
            if !check.serving && !check.looks_at_calls() && check.command.is_empty() {
                problems.push("a check checks nothing: give it serving, error_rate_max, latency_p99_us_max, rate_min or command".into());
            }
            for (key, value) in [("within_s", check.within_s), ("for_s", check.for_s)] {
                if !(0.0..=TIME_S_MAX).contains(&value) {
                    problems.push(format!("{key}: {value} is not from 0 to {TIME_S_MAX}"));
                }
            }
        }
        if let Some(run) = &step.run {
            if run.command.is_empty() {
                problems.push("run.command: name a program".into());
            }
            if !(run.timeout_s > 0.0 && run.timeout_s <= TIME_S_MAX) {
                problems.push(format!(
                    "run.timeout_s: {} is not above 0 and up to {TIME_S_MAX}",
                    run.timeout_s
                ));
            }
        }
        problems
    }
}

impl Step {
    fn actions(&self) -> Vec<Action> {
        let actions = [
            self.attach.clone().map(Action::Attach),
            self.detach.clone().map(Action::Detach),
            self.set.clone().map(Action::Set),
            self.order.clone().map(Action::Order),
            self.upgrade.clone().map(Action::Upgrade),
            self.daemon_upgrade.clone().map(Action::DaemonUpgrade),
            self.load.clone().map(Action::Load),
            self.run.clone().map(Action::Run),
        ];
        actions.into_iter().flatten().collect()
    }

    /// The one action that a checked plan's step has.
    pub(crate) fn action(&self) -> Option<Action> {
        self.actions().into_iter().next()
    }

    /// What it does, in a few words.
    pub(crate) fn title(&self) -> String {
        let what = match self.action() {
            _ if !self.name.is_empty() => self.name.clone(),
            Some(Action::Attach(attach)) => format!("attach {} ({})", attach.policy().name, attach.kind),
            Some(Action::Detach(detach)) => format!("detach {}", detach.name),
            Some(Action::Set(set)) => format!("set {}", set.name),
            Some(Action::Order(order)) => format!("order {}", order.names.join(" ")),
            Some(Action::Upgrade(upgrade)) => match upgrade.version {
                0 => format!("upgrade {}", upgrade.kind),
                version => format!("upgrade {} to version {version}", upgrade.kind),
            },
            Some(Action::DaemonUpgrade(_)) => "replace the daemon".to_owned(),
            Some(Action::Load(load)) => format!("load {}", load.path),
            Some(Action::Run(run)) => format!("run {}", run.command.join(" ")),
            None => "nothing".to_owned(),
        };
        if self.node.is_empty() {
            what
        } else {
            format!("{}: {what}", self.node)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "limit"
[nodes.a]
socket = "/tmp/a.sock"
[nodes.b]
ssh = "ops@b"
[[step]]
node = "b"
attach = { kind = "rate-limit", name = "limit", config = { requests_per_second = 10 }, position = 0 }
check = [{ error_rate_max = 0.01, for_s = 2 }]
[[step]]
node = "a"
daemon-upgrade = { binary = "/opt/provostd" }
[[step]]
run = { command = ["true"] }
"#;

    fn problem(text: &str) -> String {
        Plan::parse(text).unwrap_err().message
    }

    #[test]
    fn a_plan_has_nodes_steps_and_checks() {
        let plan = Plan::parse(GOOD).unwrap();
        let titles: Vec<_> = plan.steps.iter().map(Step::title).collect();
        assert_eq!(
            titles,
            [
                "b: attach limit (rate-limit)",
                "a: replace the daemon",
                "run true"
            ]
        );
        let Some(Action::Attach(attach)) = plan.steps[0].action() else {
            panic!()
        };
        assert_eq!(attach.policy().config, "requests_per_second = 10\n");
        assert!(plan.steps[0].checks[0].looks_at_calls());
        assert_eq!(plan.nodes["b"].ssh_command[0], "ssh");
    }

    #[test]
    fn a_command_is_a_list_of_words() {
        for written in [
            "[[step]]\nrun = { command = \"false\" }\n",
            "[[step]]\nrun = { command = [\"true\"], undo = \"false\" }\n",
            "[[step]]\nrun = { command = [\"true\"] }\ncheck = [{ command = \"false\" }]\n",
        ] {
            let said = problem(written);
            assert!(said.contains("expected a list of a program"), "{said}");
            Plan::parse(&written.replace("\"false\"", "[\"false\"]")).unwrap();
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_step() {
        assert!(problem("").contains("no [[step]]"));
        let two = "[nodes.a]\nsocket=\"x\"\n[[step]]\nnode=\"a\"\ndetach={name=\"x\"}\nload={path=\"y\"}\n";
        assert!(
            problem(two).contains("step 1: it has 2 actions"),
            "{}",
            problem(two)
        );
        let unknown = "[nodes.a]\nsocket=\"x\"\n[[step]]\nnode=\"b\"\ndetach={name=\"x\"}\n";
        assert!(
            problem(unknown).contains("no node \"b\"; [nodes] has a"),
            "{}",
            problem(unknown)
        );
        let misspelt = GOOD.replace("for_s", "for_ss");
        assert!(problem(&misspelt).contains("for_ss"));
        let idle = GOOD.replace("error_rate_max = 0.01, ", "");
        assert!(problem(&idle).contains("checks nothing"));
        assert!(
            problem("[nodes.a]\n[[step]]\nrun={command=[]}\n").contains("nodes.a: give it a socket or ssh")
        );
    }
}
