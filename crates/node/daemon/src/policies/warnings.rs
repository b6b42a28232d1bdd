//! Policies that may not do what was meant, as far as the schemas tell that the node knows. Whoever attaches one is warned, whoever
//! has the configuration read again, and whoever asks for the status.

use std::sync::Arc;

use provost_schema::SchemaHash;

use super::change::ChangeError;
use super::fit::{self, FitsNothing};
use super::table::Instance;
use super::{Attachment, Maker, Policies, disclosure};
use crate::schemas::BoundSchema;

/// A policy, what is known of the services that it may be for, and the policies beside it.
pub(crate) struct CheckedPolicy {
    pub(crate) attachment: Attachment,
    pub(crate) known: Vec<Arc<BoundSchema>>,
    pub(crate) beside: Vec<Arc<Instance>>,
}

/// Why a policy cannot do anything.
pub(crate) enum UselessPolicy {
    Config(ChangeError),
    Unfit(FitsNothing),
}

impl CheckedPolicy {
    /// What may not be meant. It may take long.
    pub(crate) fn warnings(&self, maker: &Maker) -> Result<Vec<String>, UselessPolicy> {
        let instance = maker
            .instance(&self.attachment, None)
            .map_err(UselessPolicy::Config)?;
        let unfit = fit::unfit_for(&instance, &self.known).map_err(UselessPolicy::Unfit)?;
        let idle = fit::idle_because(&self.attachment, &self.known);
        let shown = disclosure::shown_all_the_same(&instance, &self.beside, &self.known);
        Ok(idle.into_iter().chain(unfit).chain(shown).collect())
    }

    /// The same of one that is attached already, each with its name.
    fn named_warnings(&self, maker: &Maker) -> Vec<String> {
        let warnings = match self.warnings(maker) {
            Ok(warnings) => warnings,
            Err(UselessPolicy::Unfit(unfit)) => vec![unfit.problem],
            // It was configured once, so something outside has changed: a file that it names.
            Err(UselessPolicy::Config(error)) => vec![error.to_string()],
        };
        let named = warnings.into_iter();
        named
            .map(|warning| format!("policy \"{}\": {warning}", self.attachment.name))
            .collect()
    }
}

/// What the warnings of all policies follow from.
#[derive(PartialEq, Eq)]
struct WarningsBasis {
    generation: u64,
    known: Vec<Vec<(String, SchemaHash)>>,
}

/// Warnings of all policies, put together anew only when a policy or a schema is another.
#[derive(Default)]
pub(crate) struct PolicyWarnings {
    last: Option<(WarningsBasis, Arc<[String]>)>,
}

/// All policies with what is known of their services, to be checked.
pub(crate) struct CheckedPolicies {
    basis: WarningsBasis,
    policies: Vec<CheckedPolicy>,
    maker: Maker,
}

impl CheckedPolicies {
    /// Those that are attached.
    pub(crate) fn of(
        attached: &Policies,
        schemas_for: impl Fn(&Attachment) -> Vec<Arc<BoundSchema>>,
    ) -> CheckedPolicies {
        let table = attached.table();
        let mut beside: Vec<Arc<Instance>> = Vec::new();
        let mut policies = Vec::new();
        for entry in &table.entries {
            policies.push(CheckedPolicy {
                attachment: entry.attachment.clone(),
                known: schemas_for(&entry.attachment),
                // What two of them have to do with each other is said once, of the later one.
                beside: beside.clone(),
            });
            beside.extend(entry.instances().cloned());
        }
        let name = |schema: &Arc<BoundSchema>| (schema.service.clone(), schema.hash);
        let known = |policy: &CheckedPolicy| policy.known.iter().map(name).collect();
        CheckedPolicies {
            basis: WarningsBasis {
                generation: attached.generation(),
                known: policies.iter().map(known).collect(),
            },
            policies,
            maker: attached.maker.for_dry_runs(),
        }
    }

    /// It may take long.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let all = self.policies.iter();
        all.flat_map(|policy| policy.named_warnings(&self.maker))
            .collect()
    }
}

impl PolicyWarnings {
    /// Those that were put together last, if they are still those of these policies.
    pub(crate) fn known(&self, checked: &CheckedPolicies) -> Option<Arc<[String]>> {
        let (basis, warnings) = self.last.as_ref()?;
        (*basis == checked.basis).then(|| Arc::clone(warnings))
    }

    pub(crate) fn keep(&mut self, checked: CheckedPolicies, warnings: &Arc<[String]>) {
        self.last = Some((checked.basis, Arc::clone(warnings)));
    }
}
