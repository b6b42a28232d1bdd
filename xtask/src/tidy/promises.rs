//! The table of shares in the document about security: each test that it names is there.

use std::collections::HashSet;

use super::TextFile;
use crate::Complaints;

/// Where the table is.
pub(super) const DOCUMENT: &str = "SECURITY.md";

/// How the table begins. It ends with its last row.
const HEADING: &str = "| what could be taken | tests |\n|---|---|\n";

/// What is wrong with the table, by the tests that are in these files.
pub(super) fn complaints(document: &str, texts: &[TextFile]) -> Complaints {
    let tests: HashSet<&str> = texts.iter().flat_map(|file| tests_in(&file.text)).collect();
    let Some((_, table)) = document.split_once(HEADING) else {
        return vec![format!("{DOCUMENT}: the table of shares is missing")];
    };
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let named = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    named
        .filter(|name| !tests.contains(name))
        .map(|name| format!("{DOCUMENT}: no test has the name {name}"))
        .collect()
}

/// The functions behind an attribute that makes them tests.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let is_attribute = |line: &&str| line.starts_with("#[test") || line.starts_with("#[tokio::test");
    let mut lines = text.lines().map(str::trim_start);
    std::iter::from_fn(move || {
        lines.find(is_attribute)?;
        let function = lines.find_map(|line| line.split_once("fn ").map(|(_, function)| function))?;
        function.split('(').next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_test_that_is_not_there_is_found() {
        let text = "#[test]\nfn one_holds() {}\nfn no_test() {}\n    #[tokio::test]\n    #[ignore = \"x\"]\n    async fn two_hold() {}\n";
        let files = [TextFile {
            path: "a.rs".into(),
            text: text.to_owned(),
        }];
        let of = |names: &str| {
            complaints(
                &format!("# Title\n\n{HEADING}| a | {names} |\n\n`behind` it"),
                &files,
            )
        };
        assert_eq!(of("`one_holds`, `two_hold`"), Complaints::new());
        assert_eq!(of("`one_holds`, `three_hold`").len(), 1);
        assert_eq!(of("`no_test`").len(), 1);
        assert_eq!(complaints("", &files).len(), 1);
    }
}
