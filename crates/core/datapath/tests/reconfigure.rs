//! Random changes of a datapath's shape under random traffic: nothing is lost, duplicated or reordered within a call,
//! and no step goes past an engine that was there from before it came until after it went.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use provost_datapath::{
    Body, BufferPool, ConnectionSignals, Context, Datapath, EncodedBody, Engine, EngineStart, FlowHints,
    HeapFull, Ports, Predecessor, Progress, Queue, ReceiveHeap, ReceivedBlock, ReconfigureError,
    RestoreError, SavedState, Saver, SocketHint, Stage, Step,
};
use provost_wire::descriptor::Parts;

/// Engines between the first and the last, at most.
const MIDDLE_MAX: usize = 6;
/// Marks fit in the words of a body.
const MARKS_MAX: u32 = 64;

/// Passes steps on with its mark, at its own pace, and holds some of them for a while.
struct Marker {
    mark: u32,
    /// Which poll holds, by a little generator of its own.
    mood: u32,
    held: [VecDeque<Step>; 2],
    /// Whether what it counted went over to its successor.
    passed: u64,
}

impl Marker {
    fn new(mark: u32, passed: u64) -> Marker {
        Marker {
            mark,
            mood: mark.wrapping_mul(0x9e37_79b9) | 1,
            held: Default::default(),
            passed,
        }
    }

    fn next_mood(&mut self) -> u32 {
        self.mood = self.mood.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.mood >> 16
    }

    fn forward(&mut self, direction: usize, from: &mut Queue<Step>, to: &mut Queue<Step>) -> bool {
        let mut moved = false;
        while !to.is_full()
            && let Some(step) = self.held[direction].pop_front()
        {
            self.pass(direction, step, to);
            moved = true;
        }
        for _ in 0..self.next_mood() % 5 {
            if to.is_full() {
                break;
            }
            let Some(step) = from.pop() else { break };
            moved = true;
            // What comes behind a held step is held too.
            if !self.held[direction].is_empty() || self.next_mood().is_multiple_of(3) {
                self.held[direction].push_back(step);
            } else {
                self.pass(direction, step, to);
            }
        }
        moved
    }

    fn pass(&mut self, direction: usize, mut step: Step, to: &mut Queue<Step>) {
        let Body::Encoded(body) = &mut step.body else {
            panic!("a body was exchanged");
        };
        body.buffer.bytes[direction * MARKS_MAX as usize + self.mark as usize] = 1;
        self.passed += 1;
        to.push(step).expect("room");
    }
}

impl Engine for Marker {
    fn kind(&self) -> &'static str {
        "marker"
    }

    fn do_work(&mut self, ports: Ports<'_>, _context: &mut Context<'_>) -> Progress {
        let mut moved = self.forward(0, ports.tx_in, ports.tx_out);
        moved |= self.forward(1, ports.rx_in, ports.rx_out);
        if moved { Progress::Busy } else { Progress::Idle }
    }

    fn release(&mut self, ports: &mut Ports<'_>) {
        while let Some(step) = self.held[0].pop_back() {
            ports.tx_in.put_back(step);
        }
        while let Some(step) = self.held[1].pop_back() {
            ports.rx_in.put_back(step);
        }
    }

    fn held(&self) -> usize {
        self.held.iter().map(VecDeque::len).sum()
    }

    fn save(&self, _saver: &mut dyn Saver) -> SavedState {
        let mut bytes = self.mark.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.passed.to_le_bytes());
        SavedState {
            kind: "marker".into(),
            version: 1,
            bytes,
        }
    }
}

/// The wire: a mirror.
struct Mirror;

impl Engine for Mirror {
    fn kind(&self) -> &'static str {
        "mirror"
    }

    fn do_work(&mut self, ports: Ports<'_>, _context: &mut Context<'_>) -> Progress {
        let mut progress = Progress::Idle;
        while !ports.rx_out.is_full()
            && let Some(step) = ports.tx_in.pop()
        {
            ports.rx_out.push(step).expect("room");
            progress = Progress::Busy;
        }
        progress
    }

    fn save(&self, _saver: &mut dyn Saver) -> SavedState {
        unreachable!("the mirror stays")
    }
}

fn fresh(mark: u32) -> EngineStart {
    Box::new(move |predecessor: Predecessor<'_>| {
        assert!(predecessor.saved.is_none());
        Ok(Box::new(Marker::new(mark, 0)))
    })
}

fn successor(mark: u32) -> EngineStart {
    Box::new(move |predecessor: Predecessor<'_>| {
        let saved = &predecessor.saved.expect("a predecessor").bytes;
        assert_eq!(saved[..4], mark.to_le_bytes());
        let passed = u64::from_le_bytes(saved[4..12].try_into().expect("8 bytes"));
        Ok(Box::new(Marker::new(mark, passed)))
    })
}

fn refusing() -> EngineStart {
    Box::new(|_: Predecessor<'_>| {
        Err(RestoreError::Damaged {
            kind: "marker",
            reason: "as asked".into(),
        })
    })
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
    let mut context = Context {
        socket: SocketHint::Skip,
        flow: FlowHints::default(),
        now: 0,
        buffers: &mut BufferPool::new(),
        receive: &mut NoHeap,
        sent: &mut Vec::new(),
    };
    datapath.poll(&mut context)
}

#[derive(Clone, Debug)]
enum Happening {
    /// Steps of a call come from the app.
    Send {
        call: u64,
        steps: usize,
    },
    Poll,
    /// The engines between the first and the last change: these marks of the old ones stay, in this order, each
    /// replaced or not, with new ones in between.
    Reconfigure {
        order: Vec<(u32, Change)>,
        fails: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Keep,
    Replace,
    Remove,
    InsertBefore,
}

fn happening() -> impl Strategy<Value = Happening> {
    let change = prop_oneof![
        4 => Just(Change::Keep),
        2 => Just(Change::Replace),
        1 => Just(Change::Remove),
        2 => Just(Change::InsertBefore),
    ];
    let order = prop::collection::vec((any::<u32>(), change), MIDDLE_MAX);
    prop_oneof![
        3 => (0..5u64, 1..20usize).prop_map(|(call, steps)| Happening::Send { call, steps }),
        4 => Just(Happening::Poll),
        3 => (order, prop::bool::weighted(0.2)).prop_map(|(order, fails)| Happening::Reconfigure { order, fails }),
    ]
}

/// What is expected of one step.
struct Sent {
    number: u64,
    /// The marks that were there when it came, and have been ever since.
    marks: Vec<u32>,
}

struct World {
    datapath: Datapath,
    /// The marks of the engines between the first and the last.
    middle: Vec<u32>,
    next_mark: u32,
    next_number: u64,
    under_way: BTreeMap<u64, VecDeque<Sent>>,
}

impl World {
    fn new() -> World {
        let engines: Vec<Box<dyn Engine>> = vec![Box::new(Marker::new(0, 0)), Box::new(Mirror)];
        World {
            datapath: Datapath::new(engines, Arc::new(ConnectionSignals::new())),
            middle: Vec::new(),
            next_mark: 1,
            next_number: 0,
            under_way: BTreeMap::new(),
        }
    }

    fn send(&mut self, call: u64, steps: usize) {
        for _ in 0..steps {
            let mut step = Step::new(call, Parts::MESSAGE);
            let mut body = EncodedBody::plain(BufferPool::new().take(), 0, 0);
            body.buffer.bytes.resize(2 * MARKS_MAX as usize, 0);
            body.buffer
                .bytes
                .extend_from_slice(&self.next_number.to_le_bytes());
            step.body = Body::Encoded(body);
            if self.datapath.from_app().push(step).is_err() {
                return;
            }
            let mut marks = self.middle.clone();
            marks.push(0);
            let sent = Sent {
                number: self.next_number,
                marks,
            };
            self.under_way.entry(call).or_default().push_back(sent);
            self.next_number += 1;
        }
    }

    fn poll(&mut self) -> Progress {
        let progress = poll(&mut self.datapath);
        while let Some(step) = self.datapath.to_app().pop() {
            let expected = self.under_way.get_mut(&step.call).and_then(VecDeque::pop_front);
            let expected = expected.expect("a step that was sent and not had yet");
            let Body::Encoded(body) = step.body else {
                panic!("a body was exchanged");
            };
            let (marks, number) = body.buffer.bytes.split_at(2 * MARKS_MAX as usize);
            assert_eq!(number, expected.number.to_le_bytes(), "calls keep their order");
            for mark in expected.marks {
                for direction in 0..2 {
                    let at = direction * MARKS_MAX as usize + mark as usize;
                    assert_eq!(
                        marks[at], 1,
                        "engine {mark} was bypassed in direction {direction}"
                    );
                }
            }
        }
        progress
    }

    fn reconfigure(&mut self, order: &[(u32, Change)], fails: bool) {
        let mut old: Vec<(usize, u32)> = self.middle.iter().copied().enumerate().collect();
        let (mut stages, mut middle) = (vec![Stage::Keep { was: 0 }], Vec::new());
        let mut gone = Vec::new();
        for (pick, change) in order {
            if matches!(change, Change::InsertBefore)
                && middle.len() < MIDDLE_MAX
                && self.next_mark < MARKS_MAX
            {
                stages.push(Stage::Insert {
                    start: fresh(self.next_mark),
                });
                middle.push(self.next_mark);
                self.next_mark += 1;
            }
            if old.is_empty() || middle.len() >= MIDDLE_MAX {
                continue;
            }
            let (at, mark) = old.remove(*pick as usize % old.len());
            let was = at + 1;
            match change {
                Change::Keep | Change::InsertBefore => stages.push(Stage::Keep { was }),
                Change::Replace => stages.push(Stage::Replace {
                    was,
                    start: successor(mark),
                }),
                Change::Remove => {
                    gone.push(mark);
                    continue;
                }
            }
            middle.push(mark);
        }
        gone.extend(old.iter().map(|(_, mark)| *mark));
        if fails {
            stages.push(Stage::Insert { start: refusing() });
        }
        let last = self.middle.len() + 1;
        stages.push(Stage::Keep { was: last });
        match self.datapath.reconfigure(stages, |_, _| {}) {
            Ok(_) => {
                assert!(!fails);
                self.middle = middle;
                for sent in self.under_way.values_mut().flatten() {
                    sent.marks.retain(|mark| !gone.contains(mark));
                }
            }
            Err(ReconfigureError::Start { .. }) => assert!(fails),
            Err(other) => panic!("{other}"),
        }
        let kinds: Vec<_> = self.datapath.kinds().collect();
        assert_eq!(kinds.len(), self.middle.len() + 2);
        assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("marker", "mirror"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn traffic_goes_on_through_changes_of_shape(happenings in prop::collection::vec(happening(), 1..120)) {
        let mut world = World::new();
        for happening in happenings {
            match happening {
                Happening::Send { call, steps } => world.send(call, steps),
                Happening::Poll => drop(world.poll()),
                Happening::Reconfigure { order, fails } => world.reconfigure(&order, fails),
            }
        }
        // Some polls do nothing, by the engines' moods.
        let mut polls = 0;
        while world.under_way.values().any(|steps| !steps.is_empty()) {
            world.poll();
            polls += 1;
            prop_assert!(polls < 20_000, "steps are lost");
        }
        prop_assert_eq!(world.datapath.steps_waiting(), 0);
    }
}

#[test]
fn a_shape_that_names_what_is_not_there_changes_nothing() {
    let mut world = World::new();
    for stages in [
        vec![Stage::Keep { was: 2 }],
        vec![Stage::Keep { was: 0 }, Stage::Keep { was: 0 }],
    ] {
        let refused = world.datapath.reconfigure(stages, |_, _| {});
        assert!(matches!(refused, Err(ReconfigureError::Shape { .. })));
    }
    world.send(1, 3);
    for _ in 0..100 {
        world.poll();
    }
    assert!(world.under_way[&1].is_empty());
}

#[test]
fn what_went_is_handed_back_with_what_it_saved() {
    let mut world = World::new();
    world.reconfigure(&[(0, Change::InsertBefore)], false);
    world.send(1, 5);
    for _ in 0..100 {
        world.poll();
    }
    let stages = vec![
        Stage::Keep { was: 0 },
        Stage::Replace {
            was: 1,
            start: successor(1),
        },
        Stage::Keep { was: 2 },
    ];
    let reconfigured = world
        .datapath
        .reconfigure(stages, |_, _| {})
        .expect("a new shape");
    assert_eq!(reconfigured.retired.len(), 1);
    assert_eq!(
        (reconfigured.retired[0].was, reconfigured.retired[0].engine.kind()),
        (1, "marker")
    );
    assert_eq!(reconfigured.retired[0].saved.bytes[4..12], 10u64.to_le_bytes());
}
