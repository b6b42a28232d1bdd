//! Two transports beside each other that write down which calls' steps they get.

use std::sync::{Arc, Mutex};

use provost_conformance::{End, Node};
use provost_datapath::{
    ConnectionSignals, Context, Engine, EngineStart, FieldWriter, KeptMemory, Ports, Predecessor, Progress,
    SavedState, Saver, Step,
};
use provost_transport_migration::beside;
use provost_wire::descriptor::Parts;

const KIND: &str = "written-down";

#[derive(Clone, Copy, PartialEq, Eq)]
enum TransportMode {
    Takes,
    Waits,
    Ended,
}

/// A transport: whether it takes steps, and the calls of those that it took.
#[derive(Clone)]
struct WrittenDown(Arc<Mutex<(TransportMode, Vec<u64>)>>);

impl WrittenDown {
    fn new(mode: TransportMode) -> WrittenDown {
        WrittenDown(Arc::new(Mutex::new((mode, Vec::new()))))
    }

    fn start(&self) -> EngineStart {
        let engine = self.clone();
        Box::new(move |_| Ok(Box::new(engine)))
    }

    fn change(&self, mode: TransportMode) {
        self.0.lock().unwrap().0 = mode;
    }

    fn calls(&self) -> Vec<u64> {
        self.0.lock().unwrap().1.clone()
    }
}

impl Engine for WrittenDown {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn do_work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        let (mode, calls) = &mut *self.0.lock().unwrap();
        match mode {
            TransportMode::Ended => return Progress::Ended,
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
