//! JSON texts, strictly as RFC 8259 has them.

use std::borrow::Cow;

use super::super::error::{JsonError, JsonPlace};
use super::number::number_bytes;
use super::value::JsonValue;
use provost_wire::limits::NESTING_MAX;

/// Values nest this deep in a text: a message within a list or a map takes two levels.
const LEVELS_MAX: u32 = 2 * NESTING_MAX + 2;

/// The value that a text is.
pub(super) fn parse(text: &str) -> Result<JsonValue<'_>, JsonError> {
    let mut parser = JsonParser { text, at: 0 };
    let parsed = parser.value(0).and_then(|value| match parser.token() {
        None => Ok(value),
        Some(_) => Err("something follows the value".into()),
    });
    parsed.map_err(|message| JsonError {
        place: place_of(text, parser.at),
        message: message.into_owned(),
    })
}

type ParseOutcome<T> = Result<T, Cow<'static, str>>;

fn place_of(text: &str, at: usize) -> JsonPlace {
    let before = text.get(..at).unwrap_or(text);
    let line_begin = before.rfind('\n').map_or(0, |end| end + 1);
    JsonPlace::Text {
        line: before.matches('\n').count() + 1,
        column: before[line_begin..].chars().count() + 1,
    }
}

struct JsonParser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> JsonParser<'a> {
    fn value(&mut self, level: u32) -> ParseOutcome<JsonValue<'a>> {
        if level > LEVELS_MAX {
            return Err(format!("values nest deeper than {LEVELS_MAX} levels").into());
        }
        match self.token() {
            Some(b'{') => self.object(level),
            Some(b'[') => self.list(level),
            Some(b'"') => Ok(JsonValue::Text(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => self.word(),
            None => Err("the text ends where a value is expected".into()),
        }
    }

    fn object(&mut self, level: u32) -> ParseOutcome<JsonValue<'a>> {
        self.at += 1;
        let mut members = Vec::new();
        if self.took(b'}') {
            return Ok(JsonValue::Object(members));
        }
        loop {
            if self.token() != Some(b'"') {
                return Err("a name in quotes is expected".into());
            }
            let name = self.string()?;
            if !self.took(b':') {
                return Err("`:` is expected".into());
            }
            members.push((name, self.value(level + 1)?));
            if self.took(b'}') {
                return Ok(JsonValue::Object(members));
            }
            self.comma("`,` or `}` is expected")?;
        }
    }

    fn list(&mut self, level: u32) -> ParseOutcome<JsonValue<'a>> {
        self.at += 1;
        let mut values = Vec::new();
        if self.took(b']') {
            return Ok(JsonValue::List(values));
        }
        loop {
            values.push(self.value(level + 1)?);
            if self.took(b']') {
                return Ok(JsonValue::List(values));
            }
            self.comma("`,` or `]` is expected")?;
        }
    }

    fn comma(&mut self, otherwise: &'static str) -> ParseOutcome<()> {
        if self.took(b',') {
            Ok(())
        } else {
            Err(otherwise.into())
        }
    }

    fn number(&mut self) -> ParseOutcome<JsonValue<'a>> {
        let rest = &self.text[self.at..];
        let bytes = number_bytes(rest);
        if bytes == 0 {
            return Err("this is no number".into());
        }
        self.at += bytes;
        if rest[bytes..].starts_with(|next: char| next.is_ascii_alphanumeric() || "+-.".contains(next)) {
            return Err("a number is not written like this".into());
        }
        Ok(JsonValue::Number(rest[..bytes].into()))
    }

    fn word(&mut self) -> ParseOutcome<JsonValue<'a>> {
        let words = [
            ("null", JsonValue::Null),
            ("true", JsonValue::Bool(true)),
            ("false", JsonValue::Bool(false)),
        ];
        let rest = &self.text[self.at..];
        let letters = rest
            .find(|letter: char| !letter.is_ascii_alphanumeric())
            .unwrap_or(rest.len());
        let found = words.into_iter().find(|(word, _)| *word == &rest[..letters]);
        let (word, value) = found.ok_or("a value is expected")?;
        self.at += word.len();
        Ok(value)
    }

    fn string(&mut self) -> ParseOutcome<Cow<'a, str>> {
        self.at += 1;
        let rest = &self.text[self.at..];
        let special = |letter: char| letter == '"' || letter == '\\' || u32::from(letter) < 0x20;
        let plain = rest.find(special).unwrap_or(rest.len());
        if rest[plain..].starts_with('"') {
            self.at += plain + 1;
            return Ok(rest[..plain].into());
        }
        let mut text = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(special).unwrap_or(rest.len());
            text.push_str(&rest[..plain]);
            self.at += plain;
            match rest[plain..].bytes().next() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text.into());
                }
                Some(b'\\') => text.push(self.escape()?),
                Some(_) => return Err("a control character stands in a text; escape it".into()),
                None => return Err("the text ends within quotes".into()),
            }
        }
    }

    fn escape(&mut self) -> ParseOutcome<char> {
        let letter = self.text[self.at + 1..].chars().next();
        let character = match letter {
            Some('"' | '\\' | '/') => letter.unwrap_or_default(),
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => return self.escaped_unit(),
            _ => return Err("there is no such escape".into()),
        };
        self.at += 2;
        Ok(character)
    }

    /// `\uXXXX`, or two of them that make a pair of surrogates.
    fn escaped_unit(&mut self) -> ParseOutcome<char> {
        let first = self.unit()?;
        let second = match first {
            0xd800..=0xdbff => Some(self.unit()?),
            _ => None,
        };
        let units = [first].into_iter().chain(second);
        let mut characters = char::decode_utf16(units);
        let character = characters.next().and_then(Result::ok);
        character.ok_or_else(|| "half of a surrogate pair".into())
    }

    fn unit(&mut self) -> ParseOutcome<u16> {
        let digits = self.text[self.at..]
            .strip_prefix("\\u")
            .and_then(|rest| rest.get(..4));
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let unit = unit.ok_or("four hexadecimal digits are expected after `\\u`, and another such half after the first of a pair")?;
        self.at += 6;
        Ok(unit)
    }

    /// The next byte that is no space.
    fn token(&mut self) -> Option<u8> {
        let rest = self.text.as_bytes()[self.at..].iter();
        self.at += rest.take_while(|byte| b" \t\r\n".contains(byte)).count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn took(&mut self, expected: u8) -> bool {
        let is_next = self.token() == Some(expected);
        self.at += usize::from(is_next);
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_they_are_written() {
        let text =
            r#"{"a":[1,-2.50e+3,"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"],"b":{"":null,"c":true},"d":[],"e":{}}"#;
        let mut written = String::new();
        parse(text).unwrap().write(&mut written);
        assert_eq!(
            written,
            "{\"a\":[1,-2.50e+3,\"\\\"\\\\/\\u0008\\u000c\\n\\r\\té😀\"],\"b\":{\"\":null,\"c\":true},\"d\":[],\"e\":{}}"
        );
        assert_eq!(parse(" \r\n\t1 ").unwrap(), JsonValue::Number("1".into()));
    }

    #[test]
    fn errors_name_line_and_column() {
        let cases = [
            ("", "line 1, column 1: the text ends where a value is expected"),
            (
                "{\n  \"a\": 1,\n}",
                "line 3, column 1: a name in quotes is expected",
            ),
            ("[1 2]", "line 1, column 4: `,` or `]` is expected"),
            ("[1,]", "line 1, column 4: a value is expected"),
            ("nul", "line 1, column 1: a value is expected"),
            ("'a'", "line 1, column 1: a value is expected"),
            ("01", "line 1, column 2: a number is not written like this"),
            ("1.", "line 1, column 2: a number is not written like this"),
            ("-", "line 1, column 1: this is no number"),
            ("{\"a\" 1}", "line 1, column 6: `:` is expected"),
            ("1 1", "line 1, column 3: something follows the value"),
            (
                "\"a\nb\"",
                "line 1, column 3: a control character stands in a text; escape it",
            ),
            ("\"ä\\x\"", "line 1, column 3: there is no such escape"),
            ("\"\\udc00\"", "line 1, column 8: half of a surrogate pair"),
            ("\"abc", "line 1, column 5: the text ends within quotes"),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text).unwrap_err().to_string(), message, "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(
            parse(&deep)
                .unwrap_err()
                .to_string()
                .contains("deeper than 202 levels")
        );
        for text in [
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\u12g4\"",
            "\"\\u+123\"",
            "NaN",
            "1e",
            "tru e",
            "\u{feff}1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
