//! Endpoints that make calls and answer them.

use std::collections::BTreeMap;
use std::time::Instant;

use provost_datagram::{
    Algorithm, Call, Completion, Config, CongestionConfig, Driver, Endpoint, Event, MsgBuf, Payload,
    Recovery, RequestHandle, SessionId, ShortCut, Turn,
};
use provost_packets::Wire;

use super::part::{Part, Pause};
use super::plan::{Callers, LINK_RATE, SMALL_BYTES, Without, Work};
use super::wires::Named;
use crate::failure::{Doing, Failure};
use crate::load::{Latencies, Run};

/// The method whose request is the name of the client's end, to which the server shall make calls too.
const CALL_BACK: u16 = 1;
pub(crate) const ECHO: u16 = 2;
/// Sessions that are being opened at once.
const OPENING_MAX: usize = 64;
/// Sessions beside those that make calls.
const SESSIONS_SPARE: usize = 16;

/// Bytes of the largest request, which packets of any size here can carry.
const MESSAGE_BYTES_MAX: u32 = 8 << 20;

/// What a process has counted.
pub(crate) type Counters = BTreeMap<String, u64>;

/// What both processes of a run go by.
pub(crate) struct Rules {
    work: Work,
    pause: Pause,
}

impl Rules {
    pub(crate) fn of(part: &Part) -> Rules {
        Rules {
            work: part.work,
            pause: part.pause,
        }
    }

    pub(crate) fn config(&self) -> Config {
        let Work {
            wire,
            sessions,
            without,
            ..
        } = self.work;
        let short_cut = |of| {
            if without == of {
                ShortCut::Off
            } else {
                ShortCut::On
            }
        };
        let mut congestion = CongestionConfig {
            link_rate: LINK_RATE,
            bypass: short_cut(Without::CongestionBypass),
            ..CongestionConfig::default()
        };
        if without == Without::CongestionControl {
            congestion.algorithm = Algorithm::Off;
        }
        let recovery = match without {
            Without::SelectiveRecovery => Recovery::GoBackN,
            _ => Recovery::Selective,
        };
        Config {
            message_bytes_max: MESSAGE_BYTES_MAX,
            packet_bytes_max: wire.packet_bytes,
            credits: wire.credits,
            receive_ring_packets: wire.ring_packets.max(4096),
            sessions_max: 2 * sessions + SESSIONS_SPARE,
            // What a response of this benchmark needs, so that many sessions are no question of memory.
            inline_response_bytes: 2 * SMALL_BYTES,
            recovery,
            congestion,
            pacing_bypass: short_cut(Without::PacingBypass),
            secret: [u64::from(std::process::id()), 0x5eed],
            ..Config::default()
        }
    }

    fn driver<W: Wire>(&self, wire: W) -> Result<Driver<W>, Failure> {
        let mut driver =
            Driver::new(self.config(), wire).map_err(|error| Failure::role("endpoint", error.to_string()))?;
        if self.work.without == Without::BatchedClock {
            driver.set_batched_clock(ShortCut::Off);
        }
        Ok(driver)
    }
}

/// Answers calls, and makes calls too where both do.
pub(crate) fn serve<W: Named>(wire: W, rules: &Rules) -> Result<(), Failure> {
    let mut driver = rules.driver(wire)?;
    let mut caller: Option<Caller<'_>> = None;
    let idle = Run::default();
    loop {
        let mut call_back_to = None;
        let turn = driver.turn(|endpoint, now_ns, event| match event {
            Event::Request {
                handle,
                method: CALL_BACK,
                payload,
            } => {
                call_back_to = std::str::from_utf8(&payload).ok().and_then(W::parse);
                // The client is there: it has just called.
                let _ = endpoint.respond_inline(now_ns, handle, 0, b"");
            }
            Event::Request { handle, payload, .. } => {
                answer(endpoint, now_ns, handle, payload, rules.work.without);
            }
            event => {
                if let Some(caller) = &mut caller {
                    caller.handle(endpoint, now_ns, event);
                }
            }
        });
        match turn {
            // The client has ended.
            Err(_) => return Ok(()),
            Ok(Turn::Idle) => rules.pause.take(),
            Ok(Turn::Busy) => {}
        }
        if let Some(to) = call_back_to {
            let sessions = connect(&mut driver, to, rules.work.sessions)?;
            let (now_ns, endpoint) = driver.endpoint();
            caller
                .insert(Caller::new(rules.work, sessions, &idle)?)
                .begin(endpoint, now_ns);
        }
    }
}

#[inline]
fn answer<A: provost_datagram::Address>(
    endpoint: &mut Endpoint<A>,
    now_ns: u64,
    handle: RequestHandle,
    payload: Payload<'_>,
    without: Without,
) {
    let copied;
    let request: &[u8] = match without {
        Without::RequestsInPlace => {
            copied = MsgBuf::from_slice(&payload);
            &copied
        }
        _ => &payload,
    };
    let response = &request[..request.len().min(SMALL_BYTES)];
    // A session that has ended in between wants no answer.
    match without {
        Without::OwnResponseBuffers => {
            drop(endpoint.respond(now_ns, handle, 0, MsgBuf::from_slice(response)));
        }
        _ => drop(endpoint.respond_inline(now_ns, handle, 0, response)),
    }
    if let Payload::Owned(buffer) = payload {
        endpoint.recycle(buffer);
    }
}

/// Makes calls until the run is stopped.
pub(crate) fn load<W: Named>(
    wire: W,
    to: W::Address,
    rules: &Rules,
    run: &Run,
) -> Result<(Latencies, Counters), Failure> {
    let mut driver = rules.driver(wire)?;
    let sessions = connect(&mut driver, to, rules.work.sessions)?;
    if rules.work.callers == Callers::Both {
        ask_to_call_back(&mut driver, sessions[0], rules)?;
    }
    let mut caller = Caller::new(rules.work, sessions, run)?;
    let (now_ns, endpoint) = driver.endpoint();
    caller.begin(endpoint, now_ns);
    run.ready();
    while !run.is_stopped() {
        let turn = driver.turn(|endpoint, now_ns, event| match event {
            Event::Request { handle, payload, .. } => {
                answer(endpoint, now_ns, handle, payload, rules.work.without);
            }
            event => caller.handle(endpoint, now_ns, event),
        });
        if turn.doing(|| "use the wire".into())? == Turn::Idle {
            rules.pause.take();
        }
        if let Some(why) = caller.failed.take() {
            return Err(Failure::role("client", why));
        }
    }
    let counters = counters(driver.endpoint().1);
    Ok((caller.latencies, counters))
}

fn counters<A: provost_datagram::Address>(endpoint: &Endpoint<A>) -> Counters {
    let counted = endpoint.statistics();
    [
        ("requests", counted.requests_received),
        ("requests in place", counted.requests_borrowed),
        ("packets sent", counted.packets_sent),
        ("packets sent again", counted.packets_resent),
        ("time-outs", counted.timeouts),
        ("stalls", counted.stalls),
    ]
    .into_iter()
    .map(|(name, count)| (name.into(), count))
    .collect()
}

/// Opens so many sessions, some at a time.
fn connect<W: Named>(
    driver: &mut Driver<W>,
    to: W::Address,
    sessions: usize,
) -> Result<Vec<SessionId>, Failure> {
    let (mut asked, mut connected, mut ended) = (0, Vec::with_capacity(sessions), None);
    while connected.len() < sessions {
        while asked < sessions && asked - connected.len() < OPENING_MAX {
            let (now_ns, endpoint) = driver.endpoint();
            endpoint
                .connect(now_ns, to)
                .map_err(|error| Failure::role("endpoint", format!("session {asked}: {error}")))?;
            asked += 1;
        }
        let turn = driver.turn(|endpoint, now_ns, event| match event {
            Event::Connected(session) => connected.push(session),
            Event::Ended(_, reason) => ended = Some(reason),
            // The other process may make calls already.
            Event::Request { handle, payload, .. } => {
                answer(endpoint, now_ns, handle, payload, Without::Nothing);
            }
            _ => {}
        });
        turn.doing(|| "use the wire".into())?;
        if let Some(reason) = ended {
            return Err(Failure::role("endpoint", format!("session {asked}: {reason}")));
        }
    }
    Ok(connected)
}

fn ask_to_call_back<W: Named>(
    driver: &mut Driver<W>,
    session: SessionId,
    rules: &Rules,
) -> Result<(), Failure> {
    let name = driver.wire().name();
    let call = Call {
        method: CALL_BACK,
        tag: 0,
        request: MsgBuf::from_slice(name.as_bytes()),
        response: MsgBuf::with_capacity(1),
    };
    let (now_ns, endpoint) = driver.endpoint();
    endpoint
        .call(now_ns, session, call)
        .map_err(|refused| Failure::role("endpoint", refused.error.to_string()))?;
    let mut outcome = None;
    while outcome.is_none() {
        let turn = driver.turn(|endpoint, now_ns, event| match event {
            Event::Completed(completion) => outcome = Some(completion.outcome),
            Event::Request { handle, payload, .. } => {
                answer(endpoint, now_ns, handle, payload, rules.work.without);
            }
            _ => {}
        });
        turn.doing(|| "use the wire".into())?;
    }
    match outcome {
        Some(Err(error)) => Err(Failure::role("endpoint", error.to_string())),
        _ => Ok(()),
    }
}

/// When a batch began.
#[derive(Clone, Copy)]
enum Began {
    /// Exactly, which takes two looks at the clock.
    At(Instant),
    /// By the endpoint's time, which is that of the batch of packets in which the one before ended: as exact as rates
    /// need it.
    AtNs(u64),
}

impl Began {
    fn now(work: &Work, now_ns: u64) -> Began {
        match (work.batch, work.batches) {
            (1, 1) => Began::At(Instant::now()),
            _ => Began::AtNs(now_ns),
        }
    }

    fn elapsed_ns(self, now_ns: u64) -> u64 {
        match self {
            Began::At(began) => u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            Began::AtNs(began_ns) => now_ns.saturating_sub(began_ns),
        }
    }
}

/// Keeps batches of calls on their way.
struct Caller<'r> {
    batches: Vec<Batch>,
    work: Work,
    sessions: Vec<SessionId>,
    next_session: usize,
    run: &'r Run,
    latencies: Latencies,
    failed: Option<String>,
}

struct Batch {
    began: Began,
    /// Of calls that are not on their way.
    buffers: Vec<(MsgBuf, MsgBuf)>,
}

impl<'r> Caller<'r> {
    fn new(work: Work, sessions: Vec<SessionId>, run: &'r Run) -> Result<Caller<'r>, Failure> {
        let buffers = || {
            (
                MsgBuf::from_slice(&vec![7; work.request_bytes]),
                MsgBuf::with_capacity(SMALL_BYTES),
            )
        };
        let batch = || Batch {
            began: Began::AtNs(0),
            buffers: (0..work.batch).map(|_| buffers()).collect(),
        };
        Ok(Caller {
            batches: (0..work.batches).map(|_| batch()).collect(),
            work,
            sessions,
            next_session: 0,
            run,
            latencies: Latencies::default(),
            failed: None,
        })
    }

    fn begin<A: provost_datagram::Address>(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64) {
        for batch in 0..self.batches.len() {
            self.start(endpoint, now_ns, batch);
        }
    }

    #[inline]
    fn start<A: provost_datagram::Address>(
        &mut self,
        endpoint: &mut Endpoint<A>,
        now_ns: u64,
        number: usize,
    ) {
        let batch = &mut self.batches[number];
        batch.began = Began::now(&self.work, now_ns);
        while let Some((request, response)) = batch.buffers.pop() {
            let session = self.sessions[self.next_session];
            self.next_session += 1;
            if self.next_session == self.sessions.len() {
                self.next_session = 0;
            }
            let call = Call {
                method: ECHO,
                tag: number as u64,
                request,
                response,
            };
            if let Err(refused) = endpoint.call(now_ns, session, call) {
                self.failed = Some(refused.error.to_string());
            }
        }
    }

    #[inline]
    fn handle<A: provost_datagram::Address>(
        &mut self,
        endpoint: &mut Endpoint<A>,
        now_ns: u64,
        event: Event<'_>,
    ) {
        match event {
            Event::Completed(completion) => self.completed(endpoint, now_ns, completion),
            Event::Ended(_, reason) => self.failed = Some(format!("a session ended: {reason}")),
            _ => {}
        }
    }

    #[inline]
    fn completed<A: provost_datagram::Address>(
        &mut self,
        endpoint: &mut Endpoint<A>,
        now_ns: u64,
        completion: Completion,
    ) {
        if let Err(error) = completion.outcome {
            self.run.error(&error);
        }
        let number = completion.tag as usize;
        let batch = &mut self.batches[number];
        batch.buffers.push((completion.request, completion.response));
        if batch.buffers.len() == self.work.batch {
            let took_ns = batch.began.elapsed_ns(now_ns);
            self.run
                .record_batch(&mut self.latencies, took_ns, self.work.batch as u64);
            self.start(endpoint, now_ns, number);
        }
    }
}
