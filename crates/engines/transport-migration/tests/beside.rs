//! Two transports beside each other that write down which calls' steps they get.

use std::sync::{Arc, Mutex, OnceLock};

use provost_conformance::{End, Node};
use provost_datapath::{
    ConnectionEnd, ConnectionSignals, Context, Engine, EngineStart, FieldWriter, KeptMemory, Ports,
    Predecessor, Progress, Queue, SavedState, Saver, Step,
};
use provost_transport_migration::{KIND as MIGRATION, beside};
use provost_wire::Code;
use provost_wire::descriptor::Parts;

const KIND: &str = "written-down";

#[derive(Clone, Copy, PartialEq, Eq)]
enum TransportMode {
    Takes,
    Waits,
    /// It has no call of its own, and ends when no other one is to come.
    Drains,
    Ended,
}

/// A transport: whether it takes steps, and the calls of those that it took.
#[derive(Clone)]
struct WrittenDown {
    written: Arc<Mutex<(TransportMode, Vec<u64>)>>,
    link: Arc<OnceLock<Arc<ConnectionSignals>>>,
}

impl WrittenDown {
    fn new(mode: TransportMode) -> WrittenDown {
        WrittenDown {
            written: Arc::new(Mutex::new((mode, Vec::new()))),
            link: Arc::default(),
        }
    }

    fn start(&self) -> EngineStart {
        let engine = self.clone();
        Box::new(move |predecessor: Predecessor<'_>| {
            engine.link.get_or_init(|| predecessor.link);
            Ok(Box::new(engine))
        })
    }

    fn change(&self, mode: TransportMode) {
        self.written.lock().unwrap().0 = mode;
    }

    fn calls(&self) -> Vec<u64> {
        self.written.lock().unwrap().1.clone()
    }

    fn is_closed(&self) -> bool {
        self.link.get().unwrap().close_requested()
    }
}

impl Engine for WrittenDown {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn do_work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        let (mode, calls) = &mut *self.written.lock().unwrap();
        match mode {
            TransportMode::Drains if context.flow.calls > 0 => return Progress::Idle,
            TransportMode::Drains | TransportMode::Ended => return Progress::Ended,
            TransportMode::Waits => return Progress::Idle,
            TransportMode::Takes => {}
        }
        let mut progress = Progress::Idle;
        while let Some(step) = ports.tx_in.pop() {
            calls.push(step.call);
            step.body.discard(context);
            progress = Progress::Busy;
        }
        progress
    }

    fn save(&self, _: &mut dyn Saver) -> SavedState {
        SavedState::new(KIND, 1, FieldWriter::new())
    }
}

/// A connection that goes over from the old transport to the new one.
fn migrating(old: &WrittenDown, new: &WrittenDown) -> Node {
    let restored = old.clone();
    let start = beside(new.start(), 1, move |_, _| Some(restored.start()));
    let link = Arc::new(ConnectionSignals::new());
    let saved = SavedState::new(KIND, 1, FieldWriter::new());
    let engine = start(Predecessor {
        saved: Some(&saved),
        descriptors: Vec::new(),
        link: link.clone(),
        restorer: &mut KeptMemory::default(),
    });
    let engine = engine.expect("both start");
    Node::new(End { engine, link })
}

#[test]
fn calls_end_on_the_transport_on_which_they_began() {
    let [old, new] = [(); 2].map(|()| WrittenDown::new(TransportMode::Takes));
    let mut node = migrating(&old, &new);
    for (call, parts) in [
        (7, Parts::MESSAGE),
        (8, Parts::BEGIN),
        (7, Parts::MESSAGE),
        (8, Parts::MESSAGE),
        (7, Parts::CANCEL),
        (8, Parts::CANCEL),
    ] {
        node.send_bare(Step::new(call, parts));
        node.poll(1);
    }
    assert_eq!((old.calls(), new.calls()), (vec![7, 7, 7], vec![8, 8, 8]));
    assert_ne!(node.progress, Progress::Ended);
}

/// Steps that the new transport had no room for when the old one came to its end go on, before those that follow.
#[test]
fn what_waits_for_the_new_transport_outlives_the_old_one() {
    let old = WrittenDown::new(TransportMode::Takes);
    let new = WrittenDown::new(TransportMode::Waits);
    let mut node = migrating(&old, &new);
    node.send_bare(Step::new(8, Parts::BEGIN));
    node.send_bare(Step::new(9, Parts::BEGIN));
    node.poll(1);
    old.change(TransportMode::Ended);
    node.poll(2);
    assert_eq!(new.calls(), []);
    new.change(TransportMode::Takes);
    node.send_bare(Step::new(10, Parts::BEGIN));
    node.poll(3);
    assert_eq!((old.calls(), new.calls()), (vec![], vec![8, 9, 10]));
    new.change(TransportMode::Ended);
    assert_eq!(node.poll(4), Progress::Ended);
}

/// Calls of the new transport come one after the other, and so that there is always one. The old one does not wait for them.
#[test]
fn the_old_transport_ends_though_calls_go_on() {
    let old = WrittenDown::new(TransportMode::Drains);
    let new = WrittenDown::new(TransportMode::Takes);
    let mut node = migrating(&old, &new);
    node.calls = 1;
    node.send_bare(Step::new(8, Parts::BEGIN));
    node.poll(1);
    node.send_bare(Step::new(9, Parts::BEGIN));
    node.poll(2);
    assert_eq!((old.calls(), new.calls()), (vec![], vec![8, 9]));
    assert_eq!(node.into_engine().kind(), KIND);
}

/// The server of the new transport may go away in order while calls of the old one go on: those are of another server.
#[test]
fn calls_go_on_when_the_new_transport_ends_in_order_and_not_when_it_is_lost() {
    for (code, is_closed) in [(Code::Ok, false), (Code::Unavailable, true)] {
        let [old, new] = [(); 2].map(|()| WrittenDown::new(TransportMode::Takes));
        let mut node = migrating(&old, &new);
        node.link.set_ended(ConnectionEnd {
            code,
            reason: String::new(),
        });
        new.change(TransportMode::Ended);
        node.poll(1);
        assert_eq!(old.is_closed(), is_closed, "{code:?}");
    }
}

/// Steps that are given back for another engine to take the migration's place come again.
#[test]
fn a_cancellation_that_was_given_back_goes_where_its_call_is() {
    let old = WrittenDown::new(TransportMode::Takes);
    let new = WrittenDown::new(TransportMode::Takes);
    let mut node = migrating(&old, &new);
    node.send_bare(Step::new(8, Parts::BEGIN));
    node.poll(1);
    new.change(TransportMode::Waits);
    node.send_bare(Step::new(8, Parts::CANCEL));
    node.poll(2);
    let link = Arc::clone(&node.link);
    let mut engine = node.into_engine();
    let mut given_back = Queue::with_bound(8);
    let mut unused = [(); 3].map(|()| Queue::with_bound(0));
    let [tx_out, rx_in, rx_out] = &mut unused;
    engine.release(&mut Ports {
        tx_in: &mut given_back,
        tx_out,
        rx_in,
        rx_out,
    });
    let mut node = Node::new(End { engine, link });
    while let Some(step) = given_back.pop() {
        node.send_bare(step);
    }
    new.change(TransportMode::Takes);
    node.poll(3);
    assert_eq!((old.calls(), new.calls()), (vec![], vec![8, 8]));
    assert_eq!(node.into_engine().kind(), MIGRATION);
}
