//! `[page]`: the node's page for people, and who may see it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Config, ListenAddress, Problem};

/// What a Unix socket's address holds on Linux, in bytes, without the terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The table `[page]` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PageConfig {
    /// Where the page is: `unix:PATH`, or `ip:port` on a loopback address; empty: nowhere.
    pub listen: String,
    /// The file with the token by which the page is seen at a port; empty: none, as at a Unix socket.
    pub token_file: String,
    /// What is shown to whoever has the token.
    pub token_role: TokenRole,
}

/// What is shown to whoever has the token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenRole {
    /// What the role `view` may see.
    #[default]
    View,
    /// What the role `operate` may see: calls that taps have kept, too.
    Operate,
}

impl PageConfig {
    /// Where the page is, if anywhere. The error says what is wrong with the key `listen`.
    pub fn address(&self) -> Result<Option<ListenAddress>, String> {
        if self.listen.is_empty() {
            return Ok(None);
        }
        let address = ListenAddress::parse(&self.listen)?;
        match &address {
            ListenAddress::Tcp(address) => check_loopback(*address)?,
            ListenAddress::Unix(path) => check_length(path)?,
        }
        Ok(Some(address))
    }

    /// The file with the token, at a port.
    pub(crate) fn token_file(&self) -> Option<PathBuf> {
        (!self.token_file.is_empty()).then(|| PathBuf::from(&self.token_file))
    }
}

/// Others must not see what goes on here, and the page is not encrypted.
fn check_loopback(address: SocketAddr) -> Result<(), String> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "{address} can be reached from other hosts, and the page has neither TLS nor users: listen at unix:PATH, 127.0.0.1 or [::1], \
         and forward that from where the browser is, as ssh -L does"
    ))
}

fn check_length(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().len();
    if bytes <= SOCKET_PATH_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "a path of {bytes} bytes; a Unix socket takes 1 to {SOCKET_PATH_BYTES_MAX}"
    ))
}

impl Config {
    /// What is wrong with `[page]`, beside what is at its address already.
    pub(super) fn page_problems(&self) -> Vec<Problem> {
        let problem = |key: &str, message: String| Problem {
            key: format!("page.{key}"),
            message,
        };
        let address = match self.page.address() {
            Err(message) => return vec![problem("listen", message)],
            Ok(None) => return Vec::new(),
            Ok(Some(address)) => address,
        };
        let mut problems = Vec::new();
        if !self.admin.enabled {
            let message =
                "shows what the admin API tells, which is off: set admin.enabled = true, or remove this key";
            problems.push(problem("listen", message.into()));
        }
        if let ListenAddress::Unix(path) = &address
            && let Some(other) = self.socket_with_path(path)
        {
            let message = format!("{} is {other} too: give each a path of its own", path.display());
            problems.push(problem("listen", message));
        }
        let is_port = matches!(address, ListenAddress::Tcp(_));
        if is_port && self.page.token_file.is_empty() {
            let message = "every user of this machine can connect to a port: name a file with a token, which those can read who may \
                           see the page; or listen at unix:PATH, where [admin] says who may";
            problems.push(problem("token_file", message.into()));
        }
        if !is_port && !self.page.token_file.is_empty() {
            let message = "is for ports: at a Unix socket the kernel says who asks, and [admin] what they may see; remove it";
            problems.push(problem("token_file", message.into()));
        }
        problems
    }

    /// The key of another socket that has this path.
    fn socket_with_path(&self, path: &Path) -> Option<&'static str> {
        let metrics = ListenAddress::Unix(path.to_owned());
        if path == self.control.socket {
            Some("control.socket")
        } else if path == self.admin.socket_beside(&self.control.socket) {
            Some("admin.socket")
        } else if self.observe.address() == Ok(Some(metrics)) {
            Some("observe.listen")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let config: Config = toml::from_str(text).unwrap();
        let problems = config.problems().into_iter();
        problems
            .map(|problem| format!("{}: {}", problem.key, problem.message))
            .collect()
    }

    fn page(lines: &str) -> Vec<String> {
        problems(&format!("[page]\n{lines}"))
    }

    #[test]
    fn a_page_is_nowhere_unless_it_is_asked_for() {
        assert_eq!(PageConfig::default().address(), Ok(None));
        assert_eq!(page(""), Vec::<String>::new());
    }

    #[test]
    fn only_this_machine_reaches_the_page() {
        for refused in [
            "0.0.0.0:9480",
            "[::]:9480",
            "192.0.2.7:9480",
            "[2001:db8::1]:9480",
        ] {
            let found = page(&format!("listen = \"{refused}\"\ntoken_file = \"t\"\n"));
            assert_eq!(found.len(), 1, "{found:?}");
            let said = format!("page.listen: {refused} can be reached from other hosts");
            assert!(found[0].starts_with(&said), "{found:?}");
        }
        for taken in [
            "127.0.0.1:9480",
            "127.9.9.9:0",
            "[::1]:9480",
            "[::ffff:127.0.0.1]:9480",
        ] {
            let found = page(&format!("listen = \"{taken}\"\ntoken_file = \"t\"\n"));
            assert_eq!(found, Vec::<String>::new());
        }
        assert!(page("listen = \"9480\"\n")[0].contains("neither"));
    }

    #[test]
    fn a_port_has_a_token_and_a_socket_has_none() {
        let found = page("listen = \"127.0.0.1:9480\"\n");
        assert!(
            found.len() == 1 && found[0].starts_with("page.token_file: every user"),
            "{found:?}"
        );
        let found = page("listen = \"unix:/run/page.sock\"\ntoken_file = \"t\"\n");
        assert!(
            found.len() == 1 && found[0].starts_with("page.token_file: is for ports"),
            "{found:?}"
        );
        assert_eq!(page("listen = \"unix:/run/page.sock\"\n"), Vec::<String>::new());
    }

    #[test]
    fn the_page_has_an_address_of_its_own_and_needs_the_admin_api() {
        let beside = "[control]\nsocket = \"/run/p/a.sock\"\n[observe]\nlisten = \"unix:/run/p/m.sock\"\n";
        for (path, key) in [
            ("a", "control.socket"),
            ("a.admin", "admin.socket"),
            ("m", "observe.listen"),
        ] {
            let found = problems(&format!("{beside}[page]\nlisten = \"unix:/run/p/{path}.sock\"\n"));
            assert!(
                found.len() == 1 && found[0].contains(&format!("is {key} too")),
                "{found:?}"
            );
        }
        let port = "[observe]\nlisten = \"127.0.0.1:9480\"\n[page]\nlisten = \"127.0.0.1:9480\"\ntoken_file = \"t\"\n";
        assert!(problems(port)[0].starts_with("page.listen: 127.0.0.1:9480 is observe.listen too"));
        let off = "[admin]\nenabled = false\n[page]\nlisten = \"unix:/run/p/page.sock\"\n";
        assert!(problems(off)[0].starts_with("page.listen: shows what the admin API tells"));
        let long = format!("listen = \"unix:/{}\"\n", "p".repeat(SOCKET_PATH_BYTES_MAX));
        assert!(
            page(&long)[0].contains("a path of 108 bytes"),
            "{:?}",
            page(&long)
        );
    }
}
