//! The filter on one datapath: judges the beginnings of calls and their messages.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use provost_engine::{
    AuditEvent, CallState, Code, Denial, Direction, EventSink, Filter, Parts, StepView, Tables, Verdict,
    Watch,
};

use crate::access::config::{Action, OnError};
use crate::access::counts::{Count, Shard};
use crate::access::expression::Inputs;
use crate::access::program::{Decision, Failed, Judgement, Known, Manner, Program, Rules};

/// Form of what is saved of a call.
const CALL_FORM: u8 = 1;

pub(crate) struct Access {
    pub(crate) shared: Arc<Shared>,
    pub(crate) shard: Arc<Shard>,
    /// Of the app's schema.
    pub(crate) tables: Arc<Tables>,
    /// By the method's index.
    pub(crate) programs: Box<[Program]>,
    /// The peer, as it is named in the audit log.
    pub(crate) peer: Arc<str>,
}

/// What all filters of a policy share.
pub(crate) struct Shared {
    pub(crate) policy: Arc<str>,
    pub(crate) events: Arc<dyn EventSink>,
    pub(crate) mode: Mode,
    pub(crate) on_error: OnError,
    /// What is said of a denial by each rule, and last by the default.
    pub(crate) reasons: Box<[Reasons]>,
}

/// Whether what is decided is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Enforce,
    Shadow,
}

/// What is said of a denial.
pub(crate) struct Reasons {
    pub(crate) status: Arc<str>,
    /// In the audit log.
    pub(crate) audit: Arc<str>,
    /// Whether a client learns why an expression had no value.
    pub(crate) is_hidden: bool,
}

/// What is kept of a call in flight.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Whether the rules have decided: by a message, or without one.
    is_judged: bool,
    /// The metadata with which it began, if messages that come later are judged with it.
    metadata: Option<Box<[u8]>>,
}

impl CallState for Kept {
    // Form 1: the form, flags (1: judged, 2: has metadata), the metadata.
    fn save(&self, out: &mut Vec<u8>) {
        out.push(CALL_FORM);
        out.push(u8::from(self.is_judged) | u8::from(self.metadata.is_some()) << 1);
        out.extend_from_slice(self.metadata.as_deref().unwrap_or_default());
    }

    fn load(saved: &[u8]) -> Option<Kept> {
        match saved {
            [] => Some(Kept::default()),
            [CALL_FORM, flags, metadata @ ..] if *flags < 4 => Some(Kept {
                is_judged: flags & 1 != 0,
                metadata: (flags & 2 != 0).then(|| metadata.into()),
            }),
            _ => None,
        }
    }
}

impl Filter for Access {
    type Call = Kept;

    fn watch(&self) -> Watch {
        let any = |test: fn(&Program) -> bool| self.programs.iter().any(test);
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

    fn judge(&mut self, call: &mut Kept, step: &mut StepView<'_>) -> Verdict {
        let Some(program) = self.programs.get(usize::from(step.method_index())) else {
            return Verdict::Pass;
        };
        match step.direction() {
            Direction::Request => self.judge_request(program, call, step),
            Direction::Response => self.judge_response(program, call, step),
        }
    }
}

impl Access {
    fn judge_request(&self, program: &Program, call: &mut Kept, step: &mut StepView<'_>) -> Verdict {
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
            (true, _) => Known::Everything,
            (false, true) => Known::NoMessage,
            (false, false) => Known::Beginning,
        };
        // What was decided at the beginning is decided anew with each message, if rules read any.
        call.is_judged |= known == Known::Everything;
        let decision = self.decide(rules, (known, default), call, step);
        decision.map_or(Verdict::Pass, |decision| self.conclude(decision, step))
    }

    fn judge_response(&self, program: &Program, call: &mut Kept, step: &mut StepView<'_>) -> Verdict {
        if program.responses.is_empty() {
            return Verdict::Pass;
        }
        let decision = self.decide(&program.responses, (Known::Everything, Action::Allow), call, step);
        decision.map_or(Verdict::Pass, |decision| self.conclude(decision, step))
    }

    /// What the rules say; `None` if that is left to what comes later, or if the call began under other rules, for which
    /// its metadata was not kept.
    fn decide(
        &self,
        rules: &Rules,
        (known, default): (Known, Action),
        call: &Kept,
        step: &mut StepView<'_>,
    ) -> Option<Decision> {
        let tables = &*self.tables;
        let begins = step.parts().contains(Parts::BEGIN);
        if !begins && rules.uses_metadata && call.metadata.is_none() {
            return None;
        }
        let mut manner = Manner {
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
            let mut failed = Failed::default();
            let judgement = rules.judge(&inputs, manner, &mut failed);
            if judgement == Judgement::NotWhole {
                // What was copied is what is sent: the app cannot change it any more.
                match step.try_make_whole() {
                    Ok(is_whole_now) => manner.may_copy = is_whole_now,
                    Err(_) => manner.is_malformed = true,
                }
                continue;
            }
            failed.iter().for_each(|rule| self.shard.add(rule, Count::Errors));
            return match judgement {
                Judgement::Decided(decision) => Some(decision),
                Judgement::Open | Judgement::NotWhole => None,
            };
        }
    }

    fn conclude(&self, decision: Decision, step: &StepView<'_>) -> Verdict {
        let shared = &*self.shared;
        let rule = decision.rule.unwrap_or(shared.reasons.len() - 1);
        let count = match (decision.action, shared.mode) {
            (Action::Allow, Mode::Enforce) => Count::Allowed,
            (Action::Deny, Mode::Enforce) => Count::Denied,
            (Action::Allow, Mode::Shadow) => Count::ShadowAllowed,
            (Action::Deny, Mode::Shadow) => Count::ShadowDenied,
        };
        self.shard.add(rule, count);
        if decision.action == Action::Allow {
            return Verdict::Pass;
        }
        self.audit(decision, &shared.reasons[rule], step);
        match shared.mode {
            Mode::Shadow => Verdict::Pass,
            Mode::Enforce => {
                let reasons = &shared.reasons[rule];
                let reason: Cow<'static, str> = match decision.failure {
                    Some(failure) if !reasons.is_hidden => format!("{}: {failure}", reasons.status).into(),
                    _ => reasons.status.to_string().into(),
                };
                Verdict::Deny(Denial::new(Code::PermissionDenied, reason))
            }
        }
    }

    fn audit(&self, decision: Decision, reasons: &Reasons, step: &StepView<'_>) {
        let shared = &*self.shared;
        let datapath_context = step.datapath_context();
        shared.events.audit(AuditEvent {
            policy: Arc::clone(&shared.policy),
            action: match shared.mode {
                Mode::Enforce => "deny",
                Mode::Shadow => "shadow_deny",
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
            (Kept::default(), &[1, 0][..]),
            (
                Kept {
                    is_judged: true,
                    metadata: None,
                },
                &[1, 1],
            ),
            (
                Kept {
                    is_judged: false,
                    metadata: Some([7, 8].into()),
                },
                &[1, 2, 7, 8],
            ),
        ] {
            let mut saved = Vec::new();
            kept.save(&mut saved);
            assert_eq!(saved, form);
            assert_eq!(Kept::load(form), Some(kept));
        }
        assert_eq!(Kept::load(&[]), Some(Kept::default()));
        assert_eq!(Kept::load(&[2, 0]), None);
        assert_eq!(Kept::load(&[1, 4]), None);
        assert_eq!(Kept::load(&[1]), None);
    }
}
