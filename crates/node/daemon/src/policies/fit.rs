//! Whether an attachment can do what was meant, as far as the schemas tell that the node knows: whether it applies to
//! anything, and fits what it applies to. (Live datapaths are another matter: a change is made ready for each of them.)

use std::sync::Arc;

use provost_engine::{DatapathContext, Side};

use super::attachment::{Attachment, matches};
use super::schema_context::{context_of_schema, methods_of};
use super::table::Instance;
use crate::schemas::BoundSchema;
use crate::suggestion::what_is_known;

/// Problems of one attachment that are told, at most.
const TOLD_MAX: usize = 4;

/// What is wrong with an attachment that applies to something known, and fits nothing of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FitsNothing {
    pub(crate) problem: String,
}

/// Why an attachment applies to nothing that is known, if it does not: its service or its methods may be misspelt.
pub(crate) fn idle_because(attachment: &Attachment, known: &[Arc<BoundSchema>]) -> Option<String> {
    let meant: Vec<_> = services_of(attachment, known).collect();
    if meant.is_empty() {
        // Nothing is known yet, or everything is meant: that says nothing of a name.
        if attachment.service == "*" {
            return None;
        }
        let mut services: Vec<String> = known.iter().map(|schema| schema.service.clone()).collect();
        services.dedup();
        let hint = what_is_known(&attachment.service, "service", &services);
        return Some(format!(
            "it applies to nothing: no service \"{}\" is known on this node; {hint}",
            attachment.service
        ));
    }
    if meant.iter().any(|schema| schema.schema.is_opaque()) {
        // It may have methods that were not called yet.
        return None;
    }
    let methods = meant.iter().flat_map(|schema| methods_of(schema));
    let mut methods: Vec<(String, String)> = methods
        .map(|method| (method.name.to_string(), method.path.to_string()))
        .collect();
    methods.sort();
    methods.dedup();
    attachment.methods.iter().find_map(|pattern| {
        let names = methods.iter().map(|(name, path)| {
            if pattern.starts_with('/') {
                path.clone()
            } else {
                name.clone()
            }
        });
        let names: Vec<String> = names.collect();
        if names.iter().any(|name| matches(pattern, name)) {
            return None;
        }
        let hint = what_is_known(pattern, "method", &names);
        Some(format!(
            "no method \"{pattern}\" is known of the services that it is for; {hint}"
        ))
    })
}

/// Tries an attachment's instance on what it applies to; warnings of what it does not fit. It may take long, and what the
/// instance shares is touched: it is to be one that is used for nothing else.
pub(crate) fn unfit_for(instance: &Instance, known: &[Arc<BoundSchema>]) -> Result<Vec<String>, FitsNothing> {
    let mut problems = Vec::new();
    let mut fits = false;
    for schema in services_of(&instance.attachment, known) {
        match try_on(instance, schema) {
            Some(Ok(())) => fits = true,
            Some(Err(problem)) => problems.push(format!("it does not fit {}: {problem}", schema.service)),
            None => {}
        }
    }
    problems.truncate(TOLD_MAX);
    if problems.is_empty() || fits {
        return Ok(problems);
    }
    Err(FitsNothing {
        problem: problems.join("; "),
    })
}

/// Whether it fits a service; nothing if it is for none of its methods.
fn try_on(instance: &Instance, schema: &Arc<BoundSchema>) -> Option<Result<(), String>> {
    let sides = [Side::Client, Side::Server];
    let contexts = sides.map(|side| context_of_schema(schema, side));
    let meant: Vec<&DatapathContext> = contexts
        .iter()
        .filter(|context| instance.may_apply_to(context))
        .collect();
    let tried = meant.iter().map(|context| instance.prepare(context));
    let problem = tried.filter_map(Result::err).map(|error| error.problem).next();
    (!meant.is_empty()).then(|| problem.map_or(Ok(()), Err))
}

fn services_of<'a>(
    attachment: &Attachment,
    known: &'a [Arc<BoundSchema>],
) -> impl Iterator<Item = &'a Arc<BoundSchema>> {
    let pattern = attachment.service.clone();
    known
        .iter()
        .filter(move |schema| matches(&pattern, &schema.service))
}
