//! Which versions of the transports' code datapaths have.

use std::collections::BTreeMap;

use super::change::{ChangeError, Reach};
use crate::transport::TransportKind;

/// Apps and connections for which a transport has another version than for the rest, at most.
const EXCEPTIONS_MAX: usize = 256;

/// The versions in use, of each transport whose code has several.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub(crate) struct TransportVersions(BTreeMap<TransportKind, VersionsInUse>);

#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
struct VersionsInUse {
    current: u32,
    exceptions: Vec<(Reach, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<u32>,
}

impl VersionsInUse {
    fn first(kind: TransportKind) -> VersionsInUse {
        VersionsInUse {
            current: kind.first_version(),
            exceptions: Vec::new(),
            before: None,
        }
    }
}

impl Default for TransportVersions {
    fn default() -> TransportVersions {
        let kinds = TransportKind::ALL.iter().copied();
        let upgradable = kinds.filter(|kind| kind.description().versions.len() > 1);
        TransportVersions(
            upgradable
                .map(|kind| (kind, VersionsInUse::first(kind)))
                .collect(),
        )
    }
}

impl TransportVersions {
    /// The version that a datapath is to have; none for a transport that has but one.
    pub(crate) fn version(&self, kind: TransportKind, app: &str, connection: u64) -> Option<u32> {
        let versions = self.0.get(&kind)?;
        let excepted = versions.exceptions.iter().rev().find(|(reach, _)| match reach {
            Reach::All => true,
            Reach::App(name) => name == app,
            Reach::Connection(number) => *number == connection,
        });
        Some(excepted.map_or(versions.current, |(_, version)| *version))
    }

    /// The version that new datapaths get unless an exception says otherwise.
    pub(crate) fn current(&self, kind: TransportKind) -> u32 {
        self.0
            .get(&kind)
            .map_or(kind.first_version(), |versions| versions.current)
    }

    /// The current version of each transport whose code has several, by the name of its engine.
    pub(crate) fn all_current(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.0
            .iter()
            .map(|(kind, versions)| (kind.description().engine, versions.current))
    }

    pub(crate) fn upgrade(
        &mut self,
        kind: TransportKind,
        version: Option<u32>,
        reach: &Reach,
    ) -> Result<(), ChangeError> {
        let description = kind.description();
        let (engine, known) = (description.engine, description.versions);
        let newest = known.last().copied().unwrap_or(1);
        let version = version.unwrap_or(newest);
        if !known.contains(&version) {
            let problem = format!("\"{engine}\" has no version {version}; this node has {known:?}");
            return Err(ChangeError::NothingToUpgrade { problem });
        }
        let versions = self.0.entry(kind).or_insert_with(|| VersionsInUse::first(kind));
        if *reach == Reach::All {
            if version != versions.current {
                versions.before = Some(versions.current);
                versions.current = version;
            }
            versions.exceptions.clear();
            return Ok(());
        }
        if versions.exceptions.len() >= EXCEPTIONS_MAX {
            let problem = format!("\"{engine}\" has {EXCEPTIONS_MAX} exceptions: upgrade all");
            return Err(ChangeError::NothingToUpgrade { problem });
        }
        versions.exceptions.retain(|(other, _)| other != reach);
        versions.exceptions.push((reach.clone(), version));
        Ok(())
    }

    pub(crate) fn roll_back(&mut self, kind: TransportKind) -> Result<(), ChangeError> {
        let nothing = || ChangeError::NothingBefore {
            engine: kind.description().engine.to_owned(),
        };
        let versions = self.0.get_mut(&kind).ok_or_else(nothing)?;
        if !versions.exceptions.is_empty() {
            versions.exceptions.clear();
            return Ok(());
        }
        // What was rolled back has itself before it: there is nothing further back.
        let version = versions.before.filter(|before| *before != versions.current);
        self.upgrade(kind, Some(version.ok_or_else(nothing)?), &Reach::All)?;
        if let Some(versions) = self.0.get_mut(&kind) {
            versions.before = Some(versions.current);
        }
        Ok(())
    }

    pub(crate) fn retain_exceptions(&mut self, stays: impl Fn(&Reach) -> bool) {
        for versions in self.0.values_mut() {
            versions.exceptions.retain(|(reach, _)| stays(reach));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_rollback_does_not_bring_back_what_the_first_took_away() {
        let mut versions = TransportVersions::default();
        versions.upgrade(TransportKind::Tcp, None, &Reach::All).unwrap();
        versions.roll_back(TransportKind::Tcp).unwrap();
        assert_eq!(versions.current(TransportKind::Tcp), 1);
        let again = versions.roll_back(TransportKind::Tcp);
        assert!(
            matches!(again, Err(ChangeError::NothingBefore { .. })),
            "{again:?}"
        );
        assert_eq!(versions.current(TransportKind::Tcp), 1);
    }

    #[test]
    fn the_saved_form_is_that_of_earlier_versions() {
        let mut versions = TransportVersions::default();
        versions.upgrade(TransportKind::Tcp, None, &Reach::All).unwrap();
        let text = toml::to_string(&versions).unwrap();
        assert_eq!(text, "[tcp]\ncurrent = 2\nexceptions = []\nbefore = 1\n");
        assert_eq!(toml::from_str::<TransportVersions>(&text).unwrap(), versions);
    }
}
