//! Targets of saved states: they may come from another version of the program, and so are anything.

use provost_conformance::fixtures::ToFixture;
use provost_conformance::{Content, content};
use provost_datapath::{
    BufferPool, FieldReader, FieldWriter, ForeignBytes, NotSaved, ReceiveHeap, ReceivedBlock, Restorer, Step,
};
use provost_session::handshake::Encoding;
use provost_session::{Connection, Role};
use provost_tls::fuzzing;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

use crate::session::{CountingHeap, Surroundings, config, connection_seeds as frames, drain};

/// Steps of one state.
const STEPS_MAX: usize = 1_000;

/// Gives a block for each that a state names.
struct Blocks<'a>(&'a mut CountingHeap);

impl Restorer for Blocks<'_> {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        self.0
            .allocate(saved.bytes)
            .map_err(|_| NotSaved::Full { at: saved.at })
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        Err(NotSaved::Foreign { kept })
    }
}

fn restore_steps(input: &[u8]) -> Option<Vec<Step>> {
    let mut heap = CountingHeap::default();
    let mut fields = FieldReader::new("fuzz", input);
    let steps = Step::restore_all(&mut fields, &mut Blocks(&mut heap), STEPS_MAX).ok()?;
    fields.end().ok().map(|()| steps)
}

/// Steps that are accepted are saved as something that is accepted, and as the same from then on.
pub(crate) fn steps(input: &[u8]) {
    let save = |steps: &[Step]| {
        let mut out = FieldWriter::new();
        Step::save_all(steps.iter(), &mut ToFixture, &mut out);
        out.bytes
    };
    let Some(steps) = restore_steps(input) else {
        return;
    };
    let once = save(&steps);
    let again = restore_steps(&once).map(|steps| save(&steps));
    assert_eq!(
        again.as_ref(),
        Some(&once),
        "steps that were restored are saved otherwise"
    );
}

pub(crate) fn steps_seeds() -> Vec<Vec<u8>> {
    let mut buffers = BufferPool::new();
    let mut gathered = Step::new(1, Parts::BEGIN | Parts::MESSAGE);
    gathered.body = large().gathered(9, &mut buffers);
    let steps = [
        gathered,
        Step::cancel_because(2, Code::Internal, "why", &mut buffers),
        Step::new(3, Parts::END),
    ];
    let mut out = FieldWriter::new();
    Step::save_all(steps.iter(), &mut ToFixture, &mut out);
    vec![out.bytes]
}

fn large() -> Content {
    content(7, 9_000)
}

/// A connection that is accepted works on: it takes any frames, gives every block back, and ends every call.
pub(crate) fn connection(input: &[u8]) {
    let mut surroundings = Surroundings::default();
    let mut fields = FieldReader::new("fuzz", input);
    let Ok(mut connection) = Connection::restore(&mut fields, &mut Blocks(&mut surroundings.heap)) else {
        return;
    };
    let again = |connection: &Connection| {
        let mut out = FieldWriter::new();
        connection.save(&mut ToFixture, &mut out);
        out.bytes
    };
    let saved = again(&connection);
    let mut heap = CountingHeap::default();
    let twice = Connection::restore(&mut FieldReader::new("fuzz", &saved), &mut Blocks(&mut heap));
    assert!(twice.is_ok_and(|twice| twice.calls_in_flight() == connection.calls_in_flight()));
    for frames in frames() {
        drain(&mut connection, &mut surroundings);
        if connection.input(&frames, &mut surroundings.context()).is_err() {
            break;
        }
    }
    let mut step = Step::new(1, Parts::MESSAGE);
    step.body = large().gathered(1, &mut BufferPool::new());
    connection.send(step, &mut surroundings.context());
    let _ = connection.tick(u64::MAX);
    drain(&mut connection, &mut surroundings);
    connection.end(Code::Unavailable, "the end", &mut surroundings.context());
    drain(&mut connection, &mut surroundings);
    assert_eq!(connection.calls_in_flight(), 0, "a call outlived its connection");
    assert_eq!(surroundings.heap.held, 0, "a block outlived its connection");
}

/// Connections in the midst of their work: frames in part, messages in part, steps that wait.
pub(crate) fn connection_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (role, encoding) in [
        (Role::Server, Encoding::Native),
        (Role::Client, Encoding::Native),
        (Role::Server, Encoding::Protobuf),
    ] {
        let mut surroundings = Surroundings::default();
        let mut connection = Connection::new(config(role, encoding), 0);
        let mut buffers = BufferPool::new();
        for call in 1..=3 {
            let mut step = Step::new(call, Parts::BEGIN | Parts::MESSAGE | Parts::END);
            step.body = content(call, 3_000).gathered(call, &mut buffers);
            connection.send(step, &mut surroundings.context());
        }
        connection.fill(&mut surroundings.context());
        connection.advance(77, &mut surroundings.context());
        for frames in frames() {
            let cut = frames.len() - frames.len() / 7;
            let whole = connection.input(&frames[..cut], &mut surroundings.context());
            let mut out = FieldWriter::new();
            connection.save(&mut ToFixture, &mut out);
            seeds.push(out.bytes);
            if whole.is_err()
                || connection
                    .input(&frames[cut..], &mut surroundings.context())
                    .is_err()
            {
                break;
            }
        }
    }
    seeds
}

/// Records from a stranger, and from a peer that knows the keys.
pub(crate) fn tls_records(input: &[u8]) {
    fuzzing::records(input);
    fuzzing::sealed(input);
}

pub(crate) fn tls_records_seeds() -> Vec<Vec<u8>> {
    let text = [23, 5, b'h', b'e', b'l', b'l', b'o'];
    let key_update = [22, 5, 24, 0, 0, 1, 1];
    let ticket = [22, 6, 4, 0, 0, 2, 9, 9];
    let close = [21, 2, 1, 0];
    let record = [23, 3, 3, 0, 17, 1, 2, 3];
    vec![
        [&text[..], &text, &close].concat(),
        [&text[..], &key_update, &close].concat(),
        [&ticket[..], &close, &text].concat(),
        record.to_vec(),
    ]
}
