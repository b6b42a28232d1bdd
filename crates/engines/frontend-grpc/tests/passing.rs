//! Messages that pass a port as their sender has compressed them.

mod kit;

use kit::{CHAT, NodeConnection, PortRig, UNARY, note};
use provost_datapath::{Body, CompressedMessages, MessageCompression, Step};
use provost_grpc::{
    COMPRESSION_REQUEST, EncodingSet, MessageEncoding, MessageForm, RequestHead, ask_compression,
};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_MESSAGE_COST_BYTES;
use provost_wire::metadata;

const GZIP: MessageEncoding = MessageEncoding::Gzip;
/// It is no gzip: whoever looked into it would refuse it.
const SEALED: &[u8] = b"nobody looks into this";

/// A port whose connection takes compressed messages.
fn passing() -> PortRig {
    let mut rig = PortRig::new();
    rig.compressed = CompressedMessages::Passed;
    rig.with_its_service()
}

/// Begins a call of a client that compresses by gzip, and takes these encodings.
fn begun(rig: &mut PortRig, path: &str, accepts: &str) -> u32 {
    rig.begin(RequestHead {
        encoding: GZIP,
        accepts: EncodingSet::read(accepts.as_bytes()),
        ..RequestHead::new(path)
    })
}

fn send(rig: &mut PortRig, call: u32, form: MessageForm, bytes: &[u8]) {
    let sent = rig.client.send_message(call, form, bytes.into(), rig.now);
    sent.map_err(|(fault, _)| fault).unwrap();
}

/// How the message of a step is compressed, and its bytes.
fn message(step: &Step) -> (MessageEncoding, Vec<u8>) {
    match &step.body {
        Body::Encoded(body) => (body.encoding(), body.message().unwrap().to_vec()),
        other => panic!("{other:?}"),
    }
}

/// A reply that its server has compressed by an encoding.
fn compressed(call: u64, parts: Parts, encoding: MessageEncoding, bytes: &[u8]) -> Step {
    let mut reply = PortRig::encoded_reply(call, parts, &[], bytes);
    if let Body::Encoded(body) = &mut reply.body {
        body.compression = MessageCompression::new(encoding, 5_000);
    }
    reply
}

/// The head of a response whose server compresses by gzip.
fn head(call: u64) -> Step {
    let mut block = Vec::new();
    ask_compression(&mut block, GZIP);
    PortRig::encoded_reply(call, Parts::HEADERS, &block, b"")
}

#[test]
fn requests_pass_in_the_form_in_which_they_came() {
    let mut rig = passing();
    let call = begun(&mut rig, CHAT, "");
    for (form, bytes) in [(MessageForm::Compressed, SEALED), (MessageForm::Plain, b"plain")] {
        send(&mut rig, call, form, bytes);
    }
    rig.exchange();
    let first = rig.take().unwrap();
    assert_eq!(message(&first), (GZIP, SEALED.to_vec()));
    let Body::Encoded(body) = &first.body else {
        panic!("{first:?}");
    };
    let asked = metadata::find(body.metadata(), COMPRESSION_REQUEST).unwrap();
    assert_eq!(
        &body.metadata()[asked],
        b"gzip",
        "the server's end has the head by that"
    );
    assert_eq!(
        first.window_bytes,
        SEALED.len() as u32 + STREAM_MESSAGE_COST_BYTES
    );
    // What may grow counts however small it is.
    assert!(rig.share.held() >= SEALED.len() as u64);
    let second = rig.take().unwrap();
    assert_eq!(message(&second), (MessageEncoding::Identity, b"plain".to_vec()));
    drop(first);
    assert_eq!(rig.share.held(), 0);
}

/// What the peer takes of a message is less than what the listener does, and a message that passes is not longer than that in the form
/// in which it passes.
#[test]
fn messages_that_pass_are_within_the_bound_of_their_connection() {
    const BYTES_MAX: u32 = 1_000;
    for form in [MessageForm::Plain, MessageForm::Compressed] {
        for path in [UNARY, CHAT] {
            let mut rig = PortRig::new();
            rig.compressed = CompressedMessages::Passed;
            rig.message_bytes_max = BYTES_MAX;
            let mut rig = rig.with_its_service();
            let calls = [BYTES_MAX, BYTES_MAX + 1].map(|bytes| {
                let call = begun(&mut rig, path, "");
                send(&mut rig, call, form, &vec![7; bytes as usize]);
                rig.client.half_close(call, rig.now).unwrap();
                rig.exchange();
                call
            });
            let step = rig.take().unwrap();
            assert_eq!(message(&step).1.len(), BYTES_MAX as usize, "{form:?} {path}");
            assert!(rig.take().is_none(), "{form:?} {path}");
            let (status, _) = rig.ended(calls[1]);
            assert_eq!(status.code, Code::ResourceExhausted, "{form:?} {path}");
            assert!(status.message.contains("limit of 1000"), "{status:?}");
        }
    }
}

#[test]
fn replies_pass_in_the_form_in_which_they_came() {
    let mut rig = passing();
    let call = begun(&mut rig, CHAT, "gzip");
    rig.exchange();
    let number = rig.take().unwrap().call;
    rig.push(head(number));
    rig.push(compressed(number, Parts::MESSAGE, GZIP, SEALED));
    rig.push(PortRig::encoded_reply(
        number,
        Parts::MESSAGE,
        &[],
        &note(&"long".repeat(1_000)),
    ));
    let (encoding, messages) = rig.response(call);
    assert_eq!(encoding, GZIP);
    assert_eq!(
        (messages[0].form, &messages[0].bytes[..]),
        (MessageForm::Compressed, SEALED)
    );
    assert_eq!(
        messages[1].form,
        MessageForm::Plain,
        "its server has not compressed it"
    );
}

#[test]
fn a_client_that_does_not_take_the_encoding_gets_them_plain_within_bounds() {
    let sent = note("told");
    for (bytes, code) in [
        (GZIP.compress(&sent), Code::Ok),
        (GZIP.compress(&[0; 5_001]), Code::ResourceExhausted),
        (SEALED.to_vec(), Code::Internal),
    ] {
        let mut rig = passing();
        let call = begun(&mut rig, UNARY, "zstd");
        send(&mut rig, call, MessageForm::Plain, &note("ask"));
        rig.client.half_close(call, rig.now).unwrap();
        rig.exchange();
        let number = rig.take().unwrap().call;
        rig.push(head(number));
        rig.push(compressed(number, Parts::MESSAGE | Parts::STATUS, GZIP, &bytes));
        assert_eq!(rig.ended(call).0.code, code);
        let (encoding, messages) = rig.response(call);
        assert_eq!(encoding, MessageEncoding::Identity);
        if code == Code::Ok {
            assert_eq!(
                (messages[0].form, &messages[0].bytes),
                (MessageForm::Plain, &sent)
            );
        }
    }
}

#[test]
fn a_successor_passes_what_waits_as_it_came() {
    let mut rig = passing();
    let call = begun(&mut rig, CHAT, "gzip");
    rig.exchange();
    let number = rig.take().unwrap().call;
    // The first reply has no room in the windows, the next ones none in the queue of the stream.
    let large = "x".repeat(300_000).into_bytes();
    rig.to_client.lock().unwrap().is_stopped = true;
    rig.push(head(number));
    rig.push(compressed(number, Parts::MESSAGE, GZIP, &large));
    rig.push(compressed(number, Parts::MESSAGE, GZIP, SEALED));
    rig.push(PortRig::encoded_reply(
        number,
        Parts::MESSAGE,
        &[],
        &note("plain"),
    ));
    rig.replace(NodeConnection::Carried);
    rig.push(compressed(number, Parts::MESSAGE, GZIP, b"later"));
    rig.to_client.lock().unwrap().is_stopped = false;
    let (encoding, messages) = rig.response(call);
    let forms: Vec<MessageForm> = messages.iter().map(|message| message.form).collect();
    use MessageForm::{Compressed, Plain};
    assert_eq!(
        (encoding, forms),
        (GZIP, vec![Compressed, Compressed, Plain, Compressed])
    );
    assert_eq!(messages[0].bytes, large);
    assert_eq!(messages[1].bytes, SEALED);
    assert_eq!(messages[3].bytes, b"later");
}
