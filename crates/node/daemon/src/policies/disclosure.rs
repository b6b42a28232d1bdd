//! Values that a policy redacts and that are shown all the same, as far as schemas and configurations tell before a call has passed: by
//! another field of the same name and type, or by another policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use provost_engine::{CallDisclosure, RecordedField, Side};

use super::schema_context::context_of_schema;
use super::table::Instance;
use crate::schemas::BoundSchema;

/// Warnings of one attachment, at most.
const WARNINGS_MAX: usize = 8;

/// Warnings for the operator who attaches a policy to what is known, beside those that are attached already. It may take long.
pub(crate) fn shown_all_the_same(
    instance: &Instance,
    attached: &[Arc<Instance>],
    known: &[Arc<BoundSchema>],
) -> Vec<String> {
    let mut warnings = Vec::new();
    for schema in known {
        let Some(own) = disclosure_of(instance, schema) else {
            continue;
        };
        fields_alike(&own, &mut warnings);
        let others = attached.iter().filter(|other| other.name != instance.name);
        for other in others {
            if let Some(theirs) = disclosure_of(other, schema) {
                let (this, that) = ("this policy", format!("policy \"{}\"", other.name));
                shown_by_another((this, &own), (&that, &theirs), &mut warnings);
                shown_by_another((&that, &theirs), (this, &own), &mut warnings);
            }
        }
    }
    warnings.sort();
    warnings.dedup();
    warnings.truncate(WARNINGS_MAX);
    warnings
}

/// What a policy records of a service's calls, on the side of a call to which it is attached.
fn disclosure_of(instance: &Instance, schema: &Arc<BoundSchema>) -> Option<CallDisclosure> {
    let contexts = [Side::Client, Side::Server].map(|side| context_of_schema(schema, side));
    let meant = contexts.iter().find(|context| instance.may_apply_to(context))?;
    instance.policy.disclosure(&instance.datapath_context(meant))
}

/// Warns of fields that have the name and the type of one that is hidden.
fn fields_alike(own: &CallDisclosure, warnings: &mut Vec<String>) {
    let hidden: BTreeMap<_, _> = own
        .hidden
        .iter()
        .map(|field| ((&field.name, &field.type_name), field))
        .collect();
    for (_, hidden) in hidden {
        let mut alike = own.shown.iter().filter(|shown| shown.is_alike(hidden));
        if let Some(shown) = alike.next() {
            let more = match alike.count() {
                0 => String::new(),
                1 => " and 1 other place".to_owned(),
                more => format!(" and {more} other places"),
            };
            warnings.push(format!(
                "{} is redacted, a field of the same name and type is shown: {}{more}; redact it too if it may have the \
                 same value",
                hidden.place, shown.place
            ));
        }
    }
}

/// Warns of what one policy hides and another one shows of the same calls.
fn shown_by_another(
    (hider, hides): (&str, &CallDisclosure),
    (shower, shows): (&str, &CallDisclosure),
    warnings: &mut Vec<String>,
) {
    let is_shown = |hidden: &&RecordedField| shows.shown.iter().any(|shown| shown.is_same_field(hidden));
    warnings.extend(
        hides
            .hidden
            .iter()
            .filter(is_shown)
            .map(|hidden| format!("{} is redacted by {hider} and shown by {shower}", hidden.place)),
    );
    let keys = hides.hidden_metadata.difference(&shows.hidden_metadata);
    warnings
        .extend(keys.map(|key| format!("metadata \"{key}\" is redacted by {hider} and shown by {shower}")));
}
