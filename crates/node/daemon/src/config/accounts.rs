//! Users and groups in a configuration: by number, or by name as the system has it when the configuration is read.

use std::fmt;
use std::marker::PhantomData;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// A user by name or number.
pub type UserAccount = NamedAccount<UserKind>;
/// A group by name or number.
pub type GroupAccount = NamedAccount<GroupKind>;

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAccount<K> {
    /// How the configuration names it; none: by number.
    name: Option<String>,
    /// Its number; none of a name that the system does not have.
    number: Option<u32>,
    /// Why there is no number.
    problem: String,
    kind: PhantomData<K>,
}

/// Where a kind of accounts is looked up.
pub trait AccountKind {
    /// What people call one: `user`.
    const WHAT: &'static str;

    /// The number of a name.
    fn find(name: &str) -> std::io::Result<Option<u32>>;
}

/// The kind of users' accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserKind;

/// The kind of groups' accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupKind;

impl AccountKind for UserKind {
    const WHAT: &'static str = "user";

    fn find(name: &str) -> std::io::Result<Option<u32>> {
        provost_processes::find_user(name)
    }
}

impl AccountKind for GroupKind {
    const WHAT: &'static str = "group";

    fn find(name: &str) -> std::io::Result<Option<u32>> {
        provost_processes::find_group(name)
    }
}

impl<K: AccountKind> NamedAccount<K> {
    /// Whether it has this number.
    #[must_use]
    pub fn is(&self, number: u32) -> bool {
        self.number == Some(number)
    }

    /// What is wrong with it, and what would be right; nothing if it is known.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        match (&self.name, self.number) {
            (Some(name), None) => Some(format!(
                "there is no {} \"{}\" on this system{}: add one, or write a number",
                K::WHAT,
                name.escape_debug(),
                self.problem
            )),
            _ => None,
        }
    }

    fn named(name: String) -> NamedAccount<K> {
        let (number, problem) = match K::find(&name) {
            Ok(number) => (number, String::new()),
            Err(error) => (None, format!(" ({error})")),
        };
        NamedAccount {
            name: Some(name),
            number,
            problem,
            kind: PhantomData,
        }
    }
}

impl<K> From<u32> for NamedAccount<K> {
    fn from(number: u32) -> NamedAccount<K> {
        NamedAccount {
            name: None,
            number: Some(number),
            problem: String::new(),
            kind: PhantomData,
        }
    }
}

impl<K: AccountKind> fmt::Display for NamedAccount<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.number) {
            (Some(name), _) => f.write_str(name),
            (None, number) => write!(f, "{}", number.unwrap_or_default()),
        }
    }
}

impl<K> Serialize for NamedAccount<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (&self.name, self.number) {
            (Some(name), _) => serializer.serialize_str(name),
            (None, number) => serializer.serialize_u32(number.unwrap_or_default()),
        }
    }
}

/// As it is written.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenAccount {
    Number(i64),
    Name(String),
}

impl<'de, K: AccountKind> Deserialize<'de> for NamedAccount<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NamedAccount<K>, D::Error> {
        let wanted = |found: &str| {
            D::Error::custom(format!(
                "{found}write the name of a {0}, or a {0}'s number",
                K::WHAT
            ))
        };
        match WrittenAccount::deserialize(deserializer).map_err(|_| wanted(""))? {
            WrittenAccount::Number(number) => u32::try_from(number)
                .map(NamedAccount::from)
                .map_err(|_| wanted(&format!("{number} is no {}'s number: ", K::WHAT))),
            WrittenAccount::Name(name) if name.is_empty() => Err(wanted("\"\" is no name: ")),
            WrittenAccount::Name(name) if name.len() > NAME_BYTES_MAX => {
                Err(wanted(&format!("a name of {} bytes is too long: ", name.len())))
            }
            WrittenAccount::Name(name) => Ok(NamedAccount::named(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, Serialize)]
    struct AccountLists {
        users: Vec<UserAccount>,
        groups: Vec<GroupAccount>,
    }

    #[test]
    fn numbers_and_names_are_read_and_written_back() {
        let text = "users = [\"root\", 1000]\ngroups = [7, \"root\"]\n";
        let lists: AccountLists = toml::from_str(text).unwrap();
        assert!(lists.users[0].is(0) && lists.users[1].is(1000) && !lists.users[1].is(0));
        assert!(lists.groups[0].is(7) && lists.groups[1].is(0));
        assert!(lists.users.iter().all(|user| user.problem().is_none()));
        assert_eq!(toml::to_string(&lists).unwrap(), text);
    }

    #[test]
    fn an_unknown_name_is_a_problem_and_a_wrong_type_is_an_error() {
        let lists: AccountLists = toml::from_str("users = [\"no-such-user\"]\ngroups = []\n").unwrap();
        let problem = lists.users[0].problem().unwrap();
        assert!(problem.contains("no user \"no-such-user\""), "{problem}");
        assert!(!lists.users[0].is(0));
        for (wrong, said) in [
            (
                "users = [\"nobody-there\", -1]",
                "-1 is no user's number: write the name of a user",
            ),
            ("users = [4294967296]", "4294967296 is no user's number"),
            ("users = [1.5]", "write the name of a user"),
            ("users = [\"\"]", "\"\" is no name: write"),
        ] {
            let error = toml::from_str::<AccountLists>(&format!("{wrong}\ngroups = []\n")).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
