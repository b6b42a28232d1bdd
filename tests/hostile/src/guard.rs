//! Values that an access policy denies, a message in which each of them can be made and unmade by one write, and what
//! looks for them where messages arrive.

use provost_schema::{Cardinality, Field};

use crate::raw::{Segment, window_offset};
use crate::schema::TargetSchema;

/// What a denied text begins with, and what stands there otherwise.
const FORBIDDEN: &[u8; 9] = b"forbidden";
const PERMITTED: &[u8; 9] = b"permitted";
/// The number that is denied.
const NUMBER: u32 = 666;
/// Bytes of the text, and elements of the numbers: enough that both are sent from where they are.
const TEXT_BYTES: u32 = 6000;
const NUMBERS: u32 = 1024;

// Where the parts of the message are, in bytes from its begin.
const TEXT_AT: u64 = 4 << 10;
const OTHER_TEXT_AT: u64 = 12 << 10;
const NUMBERS_AT: u64 = 20 << 10;
const WORDS_AT: u64 = 32 << 10;
const WORD_AT: u64 = WORDS_AT + 64;
const OTHER_WORD_AT: u64 = WORDS_AT + 128;
const PART_AT: u64 = WORDS_AT + 256;
const OTHER_PART_AT: u64 = WORDS_AT + 512;
/// The number that changes is in the middle.
const NUMBER_AT: u64 = NUMBERS_AT + 8 * NUMBERS as u64 / 2;
const END: usize = 34 << 10;

/// The table of a policy that denies these values, for one service on one side.
#[must_use]
pub fn policy(name: &str, service: &str, side: &str) -> String {
    let rules = [
        ("small", "request.small == 666"),
        ("text", "request.text.startsWith('forbidden')"),
        ("number", "666 in request.numbers"),
        ("word", "request.words.exists(w, w == 'forbidden')"),
        ("part", "request.part.name == 'forbidden'"),
    ];
    let rules: String = rules
        .iter()
        .map(|(rule, when)| {
            format!("[[policy.config.rule]]\nname = \"{rule}\"\nwhen = \"{when}\"\naction = \"deny\"\n")
        })
        .collect();
    format!(
        "[[policy]]\nname = \"{name}\"\nkind = \"access\"\nservice = \"{service}\"\nside = \"{side}\"\n\
         [policy.config]\ndefault = \"allow\"\n{rules}"
    )
}

/// A change between a message that is allowed and one that is denied.
#[derive(Clone, Debug)]
pub struct Change {
    /// Where in the send heap, in bytes.
    pub at: u64,
    /// What stands there in a message that is allowed.
    pub permitted: Vec<u8>,
    /// What stands there in one that is denied.
    pub forbidden: Vec<u8>,
}

/// A message that is allowed, to be put at this place of the send heap, and how it can be changed to one that is not.
#[must_use]
pub fn message(schema: &TargetSchema, at: u64) -> (Vec<u8>, Vec<Change>) {
    let mut bytes = vec![0; END];
    let mut put = |place: u64, what: &[u8]| bytes[place as usize..][..what.len()].copy_from_slice(what);
    let offset = |place: u64| window_offset(at + place).to_le_bytes();
    let field = |name| place_of(schema, name);
    for (text_at, begin) in [(TEXT_AT, PERMITTED), (OTHER_TEXT_AT, FORBIDDEN)] {
        put(text_at, &vec![b'.'; TEXT_BYTES as usize]);
        put(text_at, begin);
    }
    put(WORD_AT, PERMITTED);
    put(OTHER_WORD_AT, FORBIDDEN);
    for (part_at, word_at) in [(PART_AT, WORD_AT), (OTHER_PART_AT, OTHER_WORD_AT)] {
        let name_at = part_at + part_name(schema);
        put(name_at, &offset(word_at));
        put(name_at + 4, &(PERMITTED.len() as u32).to_le_bytes());
    }
    for word in 0..2 {
        put(WORDS_AT + 8 * word, &offset(WORD_AT));
        put(WORDS_AT + 8 * word + 4, &(PERMITTED.len() as u32).to_le_bytes());
    }
    for (name, first, count) in [
        ("text", TEXT_AT, TEXT_BYTES),
        ("numbers", NUMBERS_AT, NUMBERS),
        ("words", WORDS_AT, 2),
    ] {
        put(field(name).own, &offset(first));
        put(field(name).own + 4, &count.to_le_bytes());
    }
    put(field("part").own, &1_u32.to_le_bytes());
    put(field("part").value, &offset(PART_AT));
    let change = |place: u64, permitted: &[u8], forbidden: &[u8]| Change {
        at: at + place,
        permitted: permitted.to_vec(),
        forbidden: forbidden.to_vec(),
    };
    let changes = vec![
        change(field("small").own, &1_u32.to_le_bytes(), &NUMBER.to_le_bytes()),
        change(TEXT_AT, PERMITTED, FORBIDDEN),
        change(field("text").own, &offset(TEXT_AT), &offset(OTHER_TEXT_AT)),
        change(NUMBER_AT, &1_u32.to_le_bytes(), &NUMBER.to_le_bytes()),
        change(WORD_AT, PERMITTED, FORBIDDEN),
        change(WORDS_AT + 8, &offset(WORD_AT), &offset(OTHER_WORD_AT)),
        change(field("part").value, &offset(PART_AT), &offset(OTHER_PART_AT)),
    ];
    (bytes, changes)
}

/// A value that the policy denies in a message that was delivered at an offset of the window, whatever else is in it.
#[must_use]
pub fn denied_value(schema: &TargetSchema, segments: &[Segment], root: u32) -> Option<String> {
    let reader = Reader(segments);
    let root = u64::from(root) * 8;
    let place = |name| place_of(schema, name);
    if reader.word(root + place("small").own)? == NUMBER {
        return Some("small".to_owned());
    }
    let begins_with = |reference: u64| {
        let (at, count) = reader.reference(reference)?;
        let text = reader.bytes(at, count.min(FORBIDDEN.len() as u64))?;
        Some((text == FORBIDDEN, count == FORBIDDEN.len() as u64))
    };
    if let Some((true, _)) = begins_with(root + place("text").own) {
        return Some("text".to_owned());
    }
    let (numbers, count) = reader.reference(root + place("numbers").own)?;
    let numbers = reader.bytes(numbers, count * 8).unwrap_or_default();
    if numbers
        .as_chunks()
        .0
        .iter()
        .any(|number| u64::from_le_bytes(*number) == u64::from(NUMBER))
    {
        return Some("numbers".to_owned());
    }
    let (words, count) = reader.reference(root + place("words").own)?;
    if (0..count).any(|word| begins_with(words + 8 * word) == Some((true, true))) {
        return Some("words".to_owned());
    }
    let part = place("part");
    if reader.word(root + part.own)? == 1 {
        let part_at = u64::from(reader.word(root + part.value)?) * 8;
        if begins_with(part_at + part_name(schema)) == Some((true, true)) {
            return Some("part".to_owned());
        }
    }
    None
}

struct Reader<'a>(&'a [Segment]);

impl Reader<'_> {
    fn bytes(&self, at: u64, count: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count as usize];
        let is_inside =
            |segment: &&Segment| at >= segment.at && at + count <= segment.at + segment.memory.bytes();
        let segment = self.0.iter().find(is_inside)?;
        let read = segment.memory.read_at(at - segment.at, &mut bytes).ok()?;
        (read == bytes.len()).then_some(bytes)
    }

    fn word(&self, at: u64) -> Option<u32> {
        let bytes = self.bytes(at, 4)?;
        Some(u32::from_le_bytes(*bytes.first_chunk()?))
    }

    fn reference(&self, at: u64) -> Option<(u64, u64)> {
        Some((u64::from(self.word(at)?) * 8, u64::from(self.word(at + 4)?)))
    }
}

/// Where a field of `target.Everything` is: its own words, and its value if it has a presence word.
struct FieldPlace {
    own: u64,
    value: u64,
}

fn place_of(schema: &TargetSchema, name: &str) -> FieldPlace {
    let message = schema.schema.message(schema.everything);
    let field = message.fields().find(|field| field.name == name);
    field.map_or(FieldPlace { own: 0, value: 0 }, |field| FieldPlace {
        own: field.offset.into(),
        value: value_offset(field).into(),
    })
}

fn value_offset(field: &Field) -> u32 {
    match field.cardinality {
        Cardinality::Optional { value_offset } => value_offset,
        _ => field.offset,
    }
}

fn part_name(schema: &TargetSchema) -> u64 {
    let part = schema
        .schema
        .messages
        .iter()
        .find(|message| message.full_name == "target.Part");
    let name = part.and_then(|part| part.fields().find(|field| field.name == "name"));
    name.map_or(0, |field| field.offset.into())
}

#[cfg(test)]
mod tests {
    use provost_shm::Memfd;
    use provost_wire::limits::SEND_WINDOW;

    use super::*;
    use crate::oracle;

    #[test]
    fn every_change_makes_a_valid_message_one_that_is_denied() {
        const AT: u64 = 4096;
        let schema = TargetSchema::load().unwrap();
        let (bytes, changes) = message(&schema, AT);
        let memory = Memfd::create("test", AT + bytes.len() as u64).unwrap();
        memory.write_at(AT, &bytes).unwrap();
        let segments = [Segment {
            id: 0,
            at: u64::from(SEND_WINDOW) * 8,
            memory,
        }];
        let root = window_offset(AT);
        let denied = || {
            assert_eq!(
                oracle::check(&schema.schema, schema.everything, &segments, root),
                Ok(())
            );
            denied_value(&schema, &segments, root)
        };
        assert_eq!(denied(), None);
        for change in changes {
            segments[0].memory.write_at(change.at, &change.forbidden).unwrap();
            assert!(denied().is_some(), "{change:?}");
            segments[0].memory.write_at(change.at, &change.permitted).unwrap();
            assert_eq!(denied(), None);
        }
    }
}
