//! Checks the types of a syntax tree, and compiles it.

use std::sync::Arc;

use cel::common::ast::{Expr, LiteralValue, SelectExpr};
use cel::parser::Expression as Tree;
use provost_schema::{Cardinality, EnumId, Field, MessageId, Type, lacks_field};

use super::constant::Constant;
use super::error::{ExpressionError, listing, nearest};
use super::evaluate;
use super::kind::ExpressionKind;
use super::node::{AbsentValue, CheckedNode, EntryKey, FieldOf, PathBase, PathEntry, PresenceTest};
use super::{Expression, Scope, Source, Uses};
use crate::access::lists::ValueList;

/// Nodes of a compiled expression, at most. (Macros make more of them than were written.)
const NODES_MAX: usize = 4096;

type CheckResult = Result<TypedNode, ExpressionError>;

/// Compiles a whole expression, which must be a condition.
pub(crate) fn compile(source: &Source, scope: &Scope) -> Result<Expression, ExpressionError> {
    let mut checker = Checker {
        source,
        scope,
        bound: Vec::new(),
        uses: Uses::default(),
        nodes: 0,
    };
    let typed = checker.check(&source.tree)?;
    if typed.kind != ExpressionKind::Bool {
        let problem = format!("a condition is a bool, and this is {}", typed.kind.a());
        return Err(source.error(source.tree.id, problem, "compare it with something"));
    }
    let root = checker.value(typed, &source.tree)?;
    Ok(Expression {
        root,
        uses: checker.uses,
    })
}

pub(crate) struct Checker<'s> {
    pub(crate) source: &'s Source,
    pub(crate) scope: &'s Scope,
    /// Variables of the quantifiers around, by slot.
    pub(crate) bound: Vec<(String, ExpressionKind)>,
    pub(crate) uses: Uses,
    nodes: usize,
}

pub(crate) struct TypedNode {
    pub(crate) kind: ExpressionKind,
    pub(crate) term: Term,
}

/// What a part is, as far as it is known before it is known what becomes of it.
pub(crate) enum Term {
    Node(CheckedNode),
    /// A field, or with an empty path the message itself.
    Path(PathTo),
    /// An element of a list or of a map.
    Entry(Box<PathEntry>),
    /// A list that was written out.
    Values(Vec<CheckedNode>),
    ValueList(Arc<ValueList>),
    Metadata,
    Namespace(String),
}

pub(crate) struct PathTo {
    base: PathBase,
    root: MessageId,
    path: String,
    /// The last field; `None` for the message itself.
    field: Option<Field>,
}

impl TypedNode {
    pub(crate) fn node(kind: ExpressionKind, node: CheckedNode) -> TypedNode {
        TypedNode {
            kind,
            term: Term::Node(node),
        }
    }

    fn constant(constant: Constant) -> TypedNode {
        let kind = match constant {
            Constant::Bool(_) => ExpressionKind::Bool,
            Constant::Int(_) => ExpressionKind::Int,
            Constant::Uint(_) => ExpressionKind::Uint,
            Constant::Double(_) => ExpressionKind::Double,
            Constant::String(_) => ExpressionKind::String,
            Constant::Bytes(_) => ExpressionKind::Bytes,
        };
        TypedNode::node(kind, CheckedNode::Constant(constant))
    }
}

impl<'s> Checker<'s> {
    pub(crate) fn check(&mut self, tree: &Tree) -> CheckResult {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(self.error(tree, "the expression is too large", "split it into several rules"));
        }
        let typed = match &tree.expr {
            Expr::Literal(literal) => self.literal(tree, literal),
            Expr::Ident(name) => self.identifier(tree, name),
            Expr::Select(select) if select.test => self.has(tree, select),
            Expr::Select(select) => self.select(tree, select),
            Expr::Call(call) => self.call(tree, call),
            Expr::Comprehension(of) => self.quantified(tree, of),
            Expr::List(list) => self.list(tree, list),
            Expr::Map(_) => Err(self.error(tree, "maps cannot be written out here", "use || and && instead")),
            Expr::Struct(_) => Err(self.error(tree, "messages cannot be made here", "compare their fields")),
            Expr::Unspecified => Err(self.error(tree, "nothing is here", "")),
        }?;
        Ok(self.fold(typed))
    }

    pub(crate) fn error(
        &self,
        tree: &Tree,
        problem: impl Into<String>,
        help: impl Into<String>,
    ) -> ExpressionError {
        self.source.error(tree.id, problem, help)
    }

    /// Evaluates what reads nothing of a call.
    fn fold(&self, typed: TypedNode) -> TypedNode {
        match typed.term {
            Term::Node(node) if self.bound.is_empty() && node.constant().is_none() && node.is_fixed() => {
                let constant = evaluate::fixed(&node, &self.scope.tables);
                TypedNode::node(typed.kind, constant.map_or(node, CheckedNode::Constant))
            }
            term => TypedNode { term, ..typed },
        }
    }

    /// The node of a part that must be one value.
    pub(crate) fn value(&self, typed: TypedNode, tree: &Tree) -> Result<CheckedNode, ExpressionError> {
        let kind = typed.kind;
        let no_value = |help: &str| Err(self.error(tree, format!("{} is not one value", kind.a()), help));
        match (typed.term, &kind) {
            (Term::Node(node), _) => Ok(node),
            (_, ExpressionKind::List(_)) => no_value("use `in`, size(), all(), exists() or an index"),
            (_, ExpressionKind::Map(..)) => no_value("use `in`, size(), all(), exists() or a key"),
            (_, ExpressionKind::Message(..)) => no_value("name one of its fields, or use has()"),
            (Term::Path(path), kind) => match absent(kind) {
                Some(absent) => Ok(CheckedNode::Field(Box::new(self.field_of(path, tree)?), absent)),
                None => no_value(""),
            },
            (Term::Entry(entry), _) => Ok(CheckedNode::Element(entry)),
            (Term::ValueList(_), _) => no_value("use it behind `in`"),
            (Term::Metadata, _) => no_value("name a key: metadata[\"key\"]"),
            (Term::Values(_), _) => no_value("use it behind `in`"),
            (Term::Namespace(name), _) => {
                let members = listing(self.members(&name).iter().copied());
                no_value(&format!("name one of its members: {members}"))
            }
        }
    }

    /// The field of a path, to be read.
    pub(crate) fn field_of(&self, to: PathTo, tree: &Tree) -> Result<FieldOf, ExpressionError> {
        let path = self.scope.tables.field_path(to.root, &to.path);
        let path = path.map_err(|error| self.error(tree, error.to_string(), ""))?;
        Ok(FieldOf { base: to.base, path })
    }

    fn literal(&self, tree: &Tree, literal: &LiteralValue) -> CheckResult {
        Ok(TypedNode::constant(match literal {
            LiteralValue::Boolean(value) => Constant::Bool(*value.inner()),
            LiteralValue::Int(value) => Constant::Int(*value.inner()),
            LiteralValue::UInt(value) => Constant::Uint(*value.inner()),
            LiteralValue::Double(value) => Constant::Double(*value.inner()),
            LiteralValue::String(value) => Constant::String(value.inner().into()),
            LiteralValue::Bytes(value) => Constant::Bytes(value.inner().into()),
            LiteralValue::Null => {
                let help = "use has() to see whether a field is set";
                return Err(self.error(tree, "nothing here is ever null", help));
            }
        }))
    }

    fn list(&mut self, tree: &Tree, list: &cel::common::ast::ListExpr) -> CheckResult {
        let mut kind: Option<ExpressionKind> = None;
        let mut nodes = Vec::new();
        for element in &list.elements {
            let typed = self.check(element)?;
            let is_alike = kind.as_ref().is_none_or(|kind| kind.is_comparable(&typed.kind));
            if !is_alike || !typed.kind.is_scalar() {
                let first = kind.map_or("one value".to_owned(), |kind| kind.to_string());
                let problem = format!("an element of a list of {first} is {}", typed.kind.a());
                return Err(self.error(element, problem, "all elements have one type"));
            }
            kind = kind.or(Some(typed.kind.clone()));
            nodes.push(self.value(typed, element)?);
        }
        match kind {
            Some(kind) => Ok(TypedNode {
                kind: ExpressionKind::List(Box::new(kind)),
                term: Term::Values(nodes),
            }),
            None => Err(self.error(tree, "nothing is in an empty list", "write its elements")),
        }
    }
}

// Names.
impl<'s> Checker<'s> {
    pub(crate) const VARIABLES: [&'static str; 10] = [
        "request", "response", "metadata", "method", "service", "node", "side", "peer", "app", "lists",
    ];

    fn identifier(&mut self, tree: &Tree, name: &str) -> CheckResult {
        if let Some(slot) = self.bound.iter().rposition(|(bound, _)| bound == name) {
            return Ok(self.variable(slot));
        }
        match name {
            "request" => self.message(tree, self.scope.request),
            "response" => self.message(tree, self.scope.response),
            "metadata" => Ok(TypedNode {
                kind: ExpressionKind::Map(Box::new(ExpressionKind::String), Box::new(ExpressionKind::String)),
                term: Term::Metadata,
            }),
            "peer" | "app" | "lists" => Ok(self.namespace(name)),
            name => match self.scope.constants.get(name) {
                Some(constant) => Ok(TypedNode::constant(constant.clone())),
                None => Err(self.unknown(tree, name)),
            },
        }
    }

    fn variable(&self, slot: usize) -> TypedNode {
        let kind = self.bound[slot].1.clone();
        let term = match kind {
            ExpressionKind::Message(root, _) => Term::Path(PathTo {
                base: PathBase::Variable(slot as u8),
                root,
                path: String::new(),
                field: None,
            }),
            _ => Term::Node(CheckedNode::Variable(slot as u8)),
        };
        TypedNode { kind, term }
    }

    fn unknown(&self, tree: &Tree, name: &str) -> ExpressionError {
        let bound = self.bound.iter().map(|(name, _)| name.as_str());
        let known = || bound.clone().chain(Self::VARIABLES);
        let help = match nearest(name, known()) {
            Some(near) => format!("did you mean {near}? (known: {})", listing(known())),
            None => format!("known: {}", listing(known())),
        };
        self.error(tree, format!("there is no variable {name}"), help)
    }

    fn namespace(&self, name: &str) -> TypedNode {
        let kind = ExpressionKind::Namespace(match name {
            "peer" => "peer",
            "app" => "app",
            "peer.app" => "peer.app",
            _ => "lists",
        });
        TypedNode {
            kind,
            term: Term::Namespace(name.to_owned()),
        }
    }

    fn members(&self, namespace: &str) -> Vec<&str> {
        if namespace == "lists" {
            return self.scope.lists.keys().map(String::as_str).collect();
        }
        let prefix = format!("{namespace}.");
        let mut members: Vec<&str> = self
            .scope
            .constants
            .keys()
            .filter_map(|name| name.strip_prefix(&prefix))
            .map(|rest| rest.split('.').next().unwrap_or(rest))
            .collect();
        members.dedup();
        members
    }

    /// The whole request or response. A rule is judged when one of them passes, so it cannot read both.
    fn message(&mut self, tree: &Tree, id: MessageId) -> CheckResult {
        match &tree.expr {
            Expr::Ident(name) if name == "request" => self.uses.request = true,
            _ => self.uses.response = true,
        }
        if self.uses.request && self.uses.response {
            let problem = "an expression reads the request or the response, not both";
            let help = "the request is gone when the response comes: split the rule";
            return Err(self.error(tree, problem, help));
        }
        Ok(TypedNode {
            kind: ExpressionKind::message(id, &self.scope.schema),
            term: Term::Path(PathTo {
                base: PathBase::Message,
                root: id,
                path: String::new(),
                field: None,
            }),
        })
    }

    fn select(&mut self, tree: &Tree, select: &SelectExpr) -> CheckResult {
        if let Some(constant) = self.qualified(tree) {
            return constant;
        }
        let operand = self.check(&select.operand)?;
        let name = select.field.as_str();
        match operand.term {
            Term::Namespace(namespace) => self.member(tree, &namespace, name),
            Term::Metadata => self.metadata(tree, name),
            Term::Path(path) => match operand.kind {
                ExpressionKind::Message(id, _) => self.field(tree, path, id, name),
                ExpressionKind::Map(..) => {
                    let problem = format!("{} has keys, not fields", operand.kind.a());
                    Err(self.error(tree, problem, format!("write [\"{name}\"]")))
                }
                kind => Err(self.no_fields(tree, &kind)),
            },
            Term::Entry(entry) => match operand.kind {
                ExpressionKind::Message(id, _) => {
                    let path = PathTo {
                        base: PathBase::Entry(entry),
                        root: id,
                        path: String::new(),
                        field: None,
                    };
                    self.field(tree, path, id, name)
                }
                kind => Err(self.no_fields(tree, &kind)),
            },
            _ => Err(self.no_fields(tree, &operand.kind)),
        }
    }

    fn no_fields(&self, tree: &Tree, kind: &ExpressionKind) -> ExpressionError {
        let help = match kind {
            ExpressionKind::List(_) => "take an element by its index, or use all() or exists()",
            _ => "",
        };
        self.error(tree, format!("{} has no fields", kind.a()), help)
    }

    fn member(&mut self, tree: &Tree, namespace: &str, name: &str) -> CheckResult {
        if namespace == "lists" {
            return match self.scope.lists.get(name) {
                Some(list) => Ok(TypedNode {
                    kind: ExpressionKind::ValueList,
                    term: Term::ValueList(Arc::clone(list)),
                }),
                None => Err(self.no_member(tree, namespace, name)),
            };
        }
        let full = format!("{namespace}.{name}");
        match self.scope.constants.get(full.as_str()) {
            Some(constant) => Ok(TypedNode::constant(constant.clone())),
            None if full == "peer.app" => Ok(self.namespace("peer.app")),
            None => Err(self.no_member(tree, namespace, name)),
        }
    }

    fn no_member(&self, tree: &Tree, namespace: &str, name: &str) -> ExpressionError {
        let members = self.members(namespace);
        let near = nearest(name, members.iter().copied());
        let known = format!("known: {}", listing(members.iter().copied()));
        let help = near.map_or(known.clone(), |near| {
            format!("did you mean {namespace}.{near}? ({known})")
        });
        self.error(tree, format!("{namespace} has no member {name}"), help)
    }

    fn field(&mut self, tree: &Tree, to: PathTo, id: MessageId, name: &str) -> CheckResult {
        let message = self.scope.schema.message(id);
        let Some(field) = message.fields().find(|field| field.name == name) else {
            let mut fields: Vec<&Field> = message.fields().collect();
            fields.sort_by_key(|field| field.number);
            let names = || fields.iter().map(|field| field.name.as_str());
            let known = format!("fields of {}: {}", message.full_name, listing(names()));
            let help = match nearest(name, names()) {
                Some(near) => format!("did you mean {near}? ({known})"),
                None => known,
            };
            let problem = lacks_field(&message.full_name, name);
            return Err(self.error(tree, problem, help));
        };
        let path = match to.path.as_str() {
            "" => name.to_owned(),
            before => format!("{before}.{name}"),
        };
        Ok(TypedNode {
            kind: ExpressionKind::of_field(field, &self.scope.schema),
            term: Term::Path(PathTo {
                path,
                field: Some(field.clone()),
                ..to
            }),
        })
    }

    pub(crate) fn metadata(&mut self, tree: &Tree, key: &str) -> CheckResult {
        let key = self.metadata_key(tree, key)?;
        let kind = if key.ends_with("-bin") {
            ExpressionKind::Bytes
        } else {
            ExpressionKind::String
        };
        Ok(TypedNode::node(kind, CheckedNode::Metadata(key)))
    }

    /// A key, once it is known to be one. That it is read is remembered.
    pub(crate) fn metadata_key(&mut self, tree: &Tree, key: &str) -> Result<Box<str>, ExpressionError> {
        let is_fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.".contains(c);
        if key.is_empty() || !key.chars().all(is_fine) {
            let problem = format!("{key:?} is not a metadata key");
            let help = "keys are lower-case letters, digits, '_', '-' and '.'";
            return Err(self.error(tree, problem, help));
        }
        if !self.uses.metadata.iter().any(|known| **known == *key) {
            self.uses.metadata.push(key.into());
        }
        Ok(key.into())
    }

    /// The number of an enum's value that is written with its name, such as `kv.Kind.LARGE`.
    fn qualified(&self, tree: &Tree) -> Option<CheckResult> {
        let segments = segments(tree)?;
        let root = *segments.first()?;
        if Self::VARIABLES.contains(&root) || self.bound.iter().any(|(name, _)| name == root) {
            return None;
        }
        let (value, path) = segments.split_last()?;
        let path = path.join(".");
        let enums = &self.scope.schema.enums;
        let mut package = Some(self.scope.package.as_str());
        while let Some(within) = package {
            let full = match within {
                "" => path.clone(),
                within => format!("{within}.{path}"),
            };
            if let Some(index) = enums.iter().position(|of| of.full_name == full) {
                return Some(self.enum_value(tree, EnumId(index as u32), value));
            }
            package = match within {
                "" => None,
                within => Some(within.rsplit_once('.').map_or("", |(outer, _)| outer)),
            };
        }
        None
    }

    /// The value of an enum with a name.
    pub(crate) fn enum_value(&self, tree: &Tree, id: EnumId, name: &str) -> CheckResult {
        let of = self.scope.schema.enumeration(id);
        match of.values.iter().find(|value| value.name == name) {
            Some(value) => Ok(TypedNode {
                kind: ExpressionKind::Enum(id, of.full_name.as_str().into()),
                term: Term::Node(CheckedNode::Constant(Constant::Int(i64::from(value.number)))),
            }),
            None => {
                let names = || of.values.iter().map(|value| value.name.as_str());
                let known = format!("values of {}: {}", of.full_name, listing(names()));
                let help = match nearest(name, names()) {
                    Some(near) => format!("did you mean {near}? ({known})"),
                    None => known,
                };
                Err(self.error(tree, format!("{} has no value {name}", of.full_name), help))
            }
        }
    }

    fn has(&mut self, tree: &Tree, select: &SelectExpr) -> CheckResult {
        let operand = self.check(&select.operand)?;
        let name = select.field.as_str();
        if let Term::Metadata = operand.term {
            let key = self.metadata_key(tree, name)?;
            return Ok(TypedNode::node(
                ExpressionKind::Bool,
                CheckedNode::HasMetadata(key),
            ));
        }
        let (path, id) = match (operand.term, &operand.kind) {
            (Term::Path(path), ExpressionKind::Message(id, _)) => (path, *id),
            (Term::Entry(entry), ExpressionKind::Message(id, _)) => {
                let path = PathTo {
                    base: PathBase::Entry(entry),
                    root: *id,
                    path: String::new(),
                    field: None,
                };
                (path, *id)
            }
            (_, kind) => {
                let help = "write has(request.field) or has(metadata.key)";
                return Err(self.error(tree, format!("has() of {}", kind.a()), help));
            }
        };
        let typed = self.field(tree, path, id, name)?;
        let Term::Path(path) = typed.term else {
            return Err(self.error(tree, "has() is for fields", ""));
        };
        let presence = match (path.field.as_ref().map(|field| &field.cardinality), &typed.kind) {
            (Some(Cardinality::Repeated { .. } | Cardinality::Map(_)), _) => PresenceTest::NotEmpty,
            (Some(Cardinality::Implicit), kind) => match absent(kind) {
                Some(absent) => PresenceTest::NotDefault(absent),
                None => PresenceTest::Set,
            },
            _ => PresenceTest::Set,
        };
        let field = Box::new(self.field_of(path, tree)?);
        Ok(TypedNode::node(
            ExpressionKind::Bool,
            CheckedNode::Present(field, presence),
        ))
    }
}

// Lists and maps.
impl<'s> Checker<'s> {
    /// `collection[key]`.
    pub(crate) fn index(&mut self, tree: &Tree, collection: &Tree, key: &Tree) -> CheckResult {
        let of = self.check(collection)?;
        if let Term::Metadata = of.term {
            return match &key.expr {
                Expr::Literal(LiteralValue::String(name)) => self.metadata(key, name.inner()),
                _ => Err(self.error(key, "a metadata key is written out", "such as metadata[\"user\"]")),
            };
        }
        let key_typed = self.check(key)?;
        let key_kind = key_typed.kind.clone();
        let key_node = self.value(key_typed, key)?;
        let (element, by) = match (&of.kind, &key_kind) {
            (
                ExpressionKind::List(element),
                ExpressionKind::Int | ExpressionKind::Uint | ExpressionKind::Enum(..),
            ) => (element, EntryKey::Index),
            (ExpressionKind::List(_), other) => {
                let problem = format!("the index of a list is an int, and this is {}", other.a());
                return Err(self.error(key, problem, ""));
            }
            (ExpressionKind::Map(of_key, element), key)
                if of_key.is_comparable(key) && *key != ExpressionKind::Double =>
            {
                (element, EntryKey::Key)
            }
            (ExpressionKind::Map(of_key, _), other) => {
                let problem = format!("a key of this map is {}, and this is {}", of_key.a(), other.a());
                return Err(self.error(key, problem, ""));
            }
            (other, _) => return Err(self.error(tree, format!("{} has no elements", other.a()), "")),
        };
        let kind = (**element).clone();
        match of.term {
            Term::Path(path) => Ok(TypedNode {
                kind,
                term: Term::Entry(Box::new(PathEntry {
                    collection: self.field_of(path, collection)?,
                    key: key_node,
                    by,
                })),
            }),
            _ => Err(self.error(
                tree,
                "a list that is written out has no index",
                "write the element itself",
            )),
        }
    }
}

/// The names of `a.b.c`.
fn segments(tree: &Tree) -> Option<Vec<&str>> {
    match &tree.expr {
        Expr::Ident(name) => Some(vec![name]),
        Expr::Select(select) if !select.test => {
            let mut names = segments(&select.operand)?;
            names.push(&select.field);
            Some(names)
        }
        _ => None,
    }
}

fn absent(kind: &ExpressionKind) -> Option<AbsentValue> {
    Some(match kind {
        ExpressionKind::Bool => AbsentValue::False,
        ExpressionKind::Int | ExpressionKind::Enum(..) => AbsentValue::Int,
        ExpressionKind::Uint => AbsentValue::Uint,
        ExpressionKind::Double => AbsentValue::Double,
        ExpressionKind::String => AbsentValue::String,
        ExpressionKind::Bytes => AbsentValue::Bytes,
        _ => return None,
    })
}

/// Whether elements of a list or values of a map are messages.
pub(crate) fn holds_messages(field: Option<&Field>) -> bool {
    field.is_some_and(|field| matches!(field.ty, Type::Message(_)))
}

impl PathTo {
    pub(crate) fn last(&self) -> Option<&Field> {
        self.field.as_ref()
    }
}
