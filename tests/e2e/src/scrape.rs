//! What a node says over HTTP: metrics and health.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Status and body of an answer; status 0 where there was none.
pub fn get(mut stream: impl Read + Write, path: &str) -> io::Result<(u16, String)> {
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked {
        joined_chunks(body)
    } else {
        body.to_owned()
    };
    Ok((status.unwrap_or_default(), body))
}

/// A body that came in chunks, each behind its length (RFC 9112, section 7.1).
fn joined_chunks(mut body: &str) -> String {
    let mut joined = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let bytes = usize::from_str_radix(length, 16).unwrap_or(0);
        let Some(chunk) = rest.get(..bytes).filter(|chunk| !chunk.is_empty()) else {
            break;
        };
        joined += chunk;
        body = rest[bytes..].trim_start_matches("\r\n");
    }
    joined
}

/// The same, of a node that listens at a Unix socket.
pub fn get_unix(socket: &Path, path: &str) -> io::Result<(u16, String)> {
    get(UnixStream::connect(socket)?, path)
}

/// A node's metrics.
///
/// # Panics
///
/// When there are none.
#[must_use]
pub fn metrics(socket: &Path) -> String {
    let answer = get_unix(socket, "/metrics");
    let (status, page) = answer.unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
    assert_eq!(status, 200, "{page}");
    page
}

/// The value of the first series that has this name and these labels among its own, each as it is printed.
#[must_use]
pub fn value(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let is_it = |line: &&str| {
        let is_name = line
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']));
        is_name && labels.iter().all(|label| line.contains(label))
    };
    page.lines().find(is_it)?.rsplit_once(' ')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{joined_chunks, value};

    #[test]
    fn chunks_are_joined_up_to_the_last() {
        assert_eq!(joined_chunks("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), "abcde");
        assert_eq!(joined_chunks("9\r\nabc"), "");
    }

    #[test]
    fn series_are_found_by_name_and_labels() {
        let page = "# HELP a A.\na_total{x=\"1\"} 5\na{x=\"1\",y=\"2\"} 6\na 7\n";
        assert_eq!(value(page, "a", &["y=\"2\""]), Some(6.0));
        assert_eq!(value(page, "a_total", &[]), Some(5.0));
        assert_eq!(value(page, "a", &["y=\"3\""]), None);
    }
}
