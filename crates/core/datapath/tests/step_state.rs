//! Steps of every form come back from their saved state, for a successor in this process and in another.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use proptest::prelude::*;
use provost_datapath::{
    BlockContent, Body, Buffer, EncodedBody, FieldReader, FieldWriter, ForeignBytes, Gathered, InPlace,
    Keepalive, KeptMemory, NotSaved, Offsets, ReceivedBlock, ReceivedBody, RestoreError, Restorer, Saver,
    Step, Untrusted, message_offset,
};
use provost_wire::Code;
use provost_wire::descriptor::Parts;

const STEPS_MAX: usize = 64;

struct NoMapping;
impl Keepalive for NoMapping {}

/// Foreign memory whose bytes follow from their addresses, so that nothing needs to be mapped.
fn foreign(address: usize, bytes: u32) -> ForeignBytes {
    let address = NonZeroUsize::new(address.max(1) * 8).unwrap_or(NonZeroUsize::MIN);
    ForeignBytes::new(address, bytes, Arc::new(NoMapping))
}

fn copy(range: &ForeignBytes, out: &mut Vec<u8>) {
    let start = range.address().get();
    out.extend((start..start + range.len() as usize).map(|at| (at * 7 % 251) as u8));
}

/// What another process has of a step's memory: copies, and blocks at other places.
#[derive(Default)]
struct Elsewhere {
    blocks: HashMap<u32, (u32, BlockContent)>,
}

const MOVED_BY: u32 = 1 << 30;

impl Saver for Elsewhere {
    fn foreign(&mut self, bytes: &ForeignBytes, out: &mut Vec<u8>) {
        copy(bytes, out);
    }

    fn block(&mut self, block: &ReceivedBlock, content: BlockContent) {
        self.blocks.insert(block.at, (block.bytes, content));
    }
}

impl Restorer for Elsewhere {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        let not_saved = NotSaved::Block { at: saved.at };
        let (bytes, content) = self.blocks.remove(&saved.at).ok_or(not_saved)?;
        let at = match content {
            BlockContent::Movable { .. } => saved.at + MOVED_BY,
            BlockContent::Fixed => saved.at,
        };
        Ok(ReceivedBlock { at, bytes })
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        Err(NotSaved::Foreign { kept })
    }
}

fn linear(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = buffer.bytes.clone();
    for (at, range) in buffer.foreign.iter().enumerate() {
        copy(range, &mut bytes);
        if at + 1 < buffer.foreign.len() {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
    }
    bytes
}

/// All that can be told of a step; a block's place without what it was moved by.
fn facts(step: &Step) -> String {
    let body = match &step.body {
        Body::Empty => "empty".into(),
        Body::Untrusted(untrusted) => format!("{untrusted:?}"),
        Body::Gathered(body) => format!(
            "gathered {} {} {} {:?}",
            body.metadata_bytes,
            body.message_bytes,
            body.token,
            linear(&body.buffer)
        ),
        Body::Received(body) => format!(
            "received {} {} {} {} {:?}",
            body.block.at % MOVED_BY,
            body.block.bytes,
            body.metadata_bytes,
            body.message_bytes,
            body.offsets
        ),
        Body::Encoded(body) => format!(
            "encoded {} {} {:?}",
            body.metadata_bytes,
            body.message_bytes,
            linear(&body.buffer)
        ),
    };
    format!(
        "{} {:?} {} {:?} {} {} {body}",
        step.call, step.parts, step.method, step.status, step.window_bytes, step.deadline
    )
}

fn gathered() -> impl Strategy<Value = Body> {
    let head = prop::collection::vec(any::<u64>(), 0..20);
    let leaves = prop::collection::vec((1usize..1 << 40, 1u32..100), 0..5);
    (0u32..64, head, leaves, any::<u64>()).prop_map(|(metadata_bytes, head, leaves, token)| {
        let offset = message_offset(metadata_bytes);
        let mut bytes = vec![5; offset];
        bytes.extend(head.iter().flat_map(|word| word.to_le_bytes()));
        let mut buffer = Buffer::from(bytes);
        buffer.foreign = leaves.iter().map(|(at, bytes)| foreign(*at, *bytes)).collect();
        let message_bytes = (linear(&buffer).len() - offset) as u32;
        Body::Gathered(Gathered {
            buffer,
            metadata_bytes,
            message_bytes,
            token,
        })
    })
}

fn body() -> impl Strategy<Value = Body> {
    let untrusted = any::<(u32, u32, u32, u64)>().prop_map(|(root, metadata, metadata_bytes, token)| {
        Body::Untrusted(Untrusted {
            root,
            metadata,
            metadata_bytes,
            token,
        })
    });
    let received =
        (0u32..64, 0u32..100, any::<bool>()).prop_map(|(metadata_bytes, message_bytes, window)| {
            Body::Received(ReceivedBody {
                added: None,
                // The test gives each step a place of its own.
                block: ReceivedBlock {
                    at: 1,
                    bytes: message_offset(metadata_bytes) as u32 + message_bytes,
                },
                metadata_bytes,
                message_bytes,
                offsets: if window { Offsets::Window } else { Offsets::Message },
            })
        });
    let encoded =
        (0u32..64, prop::collection::vec(any::<u8>(), 0..100)).prop_map(|(metadata_bytes, message)| {
            let mut bytes = vec![1; message_offset(metadata_bytes)];
            bytes.extend_from_slice(&message);
            Body::Encoded(EncodedBody::plain(
                Buffer::from(bytes),
                metadata_bytes,
                message.len() as u32,
            ))
        });
    prop_oneof![
        Just(()).prop_map(|()| Body::Empty),
        untrusted,
        received,
        encoded,
        gathered()
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let fields = any::<(u64, u8, u16, u32, u64)>();
    (fields, 0..Code::ALL.len(), body()).prop_map(|(fields, status, body)| {
        let (call, parts, method, window_bytes, deadline) = fields;
        Step {
            method,
            status: Code::ALL[status],
            window_bytes,
            deadline,
            body,
            ..Step::new(call, Parts(parts))
        }
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..8).prop_map(|mut steps| {
        for (at, step) in steps.iter_mut().enumerate() {
            if let Body::Received(body) = &mut step.body {
                body.block.at = 10 + at as u32;
            }
        }
        steps
    })
}

fn save(steps: &[Step], saver: &mut dyn Saver) -> Vec<u8> {
    let mut out = FieldWriter::new();
    Step::save_all(steps.iter(), saver, &mut out);
    out.bytes
}

fn restore(bytes: &[u8], restorer: &mut dyn Restorer) -> Result<Vec<Step>, RestoreError> {
    let mut fields = FieldReader::new("test", bytes);
    let steps = Step::restore_all(&mut fields, restorer, STEPS_MAX)?;
    fields.end()?;
    Ok(steps)
}

fn all_facts(steps: &[Step]) -> Vec<String> {
    steps.iter().map(facts).collect()
}

proptest! {
    #[test]
    fn steps_come_back_in_the_same_process(steps in steps()) {
        let mut saver = InPlace::new(|_: &ForeignBytes, _: &mut Vec<u8>| panic!("kept, not copied"));
        let bytes = save(&steps, &mut saver);
        let mut kept = saver.into_restorer();
        let again = restore(&bytes, &mut kept).unwrap();
        prop_assert_eq!(all_facts(&again), all_facts(&steps));
        // What was had once cannot be had again.
        let lent = |step: &Step| match &step.body {
            Body::Received(_) => true,
            Body::Gathered(body) => !body.buffer.foreign.is_empty(),
            _ => false,
        };
        prop_assert_eq!(restore(&bytes, &mut kept).is_err(), steps.iter().any(lent));
    }

    #[test]
    fn steps_come_back_in_another_process(steps in steps()) {
        let mut elsewhere = Elsewhere::default();
        let bytes = save(&steps, &mut elsewhere);
        let again = restore(&bytes, &mut elsewhere).unwrap();
        prop_assert_eq!(all_facts(&again), all_facts(&steps));
        for step in &again {
            match &step.body {
                Body::Received(body) => {
                    prop_assert_eq!(body.block.at >= MOVED_BY, body.offsets == Offsets::Message);
                }
                Body::Gathered(body) => prop_assert!(body.buffer.foreign.is_empty()),
                _ => {}
            }
        }
    }

    #[test]
    fn damage_is_noticed_or_harmless(steps in steps(), at in any::<usize>(), value in any::<u8>()) {
        let mut elsewhere = Elsewhere::default();
        let mut bytes = save(&steps, &mut elsewhere);
        for cut in 0..bytes.len() {
            prop_assert!(restore(&bytes[..cut], &mut KeptMemory::default()).is_err());
        }
        let at = at % bytes.len();
        bytes[at] = value;
        let _ = restore(&bytes, &mut elsewhere);
    }
}
