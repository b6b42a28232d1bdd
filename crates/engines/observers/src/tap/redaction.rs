//! What is hidden of messages and metadata.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use provost_engine::DatapathContext;
use provost_schema::{Field, MessageId, Schema, Type, lacks_field};

/// As the operator wrote it.
#[derive(Clone, Debug)]
pub(crate) struct RedactionRules {
    pub(crate) fields: Vec<String>,
    pub(crate) bytes: bool,
    pub(crate) metadata: BTreeSet<String>,
}

/// The same, with the numbers of a schema.
#[derive(Debug, Default)]
pub(crate) struct CompiledRedaction {
    /// From a request or response message.
    pub(crate) roots: HashMap<MessageId, HiddenNode>,
    /// From a message wherever it occurs.
    pub(crate) anywhere: HashMap<MessageId, HiddenNode>,
    pub(crate) bytes: bool,
    pub(crate) metadata: BTreeSet<String>,
}

/// Fields of a message that are hidden, or have hidden fields in them.
#[derive(Debug, Default)]
pub(crate) struct HiddenNode {
    pub(crate) is_hidden: bool,
    pub(crate) fields: BTreeMap<u32, HiddenNode>,
}

impl RedactionRules {
    /// Finds the fields in the schema of a datapath context. A path that leads nowhere is an error: it might be a misspelt one, and
    /// what it was to hide would be shown.
    pub(crate) fn compile(&self, datapath_context: &DatapathContext) -> Result<CompiledRedaction, String> {
        let mut redaction = CompiledRedaction {
            bytes: self.bytes,
            metadata: self.metadata.clone(),
            ..CompiledRedaction::default()
        };
        for path in &self.fields {
            match path.strip_prefix('.') {
                Some(name) => redaction.hide_anywhere(&datapath_context.schema, name)?,
                None => redaction.hide_from_roots(datapath_context, path)?,
            }
        }
        Ok(redaction)
    }
}

impl CompiledRedaction {
    /// `shop.Card.number`: of a message by its full name. A schema without that message has nothing to hide.
    fn hide_anywhere(&mut self, schema: &Schema, path: &str) -> Result<(), String> {
        let messages = schema.messages.iter().enumerate();
        let named = messages.filter_map(|(at, message)| {
            let rest = path.strip_prefix(message.full_name.as_str())?.strip_prefix('.')?;
            Some((MessageId(at as u32), rest))
        });
        // Of two names of which one begins with the other, the longer one is meant, if it has such a field.
        let mut found: Vec<_> = named.collect();
        found.sort_by_key(|(_, rest)| rest.len());
        let mut problem = None;
        for (message, rest) in found {
            match hide(schema, self.anywhere.entry(message).or_default(), message, rest) {
                Ok(()) => return Ok(()),
                Err(error) => problem = Some(error),
            }
        }
        problem.map_or(Ok(()), |problem| Err(format!("redact \".{path}\": {problem}")))
    }

    fn hide_from_roots(&mut self, datapath_context: &DatapathContext, path: &str) -> Result<(), String> {
        let in_scope = datapath_context
            .methods
            .iter()
            .zip(datapath_context.scope.iter())
            .filter(|(_, in_scope)| **in_scope);
        let roots: BTreeSet<MessageId> = in_scope
            .flat_map(|(method, _)| [method.input, method.output])
            .collect();
        let mut problems = Vec::new();
        let mut found = false;
        for root in roots {
            match hide(
                &datapath_context.schema,
                self.roots.entry(root).or_default(),
                root,
                path,
            ) {
                Ok(()) => found = true,
                Err(error) => problems.push(error),
            }
        }
        if found {
            Ok(())
        } else {
            Err(format!(
                "redact \"{path}\": no message of {} has it ({}); to hide it in services that have it, name the \
                 message: \".package.Message.field\"",
                datapath_context.service,
                problems.join("; ")
            ))
        }
    }
}

/// Marks a field, found from a message by the names on the way.
fn hide(schema: &Schema, node: &mut HiddenNode, message: MessageId, path: &str) -> Result<(), String> {
    let (name, rest) = match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    };
    let of = schema.message(message);
    let field = of
        .fields()
        .find(|field| field.name == name)
        .ok_or_else(|| lacks_field(&of.full_name, &format!("{name:?}")))?;
    let Some(rest) = rest else {
        node.fields.entry(field.number).or_default().is_hidden = true;
        return Ok(());
    };
    let Type::Message(inner) = field.ty else {
        return Err(format!("{}.{name} has no fields", of.full_name));
    };
    // Found first, so that a path that leads nowhere leaves nothing behind.
    check(schema, inner, rest)?;
    hide(schema, node.fields.entry(field.number).or_default(), inner, rest)
}

fn check(schema: &Schema, message: MessageId, path: &str) -> Result<(), String> {
    hide(schema, &mut HiddenNode::default(), message, path)
}

/// What is hidden of one message: what leads there, and what holds for its type.
#[derive(Clone, Debug, Default)]
pub(crate) struct HiddenFields<'a>(Vec<&'a HiddenNode>);

impl<'a> HiddenFields<'a> {
    pub(crate) fn of_root(redaction: &'a CompiledRedaction, message: MessageId) -> HiddenFields<'a> {
        let nodes = [redaction.roots.get(&message), redaction.anywhere.get(&message)];
        HiddenFields(nodes.into_iter().flatten().collect())
    }

    /// What tells this from what is hidden of the same message at another place.
    pub(crate) fn identities(&self) -> Vec<usize> {
        self.0
            .iter()
            .map(|node| std::ptr::from_ref(*node).addr())
            .collect()
    }

    /// `None`: the field is hidden; else what is hidden in it.
    pub(crate) fn of_field(
        &self,
        redaction: &'a CompiledRedaction,
        field: &Field,
    ) -> Option<HiddenFields<'a>> {
        let mut nodes: Vec<&HiddenNode> = self
            .0
            .iter()
            .filter_map(|node| node.fields.get(&field.number))
            .collect();
        if nodes.iter().any(|node| node.is_hidden) {
            return None;
        }
        if let Type::Message(inner) = field.ty {
            nodes.extend(redaction.anywhere.get(&inner));
        }
        Some(HiddenFields(nodes))
    }
}
