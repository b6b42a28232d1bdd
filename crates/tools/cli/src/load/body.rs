//! What each call of a load sends: the same, or a template filled in.

use prost_reflect::MethodDescriptor;
use provost_random::SeededRandom;

use crate::call::{RequestMessages, RequestSource, RequestStream};
use provost_terminal::failure::Failure;

/// What a template may hold, and what stands for it.
const NUMBER: &str = "{{number}}";
const RANDOM: &str = "{{random}}";
/// So much of an unknown mark is said.
const MARK_CHARACTERS_MAX: usize = 32;
/// Random numbers are below this: JSON's numbers hold them exactly.
const RANDOM_MAX: u64 = 1 << 53;

/// What the calls of a load send.
#[derive(Debug)]
pub(crate) enum LoadBody {
    /// The same messages each time.
    Fixed(RequestMessages),
    /// A text in which numbers are filled in.
    Template {
        text: String,
        method: MethodDescriptor,
        random: SeededRandom,
    },
}

impl LoadBody {
    /// Reads what is to be sent, and sees that it can be.
    pub(crate) fn read(
        source: &RequestSource,
        method: &MethodDescriptor,
        seed: u64,
    ) -> Result<LoadBody, Failure> {
        let text = source.text(method)?;
        check_marks(&text)?;
        if !text.contains(NUMBER) && !text.contains(RANDOM) {
            return Ok(LoadBody::Fixed(RequestMessages::of_text(&text, method)?));
        }
        let mut body = LoadBody::Template {
            text,
            method: method.clone(),
            random: SeededRandom::new(seed),
        };
        body.next_call(0)?;
        Ok(body)
    }

    /// The messages of this call, counted from zero.
    pub(crate) fn next_call(&mut self, number: u64) -> Result<RequestStream, Failure> {
        match self {
            LoadBody::Fixed(messages) => messages.next_call(),
            LoadBody::Template { text, method, random } => {
                let filled = fill(&text.replace(NUMBER, &number.to_string()), random);
                RequestMessages::of_text(&filled, method)?.next_call()
            }
        }
    }
}

/// A mark that nothing stands for would be sent as it is.
fn check_marks(text: &str) -> Result<(), Failure> {
    for (at, _) in text.match_indices("{{") {
        let rest = &text[at..];
        if !rest.starts_with(NUMBER) && !rest.starts_with(RANDOM) {
            let mark = rest.split_inclusive("}}").next().unwrap_or_default();
            let mark: String = mark.chars().take(MARK_CHARACTERS_MAX).collect();
            return Err(Failure::usage(format!(
                "nothing stands for {mark}: there are {NUMBER} and {RANDOM} (two braces that are meant so: \\u007b\\u007b)"
            )));
        }
    }
    Ok(())
}

/// The text with a number of its own for each mark.
fn fill(text: &str, random: &mut SeededRandom) -> String {
    let mut parts = text.split(RANDOM);
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        filled += &random.below(RANDOM_MAX).to_string();
        filled += part;
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::tests::interface;

    #[test]
    fn a_template_is_another_message_each_time_and_the_same_for_the_same_seed() {
        let proto = "syntax = \"proto3\"; package t; message M { string key = 1; uint64 at = 2; } \
                     service S { rpc Call(M) returns (M); }";
        let method = interface(proto, "S").unwrap().method("Call").unwrap();
        let read = |text: &str, seed| LoadBody::read(&RequestSource::Text(text.to_owned()), &method, seed);
        let text = "{\"key\": \"k{{random}}-{{random}}\", \"at\": {{number}}}";
        let sent = |seed| {
            let mut body = read(text, seed).unwrap();
            (0..3)
                .map(|number| format!("{:?}", body.next_call(number).unwrap()))
                .collect::<Vec<_>>()
        };
        let first = sent(1);
        assert_eq!(first, sent(1));
        assert_ne!(first, sent(2));
        assert!(first[0] != first[1] && first[1] != first[2]);
        let mut numbered = read("{\"at\": {{number}}}", 1).unwrap();
        let mut sent = |number| format!("{:?}", numbered.next_call(number).unwrap());
        assert_ne!(sent(0), sent(1));
        assert!(matches!(read("{}", 1), Ok(LoadBody::Fixed(_))));
        let failure = read("{\"kei\": \"{{random}}\"}", 1).unwrap_err();
        assert!(failure.message.contains("is no t.M"), "{failure}");
        for (text, mark) in [
            ("{\"key\": \"{{nubmer}}\"}", "{{nubmer}}"),
            ("{\"key\": \"{{number\"}", "{{number\"}"),
        ] {
            let failure = read(text, 1).unwrap_err();
            assert!(
                failure.message.contains(&format!("nothing stands for {mark}:")),
                "{failure}"
            );
        }
        let meant = read("{\"key\": \"\\u007b\\u007bx}} {{number}}\"}", 1);
        assert!(meant.is_ok(), "{meant:?}");
    }
}
