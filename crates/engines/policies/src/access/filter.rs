//! The filter on one datapath: judges the beginnings of calls and their messages.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use provost_engine::{
    AuditEvent, CallState, Code, Denial, Direction, EventSink, Filter, Parts, StepView, Tables, Verdict,
    Watch,
};

use crate::access::config::{OnError, RuleAction};
use crate::access::counts::{CountShard, RuleCount};
use crate::access::expression::Inputs;
use crate::access::program::{
    CallDecision, FailedRules, Judgement, JudgingManner, KnownInputs, MethodProgram, OrderedRules,
};

/// Form of what is saved of a call.
const CALL_FORM: u8 = 1;

pub(crate) struct AccessFilter {
    pub(crate) shared: Arc<AccessShared>,
    pub(crate) shard: Arc<CountShard>,
    /// Of the app's schema.
    pub(crate) tables: Arc<Tables>,
    /// By the method's index.
    pub(crate) programs: Box<[MethodProgram]>,
    /// The peer, as it is named in the audit log.
    pub(crate) peer: Arc<str>,
}

/// What all filters of a policy share.
pub(crate) struct AccessShared {
    pub(crate) policy: Arc<str>,
    pub(crate) events: Arc<dyn EventSink>,
    pub(crate) mode: EnforcementMode,
    pub(crate) on_error: OnError,
    /// What is said of a denial by each rule, and last by the default.
    pub(crate) reasons: Box<[DenialReasons]>,
}

/// Whether what is decided is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnforcementMode {
    Enforce,
    Shadow,
}

/// What is said of a denial.
pub(crate) struct DenialReasons {
    pub(crate) status: Arc<str>,
    /// In the audit log.
    pub(crate) audit: Arc<str>,
    /// Whether a client learns why an expression had no value.
    pub(crate) is_hidden: bool,
}

/// What is kept of a call in flight.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptCall {
    /// Whether the rules have decided: by a message, or without one.
    is_judged: bool,
    /// The metadata with which it began, if messages that come later are judged with it.
    metadata: Option<Box<[u8]>>,
}

impl CallState for KeptCall {
    // Form 1: the form, flags (1: judged, 2: has metadata), the metadata.
    fn save(&self, out: &mut Vec<u8>) {
        out.push(CALL_FORM);
        out.push(u8::from(self.is_judged) | u8::from(self.metadata.is_some()) << 1);
        out.extend_from_slice(self.metadata.as_deref().unwrap_or_default());
    }

    fn load(saved: &[u8]) -> Option<KeptCall> {
        match saved {
            [] => Some(KeptCall::default()),
            [CALL_FORM, flags, metadata @ ..] if *flags < 4 => Some(KeptCall {
                is_judged: flags & 1 != 0,
                metadata: (flags & 2 != 0).then(|| metadata.into()),
            }),
            _ => None,
        }
    }
}

impl Filter for AccessFilter {
    type Call = KeptCall;

    fn watch(&self) -> Watch {
        let any = |test: fn(&MethodProgram) -> bool| self.programs.iter().any(test);
        let requests = if any(|program| program.requests.uses_message) {
            Parts::BEGIN | Parts::MESSAGE | Parts::END
        } else {
            Parts::BEGIN
        };
        let responses = if any(|program| !program.responses.is_empty()) {
            Parts::MESSAGE
        } else {
            Parts::NONE
        };
        Watch {
            requests,
            responses,
            calls: false,
        }
    }

    fn judge(&mut self, call: &mut KeptCall, step: &mut StepView<'_>) -> Verdict {
        let Some(program) = self.programs.get(usize::from(step.method_index())) else {
            return Verdict::Pass;
        };
        match step.direction() {
            Direction::Request => self.judge_request(program, call, step),
            Direction::Response => self.judge_response(program, call, step),
        }
    }
}

impl AccessFilter {
    fn judge_request(
        &self,
        program: &MethodProgram,
        call: &mut KeptCall,
        step: &mut StepView<'_>,
    ) -> Verdict {
        let Some(default) = program.default else {
            return Verdict::Pass;
        };
        let parts = step.parts();
        let (begins, has_message) = (parts.contains(Parts::BEGIN), parts.contains(Parts::MESSAGE));
        let rules = &program.requests;
        if begins {
            let more_messages = rules.uses_message && rules.uses_metadata && !parts.contains(Parts::END);
            if more_messages || program.responses.uses_metadata {
                call.metadata = Some(step.contents().metadata.into());
            }
        } else if !rules.uses_message || (call.is_judged && !has_message) {
            return Verdict::Pass;
        }
        let known = match (has_message, parts.contains(Parts::END)) {
            (true, _) => KnownInputs::Everything,
            (false, true) => KnownInputs::NoMessage,
            (false, false) => KnownInputs::Beginning,
        };
        // What was decided at the beginning is decided anew with each message, if rules read any.
        call.is_judged |= known == KnownInputs::Everything;
        let decision = self.decide(rules, (known, default), call, step);
        decision.map_or(Verdict::Pass, |decision| self.conclude(decision, step))
    }

    fn judge_response(
        &self,
        program: &MethodProgram,
        call: &mut KeptCall,
        step: &mut StepView<'_>,
    ) -> Verdict {
        if program.responses.is_empty() {
            return Verdict::Pass;
        }
        let decision = self.decide(
            &program.responses,
            (KnownInputs::Everything, RuleAction::Allow),
            call,
            step,
        );
        decision.map_or(Verdict::Pass, |decision| self.conclude(decision, step))
    }

    /// What the rules say; `None` if that is left to what comes later, or if the call began under other rules, for which
    /// its metadata was not kept.
    fn decide(
        &self,
        rules: &OrderedRules,
        (known, default): (KnownInputs, RuleAction),
        call: &KeptCall,
        step: &mut StepView<'_>,
    ) -> Option<CallDecision> {
        let tables = &*self.tables;
        let begins = step.parts().contains(Parts::BEGIN);
        if !begins && rules.uses_metadata && call.metadata.is_none() {
            return None;
        }
        let mut manner = JudgingManner {
            known,
            on_error: self.shared.on_error,
            default,
            may_copy: true,
            is_malformed: false,
        };
        let unix_s = if rules.uses_time { unix_s() } else { 0 };
        loop {
            let mut inputs = Inputs {
                unix_s,
                ..Inputs::of(tables, step.contents())
            };
            if !begins {
                inputs.metadata = call.metadata.as_deref().unwrap_or_default();
            }
            let mut failed = FailedRules::default();
            let judgement = rules.judge(&inputs, manner, &mut failed);
            if judgement == Judgement::NotWhole {
                // What was copied is what is sent: the app cannot change it any more.
                let is_readable = step.decompress().and_then(|was_compressed| {
                    if was_compressed {
                        Ok(true)
                    } else {
                        step.try_make_whole()
                    }
                });
                match is_readable {
                    Ok(is_whole_now) => manner.may_copy = is_whole_now,
                    Err(_) => manner.is_malformed = true,
                }
                continue;
            }
            failed
                .iter()
                .for_each(|rule| self.shard.add(rule, RuleCount::Errors));
            return match judgement {
                Judgement::Decided(decision) => Some(decision),
                Judgement::Open | Judgement::NotWhole => None,
            };
        }
    }

    fn conclude(&self, decision: CallDecision, step: &StepView<'_>) -> Verdict {
        let shared = &*self.shared;
        let rule = decision.rule.unwrap_or(shared.reasons.len() - 1);
        let count = match (decision.action, shared.mode) {
            (RuleAction::Allow, EnforcementMode::Enforce) => RuleCount::Allowed,
            (RuleAction::Deny, EnforcementMode::Enforce) => RuleCount::Denied,
            (RuleAction::Allow, EnforcementMode::Shadow) => RuleCount::ShadowAllowed,
            (RuleAction::Deny, EnforcementMode::Shadow) => RuleCount::ShadowDenied,
        };
        self.shard.add(rule, count);
        if decision.action == RuleAction::Allow {
            return Verdict::Pass;
        }
        self.audit(decision, &shared.reasons[rule], step);
        match shared.mode {
            EnforcementMode::Shadow => Verdict::Pass,
            EnforcementMode::Enforce => {
                let reasons = &shared.reasons[rule];
                let reason: Cow<'static, str> = match decision.failure {
                    Some(failure) if !reasons.is_hidden => format!("{}: {failure}", reasons.status).into(),
                    _ => reasons.status.to_string().into(),
                };
                Verdict::Deny(Denial::new(Code::PermissionDenied, reason))
            }
        }
    }

    fn audit(&self, decision: CallDecision, reasons: &DenialReasons, step: &StepView<'_>) {
        let shared = &*self.shared;
        let datapath_context = step.datapath_context();
        shared.events.audit(AuditEvent {
            policy: Arc::clone(&shared.policy),
            action: match shared.mode {
                EnforcementMode::Enforce => "deny",
                EnforcementMode::Shadow => "shadow_deny",
            },
            app: Arc::clone(&datapath_context.app.name),
            method: step.method().map_or("".into(), |method| Arc::clone(&method.path)),
            peer: Arc::clone(&self.peer),
            call: step.call(),
            code: Code::PermissionDenied,
            reason: match decision.failure {
                Some(failure) => format!("{}: {failure}", reasons.audit).into(),
                None => Arc::clone(&reasons.audit),
            },
        });
    }
}

/// The calendar's time, in seconds since 1970.
fn unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_call_has_a_form_that_stays() {
        for (kept, form) in [
            (KeptCall::default(), &[1, 0][..]),
            (
                KeptCall {
                    is_judged: true,
                    metadata: None,
                },
                &[1, 1],
            ),
            (
                KeptCall {
                    is_judged: false,
                    metadata: Some([7, 8].into()),
                },
                &[1, 2, 7, 8],
            ),
        ] {
            let mut saved = Vec::new();
            kept.save(&mut saved);
            assert_eq!(saved, form);
            assert_eq!(KeptCall::load(form), Some(kept));
        }
        assert_eq!(KeptCall::load(&[]), Some(KeptCall::default()));
        assert_eq!(KeptCall::load(&[2, 0]), None);
        assert_eq!(KeptCall::load(&[1, 4]), None);
        assert_eq!(KeptCall::load(&[1]), None);
    }
}
