//! Saved states as files: written by the code of their day, read by today's for ever.
//!
//! A fixture is `tests/fixtures/NAME.state` and, beside it, `NAME.facts`: what can be told of what was restored from it.
//! With `BLESS=1` in the environment a test adds the fixtures that are not there yet. It never changes one that is: if
//! today's code reads an old state otherwise than it was meant, that is what the test is there to say.

use std::path::{Path, PathBuf};

use provost_datapath::{
    BlockContent, FieldReader, FieldWriter, ForeignBytes, NotSaved, ReceiveHeap, ReceivedBlock, Restorer,
    SavedState, Saver,
};
use provost_marshal::copy_foreign;

use crate::TestHeap;

/// The fixtures of one crate.
pub struct Fixtures {
    folder: PathBuf,
}

impl Fixtures {
    /// Those of the crate in this folder: `env!("CARGO_MANIFEST_DIR")`.
    #[must_use]
    pub fn of(crate_folder: &str) -> Fixtures {
        Fixtures {
            folder: Path::new(crate_folder).join("tests/fixtures"),
        }
    }

    /// Adds a state under a name that says its version and what is in it, if `BLESS` is set and there is none. So a new
    /// version needs a new fixture, and the old ones stay.
    ///
    /// # Panics
    /// If it cannot be written, or there is none and `BLESS` is not set.
    pub fn add(&self, what: &str, state: &SavedState) {
        let path = self.folder.join(format!("v{}-{what}.state", state.version));
        if path.exists() {
            return;
        }
        assert!(
            std::env::var_os("BLESS").is_some(),
            "{} is missing: run with BLESS=1 and commit it",
            path.display()
        );
        let mut out = FieldWriter::new();
        out.text(&state.kind);
        out.u32(state.version);
        out.run(&state.bytes);
        std::fs::create_dir_all(&self.folder).expect("the folder of fixtures");
        std::fs::write(path, out.bytes).expect("a fixture");
    }

    /// The state of this name.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn state(&self, name: &str) -> SavedState {
        let path = self.folder.join(format!("{name}.state"));
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        read(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Names of all fixtures that begin with this, in order.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let files = std::fs::read_dir(&self.folder).expect("the folder of fixtures");
        let mut names: Vec<String> = files
            .filter_map(|file| file.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".state").map(str::to_owned))
            .filter(|name| name.starts_with(prefix))
            .collect();
        names.sort();
        assert!(
            !names.is_empty(),
            "{} has no fixture {prefix}*",
            self.folder.display()
        );
        names
    }

    /// Compares what is told of a restored state with what was told when it was added.
    ///
    /// # Panics
    /// If they differ.
    pub fn check(&self, name: &str, facts: &str) {
        let path = self.folder.join(format!("{name}.facts"));
        if !path.exists() && std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, facts).expect("a fixture's facts");
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            facts, expected,
            "today's code makes something else of {name}.state than was meant when it was saved"
        );
    }
}

fn read(bytes: &[u8]) -> Result<SavedState, provost_datapath::RestoreError> {
    let mut fields = FieldReader::new("fixture", bytes);
    let state = SavedState {
        kind: fields.text()?.to_owned(),
        version: fields.u32()?,
        bytes: fields.run()?.to_vec(),
    };
    fields.end()?;
    Ok(state)
}

/// Saves for a fixture: foreign memory is copied; what blocks hold is not part of a state.
pub struct ToFixture;

impl Saver for ToFixture {
    fn foreign(&mut self, bytes: &ForeignBytes, out: &mut Vec<u8>) {
        copy_foreign(bytes, out);
    }

    fn block(&mut self, _block: &ReceivedBlock, _content: BlockContent) {}
}

/// Restores from a fixture: each block that it names is a fresh one, filled with sevens.
#[derive(Debug, Default)]
pub struct FromFixture {
    /// Where the blocks are.
    pub heap: TestHeap,
}

impl Restorer for FromFixture {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        let full = NotSaved::Full { at: saved.at };
        let mut block = self.heap.allocate(saved.bytes).map_err(|_| full)?;
        self.heap.bytes_mut(&mut block).fill(7);
        Ok(block)
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        Err(NotSaved::Foreign { kept })
    }
}
