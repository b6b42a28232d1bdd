//! Which situations a test of a module has met.

use std::collections::BTreeMap;

use provost_nic_model::SimulatedNic;

/// How often each situation came up.
#[derive(Default)]
pub struct CountedSituations(BTreeMap<&'static str, u64>);

impl CountedSituations {
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

/// Which situations have begun within simulated NICs, and how often, by module.
#[derive(Default)]
pub struct ModuleCoverage(BTreeMap<&'static str, BTreeMap<&'static str, u64>>);

impl ModuleCoverage {
    /// Adds what a NIC has met.
    pub fn add(&mut self, nic: &SimulatedNic) {
        for (module, situation, count) in nic.situations() {
            *self.0.entry(module).or_default().entry(situation).or_default() += count;
        }
    }

    /// The modules of which there are situations.
    pub fn modules(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.keys().copied()
    }

    /// What has never begun: the module, and the situation.
    #[must_use]
    pub fn missing(&self) -> Vec<(&'static str, &'static str)> {
        let all = self.0.iter();
        let all = all
            .flat_map(|(module, situations)| situations.iter().map(|(what, count)| (*module, *what, *count)));
        all.filter(|(.., count)| *count == 0)
            .map(|(module, what, _)| (module, what))
            .collect()
    }
}

impl std::fmt::Display for ModuleCoverage {
    /// A line for each module: how many of its situations there were, and how often each.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (module, situations) in &self.0 {
            let met = situations.values().filter(|count| **count > 0).count();
            writeln!(out, "{module}: {met} of {}: {situations:?}", situations.len())?;
        }
        Ok(())
    }
}
