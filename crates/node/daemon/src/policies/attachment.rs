//! What an operator attaches: a kind of policy, its configuration, and where it applies.

use provost_engine::Side;
use provost_wire::limits::NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use wildmatch::WildMatch;

/// Method patterns of one attachment, at most.
const METHOD_PATTERNS_MAX: usize = 256;

/// A policy as configurations (`[[policy]]`) and operators name it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// Its name, unique on the node: label of its metrics, and what commands call it.
    pub name: String,
    /// Its kind, such as `rate-limit`.
    pub kind: String,
    /// The version of the kind's code; the newest without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Apps of this node to which it applies: a name, `*` for any run of characters, `?` for one.
    #[serde(default = "any", skip_serializing_if = "is_any")]
    pub app: String,
    /// Services to which it applies, written likewise.
    #[serde(default = "any", skip_serializing_if = "is_any")]
    pub service: String,
    /// Methods to which it applies (`Get`, `/kv.Kv/Get`, `/kv.Kv/*`); all without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// On which side of a call.
    #[serde(default)]
    pub side: AppliesTo,
    /// What becomes of calls that it would judge when it has failed and no version before it can take over.
    #[serde(default)]
    pub on_fault: OnFault,
    /// The kind's own keys.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub config: toml::Table,
}

/// On which side of a call a policy applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AppliesTo {
    /// Where apps of this node make calls.
    Client,
    /// Where they serve them.
    Server,
    #[default]
    Both,
}

/// What becomes of calls whose policy has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFault {
    /// They end with UNAVAILABLE.
    #[default]
    Deny,
    Pass,
}

/// One value of an attachment that cannot stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadKey {
    pub key: &'static str,
    /// What is wrong with it, and what would be right.
    pub problem: String,
}

impl Attachment {
    /// A kind attached under its own name to everything, without configuration.
    #[must_use]
    pub fn of_kind(kind: &str) -> Attachment {
        Attachment {
            name: kind.to_owned(),
            kind: kind.to_owned(),
            version: None,
            app: any(),
            service: any(),
            methods: Vec::new(),
            side: AppliesTo::Both,
            on_fault: OnFault::Deny,
            config: toml::Table::new(),
        }
    }

    /// What is wrong with it that can be seen without its kind.
    #[must_use]
    pub fn problems(&self) -> Vec<BadKey> {
        let mut problems = Vec::new();
        let mut expect = |holds: bool, key, problem: String| {
            if !holds {
                problems.push(BadKey { key, problem });
            }
        };
        let is_name = |text: &str| {
            let in_set = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.chars().all(in_set)
        };
        let name = "give it 1 to 256 letters, digits, '-', '_' or '.'";
        expect(is_name(&self.name), "name", name.into());
        expect(
            is_name(&self.kind),
            "kind",
            "name a kind, such as \"rate-limit\"".into(),
        );
        let pattern = "write a name, with '*' for any run of characters and '?' for one";
        for (key, text) in [("app", &self.app), ("service", &self.service)] {
            expect(
                !text.is_empty() && text.len() <= NAME_BYTES_MAX,
                key,
                pattern.into(),
            );
        }
        let few = self.methods.len() <= METHOD_PATTERNS_MAX;
        expect(few, "methods", format!("at most {METHOD_PATTERNS_MAX} patterns"));
        for method in &self.methods {
            let good = !method.is_empty() && method.len() <= 2 * NAME_BYTES_MAX;
            let problem = format!("\"{method}\": write \"Get\", \"/kv.Kv/Get\" or \"/kv.Kv/*\"");
            expect(good, "methods", problem);
        }
        problems
    }

    /// Whether it applies to a datapath: to this side, app and service.
    #[must_use]
    pub fn applies_to(&self, side: Side, app: &str, service: &str) -> bool {
        matches(&self.app, app) && self.applies_to_any_app(side, service)
    }

    /// Whether it applies to this side and service, of some app.
    pub(crate) fn applies_to_any_app(&self, side: Side, service: &str) -> bool {
        let on_side = match self.side {
            AppliesTo::Client => side == Side::Client,
            AppliesTo::Server => side == Side::Server,
            AppliesTo::Both => true,
        };
        on_side && matches(&self.service, service)
    }

    /// Whether it applies to a method, by its name and path.
    #[must_use]
    pub fn applies_to_method(&self, name: &str, path: &str) -> bool {
        let mut patterns = self.methods.iter();
        self.methods.is_empty() || patterns.any(|pattern| matches_method(pattern, name, path))
    }
}

fn any() -> String {
    "*".to_owned()
}

fn is_any(pattern: &str) -> bool {
    pattern == "*"
}

/// Whether a pattern describes a method: its path, if it begins as paths do, else its name alone.
pub(crate) fn matches_method(pattern: &str, name: &str, path: &str) -> bool {
    let text = if pattern.starts_with('/') { path } else { name };
    matches(pattern, text)
}

/// Whether a text is what a pattern describes; `*` stands for any run of characters, `?` for one.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    WildMatch::new(pattern).matches(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_run_of_characters_and_a_question_mark_for_one() {
        let table = [
            ("*", "", true),
            ("kv", "kv", true),
            ("kv", "kv2", false),
            ("kv*", "kv2", true),
            ("*kv", "my-kv", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c", false),
            ("ab*ba", "aba", false),
            ("/kv.Kv/*", "/kv.Kv/Get", true),
            ("*x*", "axb", true),
            ("k?", "kv", true),
            ("k?", "k", false),
            ("*.??", "a.b.cd", true),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn side_app_service_and_method_all_have_to_fit() {
        let attachment = Attachment {
            app: "shop-*".into(),
            service: "kv.Kv".into(),
            methods: vec!["Get".into(), "/kv.Kv/S*".into()],
            side: AppliesTo::Client,
            ..Attachment::of_kind("null")
        };
        assert!(attachment.applies_to(Side::Client, "shop-1", "kv.Kv"));
        assert!(!attachment.applies_to(Side::Server, "shop-1", "kv.Kv"));
        assert!(!attachment.applies_to(Side::Client, "bank", "kv.Kv"));
        assert!(!attachment.applies_to(Side::Client, "shop-1", "kv.Other"));
        assert!(attachment.applies_to_method("Get", "/kv.Kv/Get"));
        assert!(attachment.applies_to_method("Scan", "/kv.Kv/Scan"));
        assert!(!attachment.applies_to_method("Put", "/kv.Kv/Put"));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_key() {
        let bad = Attachment {
            name: "a b".into(),
            service: String::new(),
            methods: vec![String::new()],
            ..Attachment::of_kind("null")
        };
        let keys: Vec<_> = bad.problems().into_iter().map(|problem| problem.key).collect();
        assert_eq!(keys, ["name", "service", "methods"]);
        assert_eq!(Attachment::of_kind("null").problems(), []);
    }
}
