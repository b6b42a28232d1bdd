//! What a request does in one play: the calls that are made, each time that they are, with what chance has given them.

use super::costs::{CallCosts, ProxyPassage};
use crate::acg::{RepeatMode, RequestGraph, between_quantiles};
use crate::random::SeededRandom;

/// One execution of a call.
#[derive(Clone, Debug)]
pub(super) struct CallExecution {
    pub(super) call: usize,
    /// The group of the caller's that it belongs to; none of the call from outside.
    pub(super) group: Option<usize>,
    pub(super) app_us: f64,
    pub(super) network_us: f64,
    /// How far this message is from the mean at each proxy, as a multiple.
    pub(super) ratios: [f64; 2],
    /// The first of the groups of calls that it makes: one for each child of the call, in their order.
    pub(super) first_group: usize,
    /// The execution that follows it among the repeats.
    pub(super) next: Option<usize>,
}

/// A call that an execution makes, with its repeats; without any if it is not made this time.
#[derive(Clone, Debug)]
pub(super) struct CallGroup {
    pub(super) caller: usize,
    pub(super) call: usize,
    pub(super) mode: RepeatMode,
    pub(super) is_detached: bool,
    pub(super) first: Option<usize>,
}

/// All of it; the first execution is that of the call from outside.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestPlan {
    pub(super) executions: Vec<CallExecution>,
    pub(super) groups: Vec<CallGroup>,
}

/// What plans of a type of request are drawn from, in one draw of the bootstrap.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanSource<'a> {
    pub(super) request: &'a RequestGraph,
    pub(super) calls: &'a [CallCosts],
    pub(super) draw: usize,
}

impl RequestPlan {
    /// Draws another one in its place. The same chance gives the same plan, whatever else has been drawn.
    pub(super) fn redraw(&mut self, source: PlanSource<'_>, random: &SeededRandom) {
        self.executions.clear();
        self.groups.clear();
        self.execution(source, 0, None, random);
    }

    fn execution(
        &mut self,
        source: PlanSource<'_>,
        call: usize,
        group: Option<usize>,
        random: &SeededRandom,
    ) -> usize {
        let node = &source.request.calls[call];
        let costs = &source.calls[call];
        let mut chance = random.fork(1);
        let app_us = node.app_us.at(chance.uniform()) * costs.draws[source.draw].app_factor;
        let network_us = node.network_us.at(chance.uniform());
        let mut ratios = [1.0; 2];
        for (ratio, passage) in ratios.iter_mut().zip(&costs.passages) {
            *ratio = message_ratio(passage, chance.uniform());
        }
        let at = self.executions.len();
        let first_group = self.groups.len();
        self.executions.push(CallExecution {
            call,
            group,
            app_us,
            network_us,
            ratios,
            first_group,
            next: None,
        });
        for child in &node.children {
            let child_node = &source.request.calls[*child];
            self.groups.push(CallGroup {
                caller: at,
                call: *child,
                mode: child_node.repeat_mode,
                is_detached: child_node.detached,
                first: None,
            });
        }
        for (position, child) in node.children.iter().enumerate() {
            self.repeats(source, first_group + position, &random.fork(2 + *child as u64));
        }
        at
    }

    fn repeats(&mut self, source: PlanSource<'_>, group: usize, random: &SeededRandom) {
        let call = self.groups[group].call;
        let drawn = source.calls[call].draws[source.draw];
        let mut chance = random.fork(0);
        if chance.uniform() >= drawn.probability {
            return;
        }
        let whole = drawn.repeats.floor();
        let more = f64::from(u8::from(chance.uniform() < drawn.repeats - whole));
        let mut last: Option<usize> = None;
        for repeat in 0..(whole + more) as u64 {
            let execution = self.execution(source, call, Some(group), &random.fork(repeat + 1));
            match last {
                Some(last) => self.executions[last].next = Some(execution),
                None => self.groups[group].first = Some(execution),
            }
            last = Some(execution);
        }
    }
}

fn message_ratio(passage: &ProxyPassage, share: f64) -> f64 {
    passage
        .curve
        .as_ref()
        .map_or(1.0, |curve| between_quantiles(curve, share))
}
