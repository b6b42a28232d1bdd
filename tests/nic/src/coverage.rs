//! Which situations a test of a module has met.

use std::collections::BTreeMap;

/// How often each situation came up.
#[derive(Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    /// Notes whether a situation has come up now.
    pub fn note(&mut self, situation: &'static str, happened: bool) {
        *self.0.entry(situation).or_default() += u64::from(happened);
    }

    /// Prints how often each came up.
    ///
    /// # Panics
    /// If one never did.
    pub fn require_all(&self, module: &str) {
        println!("{module}: {:?}", self.0);
        let missing: Vec<_> = self.0.iter().filter(|(_, count)| **count == 0).collect();
        assert!(missing.is_empty(), "{module}: never came up: {missing:?}");
    }
}
