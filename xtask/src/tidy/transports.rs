//! Which transports there are is said in one place: a new one touches its own crate, the module that joins it to the node, and one
//! line of the registry. So no other file of the daemon names a transport, be it the kind or the crate.

use std::path::Path;

use crate::Complaints;
use crate::source::code_only;

/// Whose files are looked at.
const DAEMON: &str = "crates/node/daemon/src/";
/// Where transports are named: the registry, and a module for each.
const REGISTRY: &str = "crates/node/daemon/src/transport/";
/// What begins the name of a kind. What follows in capitals is what the registry says of all kinds, not one of them.
const KIND: &str = "TransportKind::";
/// What begins the name of a transport's crate.
const CRATE: &str = "provost_transport_";
/// What begins the tests at the end of a file: a module of its own.
const TESTS: &str = "#[cfg(test)]\nmod ";
/// Files that are tests as a whole.
const TEST_FILE: &str = "tests.rs";

/// Where a file of the daemon names a transport and is not to.
pub(super) fn complaints(path: &Path, text: &str) -> Complaints {
    let is_looked_at = path.starts_with(DAEMON) && !path.starts_with(REGISTRY) && !path.ends_with(TEST_FILE);
    if !is_looked_at {
        return Complaints::new();
    }
    let code = code_only(text);
    let code = code.split(TESTS).next().unwrap_or_default();
    let named = code.lines().enumerate().filter(|(_, line)| names_one(line));
    named
        .map(|(number, _)| {
            format!(
                "{}:{}: a transport is named outside of {REGISTRY}: have its description say what this depends on",
                path.display(),
                number + 1
            )
        })
        .collect()
}

fn names_one(line: &str) -> bool {
    line.contains(CRATE) || line.split(KIND).skip(1).any(is_variant)
}

/// Whether a name is one of a variant: a capital, and then no other.
fn is_variant(rest: &str) -> bool {
    let mut characters = rest.chars();
    let begins_so = characters.next().is_some_and(|first| first.is_ascii_uppercase());
    begins_so
        && characters
            .next()
            .is_some_and(|second| second.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_named_in_the_registry_and_in_tests_alone() {
        let count = |path: &str, text: &str| complaints(Path::new(path), text).len();
        let connect = "crates/node/daemon/src/connect.rs";
        assert_eq!(count(connect, "let over = TransportKind::Tcp;"), 1);
        assert_eq!(count(connect, "use provost_transport_nic as nic;"), 1);
        for fine in [
            "TransportKind::default().name(); TransportKind::ALL; TransportKind::TO_SERVERS",
            "use provost_transport::HandshakeStop; // not TransportKind::Tcp",
            "fn run() {}\n#[cfg(test)]\nmod tests { const KIND: TransportKind = TransportKind::Tcp; }",
        ] {
            assert_eq!(count(connect, fine), 0, "{fine}");
        }
        let named = "TransportKind::Tcp";
        assert_eq!(count("crates/node/daemon/src/transport/tcp.rs", named), 0);
        assert_eq!(count("crates/node/daemon/src/policies/tests.rs", named), 0);
        assert_eq!(count("crates/node/daemon/tests/control.rs", named), 0);
    }
}
