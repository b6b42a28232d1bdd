//! Apps that stay attached, do nothing, and leave everything in a state that might keep a service awake.

use std::path::Path;

use provost_shm::{AsFd, Doorbell, PacketSocket};
use provost_wire::region::WAKE_OFFSET;

use crate::raw::{Gone, RawApp};
use crate::report::Report;

/// Those that have stayed.
#[derive(Debug, Default)]
pub struct Stayed {
    _apps: Vec<RawApp>,
    _sockets: Vec<PacketSocket>,
}

/// Attaches one of each kind.
pub fn attach(socket: &Path, report: &Report) -> Stayed {
    try_attach(socket).unwrap_or_else(|gone| {
        report.finding(format!("apps that do nothing cannot attach: {gone}"));
        Stayed::default()
    })
}

fn try_attach(socket: &Path) -> Result<Stayed, Gone> {
    let quiet = RawApp::attach(socket, "quiet")?;

    let mut without_ringer = RawApp::attach(socket, "without a ringer")?;
    // Puts another in its place, and so closes it.
    without_ringer.ringer = Doorbell::create()?.0;

    let rung = RawApp::attach(socket, "rung")?;
    for _ in 0..200_000 {
        rung.ringer.ring()?;
    }
    // The description is this end's alone, or the service would block on it.
    let _ = rustix::fs::fcntl_setfl(rung.ringer.as_fd(), rustix::fs::OFlags::empty());

    let mut armed = RawApp::attach(socket, "armed")?;
    armed.rings.sleeper.arm();

    let torn = RawApp::attach(socket, "torn")?;
    // Inside of the region, so it does not fail.
    let _ = torn.region.write_at(WAKE_OFFSET as u64, &[0xFF; 4]);

    let never_attached = PacketSocket::connect(socket)?;
    let mumbled = PacketSocket::connect(socket)?;
    mumbled.send(&[0], &[])?;
    Ok(Stayed {
        _apps: vec![quiet, without_ringer, rung, armed, torn],
        _sockets: vec![never_attached, mumbled],
    })
}
