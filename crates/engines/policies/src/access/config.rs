//! The configuration, and how it is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use provost_engine::ConfigError;
use serde::Deserialize;

use crate::access::expression::Source;
use crate::access::lists::{LIST_BYTES_MAX, ListType, ValueList};

/// Rules of a policy, at most.
pub const RULES_MAX: usize = 256;
/// Value lists of a policy, at most.
pub const LISTS_MAX: usize = 64;
/// The name under which what no rule decided is counted.
pub(crate) const DEFAULT_RULE: &str = "default";

/// Every key with its default.
pub(crate) const EXAMPLE: &str = r#"# What becomes of a call that no rule matches: "deny" or "allow". There is no default.
default = "deny"
# false: rules are evaluated, counted and audited, but every call passes (shadow mode).
enforce = true
# What an expression that has no value for a call (such as a metadata key that is missing) does:
# "deny" denies the call, "skip" goes on with the next rule.
on_error = "deny"
# true: the status message does not name the policy and the rule.
hide_rule = false

# Rules are tried in this order; the first that matches decides.
[[rule]]
name = "no-blocked-keys"
# Methods that the rule is for: paths, or beginnings of paths with a * behind them. Default: all.
methods = ["/kv.Kv/Get"]
# A condition in CEL over request, response, metadata, method, service, side, node, peer, app and lists. Default: true.
when = 'request.key in lists.blocked || request.key.startsWith("secret/")'
action = "deny"

[[rule]]
name = "anyone-may-read"
methods = ["/kv.Kv/Get", "/kv.Kv/Scan"]
action = "allow"

# Lists of values, as lists.<name> in expressions: written out, or a file with a value in each line.
[lists.blocked]
values = ["alpha", "beta"]
# file = "/etc/provost/blocked.txt"
# "string" or "int".
type = "string"
"#;

/// What an operator writes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenConfig {
    default: RuleAction,
    #[serde(default = "yes")]
    enforce: bool,
    #[serde(default)]
    on_error: OnError,
    #[serde(default)]
    hide_rule: bool,
    #[serde(default)]
    rule: Vec<WrittenRule>,
    #[serde(default)]
    lists: BTreeMap<String, WrittenList>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    name: String,
    methods: Option<Vec<String>>,
    when: Option<String>,
    action: RuleAction,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenList {
    file: Option<PathBuf>,
    values: Option<Vec<toml::Value>>,
    #[serde(default, rename = "type")]
    holds: ListType,
}

/// What a rule does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RuleAction {
    Allow,
    Deny,
}

/// What a rule does whose expression has no value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnError {
    #[default]
    Deny,
    Skip,
}

/// A configuration that is right as far as it can be known without a service.
#[derive(Debug)]
pub(crate) struct AccessConfig {
    pub(crate) default: RuleAction,
    pub(crate) enforce: bool,
    pub(crate) on_error: OnError,
    pub(crate) hide_rule: bool,
    pub(crate) rules: Vec<AccessRule>,
    pub(crate) lists: Arc<BTreeMap<String, Arc<ValueList>>>,
}

#[derive(Debug)]
pub(crate) struct AccessRule {
    pub(crate) name: Arc<str>,
    pub(crate) methods: RuleMethods,
    pub(crate) when: Source,
    pub(crate) action: RuleAction,
}

/// Which methods a rule is for.
#[derive(Debug)]
pub(crate) enum RuleMethods {
    All,
    Some(Vec<MethodPattern>),
}

#[derive(Debug)]
pub(crate) enum MethodPattern {
    Path(String),
    Prefix(String),
}

impl RuleMethods {
    pub(crate) fn include(&self, path: &str) -> bool {
        match self {
            RuleMethods::All => true,
            RuleMethods::Some(patterns) => patterns.iter().any(|pattern| match pattern {
                MethodPattern::Path(exact) => exact == path,
                MethodPattern::Prefix(prefix) => path.starts_with(prefix.as_str()),
            }),
        }
    }
}

impl WrittenConfig {
    /// Checks all of it, and reads the lists' files.
    pub(crate) fn check(self) -> Result<AccessConfig, ConfigError> {
        let written = self;
        if written.rule.len() > RULES_MAX {
            return Err(ConfigError::new(
                "rule",
                format!("there are more than {RULES_MAX} rules"),
            ));
        }
        if written.lists.len() > LISTS_MAX {
            return Err(ConfigError::new(
                "lists",
                format!("there are more than {LISTS_MAX} lists"),
            ));
        }
        let mut names = BTreeSet::new();
        let mut rules = Vec::new();
        for (index, rule) in written.rule.into_iter().enumerate() {
            if !names.insert(rule.name.clone()) {
                let problem = format!("two rules have the name {:?}: give each its own", rule.name);
                return Err(ConfigError::new(format!("rule[{index}].name"), problem));
            }
            rules.push(read_rule(index, rule)?);
        }
        let mut lists = BTreeMap::new();
        for (name, list) in written.lists {
            let list = read_list(&name, &list)?;
            lists.insert(name, Arc::new(list));
        }
        Ok(AccessConfig {
            default: written.default,
            enforce: written.enforce,
            on_error: written.on_error,
            hide_rule: written.hide_rule,
            rules,
            lists: Arc::new(lists),
        })
    }
}

fn read_rule(index: usize, rule: WrittenRule) -> Result<AccessRule, ConfigError> {
    let key = |name: &str| format!("rule[{index}].{name}");
    let is_named = !rule.name.is_empty() && rule.name.len() <= 128 && rule.name != DEFAULT_RULE;
    if !is_named || rule.name.chars().any(char::is_control) {
        let problem = format!("a name has 1 to 128 printable characters, and is not {DEFAULT_RULE:?}");
        return Err(ConfigError::new(key("name"), problem));
    }
    let methods = match &rule.methods {
        None => RuleMethods::All,
        Some(written) => RuleMethods::Some(
            written
                .iter()
                .map(|text| pattern(text).ok_or(text))
                .collect::<Result<_, _>>()
                .map_err(|text| {
                    let problem = format!(
                        "{text:?} is neither a path such as \"/kv.Kv/Get\" nor the beginning of one with a * behind it, \
                         such as \"/kv.Kv/*\""
                    );
                    ConfigError::new(key("methods"), problem)
                })?,
        ),
    };
    let when = rule.when.as_deref().unwrap_or("true");
    let when = Source::parse(when)
        .map_err(|error| ConfigError::new(key("when"), format!("rule {:?}, {error}", rule.name)))?;
    Ok(AccessRule {
        name: rule.name.into(),
        methods,
        when,
        action: rule.action,
    })
}

fn pattern(text: &str) -> Option<MethodPattern> {
    let is_path = |text: &str| text.starts_with('/') && !text.contains('*');
    match text.strip_suffix('*') {
        Some("") => Some(MethodPattern::Prefix(String::new())),
        Some(prefix) => is_path(prefix).then(|| MethodPattern::Prefix(prefix.to_owned())),
        None => is_path(text).then(|| MethodPattern::Path(text.to_owned())),
    }
}

fn read_list(name: &str, list: &WrittenList) -> Result<ValueList, ConfigError> {
    let key = |of: &str| format!("lists.{name}{of}");
    let mut letters = name.chars();
    let begins = letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !begins || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        let problem = "a list's name has letters, digits and '_', as expressions say lists.<name>";
        return Err(ConfigError::new(key(""), problem));
    }
    match (&list.file, &list.values) {
        (Some(file), None) => {
            let text = read_file(file).map_err(|problem| ConfigError::new(key(".file"), problem))?;
            ValueList::parse(list.holds, &text)
                .map_err(|error| ConfigError::new(key(".file"), format!("{}: {error}", file.display())))
        }
        (None, Some(values)) => {
            read_values(list.holds, values).map_err(|problem| ConfigError::new(key(".values"), problem))
        }
        _ => Err(ConfigError::new(key(""), "give either `file` or `values`")),
    }
}

fn read_values(holds: ListType, values: &[toml::Value]) -> Result<ValueList, String> {
    let wrong = |value: &toml::Value, wanted: &str| format!("{value} is not {wanted}: see the list's `type`");
    match holds {
        ListType::String => {
            let strings: Result<Vec<&str>, String> = values
                .iter()
                .map(|value| value.as_str().ok_or_else(|| wrong(value, "a string")))
                .collect();
            ValueList::strings(strings?.into_iter()).map_err(|error| error.to_string())
        }
        ListType::Int => {
            let ints: Result<Vec<i64>, String> = values
                .iter()
                .map(|value| value.as_integer().ok_or_else(|| wrong(value, "an integer")))
                .collect();
            let ints = ints?;
            ValueList::ints(ints.len(), ints.into_iter().map(Ok)).map_err(|error| error.to_string())
        }
    }
}

/// The bytes of a file, which must be one and not too long.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
    // Before it is opened, as opening a pipe waits for who writes it.
    if !std::fs::metadata(path).map_err(wrong)?.is_file() {
        return Err(format!("{} is not a file", path.display()));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(wrong)?;
    file.take(LIST_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(wrong)?;
    Ok(bytes)
}
