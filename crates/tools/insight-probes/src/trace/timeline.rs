//! What each thread of a proxy did when, from its events: an uninterrupted run of labelled stretches of time.

use std::collections::HashMap;

use super::event::{TraceEvent, TraceKind};

/// What a stretch of a thread's time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub(crate) enum MessagePhase {
    /// Ready to run, but not on a core yet; or not even told that there is something to do.
    WakeUp,
    /// In a system call that waits for sockets, or changes what is waited for.
    Readiness,
    /// In a system call that reads.
    Read,
    /// In one that writes, until the packet is with the device.
    Write,
    /// In one that writes, after that: the packet goes through the loopback device and up to the receiver's socket.
    Ipc,
    /// In another system call.
    OtherSystem,
    /// In the program's own code.
    User,
}

impl MessagePhase {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [MessagePhase; 7] = [
        MessagePhase::WakeUp,
        MessagePhase::Readiness,
        MessagePhase::Read,
        MessagePhase::Write,
        MessagePhase::Ipc,
        MessagePhase::OtherSystem,
        MessagePhase::User,
    ];
}

/// Nanoseconds by phase.
pub(crate) type PhaseTimes = [f64; MessagePhase::ALL.len()];

/// Whether a thread has a core during a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// It runs, in this phase.
    Running(MessagePhase),
    /// It has been made ready, or was preempted, and waits for a core.
    Ready,
    /// It waits for something to happen.
    Asleep,
}

/// A stretch of time of one thread, with the events that are written down during it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeSegment {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    pub(crate) stretch: SegmentState,
}

impl TimeSegment {
    /// The phase that a message meets who waits for this thread.
    pub(crate) fn phase(&self) -> MessagePhase {
        match self.stretch {
            SegmentState::Running(phase) => phase,
            SegmentState::Ready | SegmentState::Asleep => MessagePhase::WakeUp,
        }
    }
}

/// System calls by what they are for, on x86-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallClass {
    Read,
    Write,
    Readiness,
    Other,
}

impl CallClass {
    fn of(call: u32) -> CallClass {
        match call {
            // read, pread64, readv, recvfrom, recvmsg, recvmmsg
            0 | 17 | 19 | 45 | 47 | 299 => CallClass::Read,
            // write, pwrite64, writev, sendfile, sendto, sendmsg, splice, sendmmsg
            1 | 18 | 20 | 40 | 44 | 46 | 275 | 307 => CallClass::Write,
            // poll, select, epoll_wait, epoll_ctl, pselect6, ppoll, epoll_pwait, io_uring_enter, epoll_pwait2
            7 | 23 | 232 | 233 | 270 | 271 | 281 | 426 | 441 => CallClass::Readiness,
            _ => CallClass::Other,
        }
    }
}

/// Where a thread's code is.
///
/// ```text
///          Enter                Sent
///   User ────────► Call(class) ──────► Sending      (Sent: only in calls that write)
///    ▲               │ Leave              │ Leave
///    └───────────────┴────────────────────┘
/// ```
#[derive(Clone, Copy, Debug)]
enum CodePlace {
    User,
    Call(CallClass),
    Sending,
}

impl CodePlace {
    fn phase(self) -> MessagePhase {
        match self {
            CodePlace::User => MessagePhase::User,
            CodePlace::Call(CallClass::Read) => MessagePhase::Read,
            CodePlace::Call(CallClass::Write) => MessagePhase::Write,
            CodePlace::Call(CallClass::Readiness) => MessagePhase::Readiness,
            CodePlace::Call(CallClass::Other) => MessagePhase::OtherSystem,
            CodePlace::Sending => MessagePhase::Ipc,
        }
    }
}

#[derive(Debug)]
struct ThreadState {
    since_ns: u64,
    /// `None` until an event says it.
    place: Option<CodePlace>,
    /// `None` while it has a core.
    off_core: Option<SegmentState>,
    segments: Vec<TimeSegment>,
}

/// What time counts as in which a thread waits for something to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AsleepCounts {
    /// The message has come, and the thread will be woken for it.
    AsWakeUp,
    /// As nothing: the thread has nothing to do.
    Not,
}

/// The threads' segments, each thread's without gaps from where its state is known.
#[derive(Debug, Default)]
pub(crate) struct ThreadTimeline {
    threads: HashMap<u32, Vec<TimeSegment>>,
}

impl ThreadTimeline {
    /// Of events in the order of their times.
    pub(crate) fn of(events: &[TraceEvent]) -> ThreadTimeline {
        let mut states: HashMap<u32, ThreadState> = HashMap::new();
        for event in events {
            if matches!(event.kind, TraceKind::Readable { .. }) {
                continue;
            }
            let state = states.entry(event.thread).or_insert_with(|| ThreadState {
                since_ns: event.time_ns,
                place: None,
                off_core: None,
                segments: Vec::new(),
            });
            state.note(event);
        }
        ThreadTimeline {
            threads: states
                .into_iter()
                .map(|(thread, state)| (thread, state.segments))
                .collect(),
        }
    }

    /// Time that some of the threads ran, by phase, between two times.
    pub(crate) fn running_ns(&self, from_ns: u64, to_ns: u64, is_meant: impl Fn(u32) -> bool) -> PhaseTimes {
        let mut times = PhaseTimes::default();
        for (segment, length) in self.running(from_ns, to_ns, is_meant) {
            times[segment.phase() as usize] += length as f64;
        }
        times
    }

    /// What a thread did between two times, by phase, if its state is known throughout.
    pub(crate) fn spent_ns(
        &self,
        thread: u32,
        from_ns: u64,
        to_ns: u64,
        asleep: AsleepCounts,
    ) -> Option<PhaseTimes> {
        let segments = self.threads.get(&thread)?;
        let length = to_ns.checked_sub(from_ns)?;
        let mut times = PhaseTimes::default();
        let mut covered = 0;
        for (segment, length) in within(segments, from_ns, to_ns) {
            covered += length;
            if segment.stretch != SegmentState::Asleep || asleep == AsleepCounts::AsWakeUp {
                times[segment.phase() as usize] += length as f64;
            }
        }
        (covered == length).then_some(times)
    }

    /// How many segments end between two times, by phase: each end is an event that was written down during it.
    pub(crate) fn ends(&self, thread: u32, from_ns: u64, to_ns: u64) -> PhaseTimes {
        let mut counts = PhaseTimes::default();
        let segments = self.threads.get(&thread).map_or(&[][..], Vec::as_slice);
        for (segment, _) in within(segments, from_ns, to_ns) {
            if segment.to_ns <= to_ns {
                counts[segment.phase() as usize] += 1.0;
            }
        }
        counts
    }

    /// How many segments in which they run end between two times, by phase.
    pub(crate) fn running_ends(
        &self,
        from_ns: u64,
        to_ns: u64,
        is_meant: impl Fn(u32) -> bool,
    ) -> PhaseTimes {
        let mut counts = PhaseTimes::default();
        for (segment, _) in self.running(from_ns, to_ns, is_meant) {
            counts[segment.phase() as usize] += 1.0;
        }
        counts
    }

    fn running(
        &self,
        from_ns: u64,
        to_ns: u64,
        is_meant: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (&TimeSegment, u64)> {
        self.threads
            .iter()
            .filter(move |(thread, _)| is_meant(**thread))
            .flat_map(move |(_, segments)| within(segments, from_ns, to_ns))
            .filter(|(segment, _)| matches!(segment.stretch, SegmentState::Running(_)))
    }

    pub(crate) fn knows(&self, thread: u32) -> bool {
        self.threads.contains_key(&thread)
    }
}

/// The segments that lie between two times, each with the length that does.
fn within(segments: &[TimeSegment], from_ns: u64, to_ns: u64) -> impl Iterator<Item = (&TimeSegment, u64)> {
    let first = segments.partition_point(|segment| segment.to_ns <= from_ns);
    segments[first..]
        .iter()
        .take_while(move |segment| segment.from_ns < to_ns)
        .map(move |segment| (segment, segment.to_ns.min(to_ns) - segment.from_ns.max(from_ns)))
}

impl ThreadState {
    fn note(&mut self, event: &TraceEvent) {
        self.close(event.time_ns);
        match event.kind {
            TraceKind::Enter { call } => self.place = Some(CodePlace::Call(CallClass::of(call))),
            TraceKind::Leave { .. } => self.place = Some(CodePlace::User),
            TraceKind::Sent => {
                if let Some(CodePlace::Call(CallClass::Write)) = self.place {
                    self.place = Some(CodePlace::Sending);
                }
            }
            TraceKind::OffCore { is_preempted } => {
                self.off_core = Some(if is_preempted {
                    SegmentState::Ready
                } else {
                    SegmentState::Asleep
                });
            }
            TraceKind::Waking => {
                if self.off_core.is_some() {
                    self.off_core = Some(SegmentState::Ready);
                }
            }
            TraceKind::OnCore => self.off_core = None,
            TraceKind::Readable { .. } => {}
        }
    }

    /// Ends the segment that lasts until now. Neighbours of one kind stay apart, for each end is an event that cost time.
    fn close(&mut self, now_ns: u64) {
        let stretch = match (self.off_core, self.place) {
            (Some(off), _) => Some(off),
            (None, Some(place)) => Some(SegmentState::Running(place.phase())),
            (None, None) => None,
        };
        if let Some(stretch) = stretch
            && now_ns > self.since_ns
        {
            self.segments.push(TimeSegment {
                from_ns: self.since_ns,
                to_ns: now_ns,
                stretch,
            });
        }
        self.since_ns = now_ns;
    }
}
