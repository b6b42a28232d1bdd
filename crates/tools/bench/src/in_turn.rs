//! The part of `bench policy` that holds policies against bounds of a few per cent: less than a machine's rate varies by
//! from one second to the next. The policies of the client's node are attached and taken away again in turn, while one
//! app calls all the time.

use std::time::Duration;

use provost_figures::{Bound, Cell, Compared, Median, Pairs, TargetOutcome};

use crate::arguments::Call;
use crate::failure::{Doing, Failure};
use crate::node::Policies;
use crate::operator::Operator;
use crate::plan::{Chain, Scope};
use crate::report::{BlockedUser, Load, Report, Traffic};
use crate::slices::{SETTLE, Turns, Watch, Ways, report};
use crate::stack::Stack;

/// Turns that each round has.
const TURNS: usize = 12;
const TURNS_SMOKE: usize = 1;
const SLICE: Duration = Duration::from_millis(200);
const SLICE_SMOKE: Duration = Duration::from_millis(50);
/// Before the first turn, and beyond the last one for each time that policies change.
const WARMUP: Duration = Duration::from_millis(500);
const CHANGE_TIME_MAX: Duration = Duration::from_millis(50);
const CALLS_IN_FLIGHT: usize = 64;
/// Payload of a request, as in the rates of the other setups.
const SIZE_BYTES: usize = 32;

/// Policies of the client's node, with their name.
struct Way {
    name: &'static str,
    chain: Chain,
}

const WAYS: [Way; 7] = [
    Way::new("in turn: null", Chain::Nulls(1)),
    Way::new("in turn: rate", Chain::RateLimit),
    Way::new("in turn: acl", Chain::FieldAccess),
    Way::new("in turn: 4 nulls", Chain::Nulls(4)),
    Way::new("in turn: 8 nulls", Chain::Nulls(8)),
    Way::new("in turn: chain 4", Chain::Of(4)),
    Way::new("in turn: chain 8", Chain::Of(8)),
];

const NULL: usize = 0;
const RATE: usize = 1;
const ACL: usize = 2;
const NULLS_4: usize = 3;
const NULLS_8: usize = 4;
const CHAIN_4: usize = 5;
const CHAIN_8: usize = 6;
/// A chain of one different policy is a rate limit.
const CHAIN: usize = RATE;

/// Two ways, what is compared of them, and its bound.
struct Target {
    what: &'static str,
    over: usize,
    under: usize,
    figure: fn(&Report) -> f64,
    bound: Bound,
}

const RPS: fn(&Report) -> f64 = |run| run.rps;
/// Of the one process that has them: what the others spend varies by more.
const CPU_US: fn(&Report) -> f64 = |run| {
    run.cpu_seconds
        .get("egress")
        .map_or(f64::NAN, |cpu| cpu * 1e6 / run.count as f64)
};

#[rustfmt::skip] // One row each.
const TARGETS: [Target; 6] = [
    Target { what: "rate with a limit to the null policy's", over: RATE, under: NULL, figure: RPS, bound: Bound::RatioAtLeast(0.99) },
    Target { what: "rate with access by field to the null policy's", over: ACL, under: NULL, figure: RPS, bound: Bound::RatioAtLeast(0.96) },
    Target { what: "node's CPU us of 3 more null policies", over: NULLS_4, under: NULL, figure: CPU_US, bound: Bound::DifferenceAtMost(0.3) },
    Target { what: "node's CPU us of 7 more null policies", over: NULLS_8, under: NULL, figure: CPU_US, bound: Bound::DifferenceAtMost(0.7) },
    Target { what: "node's CPU us of 3 more policies", over: CHAIN_4, under: CHAIN, figure: CPU_US, bound: Bound::DifferenceAtMost(0.3) },
    Target { what: "node's CPU us of 7 more policies", over: CHAIN_8, under: CHAIN, figure: CPU_US, bound: Bound::DifferenceAtMost(0.7) },
];

impl Way {
    const fn new(name: &'static str, chain: Chain) -> Way {
        Way { name, chain }
    }
}

/// Ways that the command line has chosen, and what was measured of them.
pub(crate) struct InTurn {
    /// Indices of [`WAYS`].
    ways: Vec<usize>,
    runs: Vec<Vec<Report>>,
}

impl InTurn {
    /// Those of every target of which one way is chosen.
    pub(crate) fn new(is_chosen: impl Fn(&str) -> bool) -> InTurn {
        let ways: Vec<usize> = (0..WAYS.len())
            .filter(|way| {
                let mut targets = TARGETS.iter().map(|target| [target.over, target.under]);
                targets.any(|pair| pair.contains(way) && pair.iter().any(|way| is_chosen(WAYS[*way].name)))
            })
            .collect();
        let runs = vec![Vec::new(); WAYS.len()];
        InTurn { ways, runs }
    }

    /// Gives each way its turns, on nodes of their own.
    pub(crate) fn round(&mut self, call: &Call, scope: Scope) -> Result<(), Failure> {
        if self.ways.is_empty() {
            return Ok(());
        }
        let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
        // The server's node has what it has beside the other setups of the client's.
        let stack = Stack::start_with(&Policies::bare(), &Policies::nulls(1), folder.path())?;
        let policies = self
            .ways
            .iter()
            .map(|way| Policies::of(WAYS[*way].chain, folder.path()));
        let mut ways = Attached {
            policies: policies.collect::<Result<_, _>>()?,
            node: Operator::connect(&stack.admin_socket("egress"))?,
        };
        let turns = turns(scope);
        let changes = (ways.count() * turns.count) as u32;
        let time = WARMUP + turns.time(ways.count()) + CHANGE_TIME_MAX * changes;
        let client = stack.start_timeline(load(time), folder.path().join("calls"))?;
        let mut processes = stack.watched();
        processes.push(client.watched());
        let watch = Watch {
            cores: call.run.cores.clone(),
            processes,
        };
        std::thread::sleep(WARMUP);
        let slices = turns.take(&mut ways, &watch)?;
        let timeline = client.finish()?;
        check(
            timeline.outline.errors,
            timeline.outline.denied,
            // A short run on a busy machine may have no call of a blocked user in the right slice.
            scope != Scope::Smoke && self.ways.contains(&ACL),
        )?;
        for (way, slices) in self.ways.iter().zip(slices) {
            let runs = slices.iter().map(|slice| report(&timeline, slice, SIZE_BYTES));
            self.runs[*way].extend(runs);
        }
        Ok(())
    }

    /// A cell for each way.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Cell> {
        let measured = WAYS.iter().zip(&self.runs).filter(|(_, runs)| !runs.is_empty());
        measured.map(|(way, runs)| Cell {
            setup: way.name.into(),
            what: "slices c=64".into(),
            size: SIZE_BYTES,
            conns: 1,
            inflight: CALLS_IN_FLIGHT,
            median: Median::of(runs, SIZE_BYTES),
            runs: runs.clone(),
        })
    }

    /// How the targets were met, each with how far its pairs lie apart.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = Compared> {
        TARGETS.iter().filter_map(|target| {
            let [over, under] = [target.over, target.under].map(|way| &self.runs[way]);
            let pairs = Pairs::of(over, under, target.figure, target.bound);
            let outcome = TargetOutcome::of_pairs(target.what.into(), &pairs, target.bound)?;
            Some(Compared {
                outcome,
                values: pairs,
            })
        })
    }
}

fn turns(scope: Scope) -> Turns {
    match scope {
        Scope::Smoke => Turns {
            count: TURNS_SMOKE,
            slice: SLICE_SMOKE,
            settle: SLICE_SMOKE,
        },
        Scope::Quick | Scope::Full => Turns {
            count: TURNS,
            slice: SLICE,
            settle: SETTLE,
        },
    }
}

/// Access that denies nobody, or calls that fail, would be another benchmark.
fn check(errors: u64, denied: u64, denies: bool) -> Result<(), Failure> {
    match (errors, denied) {
        (0, 0) if denies => Err(Failure::role("client", "no blocked user's call was denied")),
        (0, _) => Ok(()),
        _ => Err(Failure::role("client", format!("{errors} calls failed"))),
    }
}

fn load(time: Duration) -> Load {
    Load {
        size_bytes: SIZE_BYTES,
        calls_in_flight: CALLS_IN_FLIGHT,
        interval_us: 0,
        connections: 1,
        warmup_seconds: 0.0,
        seconds: time.as_secs_f64(),
        watched: Vec::new(),
        cores: Vec::new(),
        // Of a blocked user now and then, whom some of the ways deny.
        traffic: Traffic::Guarded(BlockedUser::IsDenied),
    }
}

/// The client's node, and the policies that it has in turn.
struct Attached {
    policies: Vec<Policies>,
    node: Operator,
}

impl Ways for Attached {
    fn count(&self) -> usize {
        self.policies.len()
    }

    fn enter(&mut self, way: usize) -> Result<(), Failure> {
        for (name, kind, config) in self.policies[way].each() {
            self.node.attach(&name, kind, config)?;
        }
        Ok(())
    }

    fn leave(&mut self, way: usize) -> Result<(), Failure> {
        for (name, _, _) in self.policies[way].each() {
            self.node.detach(&name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(in_turn: &InTurn) -> Vec<&str> {
        in_turn.ways.iter().map(|way| WAYS[*way].name).collect()
    }

    #[test]
    fn who_chooses_a_way_gets_what_it_is_compared_with() {
        assert_eq!(
            names(&InTurn::new(|name| name.contains("acl"))),
            ["in turn: null", "in turn: acl"]
        );
        let chains = InTurn::new(|name| name.contains("chain 8"));
        assert_eq!(names(&chains), ["in turn: rate", "in turn: chain 8"]);
        assert_eq!(names(&InTurn::new(|_| true)).len(), WAYS.len());
        assert!(names(&InTurn::new(|_| false)).is_empty());
    }

    #[test]
    fn targets_are_about_the_pairs_of_a_turn() {
        let mut in_turn = InTurn::new(|_| true);
        let run = |rps: f64| Report {
            rps,
            count: rps as u64,
            cpu_seconds: [("client".to_string(), 9.0), ("egress".to_string(), 2.0)].into(),
            ..Report::default()
        };
        in_turn.runs[NULL] = [100.0, 50.0, 200.0].map(run).into();
        in_turn.runs[RATE] = [99.5, 49.8, 100.0].map(run).into();
        let outcomes: Vec<_> = in_turn
            .outcomes()
            .map(|compared| compared.outcome.to_string())
            .collect();
        assert_eq!(outcomes.len(), 1);
        assert!(
            outcomes[0].contains("0.995") && outcomes[0].ends_with("undecided"),
            "{}",
            outcomes[0]
        );
        in_turn.runs[NULLS_8] = [50.0, 25.0, 100.0].map(run).into();
        let more = in_turn
            .outcomes()
            .map(|compared| compared.outcome.to_string())
            .nth(1)
            .unwrap();
        assert!(more.contains("20000") && more.ends_with("MISSED"), "{more}");
    }

    #[test]
    fn a_run_without_a_denial_is_none_of_access() {
        assert!(check(0, 0, true).is_err() && check(0, 5, true).is_ok());
        assert!(check(1, 5, false).is_err() && check(0, 0, false).is_ok());
    }
}
