//! What a node has counted, handed to another process of the service.

use provost_datapath::{FieldReader, FieldWriter, RestoreError};

use crate::control_plane::ControlPlane;
use crate::counts::{Count, Counts};
use crate::policies::ATTACHMENTS_MAX;

/// Version of the form.
const VERSION: u8 = 1;
/// What errors call it.
const KIND: &str = "counters";
/// Counts of the control plane that any version saves, at most.
const COUNTS_MAX: usize = 64;

/// The part's name among those of a node's saved state.
pub(crate) const PART: &str = "counters";

// Saved form, version 1:
//   counts of the control plane, then packets sent, received, sent again, of nobody known, and, where the process counts them,
//   probes, duplicates and fallbacks to small packets: count u32, each u64
//   verdicts: count u32, for each policy in the order of the table: its numbers
pub(crate) fn save(plane: &ControlPlane) -> Vec<u8> {
    let mut out = FieldWriter::new();
    out.u8(VERSION);
    let counts = handed_over(&plane.counts);
    // To the other process, the packets of connections that go on here are of those before it.
    let packets = plane.connections.packets();
    let packets = [
        packets.sent,
        packets.received,
        packets.resent,
        packets.unproven,
        packets.probes,
        packets.duplicates,
        packets.path_fallbacks,
    ];
    out.count(counts.len() + packets.len());
    counts.into_iter().for_each(|count| out.u64(count.get()));
    packets.into_iter().for_each(|count| out.u64(count));
    let table = plane.policies.table();
    out.count(table.entries.len());
    for entry in &table.entries {
        entry.live.verdicts.save(&mut out);
    }
    out.bytes
}

/// Goes on from what [`save`] wrote, once the table of policies is that of the other process.
pub(crate) fn restore(plane: &ControlPlane, saved: &[u8]) -> Result<(), RestoreError> {
    let mut fields = FieldReader::new(KIND, saved);
    let version = fields.u8()?;
    if version != VERSION {
        return Err(RestoreError::Version {
            kind: KIND,
            found: u32::from(version),
            newest: u32::from(VERSION),
        });
    }
    let gone = &plane.connections.packets_gone;
    let packets = [
        &gone.sent,
        &gone.received,
        &gone.resent,
        &gone.unproven,
        &gone.probes,
        &gone.duplicates,
        &gone.path_fallbacks,
    ];
    let mut counts = handed_over(&plane.counts).into_iter().chain(packets);
    for _ in 0..fields.count(COUNTS_MAX)? {
        let number = fields.u64()?;
        // One of a newer version is not counted here.
        if let Some(count) = counts.next() {
            count.set(number);
        }
    }
    let table = plane.policies.table();
    let entries = fields.count(ATTACHMENTS_MAX)?;
    for entry in table.entries.iter().take(entries) {
        entry.live.verdicts.go_on_from(&mut fields)?;
    }
    fields.end()
}

/// In this order. (Replacements are counted in the state itself.)
fn handed_over(counts: &Counts) -> [&Count; 6] {
    [
        &counts.upgrades,
        &counts.upgrades_undone,
        &counts.rollbacks,
        &counts.taken_back,
        &counts.exports,
        &counts.exports_failed,
    ]
}
