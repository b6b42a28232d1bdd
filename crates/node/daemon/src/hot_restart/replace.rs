//! The old process's part.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use provost_frontend_grpc::PORT_STATE_VERSION;
use provost_runtime::RELAY_STATE_VERSION;
use tokio::sync::mpsc;

use super::channel::{
    Body, Channel, ChannelError, Commit, CompleteState, Hello, PartiesFollow, Ready, State, TimeLimit,
    unexpected,
};
use super::save::{self, SavedDocument, SavedPart, StateOrder};
use super::state::FORMAT;
use super::{HOT_RESTART_OPTION, UpgradeError, UpgradeReport, UpgradeRequest};
use crate::control_plane::ControlPlane;
use crate::grpc::CarriedClients;
use crate::runtime::FrozenRuntime;
use crate::runtimes::NotFrozen;
use crate::upgrade::READY_WITHIN_MAX;

/// How long the new process may take to get ready, when nothing else is asked for. Nobody waits for it meanwhile.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long handshakes with peers get to come to their end before the rest is left to break.
const HANDSHAKES_WAIT: Duration = Duration::from_secs(1);
/// How long calls of gRPC clients get to come to their end before the rest is cut short. Those who connect meanwhile wait.
const CLIENTS_WAIT: Duration = Duration::from_secs(2);
/// How long what is done for apps may take to come to a point where it can be left.
const REQUESTS_WAIT: Duration = Duration::from_secs(2);
/// Parts of the state that wait to be sent.
const PARTS_TO_SEND_MAX: usize = 4;
/// What the new process does when it gets the state, for people.
const RESTORE_PHASE: &str = "was to restore the state";

/// Another process goes on.
pub(crate) struct Replaced {
    pub(crate) report: UpgradeReport,
    frozen: Vec<FrozenRuntime>,
}

impl Replaced {
    /// Ends the runtimes of this one.
    pub(crate) fn leave(self) {
        self.frozen.into_iter().for_each(FrozenRuntime::leave);
    }
}

/// What a process was told that another one, which has taken over, is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedOn {
    /// To let calls in flight finish, and end.
    Shutdown,
    /// To read the configuration again.
    Reload,
}

/// Tells the process that has taken over what this one was told meanwhile.
pub fn pass_on(process: u32, told: PassedOn) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = match told {
        PassedOn::Shutdown => Signal::TERM,
        PassedOn::Reload => Signal::HUP,
    };
    if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        tracing::info!(process, ?told, "the other process is told what this one was told");
        // It fails only when that one has ended already.
        let _ = kill_process(pid, signal);
    }
}

/// Has another process take over. On failure this one goes on as if nothing had happened.
/// Until that one is ready, that is given up when `shutdown` says that this one is to end.
pub(crate) async fn replace(
    plane: &ControlPlane,
    request: &UpgradeRequest,
    shutdown: impl Future<Output = ()>,
) -> Result<Replaced, UpgradeError> {
    if rustix::process::getpid().is_init() {
        return Err(UpgradeError::FirstProcess);
    }
    if request.ready_within.is_some_and(|asked| asked > READY_WITHIN_MAX) {
        return Err(UpgradeError::ReadyWithin(READY_WITHIN_MAX));
    }
    let began = Instant::now();
    let mut shutdown = pin!(shutdown);
    let unchanged = tokio::select! {
        unchanged = plane.policies.hold() => unchanged,
        () = &mut shutdown => return Err(UpgradeError::ShuttingDown),
    };
    let _unchanged = unchanged.map_err(|_| UpgradeError::ShuttingDown)?;
    let (preview, known) = save::preview(plane)?;
    let preview = preview.encode_to_vec();
    let successor = Successor::start(plane, request)?;
    let process = successor.child.id();
    tracing::info!(process, binary = %successor.binary.display(), "another process gets ready to take over");
    let (successor, ready) = prepare(successor, preview, shutdown).await?;
    check_probations(plane)?;
    let carried = carried_clients(&ready);
    let prepared = began.elapsed();

    let limit = Duration::from_millis(plane.config.live().timeouts.hot_restart_ms);
    // What follows is undone from the last to the first: the new process is ended before anything goes on here.
    let clients = plane.grpc.close_barrier(limit).await;
    let clients = clients.map_err(|_| UpgradeError::Requests(limit))?;
    let peers = plane.peers.barrier.close(limit).await;
    let peers = peers.map_err(|_| UpgradeError::Requests(limit))?;
    let _ = tokio::time::timeout(HANDSHAKES_WAIT, plane.peers.no_handshakes()).await;
    // Those who connect again wait at the socket for the one that goes on.
    tokio::join!(
        plane.grpc.see_off(carried, CLIENTS_WAIT),
        see_relays_off(plane, &ready)
    );
    let requests = plane.quiesce_barrier.close(REQUESTS_WAIT).await;
    let requests = requests.map_err(|_| UpgradeError::Requests(REQUESTS_WAIT))?;
    tracing::info!(
        process,
        prepared_ms = prepared.as_millis() as u64,
        "the successor is ready: freezing"
    );
    let froze = Instant::now();
    let limit = TimeLimit::beginning(froze, limit);
    let frozen = plane.runtimes.freeze(limit.until()).await?;
    let (parts, parts_to_send) = mpsc::channel(PARTS_TO_SEND_MAX);
    let order = state_order(&ready);
    let reader = save::StateReader {
        known: &known,
        newest_forms: newest_forms(&ready),
        order,
        parts,
    };
    let receiver = StateReceiver {
        successor,
        order,
        parts: parts_to_send,
        limit,
    };
    let handed = async {
        // The runtimes' last events have been heard.
        check_probations(plane)?;
        transfer_state(plane, &frozen, receiver, reader).await
    };
    let transferred = match handed.await {
        Ok(transferred) => transferred,
        Err(error) => {
            frozen.into_iter().for_each(FrozenRuntime::thaw);
            tracing::info!(process, "thawed");
            return Err(error);
        }
    };
    // Nothing is read or written here any more.
    clients.stay();
    peers.stay();
    requests.stay();
    plane.policies.pass_on();
    let report = UpgradeReport {
        process,
        version: ready.version,
        prepared,
        frozen: froze.elapsed(),
        state_bytes: transferred.state_bytes,
        descriptors: transferred.descriptors,
        apps: plane.apps.count(),
        connections: transferred.connections,
    };
    tracing::info!(
        process,
        version = report.version,
        prepared_ms = report.prepared.as_millis() as u64,
        frozen_us = report.frozen.as_micros() as u64,
        saved_us = (transferred.saved_at - froze).as_micros() as u64,
        state_bytes = report.state_bytes,
        descriptors = report.descriptors,
        apps = report.apps,
        connections = report.connections,
        "another process has taken over"
    );
    Ok(Replaced { report, frozen })
}

/// Waits until the other process is ready, unless this one is to end meanwhile.
async fn prepare(
    successor: Successor,
    preview: Vec<u8>,
    shutdown: impl Future<Output = ()>,
) -> Result<(Successor, Ready), UpgradeError> {
    let channel = Arc::clone(&successor.channel);
    let mut preparing = pin!(in_background(move || successor.prepare(&preview)));
    tokio::select! {
        prepared = &mut preparing => prepared,
        () = shutdown => {
            channel.shut_down();
            // Whatever has come of it, the other process has been ended.
            drop(preparing.await);
            Err(UpgradeError::ShuttingDown)
        }
    }
}

/// A change that is to be taken back is taken back first: the other process would go on with it.
fn check_probations(plane: &ControlPlane) -> Result<(), UpgradeError> {
    if plane.changes.is_to_take_back() {
        return Err(UpgradeError::TakesBack);
    }
    Ok(())
}

/// The clients that the other process goes on with.
fn carried_clients(ready: &Ready) -> CarriedClients {
    if ready.grpc_clients >= PORT_STATE_VERSION {
        CarriedClients::AllThatCanBe
    } else {
        CarriedClients::None
    }
}

fn state_order(ready: &Ready) -> StateOrder {
    match (ready.takes_parties_last, ready.takes_callers_first) {
        (true, _) => StateOrder::PartiesLast,
        (false, true) => StateOrder::ClientsFirst,
        (false, false) => StateOrder::AtOnce,
    }
}

/// Has nodes whose calls go on to gRPC servers connect anew, if the other process does not go on with them.
async fn see_relays_off(plane: &ControlPlane, ready: &Ready) {
    if ready.relays < RELAY_STATE_VERSION {
        plane.relays.see_off(CLIENTS_WAIT).await;
    }
}

/// The newest forms of the states of engines that the other process reads.
fn newest_forms(ready: &Ready) -> Arc<[(String, u32)]> {
    let forms = ready.engine_forms.iter();
    forms.map(|form| (form.kind.clone(), form.newest)).collect()
}

impl From<NotFrozen> for UpgradeError {
    fn from(error: NotFrozen) -> UpgradeError {
        UpgradeError::Save(std::io::Error::other(error))
    }
}

/// What the other process was given.
struct TransferredState {
    /// When all of it was put together.
    saved_at: Instant,
    state_bytes: u64,
    descriptors: usize,
    connections: usize,
}

/// Who gets the state, part by part.
struct StateReceiver {
    successor: Successor,
    order: StateOrder,
    parts: mpsc::Receiver<SavedPart>,
    /// Until the successor has restored all of it, nobody serves.
    limit: TimeLimit,
}

/// Parts are sent while others are saved, so that the successor restores some meanwhile.
async fn transfer_state(
    plane: &ControlPlane,
    frozen: &[FrozenRuntime],
    receiver: StateReceiver,
    reader: save::StateReader<'_>,
) -> Result<TransferredState, UpgradeError> {
    let limit = receiver.limit;
    let save = async {
        let saved = save::node(plane, frozen, &reader).await;
        // Who sends the parts waits for no more.
        drop(reader);
        (saved, Instant::now())
    };
    let send = in_background(move || receiver.send());
    let ((saved, saved_at), sent) = tokio::join!(save, send);
    // If they were not sent, nobody has taken them, and why is known here.
    let sent = sent?;
    saved?;
    let transferred = TransferredState {
        saved_at,
        state_bytes: sent.bytes,
        descriptors: sent.descriptors,
        connections: sent.connections,
    };
    in_background(move || {
        let SentState { successor, parts, .. } = sent;
        successor.go_on(limit)?;
        // To free them takes time, and the successor serves now.
        drop(parts);
        Ok(())
    })
    .await?;
    Ok(transferred)
}

/// What the successor has been given.
struct SentState {
    successor: Successor,
    bytes: u64,
    descriptors: usize,
    connections: usize,
    parts: Vec<SavedPart>,
}

impl StateReceiver {
    /// Sends parts as they come, until no more come.
    fn send(mut self) -> Result<SentState, UpgradeError> {
        let mut sent = SentState {
            successor: self.successor,
            bytes: 0,
            descriptors: 0,
            connections: 0,
            parts: Vec::new(),
        };
        while let Some(part) = self.parts.blocking_recv() {
            let told = match &part {
                SavedPart::Parties(parties) => {
                    let kind = |descriptors| Body::Parties(PartiesFollow { descriptors });
                    sent.send_document(parties, kind, self.limit)
                }
                SavedPart::Rest(rest) => {
                    let kind = |descriptors| match self.order {
                        StateOrder::PartiesLast => Body::Rest(State { descriptors }),
                        StateOrder::AtOnce | StateOrder::ClientsFirst => Body::State(State { descriptors }),
                    };
                    sent.send_document(rest, kind, self.limit)
                }
                SavedPart::Complete if self.order == StateOrder::PartiesLast => sent
                    .successor
                    .channel
                    .send(Body::Complete(CompleteState {}), self.limit),
                // The rest was the last part.
                SavedPart::Complete => Ok(()),
            };
            told.map_err(|error| sent.successor.failed(RESTORE_PHASE, error))?;
            sent.parts.push(part);
        }
        Ok(sent)
    }
}

impl SentState {
    fn send_document<T: Message>(
        &mut self,
        saved: &SavedDocument<T>,
        kind: impl FnOnce(u64) -> Body,
        limit: TimeLimit,
    ) -> Result<(), ChannelError> {
        let document = saved.document.encode_to_vec();
        let channel = &self.successor.channel;
        channel.send_document(&document, limit)?;
        channel.send(kind(saved.descriptors.len() as u64), limit)?;
        channel.send_descriptors(&saved.descriptors, limit)?;
        self.bytes += document.len() as u64;
        self.descriptors += saved.descriptors.len();
        self.connections += saved.connections;
        Ok(())
    }
}

/// Runs what waits for the other process off the control plane's thread.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, UpgradeError> + Send + 'static,
) -> Result<T, UpgradeError> {
    let span = tracing::Span::current();
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(done) => done,
        Err(error) => Err(UpgradeError::Save(std::io::Error::other(error))),
    }
}

/// The process that is to take over. It is ended when this is dropped before it has.
struct Successor {
    binary: PathBuf,
    child: Child,
    channel: Arc<Channel>,
    ready_within: Duration,
    state: SuccessorState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SuccessorState {
    Awaited,
    GoesOn,
}

impl Drop for Successor {
    fn drop(&mut self) {
        if self.state == SuccessorState::Awaited {
            let _ = self.end();
        }
    }
}

impl Successor {
    fn start(plane: &ControlPlane, request: &UpgradeRequest) -> Result<Successor, UpgradeError> {
        let binary = match &request.binary {
            Some(binary) => binary.clone(),
            None => plane.restarts.program().to_owned(),
        };
        let failed = |source| UpgradeError::Start {
            binary: binary.clone(),
            source,
        };
        let (channel, theirs) = Channel::pair().map_err(failed)?;
        let theirs: OwnedFd = theirs.try_clone_descriptor().map_err(failed)?;
        let arguments = match &request.arguments {
            Some(arguments) => arguments.clone(),
            None => own_arguments(),
        };
        let child = Command::new(&binary)
            .args(arguments)
            .arg(HOT_RESTART_OPTION)
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(failed)?;
        Ok(Successor {
            binary,
            child,
            channel: Arc::new(channel),
            ready_within: request.ready_within.unwrap_or(READY_WITHIN),
            state: SuccessorState::Awaited,
        })
    }

    /// Waits until it is ready; what it says of itself.
    fn prepare(mut self, preview: &[u8]) -> Result<(Successor, Ready), UpgradeError> {
        match self.greet(preview) {
            Ok(ready) => Ok((self, ready)),
            Err(error) => Err(self.failed("was to get ready", error)),
        }
    }

    fn greet(&self, preview: &[u8]) -> Result<Ready, ChannelError> {
        let hello = Hello {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        self.channel.send(Body::Hello(hello), self.ready_within)?;
        self.channel.send_document(preview, self.ready_within)?;
        match self.channel.receive(self.ready_within)?.0 {
            Body::Ready(ready) if ready.format == FORMAT => Ok(ready),
            Body::Ready(ready) => Err(ChannelError::Failed(format!(
                "it wants a state of format {}, this process ({}) writes {FORMAT}",
                ready.format,
                env!("CARGO_PKG_VERSION")
            ))),
            other => Err(unexpected(&other, "that it is ready")),
        }
    }

    /// Lets it go on once it has restored everything.
    fn go_on(mut self, limit: TimeLimit) -> Result<(), UpgradeError> {
        if let Err(error) = self.await_restored(limit) {
            return Err(self.failed(RESTORE_PHASE, error));
        }
        // From here on it may go on: it must not be ended because what came before has taken long.
        let committed = self.commit(limit.anew());
        if let Err(error) = committed {
            // It may have gone on, and not been able to say so: only when it has ended this is certain.
            let status = self.end();
            let mut said = self.channel.rest().into_iter();
            return if said.any(|said| matches!(said, Ok(Body::Committed(_)))) {
                Err(UpgradeError::Lost { status })
            } else {
                Err(self.failed("was to go on", error))
            };
        }
        self.state = SuccessorState::GoesOn;
        Ok(())
    }

    fn await_restored(&self, limit: TimeLimit) -> Result<(), ChannelError> {
        match self.channel.receive(limit)?.0 {
            Body::Restored(_) => Ok(()),
            other => Err(unexpected(&other, "that it has restored")),
        }
    }

    fn commit(&self, limit: TimeLimit) -> Result<(), ChannelError> {
        self.channel.send(Body::Commit(Commit {}), limit)?;
        match self.channel.receive(limit)?.0 {
            Body::Committed(_) => Ok(()),
            other => Err(unexpected(&other, "that it has committed")),
        }
    }

    fn failed(&mut self, phase: &'static str, error: ChannelError) -> UpgradeError {
        let status = self.end();
        let reason = match (error, self.last_word()) {
            (ChannelError::Ended | ChannelError::System(_), Some(said)) => said,
            (ChannelError::Ended, None) => status,
            (error, _) => error.to_string(),
        };
        UpgradeError::Successor { phase, reason }
    }

    /// Why it could not go on, if it said so before it ended.
    fn last_word(&self) -> Option<String> {
        let mut said = self.channel.rest().into_iter();
        said.find_map(|said| match said {
            Err(ChannelError::Failed(reason)) => Some(reason),
            _ => None,
        })
    }

    /// Ends it, unless it has ended by itself, and says how it ended.
    fn end(&mut self) -> String {
        if let Ok(Some(status)) = self.child.try_wait() {
            return format!("it ended with {status}");
        }
        // A process that closed its channel may be about to end by itself; what it would have said is lost.
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => format!("it ended with {status}"),
            Err(error) => format!("it cannot be waited for: {error}"),
        }
    }
}

/// The arguments of this process, but for the option that itself had taken over from another one.
fn own_arguments() -> Vec<OsString> {
    let arguments = std::env::args_os().skip(1);
    arguments
        .filter(|argument| argument != HOT_RESTART_OPTION)
        .collect()
}
