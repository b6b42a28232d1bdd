//! What is wrong with the sources, shown with the line that is at fault.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why `.proto` files could not be compiled.
///
/// `Debug` is the same as `Display`, because that is what cargo shows of a build script whose `main` fails.
#[derive(thiserror::Error)]
pub enum Error {
    /// The sources are wrong. Several problems may be told at once.
    #[error("{}", Problems(.0))]
    Source(Vec<Problem>),
    /// There is no output directory.
    #[error("OUT_DIR is not set; call this from a build.rs, or name a directory with `Config::out_dir`")]
    NoOutDir,
    /// Generated code could not be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// One thing that is wrong in a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file as it is imported; empty if no file is at fault.
    pub file: String,
    /// Where in the file, if that is known.
    pub place: Option<Place>,
    /// What is wrong, and what to do.
    pub message: String,
    /// A further hint.
    pub help: Option<String>,
}

/// A place in a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// How many characters of the line are at fault, at least 1.
    pub width: usize,
    /// The line.
    pub text: String,
}

impl Problem {
    pub(crate) fn without_place(file: &str, message: impl fmt::Display) -> Self {
        Problem {
            file: file.to_owned(),
            place: None,
            message: message.to_string(),
            help: None,
        }
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Error::Source(vec![problem])
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

struct Problems<'a>(&'a [Problem]);

impl fmt::Display for Problems<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n\n")?;
            }
            write!(formatter, "{problem}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.place, self.file.as_str()) {
            (Some(place), file) => write!(
                formatter,
                "{file}:{}:{}: {}",
                place.line, place.column, self.message
            )?,
            (None, "") => write!(formatter, "{}", self.message)?,
            (None, file) => write!(formatter, "{file}: {}", self.message)?,
        }
        if let Some(place) = &self.place {
            write!(formatter, "\n{place}")?;
        }
        match &self.help {
            Some(help) => write!(formatter, "\nhelp: {help}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.to_string();
        let margin = " ".repeat(line.len());
        // Tabs stay tabs, so that the caret stands below what it points at.
        let lead: String = self
            .text
            .chars()
            .take(self.column - 1)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        writeln!(formatter, "{margin} |")?;
        writeln!(formatter, "{line} | {}", self.text)?;
        write!(formatter, "{margin} | {lead}{}", "^".repeat(self.width))
    }
}
