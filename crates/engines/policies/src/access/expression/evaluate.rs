//! Evaluation, over a message where it lies. It allocates nothing and always ends: an expression has a bounded number of
//! nodes, and [`STEPS_MAX`] bounds what it does for elements and long texts.

use provost_engine::Contents;
use provost_marshal::{DecodeError, Elements, ReadError, Scratch, StructPlace, Tables, Value, View};
use provost_wire::metadata;

use super::node::{
    AbsentValue, ArithmeticOperator, CheckedNode, ComparisonOperator, Conversion, EntryKey, FieldOf,
    PathBase, PathEntry, PresenceTest, Quantified, Quantifier, QuantifierRange, TextTest,
};
use super::value::Val;

/// Steps of one evaluation, at most: for each element that is looked at one, and one for every [`PARTS_PER_STEP`] parts of a
/// quantifier's condition; and one for every [`STEP_BYTES`] bytes in which something is searched or that are compared.
pub const STEPS_MAX: u32 = 8_192;
/// Parts of a quantifier's condition (values, fields, operators) that one more step for each element pays for.
pub(crate) const PARTS_PER_STEP: u32 = 8;
/// Bytes that are searched or compared in one step.
const STEP_BYTES: usize = 64;
/// Records of a protobuf message that are walked for one field, at most: a message that has more is decoded.
const PROTOBUF_RECORDS_MAX: u32 = 1_024;
/// Steps of quantifiers for all their elements up to which a field that their conditions read is read of protobuf for each: as often as of a
/// condition that is written out for each element of a short list. For more, the message is decoded once.
const PROTOBUF_STEPS_MAX: usize = 16;
/// Quantifiers within each other, at most.
pub(crate) const VARIABLES_MAX: usize = 4;

/// What an expression is evaluated over.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Tables of the schema for which it was compiled.
    pub tables: &'a Tables,
    /// The metadata with which the call began.
    pub metadata: &'a [u8],
    /// The request or response in the native layout; `None` without one, or of one that is protobuf.
    pub message: Option<View<'a>>,
    /// The request or response in protobuf, if it is in that form.
    pub protobuf: Option<&'a [u8]>,
    /// Whether it came compressed, and must be made whole first.
    pub is_compressed: bool,
    /// The time, in seconds since 1970, for expressions that read it.
    pub unix_s: i64,
}

impl<'a> Inputs<'a> {
    /// What is in a step.
    #[must_use]
    pub fn of(tables: &'a Tables, contents: Contents<'a>) -> Inputs<'a> {
        Inputs {
            tables,
            metadata: contents.metadata,
            message: contents.message,
            protobuf: contents.protobuf,
            is_compressed: contents.is_compressed,
            unix_s: 0,
        }
    }
}

/// Why an expression has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// What it reads is not in private memory, or cannot be read of protobuf by its path: the message must be made whole first.
    #[error("the message is not whole")]
    NotWhole,
    /// The message is protobuf that makes no sense where it is read.
    #[error("the message is malformed")]
    Malformed,
    /// It reads a message, and there is none.
    #[error("there is no message")]
    NoMessage,
    /// A map without the key.
    #[error("no such key in the map")]
    NoKey,
    /// Metadata without the key.
    #[error("no such key in the metadata")]
    NoMetadata,
    /// Several values, of which an app could choose another than the expression.
    #[error("several values of one metadata key")]
    SeveralValues,
    /// Metadata that is not text.
    #[error("a metadata value is not text")]
    NotText,
    /// An address that is none.
    #[error("a text is not an address")]
    NotAddress,
    /// A list that is shorter.
    #[error("no such index in the list")]
    NoIndex,
    /// A number that does not fit.
    #[error("a number is too large or too small")]
    Overflow,
    /// A division by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// More work than [`STEPS_MAX`].
    #[error("too many elements or too long a text")]
    Steps,
    /// A value of another type than was compiled for.
    #[error("a value of an unexpected type")]
    Type,
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Failure {
        match error {
            // To decode it once costs less than to walk it again and again.
            DecodeError::TooFragmented => Failure::NotWhole,
            _ => Failure::Malformed,
        }
    }
}

impl From<ReadError> for Failure {
    fn from(_: ReadError) -> Failure {
        Failure::NotWhole
    }
}

/// Evaluates a whole expression.
pub(crate) fn condition(root: &CheckedNode, inputs: &Inputs<'_>) -> Result<bool, Failure> {
    Evaluation::new(inputs).bool(root)
}

/// Evaluates what reads nothing of a call.
pub(crate) fn fixed(root: &CheckedNode, tables: &Tables) -> Option<super::constant::Constant> {
    let inputs = Inputs {
        tables,
        metadata: &[],
        message: None,
        protobuf: None,
        is_compressed: false,
        unix_s: 0,
    };
    let val = Evaluation::new(&inputs).val(root).ok()?;
    super::constant::Constant::of(val)
}

struct Evaluation<'a> {
    inputs: Inputs<'a>,
    variables: [Val<'a>; VARIABLES_MAX],
    steps_left: u32,
    /// Steps of the quantifiers around, for all their elements; 1 outside.
    repeated: usize,
}

type EvaluationResult<'a> = Result<Val<'a>, Failure>;

impl<'a> Evaluation<'a> {
    fn new(inputs: &Inputs<'a>) -> Evaluation<'a> {
        Evaluation {
            inputs: *inputs,
            variables: [Val::Bool(false); VARIABLES_MAX],
            steps_left: STEPS_MAX,
            repeated: 1,
        }
    }

    fn val(&mut self, node: &'a CheckedNode) -> EvaluationResult<'a> {
        match node {
            CheckedNode::Constant(constant) => Ok(constant.val()),
            CheckedNode::Field(field, absent) => {
                let read = self.read(field)?;
                Ok(read.map_or(Ok(absent.val()), |value| Val::of(value).ok_or(Failure::Type))?)
            }
            CheckedNode::Variable(slot) => Ok(self.variables[usize::from(*slot)]),
            CheckedNode::Metadata(key) => self.metadata(key),
            CheckedNode::If(of) => {
                if self.bool(&of[0])? {
                    self.val(&of[1])
                } else {
                    self.val(&of[2])
                }
            }
            CheckedNode::Arithmetic(operation, of) => {
                let (a, b) = (self.val(&of[0])?, self.val(&of[1])?);
                calculate(*operation, a, b)
            }
            CheckedNode::Negate(of) => match self.val(of)? {
                Val::Int(value) => value.checked_neg().map(Val::Int).ok_or(Failure::Overflow),
                Val::Double(value) => Ok(Val::Double(-value)),
                _ => Err(Failure::Type),
            },
            CheckedNode::Convert(to, of) => convert(*to, self.val(of)?),
            CheckedNode::Length(of) => self.length(of),
            CheckedNode::Count(of) => Ok(Val::Int(i64::from(self.count(of)?))),
            CheckedNode::Element(entry) => self.element(entry),
            CheckedNode::Weekday(offset) => Ok(Val::String(offset.weekday(self.inputs.unix_s))),
            CheckedNode::UnixTime => Ok(Val::Int(self.inputs.unix_s)),
            condition => self.bool(condition).map(Val::Bool),
        }
    }

    fn bool(&mut self, node: &'a CheckedNode) -> Result<bool, Failure> {
        match node {
            CheckedNode::Not(of) => self.bool(of).map(|value| !value),
            CheckedNode::And(of) => self.decided_by(false, of),
            CheckedNode::Or(of) => self.decided_by(true, of),
            CheckedNode::Compare(comparison, of) => {
                let (a, b) = (self.val(&of[0])?, self.val(&of[1])?);
                self.step_over_both(&a, &b)?;
                Ok(compare(*comparison, &a, &b))
            }
            CheckedNode::Present(field, presence) => self.is_present(field, *presence),
            CheckedNode::HasMetadata(key) => Ok(metadata::find(self.inputs.metadata, key).is_some()),
            CheckedNode::Text(test, of) => self.text_test(*test, &of[0], &of[1]),
            CheckedNode::Matches(of, regex) => match self.val(of)? {
                Val::String(text) => {
                    self.step_over(text.len())?;
                    Ok(regex.is_match(text))
                }
                _ => Err(Failure::Type),
            },
            CheckedNode::InNetwork(of, network) => match self.val(of)? {
                Val::String(text) => {
                    self.step()?;
                    network.contains(text)
                }
                _ => Err(Failure::Type),
            },
            CheckedNode::InDayPart(part) => Ok(part.contains(self.inputs.unix_s)),
            // No longer than the constants, whatever the value's length.
            CheckedNode::InConstants(of, set) => Ok(set.contains(&self.val(of)?)),
            CheckedNode::InValueList(of, list) => {
                let val = self.val(of)?;
                self.step_over(length_of(&val))?;
                Ok(list.contains(&val))
            }
            CheckedNode::InValues(of, values) => {
                let val = self.val(of)?;
                for value in values {
                    let value = self.val(value)?;
                    self.step_over_both(&value, &val)?;
                    if value.equals(&val) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            CheckedNode::InElements(of, field) => {
                let val = self.val(of)?;
                let elements = self.elements(field)?;
                self.any_equal(elements, &val)
            }
            CheckedNode::InKeys(of, field) => {
                let val = self.val(of)?;
                let elements = self.elements(field)?;
                self.step_over_keys(&elements, &val)?;
                Ok(find(&elements, &val)?.is_some())
            }
            CheckedNode::Quantified(of) => self.quantified(of),
            value => match self.val(value)? {
                Val::Bool(value) => Ok(value),
                _ => Err(Failure::Type),
            },
        }
    }

    /// `&&` and `||`: either side may decide alone, whatever becomes of the other.
    fn decided_by(&mut self, decisive: bool, of: &'a [CheckedNode; 2]) -> Result<bool, Failure> {
        let left = self.bool(&of[0]);
        if left == Ok(decisive) {
            return left;
        }
        match self.bool(&of[1]) {
            Ok(right) if right == decisive => Ok(right),
            right => left.and(right),
        }
    }

    fn step(&mut self) -> Result<(), Failure> {
        self.steps(1)
    }

    fn steps(&mut self, steps: u32) -> Result<(), Failure> {
        self.steps_left = self.steps_left.checked_sub(steps).ok_or(Failure::Steps)?;
        Ok(())
    }

    /// Accounts for comparing two values: as far as both have bytes.
    fn step_over_both(&mut self, a: &Val<'_>, b: &Val<'_>) -> Result<(), Failure> {
        match length_of(a).min(length_of(b)) {
            short if short < STEP_BYTES => Ok(()),
            long => self.step_over(long),
        }
    }

    /// Accounts for looking for a key among those of a map, which are in order.
    fn step_over_keys(&mut self, elements: &Elements<'_>, key: &Val<'_>) -> Result<(), Failure> {
        let comparisons = (elements.len() + 1).ilog2() + 1;
        self.step_over(length_of(key).saturating_mul(comparisons as usize))
    }

    /// Accounts for searching in so many bytes.
    fn step_over(&mut self, bytes: usize) -> Result<(), Failure> {
        self.steps(u32::try_from(bytes / STEP_BYTES).unwrap_or(u32::MAX))
    }
}

// Texts and metadata.
impl<'a> Evaluation<'a> {
    fn metadata(&self, key: &str) -> EvaluationResult<'a> {
        let block = self.inputs.metadata;
        let place = metadata::find(block, key).ok_or(Failure::NoMetadata)?;
        if metadata::find(&block[place.end..], key).is_some() {
            return Err(Failure::SeveralValues);
        }
        let value = &block[place];
        if key.ends_with("-bin") {
            Ok(Val::Bytes(value))
        } else {
            std::str::from_utf8(value)
                .map(Val::String)
                .map_err(|_| Failure::NotText)
        }
    }

    fn text_test(
        &mut self,
        test: TextTest,
        text: &'a CheckedNode,
        part: &'a CheckedNode,
    ) -> Result<bool, Failure> {
        let (Val::String(text), Val::String(part)) = (self.val(text)?, self.val(part)?) else {
            return Err(Failure::Type);
        };
        self.step_over_both(&Val::String(text), &Val::String(part))?;
        Ok(match test {
            TextTest::StartsWith => text.starts_with(part),
            TextTest::EndsWith => text.ends_with(part),
            TextTest::Contains => {
                self.step_over(text.len())?;
                text.contains(part)
            }
        })
    }

    fn length(&mut self, of: &'a CheckedNode) -> EvaluationResult<'a> {
        let length = match self.val(of)? {
            Val::String(text) => {
                self.step_over(text.len())?;
                text.chars().count()
            }
            Val::Bytes(bytes) => bytes.len(),
            _ => return Err(Failure::Type),
        };
        Ok(Val::Int(length as i64))
    }
}

// Fields.
impl<'a> Evaluation<'a> {
    fn message(&self) -> Result<View<'a>, Failure> {
        match (self.inputs.message, self.inputs.protobuf) {
            (Some(message), _) => Ok(message),
            // Elements, keys and what is in them have no path.
            (None, Some(_)) => Err(Failure::NotWhole),
            (None, None) if self.inputs.is_compressed => Err(Failure::NotWhole),
            (None, None) => Err(Failure::NoMessage),
        }
    }

    /// A field of the message itself, if that is protobuf: read of its bytes. (Not for each of many elements that a quantifier goes
    /// over: to decode the message once costs less.)
    fn read_protobuf(&self, field: &'a FieldOf) -> Option<Result<Option<Value<'a>>, Failure>> {
        let protobuf = self
            .inputs
            .protobuf
            .filter(|_| matches!(field.base, PathBase::Message) && self.repeated <= PROTOBUF_STEPS_MAX)?;
        let (tables, path) = (self.inputs.tables, &field.path);
        let read = Scratch::of_thread(|scratch| {
            tables.read_protobuf_within(PROTOBUF_RECORDS_MAX, path, protobuf, scratch)
        });
        Some(read.map_err(Failure::from))
    }

    fn place(&mut self, base: &'a PathBase) -> Result<StructPlace, Failure> {
        match base {
            PathBase::Message => Ok(StructPlace::ROOT),
            PathBase::Variable(slot) => match self.variables[usize::from(*slot)] {
                Val::Message(place) => Ok(place),
                _ => Err(Failure::Type),
            },
            PathBase::Entry(entry) => {
                let (elements, index) = self.entry(entry)?;
                elements.place(index)?.ok_or(Failure::NoIndex)
            }
        }
    }

    fn read(&mut self, field: &'a FieldOf) -> Result<Option<Value<'a>>, Failure> {
        if let Some(read) = self.read_protobuf(field) {
            return read;
        }
        let place = self.place(&field.base)?;
        Ok(self.inputs.tables.read_at(&field.path, self.message()?, place)?)
    }

    fn elements(&mut self, field: &'a FieldOf) -> Result<Elements<'a>, Failure> {
        let place = self.place(&field.base)?;
        Ok(self.inputs.tables.elements(&field.path, self.message()?, place)?)
    }

    fn count(&mut self, field: &'a FieldOf) -> Result<u32, Failure> {
        if let Some(read) = self.read_protobuf(field) {
            return Ok(match read? {
                Some(Value::List(count)) => count,
                Some(Value::String(text)) => text.len() as u32,
                Some(Value::Bytes(bytes)) => bytes.len() as u32,
                _ => 0,
            });
        }
        let place = self.place(&field.base)?;
        let length = self
            .inputs
            .tables
            .length_at(&field.path, self.message()?, place)?;
        Ok(length.unwrap_or(0))
    }

    fn is_present(&mut self, field: &'a FieldOf, presence: PresenceTest) -> Result<bool, Failure> {
        use PresenceTest::{NotDefault, NotEmpty};
        if let NotEmpty | NotDefault(AbsentValue::String | AbsentValue::Bytes) = presence {
            return Ok(self.count(field)? > 0);
        }
        let Some(value) = self.read(field)? else {
            return Ok(false);
        };
        Ok(match presence {
            // Zeros of both signs are equal, but only the one without is the default.
            PresenceTest::NotDefault(_) if matches!(value, Value::Double(value) if value.to_bits() != 0) => {
                true
            }
            PresenceTest::NotDefault(_) if matches!(value, Value::Float(value) if value.to_bits() != 0) => {
                true
            }
            PresenceTest::NotDefault(default) => {
                !Val::of(value).is_some_and(|val| val.equals(&default.val()))
            }
            PresenceTest::Set | PresenceTest::NotEmpty => true,
        })
    }

    fn entry(&mut self, entry: &'a PathEntry) -> Result<(Elements<'a>, u32), Failure> {
        let key = self.val(&entry.key)?;
        let elements = self.elements(&entry.collection)?;
        let index = match entry.by {
            EntryKey::Key => {
                self.step_over_keys(&elements, &key)?;
                find(&elements, &key)?.ok_or(Failure::NoKey)?
            }
            EntryKey::Index => {
                let index = key.integer().and_then(|index| u32::try_from(index).ok());
                index
                    .filter(|index| *index < elements.len())
                    .ok_or(Failure::NoIndex)?
            }
        };
        Ok((elements, index))
    }

    fn element(&mut self, entry: &'a PathEntry) -> EvaluationResult<'a> {
        let (elements, index) = self.entry(entry)?;
        let value = elements.get(index)?.ok_or(Failure::NoIndex)?;
        Val::of(value).ok_or(Failure::Type)
    }

    fn any_equal(&mut self, elements: Elements<'a>, val: &Val<'a>) -> Result<bool, Failure> {
        for index in 0..elements.len() {
            self.step()?;
            let found = elements.get(index)?.and_then(Val::of).ok_or(Failure::Type)?;
            self.step_over_both(&found, val)?;
            if found.equals(val) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

// Quantifiers.
impl<'a> Evaluation<'a> {
    fn quantified(&mut self, of: &'a Quantified) -> Result<bool, Failure> {
        let mut tally = QuantifierTally::new(of.quantifier);
        match &of.over {
            QuantifierRange::Values(values) => {
                for value in values {
                    let val = self.val(value)?;
                    if tally.is_decided_by(self.holds(of, val, values.len()))? {
                        break;
                    }
                }
            }
            QuantifierRange::Elements(field)
            | QuantifierRange::Messages(field)
            | QuantifierRange::Keys(field) => {
                let elements = self.elements(field)?;
                for index in 0..elements.len() {
                    let val = match &of.over {
                        QuantifierRange::Messages(_) => elements.place(index)?.map(Val::Message),
                        QuantifierRange::Keys(_) => elements.key(index)?.and_then(Val::of),
                        _ => elements.get(index)?.and_then(Val::of),
                    };
                    let val = val.ok_or(Failure::Type)?;
                    if tally.is_decided_by(self.holds(of, val, elements.len() as usize))? {
                        break;
                    }
                }
            }
        }
        tally.result()
    }

    /// Whether the condition holds for one of so many elements.
    fn holds(&mut self, of: &'a Quantified, val: Val<'a>, elements: usize) -> Result<bool, Failure> {
        self.steps(of.steps)?;
        self.variables[usize::from(of.slot)] = val;
        let around = self.repeated;
        self.repeated = around.saturating_mul(elements).saturating_mul(of.steps as usize);
        let holds = self.bool(&of.body);
        self.repeated = around;
        holds
    }
}

/// What a quantifier has seen.
struct QuantifierTally {
    quantifier: Quantifier,
    held: u32,
    failed: bool,
    error: Option<Failure>,
}

impl QuantifierTally {
    fn new(quantifier: Quantifier) -> QuantifierTally {
        QuantifierTally {
            quantifier,
            held: 0,
            failed: false,
            error: None,
        }
    }

    /// Takes one more outcome, and says whether no other can change the result. As `&&` and `||`, `all` and `exists`
    /// keep an error only if nothing else decides.
    fn is_decided_by(&mut self, outcome: Result<bool, Failure>) -> Result<bool, Failure> {
        match (outcome, self.quantifier) {
            (Err(Failure::Steps), _) => Err(Failure::Steps),
            (Err(failure), Quantifier::ExistsOne) => Err(failure),
            (Err(failure), _) => {
                self.error = self.error.or(Some(failure));
                Ok(false)
            }
            (Ok(true), quantifier) => {
                self.held += 1;
                Ok(quantifier == Quantifier::Exists)
            }
            (Ok(false), quantifier) => {
                self.failed = true;
                Ok(quantifier == Quantifier::All)
            }
        }
    }

    fn result(self) -> Result<bool, Failure> {
        match (self.quantifier, self.error) {
            (Quantifier::All, _) if self.failed => Ok(false),
            (Quantifier::Exists, _) if self.held > 0 => Ok(true),
            (_, Some(failure)) => Err(failure),
            (Quantifier::All, None) => Ok(true),
            (Quantifier::Exists, None) => Ok(false),
            (Quantifier::ExistsOne, None) => Ok(self.held == 1),
        }
    }
}

/// Index of the pair with this key. An integer is looked for as the type that the map's keys have.
fn find(elements: &Elements<'_>, key: &Val<'_>) -> Result<Option<u32>, Failure> {
    let is_unsigned = matches!(elements.key(0)?, Some(Value::Uint(_)));
    let key = match *key {
        Val::String(text) => Value::String(text),
        Val::Bool(value) => Value::Bool(value),
        Val::Int(_) | Val::Uint(_) => {
            let number = key.integer().ok_or(Failure::Type)?;
            let value = if is_unsigned {
                u64::try_from(number).ok().map(Value::Uint)
            } else {
                i64::try_from(number).ok().map(Value::Int)
            };
            let Some(value) = value else { return Ok(None) };
            value
        }
        _ => return Err(Failure::Type),
    };
    Ok(elements.find(&key)?)
}

/// Bytes that are compared of a value; none of numbers.
fn length_of(val: &Val<'_>) -> usize {
    match val {
        Val::String(text) => text.len(),
        Val::Bytes(bytes) => bytes.len(),
        Val::Bool(_) | Val::Int(_) | Val::Uint(_) | Val::Double(_) | Val::Message(_) => 0,
    }
}

fn compare(comparison: ComparisonOperator, a: &Val<'_>, b: &Val<'_>) -> bool {
    match comparison {
        ComparisonOperator::Equal => a.equals(b),
        ComparisonOperator::NotEqual => !a.equals(b),
        ComparisonOperator::Less => a.order(b).is_some_and(std::cmp::Ordering::is_lt),
        ComparisonOperator::LessOrEqual => a.order(b).is_some_and(std::cmp::Ordering::is_le),
        ComparisonOperator::Greater => a.order(b).is_some_and(std::cmp::Ordering::is_gt),
        ComparisonOperator::GreaterOrEqual => a.order(b).is_some_and(std::cmp::Ordering::is_ge),
    }
}

fn calculate(operation: ArithmeticOperator, a: Val<'_>, b: Val<'_>) -> Result<Val<'static>, Failure> {
    use ArithmeticOperator::{Add, Divide, Multiply, Remainder, Subtract};
    let divides = matches!(operation, Divide | Remainder);
    match (a, b) {
        (Val::Int(_), Val::Int(0)) | (Val::Uint(_), Val::Uint(0)) if divides => Err(Failure::DivisionByZero),
        (Val::Int(a), Val::Int(b)) => match operation {
            Add => a.checked_add(b),
            Subtract => a.checked_sub(b),
            Multiply => a.checked_mul(b),
            Divide => a.checked_div(b),
            Remainder => a.checked_rem(b),
        }
        .map(Val::Int)
        .ok_or(Failure::Overflow),
        (Val::Uint(a), Val::Uint(b)) => match operation {
            Add => a.checked_add(b),
            Subtract => a.checked_sub(b),
            Multiply => a.checked_mul(b),
            Divide => a.checked_div(b),
            Remainder => a.checked_rem(b),
        }
        .map(Val::Uint)
        .ok_or(Failure::Overflow),
        (Val::Double(a), Val::Double(b)) => Ok(Val::Double(match operation {
            Add => a + b,
            Subtract => a - b,
            Multiply => a * b,
            Divide => a / b,
            Remainder => return Err(Failure::Type),
        })),
        _ => Err(Failure::Type),
    }
}

fn convert(to: Conversion, val: Val<'_>) -> Result<Val<'static>, Failure> {
    let integer = match val {
        Val::Double(value) if to != Conversion::Double => {
            let fits = value.is_finite() && value.abs() < 2e19;
            fits.then_some(value as i128).ok_or(Failure::Overflow)?
        }
        Val::Double(value) => return Ok(Val::Double(value)),
        other => other.integer().ok_or(Failure::Type)?,
    };
    match to {
        Conversion::Int => i64::try_from(integer)
            .map(Val::Int)
            .map_err(|_| Failure::Overflow),
        Conversion::Uint => u64::try_from(integer)
            .map(Val::Uint)
            .map_err(|_| Failure::Overflow),
        Conversion::Double => Ok(Val::Double(integer as f64)),
    }
}
