//! The end of a world: everything is closed, and nothing may be left.

use super::{NodesWorld, SETTLING_NS_MAX, WorldPhase};
use crate::node::SimRuntime;

/// Turns after which apps are told again to close their connections, and how often they are.
const TURNS_BETWEEN_CLOSES: u32 = 200;
/// See [`TURNS_BETWEEN_CLOSES`].
const CLOSES_MAX: u32 = 10_000;
/// How long what was given back last may be on its way, in simulated nanoseconds.
const GIVEN_BACK_NS_MAX: u64 = 50_000_000;

impl NodesWorld {
    /// Closes every connection and checks that nothing is left.
    pub(super) fn close_all(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        for app in &mut self.apps {
            if app.is_hostile && app.process.is_some() {
                app.noticed_at = Some(now);
                for connection in app.process.take().iter().flat_map(|app| app.connections.values()) {
                    self.fates[connection.pair].worsen();
                }
            }
        }
        for fate in &mut self.fates {
            fate.worsen();
        }
        let by = now + SETTLING_NS_MAX;
        for _ in 0..CLOSES_MAX {
            let now = self.clock.now();
            self.apps
                .iter_mut()
                .filter_map(|app| app.process.as_mut())
                .for_each(|process| process.close_all(now));
            for _ in 0..TURNS_BETWEEN_CLOSES {
                if self.has_closed() {
                    return self.check_empty();
                }
                if self.next_actor(WorldPhase::Closing).is_none() {
                    break;
                }
                self.turn(WorldPhase::Closing)?;
            }
            if self.clock.now() > by {
                break;
            }
        }
        Err(format!(
            "connections that were closed do not end: {}",
            self.describe()
        ))
    }

    fn has_closed(&self) -> bool {
        self.nodes.iter().all(|node| node.ends.is_empty())
            && self.processes().all(|(_, app)| app.connections.is_empty())
    }

    fn check_empty(&mut self) -> Result<(), String> {
        // What was given back last is on its way.
        let by = self.clock.now() + GIVEN_BACK_NS_MAX;
        while self.clock.now() < by {
            let now = self.clock.now();
            if self
                .next_actor(WorldPhase::Closing)
                .is_none_or(|(due, _)| due > by)
            {
                self.clock.advance_to(by);
                break;
            }
            self.turn(WorldPhase::Closing)?;
            self.clock.advance_to(now + 1);
        }
        // Answers to changes hold the engines that went, and these count their calls until they are dropped.
        self.on_changes(self.clock.now())?;
        for (at, app) in self.processes() {
            app.check_empty()
                .map_err(|what| format!("app {}: {what}", at + 1))?;
        }
        self.nodes
            .iter()
            .flat_map(|node| &node.runtimes)
            .try_for_each(SimRuntime::check_empty)?;
        for (at, node) in self.nodes.iter().enumerate() {
            match node.open.get() {
                0 => {}
                open => {
                    return Err(format!(
                        "node {at}: {open} connections are counted that have ended"
                    ));
                }
            }
            for (id, app) in &node.apps {
                match app.quota.in_flight() {
                    0 => {}
                    calls => return Err(format!("app {id}: {calls} calls are counted that have ended")),
                }
            }
        }
        self.ledger.check().map(drop)
    }
}
