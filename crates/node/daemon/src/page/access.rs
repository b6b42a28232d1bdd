//! Who may see the page, and as whom they ask the admin API.
//!
//! - At a Unix socket the kernel says which process asks, and `[admin]` what its user may see.
//! - At a port of this machine it says nothing: whoever has the token may see what `page.token_role` says.
//! - A web site of somebody else that is open in the same browser may see nothing: not by a name of its own that leads to
//!   this machine (DNS rebinding), for then it asks for a host of that name; nor from its own origin.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HOST, ORIGIN};
use hyper::{HeaderMap, Request, StatusCode, Uri};

use crate::admin::{Caller, Role, Server};
use crate::config::{PageConfig, TokenRole};
use crate::http_server::HttpVisitor;
use crate::page_token::read_token;

/// What a browser says of where a request comes from (Fetch Metadata, section 2.3).
const FETCH_SITE: &str = "sec-fetch-site";
/// How the token is sent (RFC 6750, section 2.1).
const BEARER: &str = "Bearer ";

/// See the module's documentation.
pub(super) struct PageAccess {
    token_file: Option<PathBuf>,
    token_role: Role,
}

/// Why a request gets nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AccessRefusal {
    #[error(
        "ask for localhost, 127.0.0.1 or [::1], not for {0:?}: another name may be that of a web site that wants to read this page"
    )]
    Host(String),
    #[error("this is for the node's own page, and the request comes from another web site")]
    Origin,
    #[error("the token is missing: it is in the file that page.token_file names in the node's configuration")]
    TokenMissing,
    #[error(
        "this is not the token: it is in the file that page.token_file names in the node's configuration"
    )]
    TokenWrong,
    #[error("page.token_file {0}")]
    TokenFile(String),
}

impl AccessRefusal {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            AccessRefusal::Host(_) => StatusCode::MISDIRECTED_REQUEST,
            AccessRefusal::Origin => StatusCode::FORBIDDEN,
            AccessRefusal::TokenMissing | AccessRefusal::TokenWrong => StatusCode::UNAUTHORIZED,
            AccessRefusal::TokenFile(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl PageAccess {
    pub(super) fn new(config: &PageConfig) -> PageAccess {
        PageAccess {
            token_file: config.token_file(),
            token_role: match config.token_role {
                TokenRole::View => Role::View,
                TokenRole::Operate => Role::Operate,
            },
        }
    }

    /// As whom the admin API is asked.
    pub(super) fn caller(
        &self,
        admin: &Server,
        visitor: &HttpVisitor,
        request: &Request<Incoming>,
    ) -> Result<Caller, AccessRefusal> {
        check_origin(request.headers())?;
        match visitor {
            HttpVisitor::Process(credentials) => Ok(admin.caller(credentials.clone())),
            HttpVisitor::Unknown => {
                self.check_bearer(request.headers())?;
                Ok(Caller::with_role(self.token_role))
            }
        }
    }

    fn check_bearer(&self, headers: &HeaderMap) -> Result<(), AccessRefusal> {
        let sent = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let sent = sent
            .and_then(|value| value.strip_prefix(BEARER.as_bytes()))
            .ok_or(AccessRefusal::TokenMissing)?;
        // A configuration without a file is refused; the file is read each time, so that a new token is good at once.
        let file = self.token_file.as_deref().unwrap_or(Path::new(""));
        let token = read_token(file).map_err(AccessRefusal::TokenFile)?;
        if is_same(sent, token.as_bytes()) {
            Ok(())
        } else {
            Err(AccessRefusal::TokenWrong)
        }
    }
}

/// Whether two secrets are the same. How long that takes does not tell how much of them is.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let pairs = one.iter().zip(other);
    let difference = pairs.fold(0, |difference, (one, other)| difference | (one ^ other));
    std::hint::black_box(difference) == 0 && one.len() == other.len()
}

/// Whether the request is for this machine by a name that nobody else can have.
pub(super) fn check_host(request: &Request<Incoming>) -> Result<(), AccessRefusal> {
    check_host_of(request.uri(), request.headers())
}

fn check_host_of(uri: &Uri, headers: &HeaderMap) -> Result<(), AccessRefusal> {
    let mut named = headers
        .get_all(HOST)
        .iter()
        .map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned())
        .chain(uri.authority().map(ToString::to_string))
        .peekable();
    if named.peek().is_none() {
        return Err(AccessRefusal::Host(String::new()));
    }
    named
        .find(|host| !is_local(host))
        .map_or(Ok(()), |host| Err(AccessRefusal::Host(host)))
}

/// Whether an authority, with a port or without, is a name of this machine for itself.
fn is_local(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<hyper::http::uri::Authority>() else {
        return false;
    };
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = address.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    // Who puts a user's name before the host's is no browser that a person has sent here.
    let has_user = authority.as_str().contains('@');
    !has_user && (is_loopback || host.eq_ignore_ascii_case("localhost"))
}

/// Whether a browser says that another site asks.
fn check_origin(headers: &HeaderMap) -> Result<(), AccessRefusal> {
    let site = headers.get(FETCH_SITE).map(|site| site.as_bytes());
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return Err(AccessRefusal::Origin);
    }
    let Some(origin) = headers.get(ORIGIN) else {
        return Ok(());
    };
    let host = headers.get(HOST).map(|host| host.as_bytes());
    let own = origin.as_bytes().strip_prefix(b"http://");
    if own.is_some() && own == host {
        Ok(())
    } else {
        Err(AccessRefusal::Origin)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::page_token::{TOKEN_BYTES_MAX, check_token};

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in of {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn host(named: &[(&'static str, &str)], uri: &str) -> Result<(), AccessRefusal> {
        check_host_of(&uri.parse().unwrap(), &headers(named))
    }

    #[test]
    fn only_names_of_this_machine_for_itself_are_hosts() {
        for good in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:9480",
            "127.0.0.2",
            "[::1]:9480",
            "[::1]",
        ] {
            assert_eq!(host(&[("host", good)], "/"), Ok(()), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:9480",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1:9480",
            "[2001:db8::1]",
            "localhost@evil.example",
            "evil.example@localhost",
            "0.0.0.0:9480",
            "",
            "a b",
        ] {
            assert_eq!(
                host(&[("host", bad)], "/"),
                Err(AccessRefusal::Host(bad.into())),
                "{bad}"
            );
        }
        assert_eq!(host(&[], "/"), Err(AccessRefusal::Host(String::new())));
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert!(host(&two, "/").is_err());
        assert!(host(&[("host", "localhost")], "http://evil.example/").is_err());
    }

    #[test]
    fn another_origin_in_the_browser_is_refused() {
        let check = |of: &[(&'static str, &str)]| check_origin(&headers(of));
        let own = ("host", "localhost:9480");
        assert_eq!(check(&[own]), Ok(()));
        assert_eq!(check(&[own, ("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(check(&[own, ("origin", "http://localhost:9480")]), Ok(()));
        for site in ["cross-site", "same-site"] {
            assert_eq!(
                check(&[own, ("sec-fetch-site", site)]),
                Err(AccessRefusal::Origin)
            );
        }
        for origin in [
            "null",
            "http://localhost:8080",
            "https://localhost:9480",
            "http://evil.example",
        ] {
            assert_eq!(
                check(&[own, ("origin", origin)]),
                Err(AccessRefusal::Origin),
                "{origin}"
            );
        }
    }

    fn access_with(token: &str, mode: u32) -> (tempfile::TempDir, PageAccess) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, token).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let access = PageAccess {
            token_file: Some(file),
            token_role: Role::View,
        };
        (folder, access)
    }

    #[test]
    fn the_token_is_the_one_of_the_file_whole() {
        let token = "0123456789abcdef0123456789abcdef";
        let (_folder, access) = access_with(&format!("{token}\n"), 0o640);
        let check = |sent: &str| access.check_bearer(&headers(&[("authorization", sent)]));
        assert_eq!(check(&format!("Bearer {token}")), Ok(()));
        for wrong in [&token[..31], &format!("{token}0"), "", &token.replace('f', "e")] {
            assert_eq!(check(&format!("Bearer {wrong}")), Err(AccessRefusal::TokenWrong));
        }
        assert_eq!(check(&format!("Basic {token}")), Err(AccessRefusal::TokenMissing));
        assert_eq!(
            access.check_bearer(&HeaderMap::new()),
            Err(AccessRefusal::TokenMissing)
        );
    }

    #[test]
    fn a_token_that_others_can_read_or_guess_is_refused() {
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        for (token, mode, said) in [
            ("0123456789abcdef0123456789abcdef", 0o644, "chmod o="),
            ("0123456789abcdef", 0o600, "has no token"),
            ("0123456789abcdef 0123456789abcdef", 0o600, "has no token"),
            (long.as_str(), 0o600, "has no token"),
            ("", 0o600, "has no token"),
        ] {
            let (_folder, access) = access_with(token, mode);
            let file = access.token_file.clone().unwrap();
            let problem = check_token(&file).unwrap_err();
            assert!(problem.contains(said) && problem.contains("/token"), "{problem}");
            let sent = headers(&[("authorization", &format!("Bearer {token}"))]);
            assert!(matches!(
                access.check_bearer(&sent),
                Err(AccessRefusal::TokenFile(_))
            ));
        }
        let problem = check_token(Path::new("/nowhere/token")).unwrap_err();
        assert!(problem.contains("/nowhere/token cannot be read"), "{problem}");
        assert!(check_token(Path::new("/")).unwrap_err().contains("is no file"));
    }
}
