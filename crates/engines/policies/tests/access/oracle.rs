//! Random expressions over random messages mean what the library's own interpreter says, which works on values that
//! prost-reflect has decoded.

use std::collections::HashMap;
use std::sync::Arc;

use crate::shop::Shop;
use cel::objects::{Key, Map};
use cel::{Context, Program, Value};
use proptest::prelude::*;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey};

/// Draws from random bytes; 0 when they are used up, so that everything ends.
struct Entropy<'a>(&'a [u8]);

impl Entropy<'_> {
    fn below(&mut self, bound: usize) -> usize {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                usize::from(*first) % bound
            }
            None => 0,
        }
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.below(from.len())]
    }
}

const TEXTS: [&str; 7] = ["", "a", "ab", "é", "order", "b", "zz-1"];
const INTS: [i64; 8] = [0, 1, -1, 3, 7, -5, i64::MAX, i64::MIN];
const UINTS: [u64; 5] = [0, 1, 3, 7, u64::MAX];
const DOUBLES: [f64; 5] = [0.0, 0.5, -2.25, 3.0, 1e6];

/// Writes expressions, each of a type, in parentheses.
struct Writer<'e, 'a> {
    entropy: &'e mut Entropy<'a>,
    /// Variables that are lines.
    lines: usize,
    /// Variables that are strings.
    texts: usize,
}

impl Writer<'_, '_> {
    fn line(&mut self) -> String {
        match self.lines {
            0 => self
                .entropy
                .pick(&[
                    "request.first",
                    "request.lines[0]",
                    "request.lines[1]",
                    "request.by_id[3]",
                ])
                .into(),
            lines => format!("l{}", self.entropy.below(lines)),
        }
    }

    fn bool(&mut self, depth: usize) -> String {
        let Some(depth) = depth.checked_sub(1) else {
            return self.entropy.pick(&["true", "false", "request.express"]).into();
        };
        let compare = ["==", "!=", "<", "<=", ">", ">="];
        let equal = ["==", "!="];
        match self.entropy.below(19) {
            0 | 1 => format!("({} && {})", self.bool(depth), self.bool(depth)),
            2 | 3 => format!("({} || {})", self.bool(depth), self.bool(depth)),
            4 => format!("!({})", self.bool(depth)),
            5 => format!(
                "({} ? {} : {})",
                self.bool(depth),
                self.bool(depth),
                self.bool(depth)
            ),
            6 => format!(
                "({} {} {})",
                self.int(depth),
                self.entropy.pick(&compare),
                self.int(depth)
            ),
            7 => format!(
                "({} {} {})",
                self.uint(depth),
                self.entropy.pick(&compare),
                self.uint(depth)
            ),
            8 => format!(
                "({} {} {})",
                self.double(depth),
                self.entropy.pick(&compare),
                self.double(depth)
            ),
            9 => format!(
                "({} {} {})",
                self.text(),
                self.entropy.pick(&compare),
                self.text()
            ),
            10 => format!(
                "({} {} {})",
                self.int(depth),
                self.entropy.pick(&compare),
                self.uint(depth)
            ),
            11 => {
                let test = self.entropy.pick(&["startsWith", "endsWith", "contains"]);
                format!("{}.{test}({})", self.text(), self.text())
            }
            12 => format!(
                "{}.matches({:?})",
                self.text(),
                self.entropy.pick(&["^a", "b$", "^.$", "a|é", "[0-9]"])
            ),
            13 => {
                let within = self.entropy.pick(&[
                    "request.tags",
                    "request.labels",
                    "['a', 'b', 'é', 'x', 'order', 'q']",
                    "['ab']",
                ]);
                format!("({} in {within})", self.text())
            }
            14 => format!(
                "({} in {})",
                self.int(depth),
                self.entropy
                    .pick(&["request.numbers", "request.by_id", "[1, 2, 3, 7, -5, 0]"])
            ),
            15 | 16 => {
                let quantifier = self.entropy.pick(&["all", "exists", "exists_one"]);
                let variable = self.lines;
                if variable == 2 {
                    return "true".into();
                }
                self.lines += 1;
                let body = self.bool(depth);
                self.lines -= 1;
                format!("request.lines.{quantifier}(l{variable}, {body})")
            }
            17 => {
                let quantifier = self.entropy.pick(&["all", "exists", "exists_one"]);
                let variable = self.texts;
                if variable == 2 {
                    return "false".into();
                }
                let over = match self.entropy.below(4) {
                    0 => format!("{}.tags", self.line()),
                    1 => "['a', 'b']".into(),
                    2 => "request.labels".into(),
                    _ => "request.tags".into(),
                };
                self.texts += 1;
                let body = self.bool(depth);
                self.texts -= 1;
                format!("{over}.{quantifier}(t{variable}, {body})")
            }
            _ => format!("(request.token {} b'ab')", self.entropy.pick(&equal)),
        }
    }

    fn int(&mut self, depth: usize) -> String {
        let literal = INTS[self.entropy.below(INTS.len() - 1)];
        let Some(depth) = depth.checked_sub(1) else {
            return format!("({literal})");
        };
        match self.entropy.below(9) {
            0 => format!("({literal})"),
            1 => "request.total".into(),
            2 => format!("request.numbers[{}]", self.entropy.below(3)),
            3 => format!(
                "({} {} {})",
                self.int(depth),
                self.entropy.pick(&["+", "-", "*", "/", "%"]),
                self.int(depth)
            ),
            4 => format!(
                "size({})",
                self.entropy.pick(&[
                    "request.id",
                    "request.tags",
                    "request.token",
                    "request.labels",
                    "request.lines"
                ])
            ),
            5 => "request.color".into(),
            6 => format!("{}.color", self.line()),
            7 => format!("{}.stock[{}]", self.line(), self.text()),
            _ => format!(
                "({} ? {} : {})",
                self.bool(depth),
                self.int(depth),
                self.int(depth)
            ),
        }
    }

    fn uint(&mut self, depth: usize) -> String {
        let literal = UINTS[self.entropy.below(UINTS.len())];
        let Some(depth) = depth.checked_sub(1) else {
            return format!("{literal}u");
        };
        match self.entropy.below(4) {
            0 => format!("{literal}u"),
            1 => "request.size".into(),
            2 => format!("{}.count", self.line()),
            _ => format!(
                "({} {} {})",
                self.uint(depth),
                self.entropy.pick(&["+", "-", "*", "/", "%"]),
                self.uint(depth)
            ),
        }
    }

    /// Without division: the library refuses to compare what is not a number, where CEL says that it is unlike all.
    fn double(&mut self, depth: usize) -> String {
        let literal = DOUBLES[self.entropy.below(DOUBLES.len())];
        let Some(depth) = depth.checked_sub(1) else {
            return format!("({literal:?})");
        };
        match self.entropy.below(5) {
            0 => format!("({literal:?})"),
            1 => "request.weight".into(),
            2 => "request.ratio".into(),
            3 => format!("{}.price", self.line()),
            _ => format!(
                "({} {} {})",
                self.double(depth),
                self.entropy.pick(&["+", "-", "*"]),
                self.double(depth)
            ),
        }
    }

    fn text(&mut self) -> String {
        match self.entropy.below(6) {
            0 | 1 => format!("{:?}", self.entropy.pick(&TEXTS)),
            2 => "request.id".into(),
            3 => format!("{}.sku", self.line()),
            4 if self.texts > 0 => format!("t{}", self.entropy.below(self.texts)),
            4 => format!("request.tags[{}]", self.entropy.below(3)),
            _ => format!("request.labels[{:?}]", self.entropy.pick(&TEXTS)),
        }
    }
}

/// A message with values of few kinds, so that comparisons meet.
fn sample(entropy: &mut Entropy<'_>, shop: &Shop, name: &str, depth: usize) -> DynamicMessage {
    use prost_reflect::Value as Field;
    let descriptor = shop.message(name);
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        if entropy.below(4) == 0 || (field.containing_oneof().is_some() && field.name() == "voucher") {
            continue;
        }
        let value = if field.is_list() {
            Field::List(
                (0..entropy.below(4))
                    .map(|_| scalar(entropy, shop, &field, depth))
                    .collect(),
            )
        } else if field.is_map() {
            let mut map = HashMap::new();
            let Kind::Message(entry) = field.kind() else {
                continue;
            };
            for _ in 0..entropy.below(4) {
                let key = match entry.map_entry_key_field().kind() {
                    Kind::String => MapKey::String(TEXTS[entropy.below(TEXTS.len())].into()),
                    Kind::Int64 => MapKey::I64(INTS[entropy.below(INTS.len())]),
                    _ => MapKey::U32(entropy.below(9) as u32),
                };
                map.insert(key, scalar(entropy, shop, &entry.map_entry_value_field(), depth));
            }
            Field::Map(map)
        } else {
            scalar(entropy, shop, &field, depth)
        };
        message.set_field(&field, value);
    }
    message
}

fn scalar(
    entropy: &mut Entropy<'_>,
    shop: &Shop,
    field: &FieldDescriptor,
    depth: usize,
) -> prost_reflect::Value {
    use prost_reflect::Value as Field;
    match field.kind() {
        Kind::String => Field::String(TEXTS[entropy.below(TEXTS.len())].into()),
        Kind::Bytes => Field::Bytes(TEXTS[entropy.below(TEXTS.len())].as_bytes().to_vec().into()),
        Kind::Bool => Field::Bool(entropy.below(2) == 1),
        Kind::Int64 => Field::I64(INTS[entropy.below(INTS.len())]),
        Kind::Int32 => Field::I32(INTS[entropy.below(6)] as i32),
        Kind::Uint64 => Field::U64(UINTS[entropy.below(UINTS.len())]),
        Kind::Uint32 => Field::U32(UINTS[entropy.below(4)] as u32),
        Kind::Double => Field::F64(DOUBLES[entropy.below(DOUBLES.len())]),
        Kind::Float => Field::F32(DOUBLES[entropy.below(DOUBLES.len())] as f32),
        Kind::Enum(_) => Field::EnumNumber([0, 1, 7, 99][entropy.below(4)]),
        Kind::Message(_) if depth == 0 => Field::Message(DynamicMessage::new(shop.message("Line"))),
        Kind::Message(_) => Field::Message(sample(entropy, shop, "Line", depth - 1)),
        other => panic!("the schema has no {other:?}"),
    }
}

/// A message as the interpreter has it: a map in which every field has a value.
fn boxed(message: &DynamicMessage) -> Value {
    use prost_reflect::ReflectMessage;
    let mut map = HashMap::new();
    for field in message.descriptor().fields() {
        let key = Key::String(Arc::new(field.name().to_owned()));
        map.insert(key, boxed_value(&message.get_field(&field)));
    }
    Value::Map(Map { map: Arc::new(map) })
}

fn boxed_value(value: &prost_reflect::Value) -> Value {
    use prost_reflect::Value as Field;
    match value {
        Field::Bool(value) => Value::Bool(*value),
        Field::I32(value) | Field::EnumNumber(value) => Value::Int(i64::from(*value)),
        Field::I64(value) => Value::Int(*value),
        Field::U32(value) => Value::UInt(u64::from(*value)),
        Field::U64(value) => Value::UInt(*value),
        Field::F32(value) => Value::Float(f64::from(*value)),
        Field::F64(value) => Value::Float(*value),
        Field::String(value) => Value::String(Arc::new(value.clone())),
        Field::Bytes(value) => Value::Bytes(Arc::new(value.to_vec())),
        Field::Message(message) => boxed(message),
        Field::List(list) => Value::List(Arc::new(list.iter().map(boxed_value).collect())),
        Field::Map(map) => {
            let key = |key: &MapKey| match key {
                MapKey::String(key) => Key::String(Arc::new(key.clone())),
                MapKey::I64(key) => Key::Int(*key),
                MapKey::U32(key) => Key::Uint(u64::from(*key)),
                other => panic!("the schema has no key {other:?}"),
            };
            let map = map
                .iter()
                .map(|(k, value)| (key(k), boxed_value(value)))
                .collect();
            Value::Map(Map { map: Arc::new(map) })
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn random_expressions_mean_what_the_library_says(
        expression in proptest::collection::vec(any::<u8>(), 0..120),
        order in proptest::collection::vec(any::<u8>(), 0..160),
    ) {
        thread_local!(static SHOP: Shop = Shop::open());
        SHOP.with(|shop| {
            let text = Writer { entropy: &mut Entropy(&expression), lines: 0, texts: 0 }.bool(4);
            let order = sample(&mut Entropy(&order), shop, "Order", 1);
            let Ok(program) = Program::compile(&text) else { return Ok(()) };
            let mut context = Context::default();
            context.add_variable_from_value("request", boxed(&order));
            let expected = program.execute(&context);
            let compiled = shop.compile(&text).map_err(|error| TestCaseError::fail(format!("{text}\n{error}")))?;
            let ours = shop.evaluate(&compiled, &shop.native(&order), &[]);
            match (&ours, &expected) {
                (Ok(ours), Ok(Value::Bool(expected))) => {
                    prop_assert_eq!(ours, expected, "{}\n{:?}", text, boxed(&order));
                }
                (Err(_), Err(_)) => {}
                _ => prop_assert!(false, "{}: {:?}, {:?}\n{:?}", text, ours, expected, boxed(&order)),
            }
            Ok(())
        })?;
    }
}
