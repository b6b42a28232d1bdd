//! What the op tables cost, beside a copy of the same bytes in the same run:
//! `cargo run --release -p provost-marshal --example field_cost`.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Instant;

use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use provost_marshal::{ForeignRegion, Leaf, Scratch, Tables};
use provost_schema::{MessageId, Schema};

const PROTO: &str = r#"
syntax = "proto3";
message Payload { bytes payload = 1; }
message Plain { uint64 a = 1; uint64 b = 2; double c = 3; int32 d = 4; }
message Plains { repeated Plain plains = 1; }
message Entry { string key = 1; bytes value = 2; optional uint64 version = 3; oneof kind { bool hot = 4; string note = 5; } }
message Entries { repeated Entry entries = 1; Entry first = 2; map<string, uint32> index = 3; }
message Numbers { repeated uint64 numbers = 1; }
"#;
/// Rounds of which the quickest counts.
const ROUNDS: usize = 40;
/// What one round takes, about, in nanoseconds.
const ROUND_NS: u128 = 2_000_000;
const WINDOW_AT: u32 = 1000;

struct One(protox::file::File);

impl protox::file::FileResolver for One {
    fn open_file(&self, _name: &str) -> Result<protox::file::File, protox::Error> {
        Ok(self.0.clone())
    }
}

fn main() {
    let file = protox::file::File::from_source("cost.proto", PROTO).expect("the source parses");
    let mut compiler = protox::Compiler::with_file_resolver(One(file));
    compiler.open_file("cost.proto").expect("the source compiles");
    let set = compiler.file_descriptor_set().encode_to_vec();
    let schema = Schema::from_descriptor_set(&set).expect("the schema loads");
    let bench = Bench {
        pool: DescriptorPool::decode(&*set).expect("the schema loads"),
        tables: Tables::compile(&schema).expect("the schema compiles"),
        schema,
    };
    println!(
        "ns per message, the quickest of {ROUNDS} rounds; copy: memcpy of the native form into a cleared vector"
    );
    println!(
        "{:24} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "message", "bytes", "protobuf", "copy", "gather", "validate", "relocate", "encode", "decode"
    );
    let text = |len: usize| "x".repeat(len);
    bench.row(
        "payload of 64 bytes",
        "Payload",
        serde_json::json!({ "payload": text(64) }),
    );
    bench.row(
        "payload of 1 KiB",
        "Payload",
        serde_json::json!({ "payload": text(1 << 10) }),
    );
    bench.row(
        "payload of 3 KiB",
        "Payload",
        serde_json::json!({ "payload": text(3 << 10) }),
    );
    bench.row(
        "payload of 64 KiB",
        "Payload",
        serde_json::json!({ "payload": text(64 << 10) }),
    );
    bench.row(
        "one plain struct",
        "Plain",
        serde_json::json!({ "a": 1, "b": 2, "c": 3.0, "d": 4 }),
    );
    let plain = serde_json::json!({ "a": 1000, "b": 2, "c": 3.0, "d": 4 });
    bench.row(
        "100 plain structs",
        "Plains",
        serde_json::json!({ "plains": vec![plain; 100] }),
    );
    let entry =
        serde_json::json!({ "key": "user:1234567890", "value": text(64), "version": 7, "note": "warm" });
    bench.row("one entry", "Entry", entry.clone());
    let index: serde_json::Map<_, _> = (0..20).map(|n| (format!("key{n}"), n.into())).collect();
    let entries = serde_json::json!({ "entries": vec![entry.clone(); 20], "first": entry, "index": index });
    bench.row("20 entries, a map", "Entries", entries);
    let numbers: Vec<u64> = (0..400).map(|n| n * n * n).collect();
    bench.row(
        "400 numbers",
        "Numbers",
        serde_json::json!({ "numbers": numbers }),
    );
}

struct Bench {
    pool: DescriptorPool,
    schema: Schema,
    tables: Tables,
}

impl Bench {
    fn row(&self, title: &str, message: &str, json: serde_json::Value) {
        let place = self
            .schema
            .messages
            .iter()
            .position(|known| known.full_name == message);
        let id = MessageId(place.expect("the message is in the schema") as u32);
        let descriptor = self
            .pool
            .get_message_by_name(message)
            .expect("the message is in the schema");
        let value = DynamicMessage::deserialize(descriptor, json).expect("the JSON is of the message");
        let protobuf = value.encode_to_vec();
        let (mut native, mut scratch) = (Vec::new(), Scratch::default());
        self.tables
            .decode(id, &protobuf, &mut native, 1 << 20, &mut scratch)
            .expect("it decodes");
        let mut out = Vec::with_capacity(1 << 20);
        let copy = ns(|| {
            out.clear();
            out.extend_from_slice(black_box(&native));
        });
        let gather = self.gather_ns(id, &native, &mut out);
        let validate = ns(|| self.tables.validate(id, black_box(&native)).expect("it is valid"));
        // Relocating spoils its input: it is copied anew each time, and the copy is taken off.
        let relocate = ns(|| {
            out.clear();
            out.extend_from_slice(black_box(&native));
            self.tables
                .validate_and_relocate(id, &mut out, WINDOW_AT)
                .expect("it is valid");
        });
        let encode = ns(|| {
            out.clear();
            self.tables
                .encode(id, black_box(&native), &mut out)
                .expect("it encodes");
        });
        let decode = ns(|| {
            out.clear();
            self.tables
                .decode(id, black_box(&protobuf), &mut out, 1 << 20, &mut scratch)
                .expect("it decodes");
        });
        println!(
            "{title:24} {:8} {:8} {copy:8.1} {gather:8.1} {validate:8.1} {:8.1} {encode:8.1} {decode:8.1}",
            native.len(),
            protobuf.len(),
            relocate - copy,
        );
    }

    fn gather_ns(&self, id: MessageId, native: &[u8], out: &mut Vec<u8>) -> f64 {
        let mut relocated = native.to_vec();
        self.tables
            .validate_and_relocate(id, &mut relocated, WINDOW_AT)
            .expect("it is valid");
        relocated.resize(relocated.len().next_multiple_of(8), 0);
        let words: Vec<u64> = relocated
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        let address = NonZeroUsize::new(words.as_ptr().expose_provenance()).expect("a vector is somewhere");
        // SAFETY: the words live to the end of this function, 8-aligned.
        let region = unsafe { ForeignRegion::new(address, size_of_val(&words[..]) as u64, WINDOW_AT) };
        let mut leaves = Vec::<Leaf>::with_capacity(64);
        ns(|| {
            out.clear();
            leaves.clear();
            let region = black_box(&region);
            self.tables
                .gather(id, WINDOW_AT, region, out, &mut leaves, 1 << 20)
                .expect("it is well formed");
        })
    }
}

/// Nanoseconds of one turn, in the quickest of some rounds.
fn ns(mut turn: impl FnMut()) -> f64 {
    let mut turns = 1u32;
    loop {
        let begin = Instant::now();
        (0..turns).for_each(|_| turn());
        if begin.elapsed().as_nanos() > ROUND_NS {
            break;
        }
        turns *= 2;
    }
    let round = |_| {
        let begin = Instant::now();
        (0..turns).for_each(|_| turn());
        begin.elapsed().as_nanos() as f64 / f64::from(turns)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}
