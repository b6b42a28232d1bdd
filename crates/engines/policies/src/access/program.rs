//! The rules of a policy, compiled for one method, and what they decide of a step.

use std::sync::Arc;

use provost_engine::{AttachError, DatapathContext, MethodContext};

use crate::access::config::{Action, Config, Methods, OnError, RULES_MAX};
use crate::access::expression::{Expression, Failure, Inputs, Scope};

/// What is judged of the calls of a method.
#[derive(Debug, Default)]
pub(crate) struct Program {
    /// Rules over what a client sends.
    pub(crate) requests: Rules,
    /// Rules over fields of responses.
    pub(crate) responses: Rules,
    /// What becomes of a request that no rule matches.
    pub(crate) default: Option<Action>,
}

/// Rules in their order, of which those that never match were left out.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    rules: Vec<Compiled>,
    pub(crate) uses_metadata: bool,
    pub(crate) uses_message: bool,
    pub(crate) uses_time: bool,
}

#[derive(Debug)]
struct Compiled {
    /// Index in the configuration.
    index: usize,
    action: Action,
    /// `None` of a rule that always matches.
    when: Option<Expression>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Index of the rule in the configuration; `None` of the default.
    pub(crate) rule: Option<usize>,
    pub(crate) action: Action,
    /// Why the rule had no value, if that is why the call is denied.
    pub(crate) failure: Option<Failure>,
}

/// What is there to decide with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// All that the rules read.
    Everything,
    /// Not the message: it may come later.
    Beginning,
    /// Not the message, and none will come: no rule over its fields matches.
    NoMessage,
}

/// Rules whose expression had no value, by their index in the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failed([u64; RULES_MAX.div_ceil(64)]);

impl Failed {
    fn insert(&mut self, rule: usize) {
        if let Some(word) = self.0.get_mut(rule / 64) {
            *word |= 1 << (rule % 64);
        }
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let words = (0..).zip(self.0).filter(|(_, word)| *word != 0);
        words.flat_map(|(at, word)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 != 0)
                .map(move |bit| at * 64 + bit)
        })
    }
}

/// How rules are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) known: Known,
    pub(crate) on_error: OnError,
    /// What becomes of a call that no rule matches.
    pub(crate) default: Action,
    /// Whether what is not whole can be made so.
    pub(crate) may_copy: bool,
    /// Whether it was found to be malformed when it was decoded.
    pub(crate) is_malformed: bool,
}

/// What the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Decided(Decision),
    /// It depends on the message.
    Open,
    /// A part of the message is not in private memory.
    NotWhole,
}

impl Program {
    pub(crate) fn compile(
        config: &Config,
        datapath_context: &DatapathContext,
        method: &MethodContext,
    ) -> Result<Program, AttachError> {
        let scope = Scope::new(datapath_context, method, Arc::clone(&config.lists));
        let mut program = Program {
            default: Some(config.default),
            ..Program::default()
        };
        for (index, rule) in config.rules.iter().enumerate() {
            if !rule.methods.include(&method.path) {
                continue;
            }
            let expression = rule.when.compile(&scope).map_err(|error| {
                let mut problem = format!("rule {:?} for {}: {error}", rule.name, method.path);
                if matches!(rule.methods, Methods::All) {
                    problem.push_str("\n  = help: the rule is for all methods; `methods` says which");
                }
                AttachError::new(problem)
            })?;
            let rules = if expression.uses().response {
                &mut program.responses
            } else {
                &mut program.requests
            };
            rules.add(index, rule.action, expression);
        }
        Ok(program)
    }
}

impl Rules {
    fn add(&mut self, index: usize, action: Action, expression: Expression) {
        // Behind a rule that always matches, none is ever reached.
        let is_reached = self.rules.last().is_none_or(|last| last.when.is_some());
        let constant = expression.constant();
        if constant == Some(false) || !is_reached {
            return;
        }
        let uses = expression.uses();
        self.uses_metadata |= constant.is_none() && !uses.metadata.is_empty();
        self.uses_time |= constant.is_none() && uses.time;
        self.uses_message |= constant.is_none() && (uses.request || uses.response);
        self.rules.push(Compiled {
            index,
            action,
            when: constant.is_none().then_some(expression),
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What the first rule that matches says, and which had no value.
    pub(crate) fn judge(&self, inputs: &Inputs<'_>, manner: Manner, failed: &mut Failed) -> Judgement {
        let mut is_open = false;
        for rule in &self.rules {
            let decision = |action, failure| {
                Judgement::Decided(Decision {
                    rule: Some(rule.index),
                    action,
                    failure,
                })
            };
            let outcome = match &rule.when {
                None => Ok(true),
                Some(when) if manner.known != Known::Everything && reads_message(when) => {
                    // If it allowed, it would decide before the rules behind it.
                    is_open |= manner.known == Known::Beginning && rule.action == Action::Allow;
                    continue;
                }
                Some(when) => when.evaluate(inputs),
            };
            let outcome = match outcome {
                Err(Failure::NotWhole) if manner.is_malformed => Err(Failure::Malformed),
                outcome => outcome,
            };
            match outcome {
                Ok(false) => {}
                Ok(true) if rule.action == Action::Deny && is_open => return Judgement::Open,
                Ok(true) => return decision(rule.action, None),
                Err(Failure::NotWhole) if manner.may_copy => return Judgement::NotWhole,
                // Whoever sent it chose what cannot be read: no rule behind may allow it.
                Err(Failure::Malformed) => {
                    failed.insert(rule.index);
                    return decision(Action::Deny, Some(Failure::Malformed));
                }
                Err(failure) => {
                    failed.insert(rule.index);
                    if manner.on_error == OnError::Deny {
                        return if is_open {
                            Judgement::Open
                        } else {
                            decision(Action::Deny, Some(failure))
                        };
                    }
                }
            }
        }
        if is_open && manner.default == Action::Deny {
            Judgement::Open
        } else {
            Judgement::Decided(Decision {
                rule: None,
                action: manner.default,
                failure: None,
            })
        }
    }
}

fn reads_message(when: &Expression) -> bool {
    when.uses().request || when.uses().response
}
