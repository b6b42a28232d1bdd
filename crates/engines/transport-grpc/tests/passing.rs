//! Messages that pass between an app and a server as their sender has compressed them.

mod kit;

use kit::{CHAT, TransportRig, UNARY, begin, block};
use provost_datapath::{Body, CompressedMessages, EncodedBody, MessageCompression, Step};
use provost_grpc::{
    COMPRESSION_REQUEST, EncodingSet, GrpcConfig, GrpcEvent, GrpcMessage, GrpcStatus, MessageEncoding,
    MessageForm, ResponseHead,
};
use provost_transport_grpc::GrpcTransportConfig;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

const GZIP: MessageEncoding = MessageEncoding::Gzip;
/// It is no gzip: whoever looked into it would refuse it.
const SEALED: &[u8] = b"nobody looks into this";

fn passing() -> TransportRig {
    let config = GrpcTransportConfig {
        compressed: CompressedMessages::Passed,
        message_bytes_max: 1_000,
        ..GrpcTransportConfig::default()
    };
    TransportRig::with(config, GrpcConfig::default())
}

/// A step that begins a call whose app compresses by gzip, with a message that it has compressed.
fn request(id: u64, method: u16, parts: Parts, message: &[u8]) -> Step {
    let asked = block(&[(COMPRESSION_REQUEST, b"gzip")]);
    compressed(begin(id, method, parts | Parts::MESSAGE, &asked, Some(message)))
}

fn compressed(step: Step) -> Step {
    match step.body {
        Body::Encoded(body) => Step {
            body: Body::Encoded(EncodedBody {
                compression: MessageCompression::new(GZIP, 1_000),
                ..body
            }),
            ..step
        },
        other => panic!("{other:?}"),
    }
}

/// Messages of a call that have come to the server.
fn came(rig: &TransportRig, of: u32) -> Vec<GrpcMessage> {
    let messages = rig.server.events.iter().filter_map(|event| match event {
        GrpcEvent::Message { call, message } if *call == of => Some(message.clone()),
        _ => None,
    });
    messages.collect()
}

#[test]
fn requests_pass_in_the_form_in_which_they_came() {
    let mut rig = passing();
    rig.push(request(1, CHAT, Parts::NONE, SEALED));
    let mut plain = Step::new(1, Parts::MESSAGE);
    plain.body = kit::body(&[], b"plain");
    rig.push(plain);
    rig.run();
    let (call, head) = rig.server.request();
    assert_eq!(head.encoding, GZIP);
    let messages = came(&rig, call);
    assert_eq!(
        (messages[0].form, &messages[0].bytes[..]),
        (MessageForm::Compressed, SEALED)
    );
    assert_eq!(
        (messages[1].form, &messages[1].bytes[..]),
        (MessageForm::Plain, &b"plain"[..])
    );
}

#[test]
fn a_server_that_does_not_take_the_encoding_gets_them_plain_within_bounds() {
    let mut rig = passing();
    rig.call(1, UNARY, b"x");
    rig.run();
    let (call, _) = rig.server.request();
    let head = ResponseHead {
        accepts: EncodingSet::read(b"zstd"),
        ..ResponseHead::default()
    };
    rig.server.grpc.respond(call, &head, rig.now).unwrap();
    rig.run();
    for (id, message, code) in [
        (2, GZIP.compress(&[7; 1_000]), None),
        (3, GZIP.compress(&[7; 1_001]), Some(Code::ResourceExhausted)),
        (4, SEALED.to_vec(), Some(Code::Internal)),
    ] {
        rig.push(request(id, UNARY, Parts::END, &message));
        rig.run();
        if code.is_some() {
            assert_eq!(rig.told().pop().map(|told| told.status), code, "call {id}");
            continue;
        }
        let (call, head) = rig.server.request();
        assert_eq!(head.encoding, MessageEncoding::Identity);
        let messages = came(&rig, call);
        assert_eq!(
            (messages[0].form, messages[0].bytes.len()),
            (MessageForm::Plain, 1_000)
        );
    }
}

/// Has the server answer a call with a head of gzip and these messages.
fn answer(rig: &mut TransportRig, messages: &[(MessageForm, &[u8])]) {
    let (call, _) = rig.server.request();
    let head = ResponseHead {
        encoding: GZIP,
        ..ResponseHead::default()
    };
    rig.server.grpc.respond(call, &head, rig.now).unwrap();
    for (form, bytes) in messages {
        let sent = rig
            .server
            .grpc
            .send_message(call, *form, (*bytes).into(), rig.now);
        sent.map_err(|(fault, _)| fault).unwrap();
    }
    rig.server
        .grpc
        .finish(call, &GrpcStatus::ok(), &[], rig.now)
        .unwrap();
    rig.run();
}

#[test]
fn responses_pass_in_the_form_in_which_they_came() {
    let mut rig = passing();
    rig.call(1, CHAT, b"x");
    rig.run();
    answer(
        &mut rig,
        &[(MessageForm::Compressed, SEALED), (MessageForm::Plain, b"plain")],
    );
    let steps: Vec<Step> = std::iter::from_fn(|| rig.rx.pop()).collect();
    let messages: Vec<_> = steps
        .iter()
        .filter_map(|step| match &step.body {
            Body::Encoded(body) if step.parts.contains(Parts::MESSAGE) => Some(body),
            _ => None,
        })
        .collect();
    assert_eq!(
        (messages[0].encoding(), messages[0].message()),
        (GZIP, Some(SEALED))
    );
    assert_eq!(
        (messages[1].encoding(), messages[1].message()),
        (MessageEncoding::Identity, Some(&b"plain"[..]))
    );
    assert_eq!(steps.last().map(|step| step.status), Some(Code::Ok));
}

#[test]
fn a_successor_goes_on_with_what_is_compressed() {
    let mut rig = passing();
    rig.server.reads = false;
    rig.push(request(1, CHAT, Parts::NONE, SEALED));
    rig.run();
    rig.restart();
    rig.server.reads = true;
    rig.push(compressed({
        let mut more = Step::new(1, Parts::MESSAGE);
        more.body = kit::body(&[], b"more");
        more
    }));
    rig.run();
    let (call, _) = rig.server.request();
    let messages = came(&rig, call);
    let forms: Vec<_> = messages
        .iter()
        .map(|message| (message.form, &message.bytes[..]))
        .collect();
    assert_eq!(
        forms,
        [
            (MessageForm::Compressed, SEALED),
            (MessageForm::Compressed, &b"more"[..])
        ]
    );
}

#[test]
fn messages_that_wait_count_in_the_share_that_a_successor_is_given() {
    const MESSAGE_BYTES: usize = 300_000;
    let config = GrpcTransportConfig::default();
    let mut rig = TransportRig::with(config, GrpcConfig::default());
    rig.server.reads = false;
    for id in 1..=4 {
        rig.push(begin(id, CHAT, Parts::MESSAGE, &[], Some(&[5; MESSAGE_BYTES])));
    }
    rig.run();
    assert_eq!(rig.share.held(), 0);
    rig.restart();
    // Each is there twice: on its way to the server, without what its window has taken, and to be sent again if that has not begun its call.
    let held = rig.share.held();
    assert!(held >= 6 * MESSAGE_BYTES as u64, "{held} bytes are counted");
    rig.server.reads = true;
    rig.run();
    for _ in 1..=4 {
        let (call, _) = rig.server.request();
        rig.server.answer(call, b"", rig.now);
    }
    rig.run();
    rig.told();
    assert_eq!(rig.share.held(), 0, "they have left, or their calls have ended");
}
