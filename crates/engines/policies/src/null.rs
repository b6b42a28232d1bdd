//! The policy that does nothing: how little an engine needs, and what each policy costs at least.

use provost_engine::{
    AttachError, ConfigError, Context, DatapathContext, DeclaredEngine, Engine, Environment, FilterPolicy,
    PolicyEngine, Ports, Progress, Queue, RestoreError, SavedState, Saver, SharedState, Step,
};
use serde::Deserialize;

/// [`Engine::kind`] of this engine, and its name in configurations.
pub const KIND: &str = "null";

/// Version of its saved state, which is empty.
const STATE_VERSION: u32 = 1;

/// Steps that one poll moves in each direction, at most.
const BATCH_STEPS: usize = 64;

/// The policy once it is attached: its engines share nothing.
pub(crate) struct Null;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NullConfig {}

impl FilterPolicy for Null {
    const KIND: &'static str = KIND;
    const SUMMARY: &'static str = "does nothing: what a policy costs at least";
    const EXAMPLE: &'static str = "# It has no keys.\n";
    type Config = NullConfig;
    type Filter = NullPolicy;

    fn configure(
        _config: NullConfig,
        _environment: &Environment,
        _shared: Option<&SharedState>,
    ) -> Result<Null, ConfigError> {
        Ok(Null)
    }

    fn filter(&self, _datapath_context: &DatapathContext) -> Result<NullPolicy, AttachError> {
        Ok(NullPolicy)
    }
}

impl PolicyEngine for NullPolicy {
    const JUDGES_CALLS: bool = false;

    fn start(
        self,
        _declared: DeclaredEngine,
        saved: Option<&SavedState>,
    ) -> Result<Box<dyn Engine>, RestoreError> {
        saved.map(NullPolicy::restore).transpose()?;
        Ok(Box::new(self))
    }
}

#[derive(Debug, Default)]
pub struct NullPolicy;

impl NullPolicy {
    /// The policy from the saved state of another version of it.
    pub fn restore(state: &SavedState) -> Result<NullPolicy, RestoreError> {
        state.open(KIND, STATE_VERSION)?.end()?;
        Ok(NullPolicy)
    }
}

impl Engine for NullPolicy {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn do_work(&mut self, ports: Ports<'_>, _context: &mut Context<'_>) -> Progress {
        let outbound = forward(ports.tx_in, ports.tx_out);
        let inbound = forward(ports.rx_in, ports.rx_out);
        if outbound + inbound == 0 {
            Progress::Idle
        } else {
            Progress::Busy
        }
    }

    fn rests(&self) -> bool {
        true
    }

    fn save(&self, _saver: &mut dyn Saver) -> SavedState {
        SavedState {
            kind: KIND.to_owned(),
            version: STATE_VERSION,
            bytes: Vec::new(),
        }
    }
}

/// Moves what there is room for and says how many steps that were.
fn forward(from: &mut Queue<Step>, to: &mut Queue<Step>) -> usize {
    from.transfer(to, BATCH_STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use provost_engine::Code;
    use provost_engine::rig::policy;

    #[test]
    fn steps_keep_their_order_and_a_full_output_leaves_them_in_the_input() {
        let mut from = Queue::with_bound(4);
        let mut to = Queue::with_bound(2);
        for call in 1..=3 {
            from.push(Step::cancel(call, Code::Cancelled)).unwrap();
        }
        assert_eq!(forward(&mut from, &mut to), 2);
        assert_eq!(forward(&mut from, &mut to), 0);
        let calls: Vec<_> = std::iter::from_fn(|| to.pop()).map(|step| step.call).collect();
        assert_eq!(calls, [1, 2]);
        assert_eq!(from.peek().map(|step| step.call), Some(3));
    }

    #[test]
    fn a_key_is_refused_by_its_name() {
        let kind = provost_engine::kind_of::<Null>();
        let refused = policy(&*kind, "rate = 1", None).err().unwrap();
        assert!(refused.problem.contains("unknown field `rate`"), "{refused}");
        assert!(policy(&*kind, "", None).is_ok());
    }

    #[test]
    fn saved_state_round_trips_and_a_stranger_is_refused() {
        let saved = NullPolicy.save(&mut provost_datapath::InPlace::new(|_, _| {}));
        assert!(NullPolicy::restore(&saved).is_ok());
        let newer = SavedState {
            version: 2,
            ..saved.clone()
        };
        assert!(matches!(
            NullPolicy::restore(&newer),
            Err(RestoreError::Version { found: 2, .. })
        ));
        let stranger = SavedState {
            kind: "policy-rate".to_owned(),
            ..saved.clone()
        };
        assert!(matches!(
            NullPolicy::restore(&stranger),
            Err(RestoreError::Kind { .. })
        ));
        let damaged = SavedState {
            bytes: vec![1],
            ..saved
        };
        assert!(matches!(
            NullPolicy::restore(&damaged),
            Err(RestoreError::Damaged { .. })
        ));
    }
}
