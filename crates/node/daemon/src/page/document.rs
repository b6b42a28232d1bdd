//! The document: HTML, style and script in one, from this program alone. It says nothing of the node; that is read by the script.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Bytes;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use sha2::{Digest, Sha256};

use crate::http_server::{HttpAnswer, typed};

const HTML: &str = include_str!("assets/page.html");
const STYLE: &str = include_str!("assets/page.css");
const SCRIPT: &str = include_str!("assets/page.js");
/// Where style and script stand in the HTML.
const STYLE_PLACE: &str = "/*style*/";
const SCRIPT_PLACE: &str = "/*script*/";

/// See the module's documentation.
pub(super) struct PageDocument {
    text: Bytes,
    policy: HeaderValue,
}

impl PageDocument {
    pub(super) fn new() -> PageDocument {
        let text = HTML
            .replacen(STYLE_PLACE, STYLE, 1)
            .replacen(SCRIPT_PLACE, SCRIPT, 1);
        // Only this style and this script, which may ask only where they came from.
        let policy = format!(
            "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; base-uri 'none'; form-action \
             'none'; frame-ancestors 'none'",
            source_of(STYLE),
            source_of(SCRIPT)
        );
        PageDocument {
            text: text.into(),
            // Hashes in Base64 and words of ASCII are a header's value.
            policy: HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'")),
        }
    }

    pub(super) fn answer(&self) -> HttpAnswer {
        let mut answer = typed(self.text.clone(), "text/html; charset=utf-8");
        let headers = answer.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        answer
    }
}

/// What allows one text alone (Content Security Policy Level 3, section 2.3.1).
fn source_of(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_whole_and_asks_nobody_else() {
        let document = PageDocument::new();
        let text = String::from_utf8(document.text.to_vec()).unwrap();
        assert!(text.contains(STYLE) && text.contains(SCRIPT));
        assert!(!text.contains(STYLE_PLACE) && !text.contains(SCRIPT_PLACE));
        // The name of SVG's elements, which nobody fetches.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        for elsewhere in ["http://", "https://", "src=", "@import", "url(", "<link"] {
            assert!(!text.contains(elsewhere), "{elsewhere}");
        }
        let policy = document.policy.to_str().unwrap();
        assert!(
            policy.contains(&source_of(SCRIPT)) && policy.contains(&source_of(STYLE)),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
    }

    #[test]
    fn the_script_writes_texts_and_never_markup() {
        for markup in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
        ] {
            assert!(!SCRIPT.contains(markup), "{markup}");
        }
    }
}
