//! Users and groups in a configuration: by number, or by name as the system has it when the configuration is read.

use std::fmt;
use std::marker::PhantomData;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// A user.
pub type UserAccount = Account<Users>;
/// A group.
pub type GroupAccount = Account<Groups>;

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account<K> {
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
    /// For people: `user`.
    const WHAT: &'static str;

    /// The number of a name.
    fn find(name: &str) -> std::io::Result<Option<u32>>;
}

/// Accounts of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Users;

/// Accounts of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups;

impl AccountKind for Users {
    const WHAT: &'static str = "user";

    fn find(name: &str) -> std::io::Result<Option<u32>> {
        provost_processes::find_user(name)
    }
}

impl AccountKind for Groups {
    const WHAT: &'static str = "group";

    fn find(name: &str) -> std::io::Result<Option<u32>> {
        provost_processes::find_group(name)
    }
}

impl<K: AccountKind> Account<K> {
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

    fn named(name: String) -> Account<K> {
        let (number, problem) = match K::find(&name) {
            Ok(number) => (number, String::new()),
            Err(error) => (None, format!(" ({error})")),
        };
        Account {
            name: Some(name),
            number,
            problem,
            kind: PhantomData,
        }
    }
}

impl<K> From<u32> for Account<K> {
    fn from(number: u32) -> Account<K> {
        Account {
            name: None,
            number: Some(number),
            problem: String::new(),
            kind: PhantomData,
        }
    }
}

impl<K: AccountKind> fmt::Display for Account<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.number) {
            (Some(name), _) => f.write_str(name),
            (None, number) => write!(f, "{}", number.unwrap_or_default()),
        }
    }
}

impl<K> Serialize for Account<K> {
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

impl<'de, K: AccountKind> Deserialize<'de> for Account<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Account<K>, D::Error> {
        let wanted = || D::Error::custom(format!("write the name of a {0}, or a {0}'s number", K::WHAT));
        match WrittenAccount::deserialize(deserializer).map_err(|_| wanted())? {
            WrittenAccount::Number(number) => u32::try_from(number).map(Account::from).map_err(|_| wanted()),
            WrittenAccount::Name(name) if name.is_empty() || name.len() > NAME_BYTES_MAX => Err(wanted()),
            WrittenAccount::Name(name) => Ok(Account::named(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, Serialize)]
    struct Lists {
        users: Vec<UserAccount>,
        groups: Vec<GroupAccount>,
    }

    #[test]
    fn numbers_and_names_are_read_and_written_back() {
        let text = "users = [\"root\", 1000]\ngroups = [7, \"root\"]\n";
        let lists: Lists = toml::from_str(text).unwrap();
        assert!(lists.users[0].is(0) && lists.users[1].is(1000) && !lists.users[1].is(0));
        assert!(lists.groups[0].is(7) && lists.groups[1].is(0));
        assert!(lists.users.iter().all(|user| user.problem().is_none()));
        assert_eq!(toml::to_string(&lists).unwrap(), text);
    }

    #[test]
    fn an_unknown_name_is_a_problem_and_a_wrong_type_is_an_error() {
        let lists: Lists = toml::from_str("users = [\"no-such-user\"]\ngroups = []\n").unwrap();
        let problem = lists.users[0].problem().unwrap();
        assert!(problem.contains("no user \"no-such-user\""), "{problem}");
        assert!(!lists.users[0].is(0));
        for wrong in [
            "users = [-1]",
            "users = [4294967296]",
            "users = [1.5]",
            "users = [\"\"]",
        ] {
            let error = toml::from_str::<Lists>(&format!("{wrong}\ngroups = []\n")).unwrap_err();
            assert!(error.to_string().contains("name of a user"), "{error}");
        }
    }
}
