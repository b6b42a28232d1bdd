//! Every dependency's licence is one that `deny.toml` allows.

use serde::Deserialize;

use crate::Complaints;
use crate::workspace::{Package, Workspace};

/// The packages whose licences do not satisfy the list of allowed ones.
pub(crate) fn complaints(workspace: &Workspace) -> Complaints {
    let allowed = match allowed(workspace) {
        Ok(allowed) => allowed,
        Err(complaint) => return vec![complaint],
    };
    match workspace.packages_all() {
        Ok(packages) => packages
            .iter()
            .filter_map(|package| complaint(package, &allowed))
            .collect(),
        Err(error) => vec![error.to_string()],
    }
}

#[derive(Deserialize)]
struct DenySettings {
    licenses: LicenceList,
}

#[derive(Deserialize)]
struct LicenceList {
    allow: Vec<String>,
}

fn allowed(workspace: &Workspace) -> Result<Vec<String>, String> {
    let path = workspace.root.join("deny.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let deny: DenySettings = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(deny.licenses.allow)
}

fn complaint(package: &Package, allowed: &[String]) -> Option<String> {
    let Some(expression) = &package.license else {
        let file = package.license_file.as_deref().unwrap_or("none");
        return Some(format!(
            "{} {}: no SPDX licence (licence file: {file})",
            package.name, package.version
        ));
    };
    if satisfied(expression, allowed) {
        None
    } else {
        Some(format!(
            "{} {}: licence {expression} is not allowed by deny.toml",
            package.name, package.version
        ))
    }
}

/// Whether an SPDX expression (`OR`, `AND`, `WITH`, parentheses; the old `/` means `OR`) can be met with `allowed`.
fn satisfied(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser {
        words: &words,
        at: 0,
        allowed,
    };
    let met = parser.alternatives();
    met && parser.at == words.len()
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
    allowed: &'a [String],
}

impl Parser<'_> {
    fn alternatives(&mut self) -> bool {
        let mut met = self.conjunction();
        while self.take("OR") {
            // Not `||`: the right side has to be read whatever the left one gave.
            met |= self.conjunction();
        }
        met
    }

    fn conjunction(&mut self) -> bool {
        let mut met = self.licence();
        while self.take("AND") {
            met &= self.licence();
        }
        met
    }

    fn licence(&mut self) -> bool {
        if self.take("(") {
            let met = self.alternatives();
            return self.take(")") && met;
        }
        let Some(name) = self.words.get(self.at) else {
            return false;
        };
        self.at += 1;
        let mut whole = (*name).to_string();
        if self.take("WITH") {
            whole = format!("{whole} WITH {}", self.words.get(self.at).unwrap_or(&""));
            self.at += 1;
        }
        self.allowed.contains(&whole)
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_has_them() {
        let allowed = [
            "MIT".to_string(),
            "ISC".into(),
            "Apache-2.0 WITH LLVM-exception".into(),
        ];
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/Apache-2.0",
            "MIT AND ISC",
            "Apache-2.0 WITH LLVM-exception",
            "(MIT OR X) AND ISC",
        ] {
            assert!(satisfied(good, &allowed), "{good}");
        }
        for bad in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "Apache-2.0",
            "(MIT",
            "",
            "MIT MIT",
            "GPL-2.0 WITH LLVM-exception",
        ] {
            assert!(!satisfied(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn the_repository_has_allowed_licences() {
        assert_eq!(complaints(&Workspace::load().unwrap()), Complaints::new());
    }
}
