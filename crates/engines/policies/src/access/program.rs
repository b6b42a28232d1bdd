//! The rules of a policy, compiled for one method, and what they decide of a step.

use std::sync::Arc;

use provost_engine::{AttachError, DatapathContext, MethodContext};

use crate::access::config::{AccessConfig, OnError, RULES_MAX, RuleAction, RuleMethods};
use crate::access::expression::{Expression, Failure, Inputs, Scope};

/// What is judged of the calls of a method.
#[derive(Debug, Default)]
pub(crate) struct MethodProgram {
    /// Rules over what a client sends.
    pub(crate) requests: OrderedRules,
    /// Rules over fields of responses.
    pub(crate) responses: OrderedRules,
    /// What becomes of a request that no rule matches.
    pub(crate) default: Option<RuleAction>,
}

/// Rules in their order, of which those that never match were left out.
#[derive(Debug, Default)]
pub(crate) struct OrderedRules {
    rules: Vec<CompiledRule>,
    pub(crate) uses_metadata: bool,
    pub(crate) uses_message: bool,
    pub(crate) uses_time: bool,
}

#[derive(Debug)]
struct CompiledRule {
    /// Index in the configuration.
    index: usize,
    action: RuleAction,
    /// `None` of a rule that always matches.
    when: Option<Expression>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallDecision {
    /// Index of the rule in the configuration; `None` of the default.
    pub(crate) rule: Option<usize>,
    pub(crate) action: RuleAction,
    /// Why the rule had no value, if that is why the call is denied.
    pub(crate) failure: Option<Failure>,
}

/// What is there to decide with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownInputs {
    /// All that the rules read.
    Everything,
    /// Not the message: it may come later.
    Beginning,
    /// Not the message, and none will come: no rule over its fields matches.
    NoMessage,
}

/// Rules whose expression had no value, by their index in the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FailedRules([u64; RULES_MAX.div_ceil(64)]);

impl FailedRules {
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
pub(crate) struct JudgingManner {
    pub(crate) known: KnownInputs,
    pub(crate) on_error: OnError,
    /// What becomes of a call that no rule matches.
    pub(crate) default: RuleAction,
    /// Whether what is not whole can be made so.
    pub(crate) may_copy: bool,
    /// Whether it was found to be malformed when it was decoded.
    pub(crate) is_malformed: bool,
}

/// What the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Decided(CallDecision),
    /// It depends on the message.
    Open,
    /// A part of the message is not in private memory.
    NotWhole,
}

impl MethodProgram {
    pub(crate) fn compile(
        config: &AccessConfig,
        datapath_context: &DatapathContext,
        method: &MethodContext,
    ) -> Result<MethodProgram, AttachError> {
        let scope = Scope::new(datapath_context, method, Arc::clone(&config.lists));
        let mut program = MethodProgram {
            default: Some(config.default),
            ..MethodProgram::default()
        };
        for (index, rule) in config.rules.iter().enumerate() {
            if !rule.methods.include(&method.path) {
                continue;
            }
            let expression = rule.when.compile(&scope).map_err(|error| {
                let mut problem = format!("rule {:?} for {}: {error}", rule.name, method.path);
                if matches!(rule.methods, RuleMethods::All) {
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

impl OrderedRules {
    fn add(&mut self, index: usize, action: RuleAction, expression: Expression) {
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
        self.rules.push(CompiledRule {
            index,
            action,
            when: constant.is_none().then_some(expression),
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What the first rule that matches says, and which had no value.
    pub(crate) fn judge(
        &self,
        inputs: &Inputs<'_>,
        manner: JudgingManner,
        failed: &mut FailedRules,
    ) -> Judgement {
        let mut is_open = false;
        for rule in &self.rules {
            let decision = |action, failure| {
                Judgement::Decided(CallDecision {
                    rule: Some(rule.index),
                    action,
                    failure,
                })
            };
            let outcome = match &rule.when {
                None => Ok(true),
                Some(when) if manner.known != KnownInputs::Everything && reads_message(when) => {
                    // If it allowed, it would decide before the rules behind it.
                    is_open |= manner.known == KnownInputs::Beginning && rule.action == RuleAction::Allow;
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
                Ok(true) if rule.action == RuleAction::Deny && is_open => return Judgement::Open,
                Ok(true) => return decision(rule.action, None),
                Err(Failure::NotWhole) if manner.may_copy => return Judgement::NotWhole,
                // Whoever sent it chose what cannot be read: no rule behind may allow it.
                Err(Failure::Malformed) => {
                    failed.insert(rule.index);
                    return decision(RuleAction::Deny, Some(Failure::Malformed));
                }
                Err(failure) => {
                    failed.insert(rule.index);
                    if manner.on_error == OnError::Deny {
                        return if is_open {
                            Judgement::Open
                        } else {
                            decision(RuleAction::Deny, Some(failure))
                        };
                    }
                }
            }
        }
        if is_open && manner.default == RuleAction::Deny {
            Judgement::Open
        } else {
            Judgement::Decided(CallDecision {
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
