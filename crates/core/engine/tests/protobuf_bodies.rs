//! Messages that pass as protobuf: what filters read of them, and that what goes on is what came.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use provost_datapath::{Body, PrivateBytes};
use provost_engine::rig::{
    Rig, Service, Value as Dynamic, end_of, metadata_of, protobuf_of, with_compressed, with_metadata,
    with_protobuf,
};
use provost_engine::{
    AttachError, Code, DatapathContext, FieldPath, Filter, FilterEngine, FilterEngineParts, Policy, Side,
    Start, StepView, Value, Verdict, Watch,
};

const PROTO: &str = "syntax = \"proto3\"; package t;
    message M { string name = 1; repeated int32 list = 2; }
    service S { rpc Get(M) returns (M); }";
/// A known field, an unknown one, the known one again.
const UNUSUAL: &[u8] = &[0x0a, 1, b'a', 0xf8, 0x06, 7, 0x0a, 3, b'a', b'n', b'n'];
/// The length of the only field is longer than what follows.
const MALFORMED: &[u8] = &[0x0a, 9, b'a'];

/// How a filter reads messages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MessageReading {
    Nothing,
    Field,
    Whole,
}

#[derive(Clone)]
struct ReadingFilter {
    reading: MessageReading,
    path: FieldPath,
    seen: Arc<Mutex<Vec<String>>>,
}

impl ReadingFilter {
    fn of(service: &Service, reading: MessageReading) -> ReadingFilter {
        let context = service.datapath_context(Side::Client);
        let path = context.tables.field_path(context.methods[0].input, "name");
        ReadingFilter {
            reading,
            path: path.unwrap(),
            seen: Arc::default(),
        }
    }
}

impl Filter for ReadingFilter {
    type Call = ();

    fn watch(&self) -> Watch {
        Watch::ALL
    }

    fn judge(&mut self, _call: &mut (), step: &mut StepView<'_>) -> Verdict {
        let value = match self.reading {
            MessageReading::Nothing => return Verdict::Pass,
            MessageReading::Field => step.field(&self.path),
            MessageReading::Whole => {
                assert!(step.is_split() && step.contents().message.is_none());
                assert!(step.make_whole() == step.message().is_some());
                step.field(&self.path)
            }
        };
        let text = match value {
            Ok(Some(Value::String(text))) => text.to_owned(),
            other => format!("{other:?}"),
        };
        self.seen.lock().unwrap().push(text);
        // Whatever it made of an error.
        Verdict::Pass
    }
}

impl Policy for ReadingFilter {
    fn prepare(&self, datapath_context: &DatapathContext) -> Result<Start, AttachError> {
        let parts = FilterEngineParts {
            kind: "reader",
            version: 1,
            datapath_context: datapath_context.clone(),
            filter: self.clone(),
        };
        Ok(Box::new(|saved| Ok(Box::new(FilterEngine::start(parts, saved)?))))
    }
}

#[test]
fn a_field_is_read_by_its_path_and_what_goes_on_is_what_came() {
    let service = Service::from_source(PROTO);
    for reading in [
        MessageReading::Nothing,
        MessageReading::Field,
        MessageReading::Whole,
    ] {
        let reader = ReadingFilter::of(&service, reading);
        let mut rig = Rig::new(service.datapath_context(Side::Client), &reader);
        let request = with_metadata(service.request(1, 0, &[]), &[("x-user", "ann")]);
        rig.send(with_protobuf(request, UNUSUAL));
        rig.receive(with_protobuf(service.response(1, 0, &[]), UNUSUAL));
        rig.poll();
        let (sent, received) = (rig.to_wire(), rig.to_app());
        assert_eq!(protobuf_of(&sent[0]), Some(UNUSUAL), "{reading:?}");
        assert_eq!(protobuf_of(&received[0]), Some(UNUSUAL), "{reading:?}");
        assert_eq!(metadata_of(&sent[0], "x-user").as_deref(), Some("ann"));
        let expected: &[&str] = if reading == MessageReading::Nothing {
            &[]
        } else {
            &["ann"; 2]
        };
        assert_eq!(*reader.seen.lock().unwrap(), expected, "{reading:?}");
    }
}

#[test]
fn what_cannot_be_read_does_not_pass_whatever_the_filter_says() {
    let service = Service::from_source(PROTO);
    for reading in [
        MessageReading::Nothing,
        MessageReading::Field,
        MessageReading::Whole,
    ] {
        let reader = ReadingFilter::of(&service, reading);
        let mut rig = Rig::new(service.datapath_context(Side::Client), &reader);
        rig.send(with_protobuf(service.request(1, 0, &[]), MALFORMED));
        rig.poll();
        if reading == MessageReading::Nothing {
            assert_eq!(protobuf_of(&rig.to_wire()[0]), Some(MALFORMED));
            continue;
        }
        assert!(rig.to_wire().is_empty(), "{reading:?}");
        let told = rig.to_app();
        assert_eq!(end_of(&told[0]), Some(Code::Internal));
        let reason = metadata_of(&told[0], ":message").unwrap();
        assert!(reason.contains("malformed"), "{reason}");
    }
}

#[test]
fn a_message_without_bytes_has_its_defaults() {
    let service = Service::from_source(PROTO);
    for reading in [MessageReading::Field, MessageReading::Whole] {
        let reader = ReadingFilter::of(&service, reading);
        let mut rig = Rig::new(service.datapath_context(Side::Client), &reader);
        let mut request = service.request(1, 0, &[("name", Dynamic::String("gone".into()))]);
        request.body = Body::Empty;
        rig.send(request);
        rig.poll();
        assert_eq!(rig.to_wire().len(), 1);
        assert_eq!(*reader.seen.lock().unwrap(), [""], "{reading:?}");
    }
}

/// The message of a step as it came, compressed.
fn as_it_came(step: &provost_engine::Step) -> Vec<u8> {
    match &step.body {
        Body::Encoded(body) if body.compression.is_some() => body.message().unwrap().to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_compressed_message_is_decompressed_once_for_all_who_read_it_and_goes_on_as_it_came() {
    let service = Service::from_source(PROTO);
    let share = PrivateBytes::of_attachment(&PrivateBytes::of_node());
    for reading in [
        MessageReading::Nothing,
        MessageReading::Field,
        MessageReading::Whole,
    ] {
        let request = with_compressed(service.request(1, 0, &[]), UNUSUAL, 1 << 10, &share);
        let (came, held) = (as_it_came(&request), share.held());
        let reader = ReadingFilter::of(&service, reading);
        let mut rig = Rig::new(service.datapath_context(Side::Client), &reader);
        rig.send(request);
        rig.poll();
        let sent = rig.to_wire().remove(0);
        assert_eq!(as_it_came(&sent), came, "{reading:?}");
        let is_read = reading != MessageReading::Nothing;
        // The next one finds the copy, which counts.
        assert_eq!(protobuf_of(&sent), is_read.then_some(UNUSUAL), "{reading:?}");
        assert_eq!(share.held() > held, is_read, "{reading:?}");
        assert_eq!(reader.seen.lock().unwrap().len(), usize::from(is_read));
        let mut next = Rig::new(service.datapath_context(Side::Client), &reader);
        next.send(sent);
        next.poll();
        assert_eq!(as_it_came(&next.to_wire()[0]), came, "{reading:?}");
        assert!(reader.seen.lock().unwrap().iter().all(|seen| seen == "ann"));
    }
    assert_eq!(share.held(), 0);
}

#[test]
fn a_compressed_message_that_is_too_large_or_damaged_does_not_pass_who_reads_it() {
    let service = Service::from_source(PROTO);
    let share = PrivateBytes::of_attachment(&PrivateBytes::of_node());
    let bomb = || with_compressed(service.request(1, 0, &[]), &[0; 1 << 20], (1 << 20) - 1, &share);
    let damaged = || {
        let mut damaged = bomb();
        if let Body::Encoded(body) = &mut damaged.body {
            body.buffer.bytes[0] ^= 0xff;
        }
        damaged
    };
    for (request, code) in [(bomb(), Code::ResourceExhausted), (damaged(), Code::Internal)] {
        let reader = ReadingFilter::of(&service, MessageReading::Field);
        let mut rig = Rig::new(service.datapath_context(Side::Client), &reader);
        rig.send(request);
        rig.poll();
        assert!(rig.to_wire().is_empty());
        assert_eq!(end_of(&rig.to_app()[0]), Some(code));
    }
    let reader = ReadingFilter::of(&service, MessageReading::Nothing);
    let mut rig = Rig::new(service.datapath_context(Side::Client), &reader);
    rig.send(damaged());
    rig.poll();
    assert_eq!(rig.to_wire().len(), 1, "nobody reads it");
}
