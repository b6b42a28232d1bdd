//! Worlds that do wrong on purpose, each in one way, to see that the oracle finds it. What a build that is broken on
//! purpose does is beside it: `provost_runtime::Mutation`.

use std::str::FromStr;

use provost_conformance::Random;
use provost_ring::Slot;
use provost_wire::descriptor::{Completion, Parts, completion_kind};
use zerocopy::{FromBytes, IntoBytes};

/// Of what is to go wrong, one in so many does.
const WRONG_ONE_IN: u64 = 8;

/// One way in which a simulated world does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Apps are not told of the ends of some calls.
    LostEnd,
    /// Apps are told of some steps twice.
    RepeatedStep,
    /// Some messages of streams do not reach their apps.
    LostMessage,
    /// Some messages of streams reach their apps after those that follow them.
    SwappedMessages,
    /// Apps are not told that some memory of their send heaps is theirs again.
    LostToken,
    /// Apps do not give some memory of their receive heaps back.
    KeptBlock,
    /// The policy that judges calls judges each twice.
    SecondVerdict,
    /// Some carriers stall or break, and nobody is told.
    UnseenFault,
    /// Servers let some calls wait for long, though others come later.
    Starvation,
    /// The time of day has a say in what happens.
    TimeOfDay,
    Panic,
}

impl Sabotage {
    /// All of them, by their names.
    pub const ALL: [(&'static str, Sabotage); 11] = [
        ("lost-end", Sabotage::LostEnd),
        ("repeated-step", Sabotage::RepeatedStep),
        ("lost-message", Sabotage::LostMessage),
        ("swapped-messages", Sabotage::SwappedMessages),
        ("lost-token", Sabotage::LostToken),
        ("kept-block", Sabotage::KeptBlock),
        ("second-verdict", Sabotage::SecondVerdict),
        ("unseen-fault", Sabotage::UnseenFault),
        ("starvation", Sabotage::Starvation),
        ("time-of-day", Sabotage::TimeOfDay),
        ("panic", Sabotage::Panic),
    ];
}

impl std::fmt::Display for Sabotage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = Sabotage::ALL.iter().find(|(_, sabotage)| sabotage == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

impl FromStr for Sabotage {
    type Err = String;

    fn from_str(name: &str) -> Result<Sabotage, String> {
        let named = Sabotage::ALL.iter().find(|(known, _)| *known == name);
        let names = || Sabotage::ALL.map(|(name, _)| name).join(", ");
        named
            .map(|(_, sabotage)| *sabotage)
            .ok_or_else(|| format!("there is no such sabotage: choose one of {}", names()))
    }
}

/// Stands between an app's completion ring and the app.
pub(crate) struct TamperedRing {
    sabotage: Option<Sabotage>,
    random: Random,
    /// A message that comes after the next step of its call.
    held: Option<Completion>,
}

impl TamperedRing {
    pub(crate) fn new(sabotage: Option<Sabotage>, seed: u64) -> TamperedRing {
        TamperedRing {
            sabotage,
            random: Random::new(seed),
            held: None,
        }
    }

    /// What the app is told when the service told it this.
    pub(crate) fn deliver(&mut self, slot: Slot) -> [Option<Slot>; 2] {
        let told = [Some(slot), None];
        let Some(sabotage) = self.sabotage else {
            return told;
        };
        let completion = Completion::read_from_bytes(slot.as_bytes()).unwrap_or_default();
        let parts = completion.parts;
        match (sabotage, completion.kind) {
            (Sabotage::SwappedMessages, completion_kind::STEP) => self.swap(slot, completion),
            (Sabotage::RepeatedStep, completion_kind::STEP) if self.strikes() => {
                // Its memory is given back once.
                let again = Completion {
                    block: 0,
                    ..completion
                };
                [Some(slot), slot_of(&again)]
            }
            (Sabotage::LostEnd, completion_kind::STEP)
                if parts.intersects(Parts::STATUS.with(Parts::CANCEL)) && self.strikes() =>
            {
                [None, None]
            }
            (Sabotage::LostMessage, completion_kind::STEP) if parts == Parts::MESSAGE && self.strikes() => {
                [None, None]
            }
            (Sabotage::LostToken, completion_kind::SENT) if self.strikes() => [None, None],
            _ => told,
        }
    }

    fn swap(&mut self, slot: Slot, completion: Completion) -> [Option<Slot>; 2] {
        match self.held.take() {
            Some(held) if held.call == completion.call => [Some(slot), slot_of(&held)],
            None if completion.parts == Parts::MESSAGE && self.strikes() => {
                self.held = Some(completion);
                [None, None]
            }
            held => {
                self.held = held;
                [Some(slot), None]
            }
        }
    }

    /// Whether the app keeps a block that it was to give back.
    pub(crate) fn keeps_block(&mut self) -> bool {
        self.sabotage == Some(Sabotage::KeptBlock) && self.strikes()
    }

    fn strikes(&mut self) -> bool {
        self.random.one_in(WRONG_ONE_IN)
    }
}

fn slot_of(completion: &Completion) -> Option<Slot> {
    Slot::read_from_bytes(completion.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sabotage_has_its_name() {
        for (name, sabotage) in Sabotage::ALL {
            assert_eq!(name.parse(), Ok(sabotage));
            assert_eq!(sabotage.to_string(), name);
        }
        assert!("none".parse::<Sabotage>().is_err());
    }
}
