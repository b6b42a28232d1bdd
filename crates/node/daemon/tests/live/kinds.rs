//! Kinds of policies that tests change: a witness that notices a step that went around it, and versions that fail.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use provost_engine::{
    AttachError, CallState, ConfigError, DatapathContext, Direction, Environment, Filter, FilterEngine,
    FilterEngineParts, FilterState, Parts, Policy, PolicyKind, RestoreError, SharedState, Start, StepView,
    Verdict, Watch,
};
use provost_random::SeededRandom;
use provostd::policies::{Origin, Registry};

pub(crate) const WITNESS: &str = "witness";

/// What a version does beside watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Good,
    /// Some steps wait, up to so many nanoseconds.
    Holds {
        ns_max: u64,
    },
    /// It does not take over from another version.
    RefusesState,
    /// It fails at a step, of the first so many.
    FailsWithin {
        steps: u64,
    },
    /// It fits no datapath.
    FitsNone,
    /// It does not take over from another version on the connection of [`Notes::odd_connection`].
    RefusesStateThere,
    /// It fits every datapath but that of the connection of [`Notes::unfit_connection`].
    FitsElsewhere,
}

/// A version that fails does so while it is on probation, also where hardly a call is made a second: a probation has 64 calls at
/// least, and traffic has fewer than 32 under way of which an engine may not have seen a step yet.
const STEPS_TO_FAILURE_MAX: u64 = 32;

/// The versions that a test's node has.
pub(crate) const VERSIONS: [(u32, Behaviour); 8] = [
    (1, Behaviour::Good),
    (2, Behaviour::Good),
    (3, Behaviour::Holds { ns_max: 2_000_000 }),
    (4, Behaviour::RefusesState),
    (
        5,
        Behaviour::FailsWithin {
            steps: STEPS_TO_FAILURE_MAX,
        },
    ),
    (6, Behaviour::FitsNone),
    (7, Behaviour::RefusesStateThere),
    (8, Behaviour::FitsElsewhere),
];

/// What all witnesses of a test have noticed.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Steps that were judged.
    pub(crate) judged: AtomicU64,
    /// Messages of calls that went around an engine that has known the call from its beginning.
    pub(crate) missed: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// The connections that an engine was prepared for.
    pub(crate) connections: Mutex<BTreeSet<u64>>,
    /// A connection on which a version does not take over; none has the number 0.
    pub(crate) odd_connection: AtomicU64,
    /// One that a version does not fit.
    pub(crate) unfit_connection: AtomicU64,
    seed: AtomicU64,
}

/// The built-in kinds and the witness in its versions.
pub(crate) fn registry(notes: &Arc<Notes>) -> Registry {
    let registry = Registry::with_built_ins();
    for (version, behaviour) in VERSIONS {
        let kind = Witness {
            version,
            behaviour,
            notes: Arc::clone(notes),
        };
        registry.add(Arc::new(kind), Origin::BuiltIn).expect("a new kind");
    }
    registry
}

struct Witness {
    version: u32,
    behaviour: Behaviour,
    notes: Arc<Notes>,
}

impl PolicyKind for Witness {
    fn name(&self) -> &'static str {
        WITNESS
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn summary(&self) -> &'static str {
        "notices what went around it"
    }

    fn example(&self) -> &'static str {
        ""
    }

    fn configure(
        &self,
        config: &toml::Table,
        _environment: &Environment,
        _shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        if config.contains_key("wrong") {
            return Err(ConfigError::new("wrong", "as asked"));
        }
        Ok(Arc::new(Attached {
            version: self.version,
            behaviour: self.behaviour,
            notes: Arc::clone(&self.notes),
        }))
    }
}

struct Attached {
    version: u32,
    behaviour: Behaviour,
    notes: Arc<Notes>,
}

impl Policy for Attached {
    fn prepare(&self, datapath_context: &DatapathContext) -> Result<Start, AttachError> {
        let connection = datapath_context.connection;
        self.notes
            .connections
            .lock()
            .expect("no panic")
            .insert(connection);
        let is_unfit = match self.behaviour {
            Behaviour::FitsNone => true,
            Behaviour::FitsElsewhere => self.notes.unfit_connection.load(Ordering::Relaxed) == connection,
            _ => false,
        };
        if is_unfit {
            return Err(AttachError::new("as asked"));
        }
        let seed = self
            .notes
            .seed
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mut judge = Judge {
            connection,
            behaviour: self.behaviour,
            notes: Arc::clone(&self.notes),
            random: SeededRandom::new(seed),
            steps_to_failure: u64::MAX,
        };
        if let Behaviour::FailsWithin { steps } = self.behaviour {
            judge.steps_to_failure = judge.random.below(steps);
        }
        let parts = FilterEngineParts {
            kind: WITNESS,
            version: self.version,
            datapath_context: datapath_context.clone(),
            filter: judge,
        };
        Ok(Box::new(move |saved| {
            Ok(Box::new(FilterEngine::start(parts, saved)?))
        }))
    }
}

struct Judge {
    connection: u64,
    behaviour: Behaviour,
    notes: Arc<Notes>,
    random: SeededRandom,
    steps_to_failure: u64,
}

/// The number that the next message of each direction has at most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    next: [u64; 2],
}

impl CallState for Seen {
    fn save(&self, out: &mut Vec<u8>) {
        self.next
            .iter()
            .for_each(|next| out.extend_from_slice(&next.to_le_bytes()));
    }

    fn load(saved: &[u8]) -> Option<Seen> {
        let (first, second) = saved.split_first_chunk::<8>()?;
        let next = [*first, second.try_into().ok()?].map(u64::from_le_bytes);
        Some(Seen { next })
    }
}

impl Filter for Judge {
    type Call = Seen;

    fn watch(&self) -> Watch {
        Watch::ALL
    }

    fn judge(&mut self, seen: &mut Seen, step: &mut StepView<'_>) -> Verdict {
        self.notes.judged.fetch_add(1, Ordering::Relaxed);
        if self.steps_to_failure == 0 {
            self.notes.failures.fetch_add(1, Ordering::Relaxed);
            return Verdict::Fault("as asked".into());
        }
        self.steps_to_failure -= 1;
        if let Behaviour::Holds { ns_max } = self.behaviour
            && step.held_since().is_none()
            && self.random.one_in(5)
        {
            let until = step.now() + self.random.below(ns_max);
            return Verdict::Hold { until };
        }
        if step.parts().contains(Parts::MESSAGE) {
            let stream = usize::from(step.direction() == Direction::Response);
            let number = step
                .message()
                .and_then(|view| view.bytes().first_chunk().copied());
            let number = u64::from_le_bytes(number.unwrap_or_default());
            // Unary calls have large numbers; those of a stream count from 0.
            if number < 1 << 32 {
                if number > seen.next[stream] {
                    self.notes.missed.fetch_add(1, Ordering::Relaxed);
                }
                seen.next[stream] = seen.next[stream].max(number + 1);
            }
        }
        Verdict::Pass
    }

    fn save(&self) -> FilterState {
        FilterState {
            version: 1,
            bytes: vec![1],
        }
    }

    fn restore(&mut self, _state: &FilterState) -> Result<(), RestoreError> {
        let refuses = match self.behaviour {
            Behaviour::RefusesState => true,
            Behaviour::RefusesStateThere => {
                self.notes.odd_connection.load(Ordering::Relaxed) == self.connection
            }
            _ => false,
        };
        if refuses {
            Err(RestoreError::Damaged {
                kind: WITNESS,
                reason: "as asked".into(),
            })
        } else {
            Ok(())
        }
    }
}
