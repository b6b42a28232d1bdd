//! The handshake with the node's service: memory, rings and doorbells change hands.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;
use provost_shm::{AppRings, AsFd, Interest, OwnedFd, Packet, PacketSocket, Wait, wait_for};
use provost_wire::Code;
use provost_wire::control::{Attach, Attached, CONTROL_VERSION, Reply, Request, reply, request};
use provost_wire::limits::CONTROL_MESSAGE_BYTES_MAX;

use crate::link::{Attachment, Waits};
use crate::shared::window;
use crate::status::Status;

/// Where the service listens when nothing says otherwise.
const SOCKET_DEFAULT: &str = "/run/provost/provostd.sock";
/// How long the service may take to answer.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);

/// What an app says of itself.
#[derive(Clone, Debug)]
pub(crate) struct AttachConfig {
    pub(crate) socket: Option<PathBuf>,
    pub(crate) name: String,
    pub(crate) submission_slots: u32,
    pub(crate) completion_slots: u32,
    pub(crate) busy_poll: bool,
    pub(crate) waits: Waits,
}

/// Attaches to the service. Blocks for as long as the service takes to answer, which is well under a millisecond.
pub(crate) fn attach(config: &AttachConfig) -> Result<Attachment, Status> {
    let path = config.socket.clone().unwrap_or_else(socket_path);
    let range = window::window().receive_range().ok_or_else(|| {
        Status::resource_exhausted("this process has too many attachments: drop an `App` first")
    })?;
    let socket =
        PacketSocket::connect_within(&path, ATTACH_TIMEOUT).map_err(|error| unreachable(&path, &error))?;
    let attach = Attach {
        version: CONTROL_VERSION,
        name: config.name.clone(),
        submission_slots: config.submission_slots,
        completion_slots: config.completion_slots,
        receive_window: range.offset(),
        receive_window_bytes: range.bytes(),
        busy_poll: config.busy_poll,
        takes_regions: true,
    };
    let request = Request {
        id: u64::MAX,
        body: Some(request::Body::Attach(attach)),
    };
    let send_heap = window::window().send_heap().as_fd();
    socket
        .send(&request.encode_to_vec(), &[send_heap])
        .map_err(|error| unreachable(&path, &error))?;
    let packet = receive(&socket).map_err(|error| unreachable(&path, &error))?;
    let (attached, descriptors) = accepted(packet)?;
    let [submissions, completions, ringer, doorbell] = descriptors;
    let slots = (attached.submission_slots, attached.completion_slots);
    let rings = AppRings::from_descriptors(submissions, slots.0, completions, slots.1)
        .map_err(|error| Status::internal(format!("the rings that the node's service sent: {error}")))?;
    Ok(Attachment {
        socket,
        rings,
        ringer: ringer.into(),
        doorbell: doorbell.into(),
        range,
        message_bytes_max: attached.message_bytes_max,
        waits: config.waits,
    })
}

fn socket_path() -> PathBuf {
    std::env::var_os("PROVOST_SOCKET").map_or_else(|| PathBuf::from(SOCKET_DEFAULT), PathBuf::from)
}

fn unreachable(path: &Path, error: &io::Error) -> Status {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "this user may not open the socket: is it in the group that may (control.mode)?"
        }
        _ if error.raw_os_error() == Some(rustix::io::Errno::PROTOTYPE.raw_os_error()) => {
            "that is a socket of another kind, such as the operators': does PROVOST_SOCKET name the one of apps?"
        }
        _ => "is provostd running, and PROVOST_SOCKET right?",
    };
    Status::unavailable(format!(
        "the node's service at {} cannot be reached ({error}): {hint}",
        path.display()
    ))
}

fn receive(socket: &PacketSocket) -> io::Result<Packet> {
    let deadline_ns = provost_shm::now_ns() + ATTACH_TIMEOUT.as_nanos() as u64;
    loop {
        match socket.receive(CONTROL_MESSAGE_BYTES_MAX) {
            Ok(Some(packet)) => return Ok(packet),
            Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let left_ns = deadline_ns.saturating_sub(provost_shm::now_ns());
        if left_ns == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        wait_for(socket, Interest::Readable, Wait::AtMost(left_ns))?;
    }
}

fn accepted(packet: Packet) -> Result<(Attached, [OwnedFd; 4]), Status> {
    let reply = Reply::decode(&packet.bytes[..])
        .map_err(|error| Status::internal(format!("the node's service sent an unknown reply: {error}")))?;
    match reply.body {
        Some(reply::Body::Attached(attached)) => {
            let descriptors = packet.descriptors.try_into();
            let descriptors =
                descriptors.map_err(|_| Status::internal("the node's service sent no rings"))?;
            Ok((attached, descriptors))
        }
        Some(reply::Body::Failed(failed)) => Err(Status::new(Code::from_number(failed.code), failed.message)),
        _ => Err(Status::internal(
            "the node's service did not answer the attachment",
        )),
    }
}
