//! `provost plan`: changes over several nodes, in order, checked after each step, undone when one fails.
//!
//! ```text
//! for each step:  how is it undone? ─► journal ─► do it ─► journal ─► do its checks hold?
//!                                                   └────── no ──────────┴──► undo what is done, last first
//! ```

mod check;
mod file;
mod journal;
pub(crate) mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use provost_admin::v1::{
    AttachedPolicy, Change, ListPoliciesResponse, Status, UpgradeDaemonResponse, UpgradeEngineRequest,
};
use serde_json::json;
use tokio::sync::watch;

use crate::node::{REPLACED_WITHIN_S, describe_upgrade};
use provost_terminal::admin::seconds;
use provost_terminal::failure::{Exit, Failure, complain};
use provost_terminal::numbers::plural;
use provost_terminal::output::{json_line, print, print_progress};
use provost_terminal::table::{Canvas, Look, clean};

use file::{Action, Plan, Step};
use journal::{Event, Journal, Standing, Undo};
use place::{Ask, Place};

const RUN_EXAMPLES: &str = "\
A plan is a TOML file (docs/operations.md has all keys):

  [nodes.server]
  ssh = \"ops@10.0.0.2\"
  [nodes.client]
  socket = \"/run/provost/admin.sock\"

  [[step]]                                  # the receiver before the sender
  node = \"server\"
  upgrade = { kind = \"transport-tcp\" }
  check = [{ serving = true }, { error_rate_max = 0.001, for_s = 10 }]
  [[step]]
  node = \"client\"
  upgrade = { kind = \"transport-tcp\" }
  check = [{ error_rate_max = 0.001, for_s = 10 }]

When a step or one of its checks fails, or on Ctrl-C, what was done is undone, last first: exit status 6. What was done
stands in a journal beside the plan, so that a run that was cut short can be gone on with, or undone.

Examples:
  provost plan run upgrade.toml --dry-run
  provost plan run upgrade.toml
  provost plan run upgrade.toml --resume
  provost plan undo upgrade.toml";

/// `provost plan …`.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Carry out the steps of a plan, undoing them if one fails
    #[command(after_help = RUN_EXAMPLES)]
    Run {
        #[command(flatten)]
        options: Options,
        /// Only check the plan and its nodes, and say what would be done
        #[arg(long)]
        dry_run: bool,
        /// Go on where a run that was cut short has ended
        #[arg(long, conflicts_with = "dry_run")]
        resume: bool,
        /// When a step fails, stop without undoing anything
        #[arg(long)]
        keep: bool,
    },
    /// Undo what a run of a plan has done
    #[command(after_help = "Examples:\n  provost plan undo upgrade.toml")]
    Undo {
        #[command(flatten)]
        options: Options,
    },
    /// Say whether a plan is valid, without asking its nodes
    #[command(after_help = "Examples:\n  provost plan check upgrade.toml")]
    Check {
        /// The plan
        file: PathBuf,
    },
}

/// What runs of a plan have in common.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The plan
    file: PathBuf,
    /// Where what was done is kept [default: the plan's name with .journal behind it]
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// How long an answer of a node may take, in seconds; by default longer where the timeout_ms of a step needs it
    #[arg(long, value_name = "SECONDS", default_value_t = REPLACED_WITHIN_S, value_parser = seconds)]
    timeout: f64,
    /// Print a JSON object for each event
    #[arg(long)]
    json: bool,
}

/// Runs one.
pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Check { file } => {
            let (plan, _) = Plan::load(&file)?;
            print(&format!(
                "the plan is good: {} on {}\n",
                plural(plan.steps.len() as u64, "step"),
                plural(plan.nodes.len() as u64, "node")
            ))
        }
        Command::Run {
            options,
            dry_run: true,
            ..
        } => Execution::open(&options)?.dry_run().await,
        Command::Run {
            options,
            resume,
            keep,
            ..
        } => Execution::open(&options)?.run(resume, keep).await,
        Command::Undo { options } => {
            let mut execution = Execution::open(&options)?;
            execution.of_this_plan()?;
            if execution.journal.standing.is_empty() && execution.journal.settled {
                return execution.say_nothing_stands();
            }
            match execution.revert().await {
                0 => Ok(()),
                left => {
                    let steps = plural(left as u64, "step");
                    Err(Failure::failed(format!("{steps} could not be undone")))
                }
            }
        }
    }
}

struct Execution {
    plan: Plan,
    places: BTreeMap<String, Place>,
    journal: Journal,
    journal_path: PathBuf,
    is_json: bool,
    canvas: Canvas,
}

impl Execution {
    fn open(options: &Options) -> Result<Execution, Failure> {
        let (plan, text) = Plan::load(&options.file)?;
        let timeout = Duration::from_secs_f64(options.timeout);
        let place = |(name, address): (&String, &file::NodeAddress)| {
            (name.clone(), Place::new(name, address, timeout))
        };
        let places = plan.nodes.iter().map(place).collect();
        let journal_path = options.journal.clone().unwrap_or_else(|| beside(&options.file));
        Ok(Execution {
            places,
            journal: Journal::read(&journal_path, &text)?,
            plan,
            journal_path,
            is_json: options.json,
            canvas: Canvas::of_stdout(),
        })
    }

    async fn run(mut self, resume: bool, keep: bool) -> Result<(), Failure> {
        let interrupted = interruption();
        match (resume, self.journal.settled) {
            (false, true) if !self.journal.standing.is_empty() => {
                let message = format!(
                    "an earlier run has done this plan ({}), and `provost plan undo` could then undo only this run: undo \
                     that one first, or move its journal {} away",
                    steps_stand(self.journal.standing.len()),
                    self.journal_path.display()
                );
                return Err(Failure::new(Exit::Refused, message));
            }
            (false, true) => self
                .journal
                .write(Event::Begun, 0, None, &self.plan.name.clone())?,
            (false, false) => {
                let message = format!(
                    "an earlier run was cut short ({}): go on with --resume, or `provost plan undo` what it did \
                     (journal: {})",
                    steps_stand(self.journal.standing.len()),
                    self.journal_path.display()
                );
                return Err(Failure::new(Exit::Refused, message));
            }
            (true, true) => {
                let message = "there is nothing to go on with: no run of the plan was cut short";
                return Err(Failure::new(Exit::Refused, message));
            }
            (true, false) => self.of_this_plan()?,
        }
        let steps = self.plan.steps.clone();
        for (at, step) in steps.iter().enumerate() {
            let number = at + 1;
            if matches!(self.journal.standing.get(&number), Some(Standing::Checked(_))) {
                self.print_event(number, "done before", step, "")?;
                continue;
            }
            // Looked at before, as a look that lasts would keep the news of an interruption out.
            let is_interrupted = *interrupted.borrow();
            let outcome = if is_interrupted {
                Err(Failure::failed("interrupted"))
            } else {
                self.step(number, step, interrupted.clone()).await
            };
            if let Err(failure) = outcome {
                return Err(self.give_up(number, step, failure, keep).await);
            }
        }
        self.journal.write(Event::Finished, 0, None, "")?;
        let done = match steps.len() {
            1 => "the step is done".to_owned(),
            steps => format!("all {steps} steps are done"),
        };
        self.say(&done, Look::Good)
    }

    /// The plan or its journal may be another one than was meant.
    fn say_nothing_stands(&self) -> Result<(), Failure> {
        let journal = self.journal_path.display();
        let text = format!("there is nothing to undo: no step of this plan stands in its journal {journal}");
        self.say(&text, Look::Normal)
    }

    fn of_this_plan(&self) -> Result<(), Failure> {
        if self.journal.is_of_this_plan {
            Ok(())
        } else {
            let message = format!(
                "the journal {} is of another text of this plan: bring that back, or move the journal away",
                self.journal_path.display()
            );
            Err(Failure::new(Exit::Refused, message))
        }
    }

    /// Does a step and its checks.
    async fn step(
        &mut self,
        number: usize,
        step: &Step,
        mut interrupted: watch::Receiver<bool>,
    ) -> Result<(), Failure> {
        let Some(action) = step.action() else {
            return Ok(());
        };
        let place = self.places.get(&step.node).cloned();
        if !matches!(self.journal.standing.get(&number), Some(Standing::Done(_))) {
            self.make(number, step, &action, place.as_ref()).await?;
        }
        for check in &step.checks {
            let of = if check.node.is_empty() {
                &step.node
            } else {
                &check.node
            };
            let place = self.places.get(of);
            tokio::select! {
                held = check::hold(check, place) => held?,
                _ = interrupted.wait_for(|interrupted| *interrupted) => return Err(Failure::failed("interrupted")),
            }
        }
        self.journal.write(Event::Checked, number, None, "")?;
        if !step.checks.is_empty() {
            self.print_event(number, "checked", step, "")?;
        }
        Ok(())
    }

    /// Does what a step does.
    async fn make(
        &mut self,
        number: usize,
        step: &Step,
        action: &Action,
        place: Option<&Place>,
    ) -> Result<(), Failure> {
        let again = self.journal.standing.get(&number).cloned();
        let (undo, may_be_done) = match again {
            // What was found before the first attempt counts.
            Some(standing) => (standing.undo().clone(), true),
            None => (undo_of(action, place).await?, false),
        };
        self.journal
            .write(Event::Started, number, Some(undo), &step.title())?;
        self.print_event(number, "begins", step, "")?;
        let done = if may_be_done && done_before(action, place).await {
            Ok(StepOutcome::plain("it was so already".to_owned()))
        } else {
            carry_out(action, place).await
        };
        match done {
            Ok(outcome) => {
                self.journal.write(Event::Done, number, None, &outcome.summary)?;
                self.print_outcome(number, "done", step, &outcome)
            }
            Err(failure) => {
                // A refusal changes nothing; of anything else it is not known.
                if matches!(
                    failure.exit,
                    Exit::Refused | Exit::Denied | Exit::Undone | Exit::Usage
                ) {
                    self.journal
                        .write(Event::Refused, number, None, &failure.message)?;
                }
                Err(failure)
            }
        }
    }

    async fn give_up(&mut self, number: usize, step: &Step, failure: Failure, keep: bool) -> Failure {
        // Whatever happens to the output, what was done is undone.
        let _ = self.print_event(number, "failed", step, &failure.message);
        let message = format!("step {number} ({}): {}", step.title(), failure.message);
        if keep {
            return Failure::new(
                failure.exit,
                format!("{message}; what was done before stands, as --keep says"),
            );
        }
        match self.revert().await {
            0 => Failure::new(Exit::Undone, format!("{message}; everything is undone")),
            left => Failure::failed(format!(
                "{message}; {} could not be undone: see above, and `provost plan undo` to try again",
                plural(left as u64, "step")
            )),
        }
    }

    /// Undoes what stands, last first, and says how many steps could not be.
    async fn revert(&mut self) -> usize {
        let standing: Vec<_> = self.journal.standing.clone().into_iter().rev().collect();
        let mut left = 0;
        for (number, standing) in standing {
            let Some(step) = self.plan.steps.get(number.saturating_sub(1)).cloned() else {
                continue;
            };
            let place = self.places.get(&step.node).cloned();
            let is_sure = !matches!(standing, Standing::Started(_));
            let undo = standing.undo();
            let (event, word, message) = match take_back(undo, place.as_ref(), is_sure).await {
                Ok(message) => (Event::Undone, "undone", message),
                Err(failure) => {
                    left += 1;
                    (Event::UndoFailed, "not undone", failure.message)
                }
            };
            // The journal is for a later attempt; this one goes on without it.
            let _ = self.journal.write(event, number, None, &message);
            let _ = self.print_event(number, word, &step, &message);
        }
        if left == 0 {
            let _ = self.journal.write(Event::Reverted, 0, None, "");
        }
        left
    }

    /// Checks the nodes and what can be tried, and says what would be done.
    async fn dry_run(self) -> Result<(), Failure> {
        for place in self.places.values() {
            let status: Status = place.ask(Ask::Status).await?;
            let line = format!(
                "{}: node {}, version {}, you may {}",
                place.name, status.node, status.version, status.caller_role
            );
            self.say(&line, Look::Normal)?;
        }
        let mut made = BTreeSet::new();
        for (at, step) in self.plan.steps.iter().enumerate() {
            let place = self.places.get(&step.node);
            let outcome = match (step.action(), place) {
                (Some(Action::Attach(attach)), Some(place)) => {
                    made.insert((step.node.clone(), attach.policy().name));
                    let ask = Ask::Attach {
                        policy: attach.policy(),
                        position: attach.position,
                        dry_run: true,
                    };
                    place.ask::<Change>(ask).await?.into()
                }
                // What an earlier step would attach is not there to be tried.
                (Some(Action::Set(set)), Some(place))
                    if !made.contains(&(step.node.clone(), set.name.clone())) =>
                {
                    let ask = Ask::Set {
                        name: set.name.clone(),
                        config: set.config(),
                        dry_run: true,
                    };
                    place.ask::<Change>(ask).await?.into()
                }
                _ => StepOutcome::default(),
            };
            self.print_outcome(at + 1, "would be done", step, &outcome)?;
        }
        self.say("nothing was changed", Look::Normal)
    }

    /// Prints that a step is done, and what the node warns of.
    fn print_outcome(
        &self,
        number: usize,
        event: &str,
        step: &Step,
        outcome: &StepOutcome,
    ) -> Result<(), Failure> {
        self.print_event(number, event, step, &outcome.summary)?;
        for warning in &outcome.warnings {
            self.print_event(number, "warning", step, warning)?;
        }
        Ok(())
    }

    fn print_event(&self, number: usize, event: &str, step: &Step, message: &str) -> Result<(), Failure> {
        let count = self.plan.steps.len();
        if self.is_json {
            let line = json!({
                "step": number, "steps": count, "node": step.node, "title": step.title(), "event": event,
                "message": message,
            });
            return print_progress(&json_line(&line)?);
        }
        let look = match event {
            "failed" | "not undone" | "warning" => Look::Bad,
            "done" | "checked" => Look::Good,
            _ => Look::Normal,
        };
        let separator = if message.is_empty() { "" } else { ": " };
        let event = look.paint(event, self.canvas);
        print_progress(&format!(
            "[{number}/{count}] {}: {event}{separator}{}\n",
            clean(&step.title()),
            clean(message)
        ))
    }

    fn say(&self, text: &str, look: Look) -> Result<(), Failure> {
        if self.is_json {
            print_progress(&json_line(&json!({ "event": "note", "message": text }))?)
        } else {
            print_progress(&format!("{}\n", look.paint(&clean(text), self.canvas)))
        }
    }
}

/// What a step has done, and what the node warns of.
#[derive(Default)]
struct StepOutcome {
    summary: String,
    warnings: Vec<String>,
}

impl StepOutcome {
    fn plain(summary: String) -> StepOutcome {
        StepOutcome {
            summary,
            warnings: Vec::new(),
        }
    }
}

impl From<Change> for StepOutcome {
    fn from(change: Change) -> StepOutcome {
        StepOutcome {
            summary: change.summary,
            warnings: change.warnings,
        }
    }
}

fn steps_stand(count: usize) -> String {
    match count {
        1 => "1 step stands".to_owned(),
        count => format!("{count} steps stand"),
    }
}

/// `plan.toml` has its journal in `plan.toml.journal`.
fn beside(plan: &Path) -> PathBuf {
    let mut name = plan.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

/// Becomes true on Ctrl-C; a second one ends the program.
fn interruption() -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            complain("provost: interrupted: undoing what was done; Ctrl-C again stops at once");
            sender.send_replace(true);
        }
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(130);
        }
    });
    receiver
}

fn place_of(place: Option<&Place>) -> Result<&Place, Failure> {
    place.ok_or_else(|| Failure::usage("the step names no node"))
}

async fn policies(place: &Place) -> Result<Vec<AttachedPolicy>, Failure> {
    let mut listed = place.ask::<ListPoliciesResponse>(Ask::Policies).await?.policies;
    listed.sort_by_key(|attached| attached.position);
    Ok(listed)
}

async fn policy(place: &Place, name: &str) -> Result<AttachedPolicy, Failure> {
    let found = policies(place)
        .await?
        .into_iter()
        .find(|attached| name_of(attached) == name);
    found.ok_or_else(|| {
        let message = format!("{}: no policy is attached under the name \"{name}\"", place.name);
        Failure::new(Exit::Refused, message)
    })
}

fn name_of(attached: &AttachedPolicy) -> &str {
    attached.policy.as_ref().map_or("", |policy| &policy.name)
}

/// How a step can be undone, found out before it is done.
async fn undo_of(action: &Action, place: Option<&Place>) -> Result<Undo, Failure> {
    Ok(match action {
        Action::Attach(attach) => Undo::Detach {
            name: attach.policy().name,
        },
        Action::Detach(detach) => {
            let attached = policy(place_of(place)?, &detach.name).await?;
            Undo::Attach {
                policy: Box::new(attached.policy.unwrap_or_default()),
                position: attached.position,
            }
        }
        Action::Set(set) => {
            let attached = policy(place_of(place)?, &set.name).await?;
            Undo::Set {
                name: set.name.clone(),
                config: attached.policy.unwrap_or_default().config,
            }
        }
        Action::Order(_) => Undo::Order {
            names: policies(place_of(place)?)
                .await?
                .iter()
                .map(|one| name_of(one).to_owned())
                .collect(),
        },
        Action::Upgrade(upgrade) => Undo::Rollback {
            kind: if upgrade.policy.is_empty() {
                upgrade.kind.clone()
            } else {
                upgrade.policy.clone()
            },
        },
        Action::DaemonUpgrade(upgrade) if upgrade.undo_binary.is_empty() => Undo::Nothing {
            because: "the step names no undo_binary: the new daemon stays".to_owned(),
        },
        Action::DaemonUpgrade(upgrade) => Undo::DaemonUpgrade {
            binary: upgrade.undo_binary.clone(),
        },
        Action::Load(_) => Undo::Nothing {
            because: "a loaded library stays, unused".to_owned(),
        },
        Action::Run(run) if run.undo.is_empty() => Undo::Nothing {
            because: "the step names no undo".to_owned(),
        },
        Action::Run(run) => Undo::Run {
            command: run.undo.clone(),
            timeout_s: run.timeout_s,
        },
    })
}

/// Whether a step that may have been done before a run was cut short has been.
async fn done_before(action: &Action, place: Option<&Place>) -> bool {
    let Some(place) = place else { return false };
    match action {
        Action::Attach(attach) => {
            let wanted = attach.policy();
            let same =
                |found: &AttachedPolicy| found.policy.as_ref().is_some_and(|found| is_same(found, &wanted));
            policy(place, &wanted.name).await.is_ok_and(|found| same(&found))
        }
        Action::Detach(detach) => policies(place)
            .await
            .is_ok_and(|all| all.iter().all(|one| name_of(one) != detach.name)),
        _ => false,
    }
}

/// Whether a policy that is attached is the one that was asked for; the node fills defaults in.
fn is_same(found: &provost_admin::v1::Policy, wanted: &provost_admin::v1::Policy) -> bool {
    let parsed = |config: &str| toml::from_str::<toml::Table>(config).ok();
    let any = |pattern: &str| match pattern {
        "" => "*".to_owned(),
        pattern => pattern.to_owned(),
    };
    found.kind == wanted.kind
        && parsed(&found.config) == parsed(&wanted.config)
        && any(&found.app) == any(&wanted.app)
        && any(&found.service) == any(&wanted.service)
        && found.methods == wanted.methods
}

async fn carry_out(action: &Action, place: Option<&Place>) -> Result<StepOutcome, Failure> {
    let ask = match action {
        Action::Attach(attach) => Ask::Attach {
            policy: attach.policy(),
            position: attach.position,
            dry_run: false,
        },
        Action::Detach(detach) => Ask::Detach {
            name: detach.name.clone(),
        },
        Action::Set(set) => Ask::Set {
            name: set.name.clone(),
            config: set.config(),
            dry_run: false,
        },
        Action::Order(order) => Ask::Order {
            names: order.names.clone(),
        },
        Action::Upgrade(upgrade) => Ask::Upgrade(UpgradeEngineRequest {
            kind: upgrade.kind.clone(),
            version: upgrade.version,
            policy: upgrade.policy.clone(),
            connection: upgrade.connection,
            app: upgrade.app.clone(),
        }),
        Action::Load(load) => Ask::Load {
            path: load.path.clone(),
        },
        Action::DaemonUpgrade(upgrade) => {
            let replaced = replace_daemon(place_of(place)?, &upgrade.binary, upgrade.timeout_ms).await;
            return replaced.map(StepOutcome::plain);
        }
        Action::Run(run) => return command(&run.command, run.timeout_s).await.map(StepOutcome::plain),
    };
    Ok(place_of(place)?.ask::<Change>(ask).await?.into())
}

async fn replace_daemon(place: &Place, binary: &str, timeout_ms: u32) -> Result<String, Failure> {
    let ask = Ask::UpgradeDaemon {
        binary: binary.to_owned(),
        timeout_ms,
    };
    let done: UpgradeDaemonResponse = place.replaced_within(timeout_ms).ask(ask).await?;
    Ok(describe_upgrade(&done))
}

async fn command(command: &[String], timeout_s: f64) -> Result<String, Failure> {
    let done = place::run(command, None, Duration::from_secs_f64(timeout_s)).await?;
    done.succeeded().map(|()| String::new())
}

/// Undoes a step. One that was not surely done may turn out not to have been.
async fn take_back(undo: &Undo, place: Option<&Place>, is_sure: bool) -> Result<String, Failure> {
    let ask = match undo.clone() {
        Undo::Detach { name } => Ask::Detach { name },
        Undo::Attach { policy, position } => Ask::Attach {
            policy: *policy,
            position: Some(position),
            dry_run: false,
        },
        Undo::Set { name, config } => Ask::Set {
            name,
            config,
            dry_run: false,
        },
        Undo::Order { names } => Ask::Order { names },
        Undo::Rollback { kind } => Ask::Rollback { kind },
        Undo::DaemonUpgrade { binary } => return replace_daemon(place_of(place)?, &binary, 0).await,
        Undo::Run { command, timeout_s } => return self::command(&command, timeout_s).await,
        Undo::Nothing { because } => return Ok(because),
    };
    match place_of(place)?.ask::<Change>(ask).await {
        Ok(done) => Ok(done.summary),
        Err(failure) if !is_sure && failure.exit == Exit::Refused => Ok("it had not been done".to_owned()),
        Err(failure) => Err(failure),
    }
}
