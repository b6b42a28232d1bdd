//! A campaign: two nodes, a good pair of apps, attackers on both nodes, and what must hold afterwards.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_e2e::program::Program;
use provost_e2e::{Node, NodeOptions, Usage, World};

use crate::Failure;
use crate::attacks::{self, Attack, linger};
use crate::guard;
use crate::random::random_of;
use crate::report::Report;
use crate::scene::{Scene, Stop};
use crate::schema::{GUARDED, TARGETS, TargetSchema, VANDALS};
use crate::server::{Manner, Post, serve};
use crate::victim::{Outcome, Victim};

/// How long the nodes get to forget the attackers.
const FORGET_WITHIN: Duration = Duration::from_secs(20);
/// How long processor time is measured when nothing happens any more.
const IDLE_MEASURED: Duration = Duration::from_secs(2);
/// What an idle node may use of one processor, in parts of a hundred.
const IDLE_PERCENT_MAX: u32 = 10;
/// Descriptors that a node may have more than before, at most: connections on their way out.
const DESCRIPTORS_SLACK: usize = 8;
/// Resident memory that a node may have more than before: pools that have grown, fragments, cached schemas.
const RESIDENT_SLACK_BYTES: u64 = 192 << 20;
/// Resident memory that a node may have more than before while one attacker after the other attacks it: the share of one that
/// comes and of one that goes, what a message goes past them, and the receive heap of their server.
const PEAK_SLACK_BYTES: u64 = 800 << 20;
/// Shared memory that a node may have mapped more than before: the good apps' segments grow too.
const SHARED_SLACK_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub struct Plan {
    /// What all numbers come from.
    pub seed: u64,
    /// How long to attack.
    pub attack_for: Duration,
    /// Attacks to run, by name; none: all.
    pub only: Vec<String>,
}

/// Runs a campaign. `role` is this package's program. The report holds all findings; an error says that the campaign
/// itself could not be run.
pub fn run(role: &Path, plan: &Plan) -> Result<Report, Failure> {
    println!("seed {}, {} s", plan.seed, plan.attack_for.as_secs());
    let report = Report::default();
    let schema = Arc::new(TargetSchema::load()?);
    let mut world = World::new(&role.to_string_lossy());
    let mut b = world.node("b", &NodeOptions::default());
    let server = world.server(&b);
    let mut a = world.node("a", &options_of_a(&b));
    let mut victim = Victim::start(role, &a)?;
    // The good pair's own memory settles before it is measured.
    std::thread::sleep(Duration::from_secs(2));
    let beside_loops = victim.beside_loops(attackers(plan).count())?;
    let before = [a.program.usage(), b.program.usage()];

    attack(&a, &b, &schema, plan, &report);
    judge_victim(victim.end_phase(), &beside_loops, &report);
    if attacks::ALONE
        .iter()
        .any(|(name, _)| plan.only.iter().any(|only| only == name))
    {
        for (node, before) in [&a, &b].into_iter().zip(before) {
            judge_peak(node, before, &report);
        }
    }

    for (node, before) in [&mut a, &mut b].into_iter().zip(before) {
        forgets(node, before, &report);
    }
    judge_victim(victim.stop(), &beside_loops, &report);
    are_idle([&mut a, &mut b], "alone", &report);
    let _stayed = [&a, &b].map(|node| linger::attach(&node.socket, &report));
    are_idle(
        [&mut a, &mut b],
        "with apps that stay and do nothing good",
        &report,
    );
    drop(server);
    Ok(report)
}

fn options_of_a(b: &Node) -> NodeOptions {
    let route = |service: &str| {
        format!(
            "[[route]]\nservice = \"{service}\"\ntransport = \"tcp\"\nendpoints = [\"{}\"]\n",
            b.address
        )
    };
    NodeOptions {
        peer: Some(b.address),
        tables: [
            route(TARGETS[0]),
            route(VANDALS[0]),
            route(GUARDED[0]),
            guard::policy("guard", GUARDED[0], "client"),
            guard::policy("near-guard", GUARDED[1], "client"),
            guard::policy("inner-guard", GUARDED[2], "server"),
        ]
        .concat(),
        ..NodeOptions::default()
    }
}

/// The attacks of a campaign: the number from which each has its own random numbers, and its name.
fn attackers(plan: &Plan) -> impl Iterator<Item = (u64, &'static str, Attack)> {
    let unnamed = attacks::ALL.len();
    let all = attacks::ALL.into_iter().chain(attacks::ALONE).enumerate();
    let is_wanted = move |index: usize, name: &str| {
        let is_named = plan.only.iter().any(|only| only == name);
        is_named || (plan.only.is_empty() && index < unnamed)
    };
    let wanted = all.filter(move |(index, (name, _))| is_wanted(*index, name));
    wanted.map(|(index, (name, attack))| (1 + index as u64, name, attack))
}

/// Runs the attackers' servers on both nodes and their clients on a (control packets go to both) until time is up.
fn attack(a: &Node, b: &Node, schema: &Arc<TargetSchema>, plan: &Plan, report: &Report) {
    let stop = Stop::default();
    let servers_stop = Stop::default();
    let scene = |node: &Node| Scene {
        socket: node.socket.clone(),
        schema: Arc::clone(schema),
        report: report.clone(),
        stop: stop.clone(),
    };
    let (scene_a, scene_b) = (scene(a), scene(b));
    std::thread::scope(|scope| {
        let servers = [
            (&b.socket, Manner::Honest, TARGETS[0]),
            (&b.socket, Manner::Vandal, VANDALS[0]),
            (&a.socket, Manner::Honest, TARGETS[1]),
            (&a.socket, Manner::Vandal, VANDALS[1]),
            (&b.socket, Manner::Honest, GUARDED[0]),
            (&a.socket, Manner::Honest, GUARDED[1]),
            (&a.socket, Manner::Honest, GUARDED[2]),
        ];
        for (part, (socket, manner, service)) in (1000..).zip(servers) {
            let (stop, random) = (&servers_stop, random_of(plan.seed, part));
            let post = Post {
                socket,
                schema,
                manner,
                service,
                report,
            };
            scope.spawn(move || serve(&post, random, stop));
        }
        let mut running = Vec::new();
        for (part, name, attack) in attackers(plan) {
            let scene = &scene_a;
            running.push(scope.spawn(move || attack(scene, &mut random_of(plan.seed, part))));
            if name == "control" {
                let scene = &scene_b;
                running.push(scope.spawn(move || attack(scene, &mut random_of(plan.seed, 100 + part))));
            }
        }
        std::thread::sleep(plan.attack_for);
        stop.set();
        for attacker in running {
            if attacker.join().is_err() {
                report.finding("an attacker has panicked".to_owned());
            }
        }
        servers_stop.set();
    });
}

/// What the node took at once while it was attacked is bounded, too.
fn judge_peak(node: &Node, before: Usage, report: &Report) {
    let name = node.program.name();
    let Ok(peak_bytes) = provost_e2e::resident_peak_of(node.program.id()) else {
        // It has died, as is found out next.
        return;
    };
    let more_bytes = peak_bytes.saturating_sub(before.resident_bytes);
    println!("node {name}: {} MiB more at its peak", more_bytes >> 20);
    if more_bytes > PEAK_SLACK_BYTES {
        report.finding(format!("node {name} took {more_bytes} bytes more at its peak"));
    }
}

/// The node runs, and lets go of what the attackers had.
fn forgets(node: &mut Node, before: Usage, report: &Report) {
    let name = node.program.name().to_owned();
    if !node.program.is_running() {
        report.finding(format!("node {name} has died: {}", node.program.log()));
        return;
    }
    let begin = Instant::now();
    let mut now = node.program.usage();
    while !is_forgotten(before, now) && begin.elapsed() < FORGET_WITHIN {
        std::thread::sleep(Duration::from_millis(100));
        now = node.program.usage();
    }
    println!("node {name}: before {before:?}");
    println!("node {name}: after  {now:?}");
    if !is_forgotten(before, now) {
        report.finding(format!(
            "node {name} does not let go of the attackers: {before:?} became {now:?}"
        ));
    }
}

fn is_forgotten(before: Usage, now: Usage) -> bool {
    now.descriptors <= before.descriptors + DESCRIPTORS_SLACK
        && now.shared_bytes <= before.shared_bytes + SHARED_SLACK_BYTES
        && now.resident_bytes <= before.resident_bytes + RESIDENT_SLACK_BYTES
        && now.threads <= before.threads + 1
}

/// With nothing to do, the nodes do nothing.
fn are_idle(nodes: [&mut Node; 2], company: &str, report: &Report) {
    // Blocking threads of the control plane, keepalives and the like come to rest.
    std::thread::sleep(Duration::from_secs(1));
    // One that has died was found out before.
    let running = nodes.map(|node| node.program.is_running().then_some(&node.program));
    let before = running.map(|node| node.map(Program::processor_time));
    std::thread::sleep(IDLE_MEASURED);
    for (node, before) in running.into_iter().zip(before) {
        let (Some(node), Some(before)) = (node, before) else {
            continue;
        };
        let used = node.processor_time() - before;
        let verdict = format!(
            "node {} uses {used:?} of processor time in {IDLE_MEASURED:?} of rest, {company}",
            node.name()
        );
        println!("{verdict}");
        if used > IDLE_MEASURED * IDLE_PERCENT_MAX / 100 {
            report.finding(verdict);
        }
    }
}

fn judge_victim(outcome: Result<Outcome, Failure>, beside_loops: &Outcome, report: &Report) {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(failure) => {
            report.finding(format!("the good client: {failure}"));
            return;
        }
    };
    println!("the good client: {outcome:?}, beside loops {beside_loops:?}");
    if let Some(complaint) = outcome.complaint(beside_loops) {
        report.finding(format!("the good client: {complaint}"));
    }
}
