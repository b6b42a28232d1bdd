//! Values that are redacted at one place of a sampled call and shown at another: a password that stands in metadata, too, say.

use std::cell::RefCell;

use serde_json::Value;

/// Shorter values are found everywhere, in characters.
const VALUE_CHARACTERS_MIN: usize = 4;
/// Values of one call that are looked for, at most.
const VALUES_MAX: usize = 64;
/// Warnings of one call, at most.
const WARNINGS_MAX: usize = 8;

/// What was redacted of a call while it was made into JSON.
#[derive(Debug, Default)]
pub(crate) struct RedactedValues {
    /// Names of fields or metadata, each with a value.
    found: RefCell<Vec<(String, String)>>,
}

impl RedactedValues {
    /// Notes all texts and numbers of what is not shown.
    pub(crate) fn note(&self, name: &str, value: &Value) {
        match value {
            Value::String(text) => self.note_text(name, text),
            Value::Number(number) => self.note_text(name, &number.to_string()),
            Value::Array(list) => list.iter().for_each(|value| self.note(name, value)),
            // Its keys are names of fields, as a rule.
            Value::Object(fields) => fields.values().for_each(|value| self.note(name, value)),
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Notes a text that is not shown.
    pub(crate) fn note_text(&self, name: &str, text: &str) {
        let mut found = self.found.borrow_mut();
        let is_known = found.iter().any(|(_, known)| known == text);
        if text.chars().count() >= VALUE_CHARACTERS_MIN && found.len() < VALUES_MAX && !is_known {
            found.push((name.to_owned(), text.to_owned()));
        }
    }

    /// Where the call shows such a value all the same, in sentences that do not have it.
    pub(crate) fn warnings(&self, steps: &Value) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.found.borrow().is_empty() {
            self.look("steps", steps, &mut warnings);
        }
        warnings
    }

    fn look(&self, place: &str, shown: &Value, warnings: &mut Vec<String>) {
        match shown {
            Value::String(text) => self.look_in_text(place, text, warnings),
            Value::Number(number) => self.look_in_text(place, &number.to_string(), warnings),
            Value::Array(list) => {
                for (at, value) in list.iter().enumerate() {
                    self.look(&format!("{place}[{at}]"), value, warnings);
                }
            }
            Value::Object(fields) => {
                for (key, value) in fields {
                    // A key of a map may be what is not to be seen.
                    let is_shown = self.named_in(key).is_some();
                    let place = format!("{place}.{}", if is_shown { "…" } else { key });
                    self.look_in_text(&place, key, warnings);
                    self.look(&place, value, warnings);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn look_in_text(&self, place: &str, text: &str, warnings: &mut Vec<String>) {
        if warnings.len() < WARNINGS_MAX
            && let Some(name) = self.named_in(text)
        {
            warnings.push(format!(
                "the value of {name}, which is redacted, is shown in {place}"
            ));
        }
    }

    /// Of what a redacted value is in a text.
    fn named_in(&self, text: &str) -> Option<String> {
        let found = self.found.borrow();
        let found = found.iter().find(|(_, value)| text.contains(&**value));
        found.map(|(name, _)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_that_show_a_redacted_value_are_named_without_it() {
        let redacted = RedactedValues::default();
        redacted.note("password", &json!({ "old": ["secret-1", 12345], "flag": true }));
        redacted.note_text("pin", "123");
        let steps = json!([{ "metadata": { "x-debug": "pw=secret-1", "x-pin": "123" },
                             "message": { "by_name": { "secret-1": 7 }, "count": 12345, "ok": true } }]);
        let warnings = redacted.warnings(&steps);
        let expected = [
            "the value of password, which is redacted, is shown in steps[0].message.by_name.…",
            "the value of password, which is redacted, is shown in steps[0].message.count",
            "the value of password, which is redacted, is shown in steps[0].metadata.x-debug",
        ];
        assert_eq!(warnings, expected);
    }

    #[test]
    fn what_is_looked_for_and_told_is_bounded() {
        let redacted = RedactedValues::default();
        let many: Vec<Value> = (0..1000)
            .map(|number| json!(format!("value-{number:04}")))
            .collect();
        redacted.note("list", &Value::Array(many.clone()));
        assert_eq!(redacted.found.borrow().len(), VALUES_MAX);
        assert_eq!(redacted.warnings(&Value::Array(many)).len(), WARNINGS_MAX);
    }
}
