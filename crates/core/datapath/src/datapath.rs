//! A datapath: the engines between one app and one peer, in order, with the queues between them.

mod reconfigure;
mod state_transfer;

use std::sync::Arc;

pub use reconfigure::{
    CopyForeign, EngineStart, Predecessor, ReconfigureError, Reconfigured, Retired, Stage,
};
pub use state_transfer::{SavedDatapath, SavedEngine};

use crate::{
    ConnectionSignals, Context, EgressEvent, EgressEvents, Engine, FlowHints, Interest, Nanos, Ports,
    Progress, Queue, Step,
};

/// Steps that wait between two engines in one direction, at most.
pub const QUEUE_STEPS_MAX: usize = 64;

/// The engines between one app and one peer.
///
/// ```text
/// app ─► tx[0] ─► engine 0 ─► tx[1] ─► engine 1 ─► … ─► engine n-1 ─► wire
/// app ◄─ rx[0] ◄─ engine 0 ◄─ rx[1] ◄─ engine 1 ◄─ … ◄─ engine n-1 ◄─ wire
/// ```
pub struct Datapath {
    engines: Vec<Box<dyn Engine>>,
    /// Which engines rested after their last poll ([`Engine::rests`]), so that a long chain without work costs no more to
    /// poll than a short one. What is beyond its end does not rest.
    resting: Vec<bool>,
    tx: Vec<Queue<Step>>,
    rx: Vec<Queue<Step>>,
    link: Arc<ConnectionSignals>,
    /// See [`Datapath::departed`].
    departed: Vec<EgressEvent>,
    /// What the app was given since the last poll.
    delivered: Vec<EgressEvent>,
    /// What the engines said of its load in the last poll.
    flow: FlowHints,
}

/// One engine of a datapath, as an operator is shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineDescription {
    /// [`Engine::kind`].
    pub kind: &'static str,
    /// [`Engine::version`].
    pub version: u32,
    /// Steps that wait for it on their way out.
    pub tx_waiting: usize,
    /// Steps that wait for it on their way in.
    pub rx_waiting: usize,
    /// Steps that it holds.
    pub held: usize,
    /// Why it has failed, if it has.
    pub fault: Option<String>,
}

impl Datapath {
    /// A datapath of these engines, the app's first. `link` is the one that its transport and its first engine share.
    #[must_use]
    pub fn new(engines: Vec<Box<dyn Engine>>, link: Arc<ConnectionSignals>) -> Datapath {
        let queues = || {
            (0..=engines.len())
                .map(|_| Queue::with_bound(QUEUE_STEPS_MAX))
                .collect()
        };
        let (tx, rx) = (queues(), queues());
        Datapath {
            resting: vec![false; engines.len()],
            engines,
            tx,
            rx,
            link,
            departed: Vec::new(),
            delivered: Vec::new(),
            flow: FlowHints::default(),
        }
    }

    /// Where the app's steps go in.
    pub fn from_app(&mut self) -> &mut Queue<Step> {
        &mut self.tx[0]
    }

    /// Where the app's steps come out.
    pub fn to_app(&mut self) -> &mut Queue<Step> {
        &mut self.rx[0]
    }

    /// What is not a step.
    #[must_use]
    pub fn link(&self) -> &Arc<ConnectionSignals> {
        &self.link
    }

    /// Whether everything that the app gave has reached the transport.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.tx.iter().all(Queue::is_empty)
    }

    /// Whether what came from the wire waits for room nearer to the app: to read more of the socket would not help.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.rx.iter().any(|queue| !queue.is_empty())
    }

    /// Polls every engine: from the app to the wire, and back, so that a step crosses the whole datapath in one poll in
    /// either direction. Says `Ended` once the first engine does: then everything that the app is still to be told is in
    /// [`Datapath::to_app`].
    pub fn poll(&mut self, context: &mut Context<'_>) -> Progress {
        self.send_egress_events(context.now);
        context.flow = FlowHints {
            turn_bytes: u32::MAX,
            ..self.flow
        };
        let last = self.engines.len().saturating_sub(1);
        let mut busy = false;
        let mut transport = Progress::Idle;
        for at in 0..=last {
            if at != last && self.rests(at) {
                continue;
            }
            transport = if at == last {
                self.poll_transport(at, context)
            } else {
                self.poll_engine(at, context)
            };
            busy |= transport == Progress::Busy;
        }
        self.flow = context.flow;
        let mut first = match last {
            0 => transport,
            _ => Progress::Idle,
        };
        for at in (0..last).rev() {
            if self.rx[at + 1].is_empty() && !self.link.delivered() {
                continue;
            }
            first = self.poll_engine(at, context);
            busy |= first == Progress::Busy;
        }
        self.flow.calls = context.flow.calls;
        if transport == Progress::Ended {
            self.discard_unsent(context);
        }
        // Nothing comes behind the last steps of a transport that has ended: the first engine ends what is open.
        if transport == Progress::Ended
            && self.rx.iter().skip(1).all(Queue::is_empty)
            && !self.link.delivered()
        {
            self.link.set_delivered();
            busy = true;
        }
        match first {
            Progress::Ended => Progress::Ended,
            _ if busy => Progress::Busy,
            _ => Progress::Idle,
        }
    }

    /// The steps that the transport took in the last poll.
    #[must_use]
    pub fn departed(&self) -> &[EgressEvent] {
        &self.departed
    }

    /// The app was given a step that came out of [`Datapath::to_app`].
    pub fn note_delivered(&mut self, step: EgressEvent) {
        self.delivered.push(step);
    }

    /// Tells the engines what has left since they were told last.
    fn send_egress_events(&mut self, now: Nanos) {
        if self.departed.is_empty() && self.delivered.is_empty() {
            return;
        }
        let egress_events = EgressEvents {
            to_wire: &self.departed,
            to_app: &self.delivered,
            now,
        };
        self.engines
            .iter_mut()
            .for_each(|engine| engine.on_egress(&egress_events));
        self.departed.clear();
        self.delivered.clear();
    }

    /// Whether one of its engines wants other datapaths of the runtime to have their turn: to be polled behind those.
    #[must_use]
    pub fn yields(&self) -> bool {
        self.flow.is_limited()
    }

    /// Gives back the memory of every step that is under way: the datapath goes away.
    pub fn discard_all(&mut self, context: &mut Context<'_>) {
        self.send_egress_events(context.now);
        for at in 0..self.engines.len() {
            if let Some((engine, mut ports)) = self.engine_at(at) {
                engine.release(&mut ports);
            }
        }
        for queue in self.tx.iter_mut().chain(&mut self.rx) {
            while let Some(step) = queue.pop() {
                step.body.discard(context);
            }
        }
    }

    /// The earliest time at which an engine wants to be polled though nothing arrives.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        self.awake().filter_map(|(_, engine)| engine.wake_at()).min()
    }

    /// The socket to watch while the runtime sleeps.
    #[must_use]
    pub fn interest(&self) -> Option<Interest> {
        self.engines.last()?.as_transport()?.interest()
    }

    /// The kinds of the engines, in order.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.engines.iter().map(|engine| engine.kind())
    }

    /// The engines, in order: what an operator is shown.
    pub fn describe(&self) -> impl Iterator<Item = EngineDescription> {
        let engines = self.engines.iter().enumerate();
        engines.map(|(at, engine)| EngineDescription {
            kind: engine.kind(),
            version: engine.version(),
            tx_waiting: self.tx[at].len(),
            rx_waiting: self.rx[at + 1].len(),
            held: engine.held(),
            fault: engine.fault().map(str::to_owned),
        })
    }

    #[must_use]
    pub fn calls(&self) -> usize {
        self.flow.calls
    }

    /// The first engine that has failed, by its place, and why.
    #[must_use]
    pub fn fault(&self) -> Option<(usize, &str)> {
        self.awake().find_map(|(at, engine)| Some((at, engine.fault()?)))
    }

    /// The engines that do not rest, with their places.
    fn awake(&self) -> impl Iterator<Item = (usize, &dyn Engine)> {
        let engines = self.engines.iter().zip(&self.resting).enumerate();
        engines.filter_map(|(at, (engine, rests))| (!rests).then_some((at, &**engine)))
    }

    /// Whether an engine has nothing to do.
    fn rests(&self, at: usize) -> bool {
        self.resting[at] && self.tx[at].is_empty() && self.rx[at + 1].is_empty()
    }

    /// The transport is gone: what was on its way to it goes nowhere. (The app's own queue is the first engine's, which
    /// ends the calls in it.)
    fn discard_unsent(&mut self, context: &mut Context<'_>) {
        for queue in self.tx.iter_mut().skip(1) {
            while let Some(step) = queue.pop() {
                step.body.discard(context);
            }
        }
    }

    /// Polls the last engine, and notes what it took and what it brought.
    fn poll_transport(&mut self, last: usize, context: &mut Context<'_>) -> Progress {
        self.departed.extend(self.tx[last].iter().map(EgressEvent::of));
        let brought_before = self.rx[last].len();
        let progress = self.poll_engine(last, context);
        self.departed
            .truncate(self.departed.len().saturating_sub(self.tx[last].len()));
        let brought = self.rx[last].iter_mut().skip(brought_before);
        brought.for_each(|step| step.taken_at = context.now);
        progress
    }

    fn poll_engine(&mut self, at: usize, context: &mut Context<'_>) -> Progress {
        let Some((engine, ports)) = self.engine_at(at) else {
            return Progress::Idle;
        };
        let progress = engine.do_work(ports, context);
        self.resting[at] = self.engines[at].rests();
        progress
    }

    fn engine_at(&mut self, at: usize) -> Option<(&mut dyn Engine, Ports<'_>)> {
        let engine = self.engines.get_mut(at)?;
        let ([tx_in, tx_out, ..], [rx_out, rx_in, ..]) = (&mut self.tx[at..], &mut self.rx[at..]) else {
            return None;
        };
        let ports = Ports {
            tx_in,
            tx_out,
            rx_in,
            rx_out,
        };
        Some((&mut **engine, ports))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use provost_wire::descriptor::Parts;

    use super::*;
    use crate::{Body, BufferPool, HeapFull, ReceiveHeap, ReceivedBlock, SavedState, Saver, SocketHint};

    /// What engines were told of those that left: when each was taken, to the wire and to the app, and the time.
    type Told = Arc<std::sync::Mutex<Vec<(Vec<Nanos>, Vec<Nanos>, Nanos)>>>;

    /// Passes steps on, and ends when its link says so (as a transport) or has delivered (as a frontend).
    struct Relay {
        link: Arc<ConnectionSignals>,
        place: Place,
        /// What a transport was allowed to move when it was polled last.
        turn_bytes: Arc<std::sync::Mutex<u32>>,
    }

    #[derive(PartialEq)]
    enum Place {
        First,
        Between,
        Last,
    }

    impl Relay {
        fn on(link: &Arc<ConnectionSignals>, place: Place) -> Box<dyn Engine> {
            Box::new(Relay {
                link: link.clone(),
                place,
                turn_bytes: Arc::default(),
            })
        }
    }

    impl Engine for Relay {
        fn kind(&self) -> &'static str {
            "relay"
        }

        fn do_work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
            // The test says when there is a limit, by what it asks of the link.
            if self.place == Place::Between && self.link.drain_requested() {
                context.flow.limit_turn(1000);
            }
            if self.place == Place::Last {
                *self.turn_bytes.lock().unwrap() = context.flow.turn_bytes;
                // The wire is a mirror, which has room for four.
                while ports.rx_out.len() < 4
                    && let Some(step) = ports.tx_in.pop()
                {
                    ports.rx_out.push(step).unwrap();
                }
                return if self.link.close_requested() {
                    Progress::Ended
                } else {
                    Progress::Idle
                };
            }
            while let Some(step) = ports.tx_in.pop() {
                ports.tx_out.push(step).unwrap();
            }
            while let Some(step) = ports.rx_in.pop() {
                ports.rx_out.push(step).unwrap();
            }
            let over = self.place == Place::First && self.link.delivered();
            if over { Progress::Ended } else { Progress::Idle }
        }

        fn save(&self, _saver: &mut dyn Saver) -> SavedState {
            SavedState {
                kind: "relay".into(),
                version: 1,
                bytes: Vec::new(),
            }
        }
    }

    struct NoHeap;

    impl ReceiveHeap for NoHeap {
        fn allocate(&mut self, _bytes: u32) -> Result<ReceivedBlock, HeapFull> {
            Err(HeapFull)
        }

        fn bytes_mut(&mut self, _block: &mut ReceivedBlock) -> &mut [u8] {
            &mut []
        }

        fn free(&mut self, _block: ReceivedBlock) {}
    }

    fn poll(datapath: &mut Datapath) -> Progress {
        poll_at(datapath, 0)
    }

    fn poll_at(datapath: &mut Datapath, now: Nanos) -> Progress {
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now,
            buffers: &mut BufferPool::new(),
            receive: &mut NoHeap,
            sent: &mut Vec::new(),
        };
        datapath.poll(&mut context)
    }

    #[test]
    fn a_step_crosses_in_one_poll_and_the_end_comes_behind_the_last_step() {
        let link = Arc::new(ConnectionSignals::new());
        let relay = |place| Relay::on(&link, place);
        let engines = vec![relay(Place::First), relay(Place::Between), relay(Place::Last)];
        let mut datapath = Datapath::new(engines, link.clone());
        datapath.from_app().push(Step::new(1, Parts::BEGIN)).unwrap();
        link.close();
        assert_eq!(poll(&mut datapath), Progress::Busy);
        let step = datapath.to_app().pop().unwrap();
        assert!(step.call == 1 && matches!(step.body, Body::Empty));
        assert!(link.delivered());
        assert_eq!(poll(&mut datapath), Progress::Ended);
    }

    #[test]
    fn an_engine_bounds_what_the_transport_moves_in_a_poll() {
        let link = Arc::new(ConnectionSignals::new());
        let relay = |place| Relay::on(&link, place);
        let turn_bytes = Arc::new(std::sync::Mutex::new(0));
        let transport = Box::new(Relay {
            link: link.clone(),
            place: Place::Last,
            turn_bytes: Arc::clone(&turn_bytes),
        });
        let engines = vec![
            relay(Place::First),
            relay(Place::Between),
            transport as Box<dyn Engine>,
        ];
        let mut datapath = Datapath::new(engines, link.clone());
        poll(&mut datapath);
        assert!(!datapath.yields() && *turn_bytes.lock().unwrap() == u32::MAX);
        link.drain();
        poll(&mut datapath);
        assert!(datapath.yields() && *turn_bytes.lock().unwrap() == 1000);
    }

    /// Listens to what has left.
    struct Listener(Told);

    impl Engine for Listener {
        fn kind(&self) -> &'static str {
            "listener"
        }

        fn do_work(&mut self, ports: Ports<'_>, _context: &mut Context<'_>) -> Progress {
            ports.tx_in.transfer(ports.tx_out, usize::MAX);
            ports.rx_in.transfer(ports.rx_out, usize::MAX);
            Progress::Idle
        }

        fn rests(&self) -> bool {
            true
        }

        fn on_egress(&mut self, egress_events: &EgressEvents<'_>) {
            let taken = |steps: &[EgressEvent]| steps.iter().map(|step| step.taken_at).collect();
            let (to_wire, to_app) = (taken(egress_events.to_wire), taken(egress_events.to_app));
            self.0.lock().unwrap().push((to_wire, to_app, egress_events.now));
        }

        fn save(&self, _saver: &mut dyn Saver) -> SavedState {
            SavedState {
                kind: "listener".into(),
                version: 1,
                bytes: Vec::new(),
            }
        }
    }

    #[test]
    fn engines_are_told_once_of_each_step_that_left_and_after_its_round() {
        let link = Arc::new(ConnectionSignals::new());
        let relay = |place| Relay::on(&link, place);
        let told = Told::default();
        let listener = Box::new(Listener(Arc::clone(&told)));
        let mut datapath = Datapath::new(
            vec![relay(Place::First), listener, relay(Place::Last)],
            link.clone(),
        );
        let taken = || std::mem::take(&mut *told.lock().unwrap());
        for taken_at in 1..=6 {
            let step = Step {
                taken_at,
                ..Step::new(taken_at, Parts::BEGIN)
            };
            datapath.from_app().push(step).unwrap();
        }
        poll_at(&mut datapath, 10);
        assert!(taken().is_empty(), "the round is not over");
        let step = datapath.to_app().pop().unwrap();
        datapath.note_delivered(EgressEvent::of(&step));
        poll_at(&mut datapath, 20);
        // What the transport brings was taken when it did.
        assert_eq!(taken(), [(vec![1, 2, 3, 4], vec![10], 20)]);
        poll_at(&mut datapath, 30);
        assert_eq!(taken(), [(vec![5, 6], vec![], 30)]);
        poll_at(&mut datapath, 40);
        assert!(taken().is_empty());
        datapath.note_delivered(EgressEvent::of(&step));
        datapath.release_all(50);
        datapath.release_all(60);
        assert_eq!(taken(), [(vec![], vec![10], 50)]);
    }

    #[test]
    fn what_the_transport_took_is_told_by_when_it_came() {
        let link = Arc::new(ConnectionSignals::new());
        let relay = |place| Relay::on(&link, place);
        let mut datapath = Datapath::new(vec![relay(Place::First), relay(Place::Last)], link.clone());
        let departed = |datapath: &Datapath| {
            let steps = datapath.departed().iter();
            steps.map(|step| step.taken_at).collect::<Vec<_>>()
        };
        for taken_at in 1..=6 {
            let step = Step {
                taken_at,
                ..Step::new(taken_at, Parts::BEGIN)
            };
            datapath.from_app().push(step).unwrap();
        }
        poll(&mut datapath);
        assert_eq!(departed(&datapath), [1, 2, 3, 4]);
        poll(&mut datapath);
        assert_eq!(departed(&datapath), [5, 6]);
        poll(&mut datapath);
        assert!(datapath.departed().is_empty());
    }
    /// Lets everything through, and counts how often it was polled.
    struct Counted {
        polls: Arc<AtomicUsize>,
        rests: bool,
    }

    impl Engine for Counted {
        fn kind(&self) -> &'static str {
            "counted"
        }

        fn do_work(&mut self, ports: Ports<'_>, _context: &mut Context<'_>) -> Progress {
            self.polls.fetch_add(1, Ordering::Relaxed);
            let moved = ports.tx_in.transfer(ports.tx_out, usize::MAX)
                + ports.rx_in.transfer(ports.rx_out, usize::MAX);
            if moved > 0 { Progress::Busy } else { Progress::Idle }
        }

        fn rests(&self) -> bool {
            self.rests
        }

        fn save(&self, _saver: &mut dyn Saver) -> SavedState {
            SavedState {
                kind: "counted".into(),
                version: 1,
                bytes: Vec::new(),
            }
        }
    }

    #[test]
    fn an_engine_that_rests_is_polled_when_a_step_waits_for_it() {
        let link = Arc::new(ConnectionSignals::new());
        let relay = |place| Relay::on(&link, place);
        let polls: [Arc<AtomicUsize>; 2] = Default::default();
        let counted = |at: usize| {
            Box::new(Counted {
                polls: Arc::clone(&polls[at]),
                rests: at == 0,
            }) as Box<dyn Engine>
        };
        let engines = vec![relay(Place::First), counted(0), counted(1), relay(Place::Last)];
        let mut datapath = Datapath::new(engines, link.clone());
        let polled = || polls.each_ref().map(|polls| polls.swap(0, Ordering::Relaxed));
        poll(&mut datapath);
        assert_eq!(polled(), [1, 1], "nobody has asked them yet");
        poll(&mut datapath);
        assert_eq!(polled(), [0, 1]);
        datapath.from_app().push(Step::new(1, Parts::BEGIN)).unwrap();
        poll(&mut datapath);
        assert_eq!(polled(), [2, 2], "out, and back from the mirror");
        assert!(datapath.to_app().pop().is_some());
        poll(&mut datapath);
        assert_eq!(polled(), [0, 1]);
    }
}
