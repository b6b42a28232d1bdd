//! What a campaign has found, gathered from all its threads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::raw::Gone;

/// Findings that are told, at most; the rest are counted.
const FINDINGS_MAX: usize = 40;

/// Counts and findings. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Report(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    counts: BTreeMap<String, u64>,
    findings: Vec<String>,
    findings_count: usize,
}

impl Report {
    /// Counts something that happened.
    pub fn count(&self, what: &str) {
        self.count_many(what, 1);
    }

    /// Counts something that happened so often.
    pub fn count_many(&self, what: &str, times: u64) {
        let mut inner = self.lock();
        match inner.counts.get_mut(what) {
            Some(count) => *count += times,
            None => {
                inner.counts.insert(what.to_owned(), times);
            }
        }
    }

    /// How often something happened.
    #[must_use]
    pub fn counted(&self, what: &str) -> u64 {
        self.lock().counts.get(what).copied().unwrap_or(0)
    }

    /// The service has done what it must not do.
    pub fn finding(&self, what: String) {
        let mut inner = self.lock();
        inner.findings_count += 1;
        if inner.findings.len() < FINDINGS_MAX {
            inner.findings.push(what);
        }
    }

    /// What an attack ended with: being thrown out is a count, silence and nonsense are findings.
    pub fn ended(&self, attack: &str, gone: &Gone) {
        match gone {
            Gone::Detached => self.count(&format!("{attack}: detached")),
            Gone::Closed => self.count(&format!("{attack}: connection closed")),
            Gone::Refused { .. } => self.count(&format!("{attack}: refused")),
            Gone::Silent(_) | Gone::ServiceFault(_) => self.finding(format!("{attack}: {gone}")),
        }
    }

    /// All findings, with the number of those that are not shown.
    #[must_use]
    pub fn findings(&self) -> (Vec<String>, usize) {
        let inner = self.lock();
        (
            inner.findings.clone(),
            inner.findings_count - inner.findings.len(),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.lock();
        for (what, count) in &inner.counts {
            writeln!(f, "{count:>9}  {what}")?;
        }
        for finding in &inner.findings {
            writeln!(f, "FINDING: {finding}")?;
        }
        match inner.findings_count - inner.findings.len() {
            0 => Ok(()),
            more => writeln!(f, "and {more} findings more"),
        }
    }
}
