//! Which versions of the transports' code datapaths have, and how each is started from what another one has saved.

use provost_datapath::{Engine, EngineStart, Predecessor, RestoreError};
use provost_transport_datagram as datagram;
use provost_transport_tcp as tcp;

use super::change::{ChangeError, Reach};
use crate::switch::{self, Switch};

/// Apps and connections for which a transport has another version than for the rest, at most.
const EXCEPTIONS_MAX: usize = 256;

/// The native protocol over TCP.
pub(crate) const TCP: &str = "transport-tcp";

/// A transport whose code can be changed on a live datapath.
struct Known {
    kind: &'static str,
    versions: &'static [u32],
}

/// All of them. The first version is what a node begins with.
const KNOWN: [Known; 1] = [Known {
    kind: TCP,
    versions: &[1, 2],
}];

/// The versions in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub(crate) struct Transports {
    tcp: Versions,
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
struct Versions {
    current: u32,
    exceptions: Vec<(Reach, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<u32>,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions {
            current: 1,
            exceptions: Vec::new(),
            before: None,
        }
    }
}

impl Transports {
    /// Whether there is a transport of this kind that can be upgraded.
    pub(crate) fn knows(kind: &str) -> bool {
        KNOWN.iter().any(|known| known.kind == kind)
    }

    /// Kinds and versions: what an operator is shown.
    pub(crate) fn list() -> impl Iterator<Item = (&'static str, u32)> {
        let versions = |known: &'static Known| known.versions.iter().map(|version| (known.kind, *version));
        KNOWN.iter().flat_map(versions)
    }

    /// The version that a datapath is to have; none for a transport that has but one.
    pub(crate) fn version(&self, kind: &str, app: &str, connection: u64) -> Option<u32> {
        if !Transports::knows(kind) {
            return None;
        }
        let excepted = self.tcp.exceptions.iter().rev().find(|(reach, _)| match reach {
            Reach::All => true,
            Reach::App(name) => name == app,
            Reach::Connection(number) => *number == connection,
        });
        Some(excepted.map_or(self.tcp.current, |(_, version)| *version))
    }

    /// The version that new datapaths get unless an exception says otherwise.
    pub(crate) fn current(&self, kind: &str) -> Option<u32> {
        Transports::knows(kind).then_some(self.tcp.current)
    }

    pub(crate) fn upgrade(
        &mut self,
        kind: &str,
        version: Option<u32>,
        reach: &Reach,
    ) -> Result<(), ChangeError> {
        let versions = KNOWN
            .iter()
            .find(|known| known.kind == kind)
            .map_or(&[][..], |known| known.versions);
        let newest = versions.last().copied().unwrap_or(1);
        let version = version.unwrap_or(newest);
        if !versions.contains(&version) {
            let problem = format!("\"{kind}\" has no version {version}; this node has {versions:?}");
            return Err(ChangeError::NothingToUpgrade { problem });
        }
        if *reach == Reach::All {
            if version != self.tcp.current {
                self.tcp.before = Some(self.tcp.current);
                self.tcp.current = version;
            }
            self.tcp.exceptions.clear();
            return Ok(());
        }
        if self.tcp.exceptions.len() >= EXCEPTIONS_MAX {
            let problem = format!("\"{kind}\" has {EXCEPTIONS_MAX} exceptions: upgrade all");
            return Err(ChangeError::NothingToUpgrade { problem });
        }
        self.tcp.exceptions.retain(|(other, _)| other != reach);
        self.tcp.exceptions.push((reach.clone(), version));
        Ok(())
    }

    pub(crate) fn roll_back(&mut self, kind: &str) -> Result<(), ChangeError> {
        if !self.tcp.exceptions.is_empty() {
            self.tcp.exceptions.clear();
            return Ok(());
        }
        match self.tcp.before {
            Some(version) => self.upgrade(kind, Some(version), &Reach::All),
            None => Err(ChangeError::NothingBefore {
                engine: kind.to_owned(),
            }),
        }
    }

    pub(crate) fn retain_exceptions(&mut self, stays: impl Fn(&Reach) -> bool) {
        self.tcp.exceptions.retain(|(reach, _)| stays(reach));
    }
}

/// How a transport of this kind and version goes on from what it has saved, if there is one.
pub(crate) fn restoring(kind: &str, version: u32) -> Option<EngineStart> {
    match kind {
        TCP => Some(start_tcp(version)),
        datagram::KIND => Some(Box::new(start_datagram)),
        switch::KIND => Some(Box::new(|predecessor: Predecessor<'_>| {
            Ok(Box::new(Switch::restore(predecessor)?) as Box<dyn Engine>)
        })),
        _ => None,
    }
}

/// Starts a TCP transport from what another version of it has saved.
pub(crate) fn start_tcp(version: u32) -> EngineStart {
    Box::new(move |predecessor: Predecessor<'_>| {
        let version =
            tcp::TcpVersion::from_number(version).ok_or_else(|| damaged(TCP, "the version is unknown"))?;
        let saved = predecessor
            .saved
            .ok_or_else(|| damaged(TCP, "there is no saved state"))?;
        let handover = tcp::Handover {
            descriptors: predecessor.descriptors,
            link: predecessor.link,
            restorer: predecessor.restorer,
        };
        Ok(Box::new(tcp::TcpTransport::restore(version, saved, handover)?))
    })
}

fn start_datagram(predecessor: Predecessor<'_>) -> Result<Box<dyn Engine>, RestoreError> {
    let saved = predecessor
        .saved
        .ok_or_else(|| damaged(datagram::KIND, "there is no saved state"))?;
    let handover = datagram::Handover {
        descriptors: predecessor.descriptors,
        link: predecessor.link,
        restorer: predecessor.restorer,
    };
    Ok(Box::new(datagram::DatagramTransport::restore(saved, handover)?))
}

fn damaged(kind: &'static str, reason: &str) -> RestoreError {
    RestoreError::Damaged {
        kind,
        reason: reason.to_owned(),
    }
}
