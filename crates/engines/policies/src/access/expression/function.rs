//! Operators, functions and quantifiers.

use cel::common::ast::operators;
use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue};
use cel::parser::Expression as Tree;

use super::check::{Checker, Term, TypedNode, holds_messages};
use super::constant::{Constant, ConstantSet};
use super::error::{ExpressionError, nearest};
use super::evaluate::{PARTS_PER_STEP, VARIABLES_MAX};
use super::kind::ExpressionKind;
use super::network::AddressNetwork;
use super::node::{
    ArithmeticOperator, CheckedNode, ComparisonOperator, Conversion, Quantified, Quantifier, QuantifierRange,
    TextTest,
};
use super::time::{ClockOffset, DayPart};
use super::value::Val;

const FUNCTIONS: [&str; 17] = [
    "size",
    "startsWith",
    "endsWith",
    "contains",
    "matches",
    "cidr_contains",
    "time_between",
    "weekday",
    "unix_time",
    "has",
    "all",
    "exists",
    "exists_one",
    "int",
    "uint",
    "double",
    "in",
];

type Checked = Result<TypedNode, ExpressionError>;

impl Checker<'_> {
    pub(crate) fn call(&mut self, tree: &Tree, call: &CallExpr) -> Checked {
        use operators as op;
        let name = call.func_name.as_str();
        let comparison = match name {
            op::EQUALS => Some(ComparisonOperator::Equal),
            op::NOT_EQUALS => Some(ComparisonOperator::NotEqual),
            op::LESS => Some(ComparisonOperator::Less),
            op::LESS_EQUALS => Some(ComparisonOperator::LessOrEqual),
            op::GREATER => Some(ComparisonOperator::Greater),
            op::GREATER_EQUALS => Some(ComparisonOperator::GreaterOrEqual),
            _ => None,
        };
        let operation = match name {
            op::ADD => Some((ArithmeticOperator::Add, "+")),
            op::SUBSTRACT => Some((ArithmeticOperator::Subtract, "-")),
            op::MULTIPLY => Some((ArithmeticOperator::Multiply, "*")),
            op::DIVIDE => Some((ArithmeticOperator::Divide, "/")),
            op::MODULO => Some((ArithmeticOperator::Remainder, "%")),
            _ => None,
        };
        if let (Some(comparison), [a, b]) = (comparison, call.args.as_slice()) {
            return self.comparison(tree, comparison, a, b);
        }
        if let (Some((operation, sign)), [a, b]) = (operation, call.args.as_slice()) {
            return self.arithmetic(tree, (operation, sign), a, b);
        }
        match (name, call.args.as_slice()) {
            (op::LOGICAL_AND | op::LOGICAL_OR, [a, b]) => self.logic(name, a, b),
            (op::LOGICAL_NOT, [of]) => {
                let of = self.condition(of, "!")?;
                Ok(TypedNode::node(
                    ExpressionKind::Bool,
                    CheckedNode::Not(Box::new(of)),
                ))
            }
            (op::CONDITIONAL, [condition, a, b]) => self.ternary(tree, condition, a, b),
            (op::NEGATE, [of]) => self.negation(tree, of),
            (op::INDEX, [collection, key]) => self.index(tree, collection, key),
            (op::IN, [value, within]) => self.contained(tree, value, within),
            _ => self.function(tree, call),
        }
    }

    fn function(&mut self, tree: &Tree, call: &CallExpr) -> Checked {
        let name = call.func_name.as_str();
        let target = call.target.as_deref();
        let arguments: Vec<&Tree> = target.into_iter().chain(&call.args).collect();
        match (name, arguments.as_slice()) {
            ("size", [of]) => self.size(tree, of),
            ("startsWith", [text, part]) => self.text_test(TextTest::StartsWith, text, part),
            ("endsWith", [text, part]) => self.text_test(TextTest::EndsWith, text, part),
            ("contains", [text, part]) => self.text_test(TextTest::Contains, text, part),
            ("matches", [text, pattern]) => self.matches(text, pattern),
            ("cidr_contains", [address, network]) => self.in_network(address, network),
            ("time_between", [from, to]) if target.is_none() => self.day_part(from, to, None),
            ("time_between", [from, to, offset]) if target.is_none() => self.day_part(from, to, Some(offset)),
            ("weekday", []) => self.weekday(None),
            ("weekday", [offset]) if target.is_none() => self.weekday(Some(offset)),
            ("unix_time", []) => {
                self.uses.time = true;
                Ok(TypedNode::node(ExpressionKind::Int, CheckedNode::UnixTime))
            }
            ("int", [of]) if target.is_none() => {
                self.conversion(tree, Conversion::Int, ExpressionKind::Int, of)
            }
            ("uint", [of]) if target.is_none() => {
                self.conversion(tree, Conversion::Uint, ExpressionKind::Uint, of)
            }
            ("double", [of]) if target.is_none() => {
                self.conversion(tree, Conversion::Double, ExpressionKind::Double, of)
            }
            _ => Err(self.no_function(tree, name, arguments.len())),
        }
    }

    fn no_function(&self, tree: &Tree, name: &str, arguments: usize) -> ExpressionError {
        if FUNCTIONS.contains(&name) {
            let problem = format!("{name} does not take {arguments} operands in this way");
            return self.error(tree, problem, "docs/policies/access.md shows each function");
        }
        let known = format!("known: {}", FUNCTIONS.join(", "));
        let help = match (name, nearest(name, FUNCTIONS)) {
            ("map" | "filter", _) => "nothing here makes new lists: use all() or exists()".to_owned(),
            ("string" | "bytes" | "dyn" | "type" | "duration" | "timestamp", _) => {
                format!("compare the field itself ({known})")
            }
            (_, Some(near)) => format!("did you mean {near}? ({known})"),
            (_, None) => known,
        };
        self.error(tree, format!("there is no function {name}"), help)
    }

    /// A part that must be a condition.
    fn condition(&mut self, tree: &Tree, operator: &str) -> Result<CheckedNode, ExpressionError> {
        let typed = self.check(tree)?;
        if typed.kind != ExpressionKind::Bool {
            let problem = format!("{operator} takes conditions, and this is {}", typed.kind.a());
            return Err(self.error(tree, problem, "compare it with something"));
        }
        self.value(typed, tree)
    }

    fn logic(&mut self, name: &str, a: &Tree, b: &Tree) -> Checked {
        let (sign, decisive) = match name {
            operators::LOGICAL_AND => ("&&", false),
            _ => ("||", true),
        };
        let (a, b) = (self.condition(a, sign)?, self.condition(b, sign)?);
        let node = match (known(&a), known(&b)) {
            (Some(value), _) | (_, Some(value)) if value == decisive => {
                CheckedNode::Constant(Constant::Bool(decisive))
            }
            (Some(_), _) => b,
            (_, Some(_)) => a,
            _ if decisive => CheckedNode::Or(Box::new([a, b])),
            _ => CheckedNode::And(Box::new([a, b])),
        };
        Ok(TypedNode::node(ExpressionKind::Bool, node))
    }

    fn ternary(&mut self, tree: &Tree, condition: &Tree, a: &Tree, b: &Tree) -> Checked {
        let condition = self.condition(condition, "?:")?;
        let (first, second) = (self.check(a)?, self.check(b)?);
        let kind = first.kind.arithmetic();
        if kind != second.kind.arithmetic() {
            let problem = format!("one side is {}, the other {}", first.kind.a(), second.kind.a());
            return Err(self.error(tree, problem, "both sides of : have one type"));
        }
        let (first, second) = (self.value(first, a)?, self.value(second, b)?);
        let node = match known(&condition) {
            Some(true) => first,
            Some(false) => second,
            None => CheckedNode::If(Box::new([condition, first, second])),
        };
        Ok(TypedNode::node(kind, node))
    }

    fn comparison(&mut self, tree: &Tree, comparison: ComparisonOperator, a: &Tree, b: &Tree) -> Checked {
        let (first, second) = (self.check(a)?, self.check(b)?);
        let (first, second) = self.named_both(first, second, a, b)?;
        if !first.kind.is_comparable(&second.kind) {
            let problem = format!("{} is compared with {}", first.kind.a(), second.kind.a());
            return Err(self.error(tree, problem, comparison_help(&first.kind, &second.kind)));
        }
        let both = [self.value(first, a)?, self.value(second, b)?];
        Ok(TypedNode::node(
            ExpressionKind::Bool,
            CheckedNode::Compare(comparison, Box::new(both)),
        ))
    }

    fn arithmetic(
        &mut self,
        tree: &Tree,
        (operation, sign): (ArithmeticOperator, &str),
        a: &Tree,
        b: &Tree,
    ) -> Checked {
        let (mut first, mut second) = (self.check(a)?, self.check(b)?);
        unsign(&mut first, &second.kind);
        unsign(&mut second, &first.kind);
        let kind = first.kind.arithmetic();
        let fits = match kind {
            ExpressionKind::Int | ExpressionKind::Uint => true,
            ExpressionKind::Double => operation != ArithmeticOperator::Remainder,
            _ => false,
        };
        if !fits || kind != second.kind.arithmetic() {
            let problem = format!("{sign} of {} and {}", first.kind.a(), second.kind.a());
            let help = match (&first.kind, &second.kind) {
                (ExpressionKind::String, ExpressionKind::String) => {
                    "texts cannot be put together here: use startsWith or endsWith"
                }
                _ => "both sides are of one type of number: convert with int(), uint() or double()",
            };
            return Err(self.error(tree, problem, help));
        }
        let both = [self.value(first, a)?, self.value(second, b)?];
        Ok(TypedNode::node(
            kind,
            CheckedNode::Arithmetic(operation, Box::new(both)),
        ))
    }

    fn negation(&mut self, tree: &Tree, of: &Tree) -> Checked {
        let typed = self.check(of)?;
        let kind = typed.kind.arithmetic();
        if !matches!(kind, ExpressionKind::Int | ExpressionKind::Double) {
            return Err(self.error(
                tree,
                format!("- of {}", typed.kind.a()),
                "only int and double have a sign",
            ));
        }
        let of = self.value(typed, of)?;
        Ok(TypedNode::node(kind, CheckedNode::Negate(Box::new(of))))
    }

    fn conversion(&mut self, tree: &Tree, to: Conversion, kind: ExpressionKind, of: &Tree) -> Checked {
        let typed = self.check(of)?;
        if !typed.kind.is_number() {
            let problem = format!("{kind}() of {}", typed.kind.a());
            return Err(self.error(tree, problem, "only numbers are converted"));
        }
        let of = self.value(typed, of)?;
        Ok(TypedNode::node(kind, CheckedNode::Convert(to, Box::new(of))))
    }
}

// Names of enums' values where a string is compared with an enum.
impl Checker<'_> {
    /// A string that stands where a value of an enum is wanted is the name of one.
    fn named(&self, typed: TypedNode, other: &ExpressionKind, tree: &Tree) -> Checked {
        match (&typed.term, &typed.kind, other) {
            (
                Term::Node(CheckedNode::Constant(Constant::String(name))),
                ExpressionKind::String,
                ExpressionKind::Enum(id, _),
            ) => self.enum_value(tree, *id, name),
            _ => Ok(typed),
        }
    }

    fn named_both(
        &self,
        first: TypedNode,
        second: TypedNode,
        a: &Tree,
        b: &Tree,
    ) -> Result<(TypedNode, TypedNode), ExpressionError> {
        let first = self.named(first, &second.kind, a)?;
        let second = self.named(second, &first.kind, b)?;
        Ok((first, second))
    }
}

// Addresses and times.
impl Checker<'_> {
    fn in_network(&mut self, address: &Tree, network: &Tree) -> Checked {
        let address = Box::new(self.text(address, "cidr_contains")?);
        let written = self.written_out(network, "a network")?;
        let network = AddressNetwork::parse(written)
            .map_err(|problem| self.error(network, problem, "write it as \"10.0.0.0/8\""))?;
        Ok(TypedNode::node(
            ExpressionKind::Bool,
            CheckedNode::InNetwork(address, network),
        ))
    }

    fn day_part(&mut self, from: &Tree, to: &Tree, offset: Option<&Tree>) -> Checked {
        self.uses.time = true;
        let offset = self.clock_offset(offset)?;
        let times = [self.written_out(from, "a time")?, self.written_out(to, "a time")?];
        let part = DayPart::parse(times[0], times[1], offset).ok_or_else(|| {
            let problem = format!("{:?} to {:?} is no part of a day", times[0], times[1]);
            self.error(from, problem, "write times as \"08:00\", up to \"24:00\"")
        })?;
        Ok(TypedNode::node(
            ExpressionKind::Bool,
            CheckedNode::InDayPart(part),
        ))
    }

    fn weekday(&mut self, offset: Option<&Tree>) -> Checked {
        self.uses.time = true;
        let offset = self.clock_offset(offset)?;
        Ok(TypedNode::node(
            ExpressionKind::String,
            CheckedNode::Weekday(offset),
        ))
    }

    fn clock_offset(&self, tree: Option<&Tree>) -> Result<ClockOffset, ExpressionError> {
        let Some(tree) = tree else {
            return Ok(ClockOffset::default());
        };
        let text = self.written_out(tree, "an offset")?;
        ClockOffset::parse(text).ok_or_else(|| {
            let problem = format!("{text:?} is no offset from UTC");
            self.error(tree, problem, "write it as \"+02:00\", \"-05:30\" or \"Z\"")
        })
    }

    /// A text that must be known now.
    fn written_out<'t>(&self, tree: &'t Tree, what: &str) -> Result<&'t str, ExpressionError> {
        match &tree.expr {
            Expr::Literal(LiteralValue::String(text)) => Ok(text.inner()),
            _ => Err(self.error(
                tree,
                format!("{what} is written out"),
                "it is read once, when the policy is attached",
            )),
        }
    }
}

// Texts.
impl Checker<'_> {
    fn text(&mut self, tree: &Tree, function: &str) -> Result<CheckedNode, ExpressionError> {
        let typed = self.check(tree)?;
        if typed.kind != ExpressionKind::String {
            let problem = format!("{function} takes strings, and this is {}", typed.kind.a());
            return Err(self.error(tree, problem, ""));
        }
        self.value(typed, tree)
    }

    fn text_test(&mut self, test: TextTest, text: &Tree, part: &Tree) -> Checked {
        let name = match test {
            TextTest::StartsWith => "startsWith",
            TextTest::EndsWith => "endsWith",
            TextTest::Contains => "contains",
        };
        let both = [self.text(text, name)?, self.text(part, name)?];
        Ok(TypedNode::node(
            ExpressionKind::Bool,
            CheckedNode::Text(test, Box::new(both)),
        ))
    }

    fn matches(&mut self, text: &Tree, pattern: &Tree) -> Checked {
        let text = self.text(text, "matches")?;
        let Expr::Literal(LiteralValue::String(literal)) = &pattern.expr else {
            let problem = "a pattern is written out";
            return Err(self.error(
                pattern,
                problem,
                "it is compiled once, when the policy is attached",
            ));
        };
        let compiled = self.source.pattern(literal.inner(), self.scope.runtime);
        let regex = compiled.map_err(|error| {
            let text = error.to_string();
            let reason = text
                .lines()
                .last()
                .unwrap_or_default()
                .trim_start_matches("error: ");
            let help = "docs.rs/regex has the syntax; there are no look-around and no back-references";
            self.error(pattern, format!("not a pattern: {reason}"), help)
        })?;
        Ok(TypedNode::node(
            ExpressionKind::Bool,
            CheckedNode::Matches(Box::new(text), regex),
        ))
    }

    fn size(&mut self, tree: &Tree, of: &Tree) -> Checked {
        let typed = self.check(of)?;
        let node = match (typed.term, &typed.kind) {
            (Term::Path(path), ExpressionKind::List(_) | ExpressionKind::Map(..) | ExpressionKind::Bytes) => {
                CheckedNode::Count(Box::new(self.field_of(path, of)?))
            }
            (Term::Values(values), _) => CheckedNode::Constant(Constant::Int(values.len() as i64)),
            (term, ExpressionKind::String | ExpressionKind::Bytes) => {
                let kind = typed.kind.clone();
                CheckedNode::Length(Box::new(self.value(TypedNode { kind, term }, of)?))
            }
            (_, kind) => {
                let help = "strings, bytes, lists and maps have one";
                return Err(self.error(tree, format!("{} has no size", kind.a()), help));
            }
        };
        Ok(TypedNode::node(ExpressionKind::Int, node))
    }
}

// Lists and maps.
impl Checker<'_> {
    /// `value in within`.
    fn contained(&mut self, tree: &Tree, value: &Tree, within: &Tree) -> Checked {
        let of = self.check(within)?;
        if let Term::Metadata = of.term {
            return match &value.expr {
                Expr::Literal(LiteralValue::String(name)) => {
                    let key = self.metadata_key(value, name.inner())?;
                    Ok(TypedNode::node(
                        ExpressionKind::Bool,
                        CheckedNode::HasMetadata(key),
                    ))
                }
                _ => Err(self.error(
                    value,
                    "a metadata key is written out",
                    "such as \"user\" in metadata",
                )),
            };
        }
        let needle = self.check(value)?;
        match (of.term, of.kind) {
            (Term::ValueList(list), _) => {
                if !list.holds(&needle.kind) {
                    let problem = format!("{} is looked for in a list of {}s", needle.kind.a(), list.kind());
                    return Err(self.error(tree, problem, "give the list the other `type`"));
                }
                let needle = Box::new(self.value(needle, value)?);
                Ok(TypedNode::node(
                    ExpressionKind::Bool,
                    CheckedNode::InValueList(needle, list),
                ))
            }
            (Term::Values(nodes), ExpressionKind::List(element)) => {
                let (nodes, element) = self.named_values(nodes, *element, &needle.kind, within)?;
                self.check_contained(tree, &needle.kind, &element)?;
                let needle = Box::new(self.value(needle, value)?);
                Ok(TypedNode::node(ExpressionKind::Bool, among(needle, nodes)))
            }
            (Term::Path(path), ExpressionKind::List(element)) => {
                let needle = self.named(needle, &element, value)?;
                self.check_contained(tree, &needle.kind, &element)?;
                let field = Box::new(self.field_of(path, within)?);
                let needle = Box::new(self.value(needle, value)?);
                Ok(TypedNode::node(
                    ExpressionKind::Bool,
                    CheckedNode::InElements(needle, field),
                ))
            }
            (Term::Path(path), ExpressionKind::Map(key, _)) => {
                self.check_contained(tree, &needle.kind, &key)?;
                let field = Box::new(self.field_of(path, within)?);
                let needle = Box::new(self.value(needle, value)?);
                Ok(TypedNode::node(
                    ExpressionKind::Bool,
                    CheckedNode::InKeys(needle, field),
                ))
            }
            (_, kind) => {
                let help = "`in` looks into lists, maps, metadata and lists.<name>";
                Err(self.error(within, format!("nothing can be in {}", kind.a()), help))
            }
        }
    }

    fn check_contained(
        &self,
        tree: &Tree,
        needle: &ExpressionKind,
        element: &ExpressionKind,
    ) -> Result<(), ExpressionError> {
        if needle.is_comparable(element) {
            return Ok(());
        }
        let problem = format!("{} is looked for among {element}s", needle.a());
        Err(self.error(tree, problem, comparison_help(needle, element)))
    }

    /// Strings among which a value of an enum is looked for are names of its values.
    fn named_values(
        &self,
        nodes: Vec<CheckedNode>,
        element: ExpressionKind,
        needle: &ExpressionKind,
        tree: &Tree,
    ) -> Result<(Vec<CheckedNode>, ExpressionKind), ExpressionError> {
        if !matches!(
            (needle, &element),
            (ExpressionKind::Enum(..), ExpressionKind::String)
        ) {
            return Ok((nodes, element));
        }
        let mut named = Vec::new();
        for node in nodes {
            let typed = self.named(TypedNode::node(ExpressionKind::String, node), needle, tree)?;
            named.push(self.value(typed, tree)?);
        }
        Ok((named, needle.clone()))
    }

    pub(crate) fn quantified(&mut self, tree: &Tree, of: &ComprehensionExpr) -> Checked {
        let Some((quantifier, body)) = quantifier(of) else {
            let help = "nothing here makes new lists: use all(), exists() or exists_one()";
            return Err(self.error(tree, "map() and filter() are not supported", help));
        };
        if self.bound.len() >= VARIABLES_MAX {
            let problem = format!("all() and exists() nest deeper than {VARIABLES_MAX} levels");
            return Err(self.error(tree, problem, "split the rule"));
        }
        if Self::VARIABLES.contains(&of.iter_var.as_str()) {
            let problem = format!("{} has a meaning already", of.iter_var);
            return Err(self.error(tree, problem, "give the variable another name"));
        }
        let range = self.check(&of.iter_range)?;
        let (over, element) = match (range.term, range.kind) {
            (Term::Values(nodes), ExpressionKind::List(element)) => {
                (QuantifierRange::Values(nodes.into()), *element)
            }
            (Term::Path(path), ExpressionKind::List(element)) => {
                let is_message = holds_messages(path.last());
                let field = self.field_of(path, &of.iter_range)?;
                if is_message {
                    (QuantifierRange::Messages(field), *element)
                } else {
                    (QuantifierRange::Elements(field), *element)
                }
            }
            (Term::Path(path), ExpressionKind::Map(key, _)) => {
                (QuantifierRange::Keys(self.field_of(path, &of.iter_range)?), *key)
            }
            (_, kind) => {
                let problem = format!("{} has no elements to go over", kind.a());
                return Err(self.error(&of.iter_range, problem, "lists and maps have"));
            }
        };
        let slot = self.bound.len() as u8;
        self.bound.push((of.iter_var.clone(), element));
        let body = self.condition(body, "a quantifier");
        self.bound.pop();
        let body = body?;
        let quantified = Quantified {
            quantifier,
            over,
            slot,
            steps: 1 + body.parts() / PARTS_PER_STEP,
            body,
        };
        Ok(TypedNode::node(
            ExpressionKind::Bool,
            CheckedNode::Quantified(Box::new(quantified)),
        ))
    }
}

fn known(node: &CheckedNode) -> Option<bool> {
    match node.constant() {
        Some(Val::Bool(value)) => Some(value),
        _ => None,
    }
}

/// A value among others, which are searched quickly if they are known.
fn among(needle: Box<CheckedNode>, nodes: Vec<CheckedNode>) -> CheckedNode {
    let constants: Option<Vec<Constant>> = nodes
        .iter()
        .map(|node| node.constant().and_then(Constant::of))
        .collect();
    match constants {
        Some(constants) => CheckedNode::InConstants(needle, ConstantSet::new(constants)),
        None => CheckedNode::InValues(needle, nodes.into()),
    }
}

/// A whole number that is written out may stand for an unsigned one.
fn unsign(typed: &mut TypedNode, other: &ExpressionKind) {
    if let (Term::Node(CheckedNode::Constant(Constant::Int(value))), ExpressionKind::Uint) =
        (&typed.term, other)
        && let Ok(value) = u64::try_from(*value)
    {
        *typed = TypedNode::node(ExpressionKind::Uint, CheckedNode::Constant(Constant::Uint(value)));
    }
}

fn comparison_help(a: &ExpressionKind, b: &ExpressionKind) -> String {
    match (a, b) {
        (ExpressionKind::String, number) | (number, ExpressionKind::String) if number.is_number() => {
            "write a number without quotes, or name a string field".to_owned()
        }
        (ExpressionKind::Message(..), _) | (_, ExpressionKind::Message(..)) => {
            "compare fields of the message, or use has()".to_owned()
        }
        (ExpressionKind::List(_) | ExpressionKind::Map(..), _)
        | (_, ExpressionKind::List(_) | ExpressionKind::Map(..)) => {
            "use `in`, size(), all() or exists()".to_owned()
        }
        (ExpressionKind::String, ExpressionKind::Bytes) | (ExpressionKind::Bytes, ExpressionKind::String) => {
            "write bytes as b\"...\"".to_owned()
        }
        _ => String::new(),
    }
}

/// Which quantifier the library has expanded, and what must hold of an element.
fn quantifier(of: &ComprehensionExpr) -> Option<(Quantifier, &Tree)> {
    let Expr::Call(step) = &of.loop_step.expr else {
        return None;
    };
    if of.iter_var2.is_some() {
        return None;
    }
    match (step.func_name.as_str(), step.args.as_slice()) {
        (operators::LOGICAL_AND, [_, body]) => Some((Quantifier::All, body)),
        (operators::LOGICAL_OR, [_, body]) => Some((Quantifier::Exists, body)),
        (operators::CONDITIONAL, [body, counted, _]) if is_count(counted) => {
            Some((Quantifier::ExistsOne, body))
        }
        _ => None,
    }
}

/// Whether it is `@result + 1`, and not the list that `filter` makes.
fn is_count(tree: &Tree) -> bool {
    let Expr::Call(call) = &tree.expr else {
        return false;
    };
    matches!(
        call.args.last().map(|tree| &tree.expr),
        Some(Expr::Literal(LiteralValue::Int(_)))
    )
}
