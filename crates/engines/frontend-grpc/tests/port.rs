//! A port between a client's protocol and a datapath that the test plays, all in memory.

mod kit;

use std::sync::Arc;

use kit::{CHAT, CONNECTION, MESSAGE_BYTES_MAX, PortRig, UNARY, note};
use provost_datapath::{Body, NODE_PRIVATE_BYTES_MAX, Step};
use provost_frontend_grpc::{NodeMethods, ServiceRefusal};
use provost_grpc::{
    COMPRESSION_REQUEST, CallFault, EncodingSet, EndCause, GrpcEvent, GrpcMessage, GrpcStatus,
    MessageEncoding, MessageForm, RequestHead,
};
use provost_http2::SendError;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_WINDOW_BYTES;
use provost_wire::metadata;

fn block(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (key, value) in entries {
        metadata::append(&mut block, key, value).unwrap();
    }
    block
}

#[test]
fn a_unary_call_is_one_step_and_one_reply() {
    let mut rig = PortRig::bound();
    let sent = block(&[("color", b"blue"), ("raw-bin", &[0, 255])]);
    let call = rig.begin(RequestHead {
        metadata: sent.clone(),
        timeout_ns: Some(5_000_000_000),
        ..RequestHead::new(UNARY)
    });
    rig.send(call, &note("hello"));
    rig.exchange();
    assert!(rig.take().is_none(), "it has not ended its request");
    rig.client.half_close(call, 1).unwrap();
    rig.exchange();
    let step = rig.take().unwrap();
    assert_eq!(step.parts, Parts::BEGIN | Parts::MESSAGE | Parts::END);
    assert_eq!((step.method, step.deadline), (0, 5_000_000_001));
    assert_eq!(rig.read(&step), (sent, Some(note("hello"))));

    let head = block(&[("shape", b"round")]);
    let step_head = rig.reply(step.call, Parts::HEADERS, &head, None);
    rig.push(step_head);
    let trailers = block(&[("size", b"3"), (metadata::STATUS_MESSAGE, b"so")]);
    let mut last = rig.reply(
        step.call,
        Parts::MESSAGE | Parts::STATUS,
        &trailers,
        Some(&note("back")),
    );
    last.status = Code::DataLoss;
    rig.push(last);
    let (status, metadata) = rig.ended(call);
    assert_eq!(status, GrpcStatus::new(Code::DataLoss, "so"));
    assert_eq!(metadata, block(&[("size", b"3")]));
    assert_eq!(rig.messages(), [note("back")]);
    let got_head = rig
        .events
        .iter()
        .any(|event| matches!(event, GrpcEvent::Response { head: got, .. } if got.metadata == head));
    assert!(got_head, "{:?}", rig.events);
    // The datapath has ended it: there is nothing to tell it, and nothing is left.
    assert!(rig.take().is_none());
    assert_eq!((rig.port.open_calls(), rig.port.receive_heap_bytes()), (0, 0));
}

#[test]
fn calls_are_numbered_as_they_begin() {
    let mut rig = PortRig::bound();
    // The share of private memory is used up for large messages, for a while.
    let taken = rig.share.charge(rig.share.message_bytes_now());
    let large = rig.call(UNARY, &note(&"x".repeat(100_000)));
    let small = rig.call(UNARY, &note("small"));
    let first = rig.take().unwrap();
    assert_eq!(rig.read(&first).1, Some(note("small")));
    assert!(rig.take().is_none());
    drop(taken);
    let second = rig.take().unwrap();
    assert!(second.call > first.call, "{} after {}", second.call, first.call);
    for (step, call) in [(first, small), (second, large)] {
        let reply = rig.reply(
            step.call,
            Parts::MESSAGE | Parts::STATUS,
            &[],
            Some(&note("back")),
        );
        rig.push(reply);
        assert_eq!(rig.ended(call).0.code, Code::Ok);
    }
}

#[test]
fn calls_that_have_not_begun_go_to_another_connection_when_theirs_goes() {
    let mut rig = PortRig::bound();
    let begun = rig.call(UNARY, &note("begun"));
    rig.take().unwrap();
    let waiting = rig.call(UNARY, &note("waiting"));
    rig.wanted.clear();
    rig.port.closed(CONNECTION, Code::Unavailable);
    assert_eq!(rig.ended(begun).0.code, Code::Unavailable);
    assert_eq!(rig.wanted, ["test.Notes"]);
    rig.bind();
    let step = rig.take().unwrap();
    assert_eq!((rig.read(&step).1, step.call), (Some(note("waiting")), 1));
    let reply = rig.reply(
        step.call,
        Parts::MESSAGE | Parts::STATUS,
        &[],
        Some(&note("back")),
    );
    rig.push(reply);
    assert_eq!(rig.ended(waiting).0.code, Code::Ok);
}

#[test]
fn streams_are_passed_message_by_message() {
    let mut rig = PortRig::bound();
    let call = rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let begin = rig.take().unwrap();
    assert_eq!((begin.parts, begin.method), (Parts::BEGIN, 1));
    let mut texts = Vec::new();
    for text in ["one", "two", "three"] {
        rig.send(call, &note(text));
        rig.exchange();
        let step = rig.take().unwrap();
        assert_eq!(step.parts, Parts::MESSAGE);
        texts.push(rig.read(&step).1.unwrap());
        let back = rig.reply(begin.call, Parts::MESSAGE, &[], Some(&note(text)));
        let cost = back.window_bytes;
        rig.push(back);
        rig.exchange();
        // What the client was sent is given back.
        let window = rig.take().unwrap();
        assert_eq!((window.parts, window.window_bytes), (Parts::WINDOW, cost));
    }
    assert_eq!(texts, rig.messages());
    rig.client.half_close(call, 1).unwrap();
    rig.exchange();
    assert_eq!(rig.take().unwrap().parts, Parts::END);
    let end = Step::new(begin.call, Parts::STATUS);
    rig.push(end);
    assert_eq!(rig.ended(call).0, GrpcStatus::ok());
}

#[test]
fn calls_wait_for_their_service_and_are_refused_by_name() {
    let mut rig = PortRig::new();
    let first = rig.call(UNARY, &note("a"));
    let second = rig.call(UNARY, &note("b"));
    let other = rig.call("/test.Other/Call", b"");
    assert_eq!(rig.wanted, ["test.Notes", "test.Other"]);
    assert!(rig.take().is_none());
    let refusal = ServiceRefusal {
        code: Code::Unimplemented,
        message: "nobody offers test.Other".into(),
    };
    rig.port
        .answer_service("test.Other", Err(refusal.clone()), rig.now);
    assert_eq!(
        rig.ended(other).0,
        GrpcStatus::new(Code::Unimplemented, &*refusal.message)
    );
    rig.bind();
    let numbers: Vec<u64> = std::iter::from_fn(|| rig.take()).map(|step| step.call).collect();
    assert_eq!(numbers, [1, 2]);
    for number in numbers {
        rig.push(Step::new(number, Parts::STATUS));
    }
    assert_eq!(rig.ended(first).0, rig.ended(second).0);

    // For a while, nobody is asked again.
    let again = rig.call("/test.Other/Call", b"");
    assert_eq!(
        (rig.ended(again).0.code, rig.wanted.len()),
        (Code::Unimplemented, 2)
    );
    rig.now += 2_000_000_000;
    rig.call("/test.Other/Call", b"");
    assert_eq!(rig.wanted.len(), 3);

    let missing = rig.call("/test.Notes/Missing", b"");
    let status = rig.ended(missing).0;
    assert_eq!(status.code, Code::Unimplemented);
    assert!(
        status.message.contains("test.Notes has no method Missing"),
        "{status:?}"
    );
    let pathless = rig.call("/nothing", b"");
    assert_eq!(rig.ended(pathless).0.code, Code::Unimplemented);
}

#[test]
fn the_control_plane_is_asked_for_each_method_of_an_opaque_service() {
    const LATER: u32 = CONNECTION + 1;
    let mut rig = PortRig::new();
    let first = rig.call(UNARY, &note("a"));
    rig.bind_opaque(CONNECTION, &["Unary"]);
    let step = rig.take().unwrap();
    let chat = rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    assert_eq!(rig.wanted, ["test.Notes", "test.Notes"]);
    // What is known can be called meanwhile.
    let meanwhile = rig.call(UNARY, &note("b"));
    let meanwhile_step = rig.take().unwrap();
    assert_eq!(meanwhile_step.call, 2);
    assert_eq!(rig.wanted.len(), 2);

    rig.bind_opaque(LATER, &["Chat", "Unary"]);
    let begun = rig.port.next_request(&mut rig.buffers).unwrap();
    assert_eq!(
        (begun.connection, begun.step.method, begun.step.call),
        (LATER, 1, 1)
    );
    // The connection before is left, and its calls end there.
    rig.port.going_away(CONNECTION);
    for step in [step.call, meanwhile_step.call] {
        rig.push(Step::new(step, Parts::STATUS));
    }
    assert_eq!(rig.ended(first).0, GrpcStatus::ok());
    assert_eq!(rig.ended(meanwhile).0, GrpcStatus::ok());
    rig.client.cancel(chat, Code::Cancelled, 1).unwrap();
    rig.exchange();
    rig.port.next_request(&mut rig.buffers).unwrap();

    // A refusal is of the method alone.
    let missing = rig.call("/test.Notes/Missing", b"");
    assert_eq!(rig.wanted.len(), 3);
    let refusal = ServiceRefusal {
        code: Code::Unimplemented,
        message: "there is none".into(),
    };
    rig.port.answer_service("test.Notes", Err(refusal), rig.now);
    assert_eq!(rig.ended(missing).0.code, Code::Unimplemented);
    rig.call(UNARY, &note("c"));
    assert_eq!(rig.wanted.len(), 3);
    assert_eq!(rig.port.next_request(&mut rig.buffers).unwrap().connection, LATER);
}

/// What cannot be a method is refused here: the control plane's refusal would be that of other calls of the service.
#[test]
fn a_name_that_no_method_has_is_not_asked_for() {
    let mut rig = PortRig::new();
    let wrong = rig.call("/test.Notes/!bad", b"");
    assert_eq!(rig.ended(wrong).0.code, Code::Unimplemented);
    assert!(rig.wanted.is_empty());
    rig.call(UNARY, &note("a"));
    rig.bind_opaque(CONNECTION, &["Unary"]);
    assert!(rig.take().unwrap().parts.contains(Parts::BEGIN));
}

/// A frame of DATA with a whole message, or a part of one.
fn data(stream: u32, is_end: bool, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u32).to_be_bytes();
    let head = [&length[1..], &[0, u8::from(is_end)], &stream.to_be_bytes()].concat();
    [&head[..], content].concat()
}

/// What waits because other steps go first is told without another byte of the client.
#[test]
fn events_that_wait_for_steps_to_be_taken_are_told_after() {
    let mut rig = PortRig::bound();
    let chat = rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let number = rig.take().unwrap().call;
    // Cancellations, and calls that are to begin: one step more, and nothing is read.
    let begun: Vec<u32> = (0..600).map(|_| rig.call(UNARY, &note("a"))).collect();
    assert_eq!(std::iter::from_fn(|| rig.take()).count(), begun.len());
    for call in &begun {
        rig.client.cancel(*call, Code::Cancelled, rig.now).unwrap();
    }
    for _ in begun.len()..1_023 {
        rig.call(UNARY, &note("a"));
    }
    let text = note("a");
    let prefix = provost_grpc::message_prefix(MessageForm::Plain, text.len() as u32);
    let frame = data(chat, true, &[&prefix[..], &text].concat());
    rig.from_client.lock().unwrap().bytes.extend(&frame);
    rig.port.note_ready();
    rig.port.poll(rig.now);
    let of_chat = |rig: &mut PortRig| {
        let steps: Vec<Step> = std::iter::from_fn(|| rig.take()).collect();
        let of_chat = steps.iter().filter(|step| step.call == number);
        of_chat.map(|step| step.parts).collect::<Vec<Parts>>()
    };
    assert_eq!(of_chat(&mut rig), [Parts::MESSAGE]);
    assert!(!rig.port.is_idle());
    rig.port.poll(rig.now);
    assert_eq!(of_chat(&mut rig), [Parts::END]);
    assert!(rig.port.is_idle());
}

/// What clients have sent of messages counts, and where others have taken all memory a connection keeps its floor of it.
#[test]
fn messages_in_part_count_in_what_the_node_has() {
    const CALLS: u32 = 20;
    let mut rig = PortRig::bound();
    let node = Arc::clone(rig.share.around());
    let part = |rig: &mut PortRig, call: u32| {
        let prefix = provost_grpc::message_prefix(MessageForm::Plain, MESSAGE_BYTES_MAX);
        for content in [&prefix[..]].into_iter().chain([&[0; 16_000][..]; 10]) {
            let frame = data(call, false, content);
            rig.from_client.lock().unwrap().bytes.extend(&frame);
        }
        rig.exchange();
    };
    let calls: Vec<u32> = (0..CALLS).map(|_| rig.begin(RequestHead::new(CHAT))).collect();
    rig.exchange();
    for call in &calls[..10] {
        part(&mut rig, *call);
    }
    assert!(node.held().abs_diff(1_600_000) <= 64 << 10, "{}", node.held());
    assert!(
        rig.events
            .iter()
            .all(|event| !matches!(event, GrpcEvent::Ended { .. }))
    );
    for call in &calls {
        let _ = rig.client.cancel(*call, Code::Cancelled, 1);
    }
    rig.exchange();
    assert_eq!(node.held(), 0);

    let others = node.charge(NODE_PRIVATE_BYTES_MAX);
    let calls: Vec<u32> = (0..CALLS).map(|_| rig.begin(RequestHead::new(CHAT))).collect();
    rig.exchange();
    rig.events.clear();
    for call in &calls {
        part(&mut rig, *call);
    }
    let held = node.held() - NODE_PRIVATE_BYTES_MAX;
    assert!((900_000..1_200_000).contains(&held), "{held}");
    let is_refused = |event: &&GrpcEvent| matches!(event, GrpcEvent::Ended { status, .. } if status.code == Code::ResourceExhausted);
    assert!(rig.events.iter().filter(is_refused).count() > 10);
    drop(others);
}

#[test]
fn services_of_a_connection_are_bounded() {
    let mut rig = PortRig::new();
    for number in 0..300 {
        let call = rig.call(&format!("/test.S{number}/Call"), b"");
        let refused = number >= 256;
        let is_told = |event: &GrpcEvent| matches!(event, GrpcEvent::Ended { call: of, status, .. } if *of == call && status.code == Code::ResourceExhausted);
        assert_eq!(rig.events.iter().any(is_told), refused, "{number}");
    }
    assert_eq!(rig.wanted.len(), 256);
}

#[test]
fn cancellations_and_deadlines_reach_the_datapath() {
    let mut rig = PortRig::bound();
    let cancelled = rig.call(UNARY, &note("a"));
    let number = rig.take().unwrap().call;
    rig.client.cancel(cancelled, Code::Cancelled, 1).unwrap();
    rig.exchange();
    let step = rig.take().unwrap();
    assert_eq!(
        (step.call, step.parts, step.status),
        (number, Parts::CANCEL, Code::Cancelled)
    );
    // What comes for it goes nowhere.
    let late = rig.reply(number, Parts::MESSAGE | Parts::STATUS, &[], Some(&note("late")));
    rig.push(late);
    assert_eq!(rig.port.receive_heap_bytes(), 0);

    let late = rig.begin(RequestHead {
        timeout_ns: Some(1_000),
        ..RequestHead::new(UNARY)
    });
    rig.send(late, &note("b"));
    rig.client.half_close(late, 1).unwrap();
    rig.exchange();
    let number = rig.take().unwrap().call;
    assert_eq!(rig.port.wake_at().map(|at| at <= rig.now + 1_000), Some(true));
    rig.now += 2_000;
    rig.port.poll(rig.now);
    let step = rig.take().unwrap();
    assert_eq!(
        (step.call, step.parts, step.status),
        (number, Parts::CANCEL, Code::DeadlineExceeded)
    );

    // One that its datapath has not heard of is just forgotten.
    let waiting = rig.begin(RequestHead::new(UNARY));
    rig.exchange();
    rig.client.cancel(waiting, Code::Cancelled, rig.now).unwrap();
    rig.exchange();
    assert!(rig.take().is_none());
    assert_eq!(rig.port.open_calls(), 0);
}

#[test]
fn requests_that_are_malformed_fail_alone() {
    let mut rig = PortRig::bound();
    let none = rig.begin(RequestHead::new(UNARY));
    rig.client.half_close(none, 1).unwrap();
    rig.exchange();
    assert!(rig.take().is_none());
    assert_eq!(rig.ended(none).0.code, Code::Unimplemented);

    let two = rig.begin(RequestHead::new(UNARY));
    rig.send(two, &note("a"));
    rig.send(two, &note("b"));
    rig.exchange();
    assert!(rig.take().is_none());
    assert_eq!(rig.ended(two).0.code, Code::Unimplemented);

    let long = rig.call(UNARY, &note(&"x".repeat(MESSAGE_BYTES_MAX as usize)));
    assert_eq!(rig.ended(long).0.code, Code::ResourceExhausted);
    let good = rig.call(UNARY, &note("good"));
    let number = rig.take().unwrap().call;
    rig.push(Step::new(number, Parts::STATUS));
    assert_eq!(rig.ended(good).0, GrpcStatus::ok());
}

#[test]
fn compressed_requests_are_decompressed_within_the_bound() {
    let mut rig = PortRig::bound();
    for (length, code) in [
        (1_000, Code::Ok),
        (MESSAGE_BYTES_MAX as usize + 1, Code::ResourceExhausted),
    ] {
        let message = note(&"x".repeat(length));
        let encoding = MessageEncoding::Gzip;
        let call = rig.begin(RequestHead {
            encoding,
            ..RequestHead::new(UNARY)
        });
        let compressed = encoding.compress(&message);
        assert!(compressed.len() < 2_000);
        let sent = rig
            .client
            .send_message(call, MessageForm::Compressed, compressed.into(), 1);
        sent.map_err(|(fault, _)| fault).unwrap();
        rig.client.half_close(call, 1).unwrap();
        rig.exchange();
        if let Some(step) = rig.take() {
            assert_eq!(rig.read(&step).1, Some(message));
            rig.push(Step::new(step.call, Parts::STATUS));
        }
        assert_eq!(rig.ended(call).0.code, code);
    }
}

/// Metadata by which a message is asked to be compressed.
fn asking(encoding: MessageEncoding) -> Vec<u8> {
    block(&[(COMPRESSION_REQUEST, encoding.name().as_bytes())])
}

#[test]
fn the_datapath_is_told_how_a_client_compresses() {
    let mut rig = PortRig::bound();
    let encoding = MessageEncoding::Zstd;
    for (form, metadata) in [
        (MessageForm::Compressed, asking(encoding)),
        // The head names the encoding, and the message is plain.
        (MessageForm::Plain, Vec::new()),
    ] {
        let call = rig.begin(RequestHead {
            encoding,
            // What a client claims of it is taken out.
            metadata: asking(MessageEncoding::Gzip),
            ..RequestHead::new(UNARY)
        });
        let plain = note("hello");
        let bytes = match form {
            MessageForm::Plain => plain.clone(),
            MessageForm::Compressed => encoding.compress(&plain),
        };
        let sent = rig.client.send_message(call, form, bytes.into(), 1);
        sent.map_err(|(fault, _)| fault).unwrap();
        rig.client.half_close(call, 1).unwrap();
        rig.exchange();
        let step = rig.take().unwrap();
        assert_eq!(rig.read(&step), (metadata, Some(plain)));
    }
}

/// Replies to a call whose client takes these encodings: with what the server asks, and without.
fn replies(
    rig: &mut PortRig,
    accepts: &str,
    asked: Option<MessageEncoding>,
) -> (MessageEncoding, Vec<GrpcMessage>) {
    let call = rig.begin(RequestHead {
        accepts: EncodingSet::read(accepts.as_bytes()),
        ..RequestHead::new(CHAT)
    });
    rig.exchange();
    let number = rig.take().unwrap().call;
    let head = asked.map(asking).unwrap_or_default();
    let head = rig.reply(number, Parts::HEADERS, &head, None);
    rig.push(head);
    for text in ["short", &"long".repeat(1_000)] {
        let message = rig.reply(number, Parts::MESSAGE, &[], Some(&note(text)));
        rig.push(message);
    }
    rig.push(Step::new(number, Parts::STATUS));
    let response = rig.response(call);
    while rig.take().is_some() {}
    response
}

#[test]
fn replies_are_compressed_as_the_server_asks_or_the_listener_says() {
    use MessageEncoding::{Deflate, Gzip, Identity, Zstd};
    use MessageForm::{Compressed, Plain};
    for (configured, accepts, asked, encoding, forms) in [
        (Identity, "gzip,zstd", None, Identity, [Plain, Plain]),
        (Identity, "gzip,zstd", Some(Zstd), Zstd, [Compressed, Compressed]),
        (Identity, "gzip", Some(Zstd), Identity, [Plain, Plain]),
        // A short message is not worth it, unless somebody asks.
        (Gzip, "gzip,deflate", None, Gzip, [Plain, Compressed]),
        (
            Gzip,
            "gzip,deflate",
            Some(Deflate),
            Deflate,
            [Compressed, Compressed],
        ),
        (Gzip, "gzip,deflate", Some(Identity), Identity, [Plain, Plain]),
        (Gzip, "", None, Identity, [Plain, Plain]),
    ] {
        let rig = PortRig::compressing(configured, NodeMethods::default());
        let mut rig = rig.with_its_service();
        let (named, messages) = replies(&mut rig, accepts, asked);
        let case = (configured, accepts, asked);
        assert_eq!(named, encoding, "{case:?}");
        let came: Vec<MessageForm> = messages.iter().map(|message| message.form).collect();
        assert_eq!(came, forms, "{case:?}");
        let plain = messages
            .into_iter()
            .map(|message| message.into_plain(encoding, 10_000).unwrap());
        let sent = [note("short"), note(&"long".repeat(1_000))];
        assert_eq!(plain.collect::<Vec<_>>(), sent, "{case:?}");
        assert!(rig.events.iter().all(|event| match event {
            GrpcEvent::Response { head, .. } => head.metadata.is_empty(),
            _ => true,
        }));
    }
}

#[test]
fn a_datapath_that_does_not_read_stops_the_client() {
    let mut rig = PortRig::bound();
    let call = rig.begin(RequestHead::new(CHAT));
    let message = note(&"x".repeat(50_000));
    let (mut sent, mut taken, mut number) = (0, 0, 0);
    // Nothing gives the window back.
    for _ in 0..300 {
        let sending = rig
            .client
            .send_message(call, MessageForm::Plain, message.clone().into(), 1);
        sent += usize::from(sending.is_ok());
        rig.exchange();
        while let Some(step) = rig.take() {
            taken += usize::from(step.parts.contains(Parts::MESSAGE));
            number = step.call;
        }
    }
    let in_window = STREAM_WINDOW_BYTES as usize / 50_000;
    assert!(
        (in_window..=in_window + 1).contains(&taken),
        "{taken} messages went on"
    );
    assert!(sent < 60, "{sent} messages left the client");
    // The reader reads on: so does the client.
    let mut window = Step::new(number, Parts::WINDOW);
    window.window_bytes = STREAM_WINDOW_BYTES;
    rig.push(window);
    let more = std::iter::from_fn(|| rig.take()).count();
    assert!(more >= in_window - 1, "{more}");
}

#[test]
fn messages_that_wait_are_bounded_however_small_they_are() {
    let mut rig = PortRig::bound();
    let calls = [(); 3].map(|()| rig.begin(RequestHead::new(CHAT)));
    // The windows of two calls let in more than the connection has room for, beside what they count.
    for _ in 0..150_000 {
        for call in calls {
            let sending = rig
                .client
                .send_message(call, MessageForm::Plain, (*b"").into(), 1);
            if let Err((CallFault::Http2(SendError::QueueFull), _)) = sending {
                rig.exchange();
            }
        }
    }
    rig.exchange();
    let is_refused = |event: &&GrpcEvent| match event {
        GrpcEvent::Ended { status, .. } => {
            assert_eq!(status.code, Code::ResourceExhausted);
            assert!(status.message.contains("messages that wait"), "{status:?}");
            true
        }
        _ => false,
    };
    let refused = rig.events.iter().filter(is_refused).count();
    assert!((1..3).contains(&refused), "{refused} calls were refused");
    // Those that go on give back what they took.
    for call in calls {
        let _ = rig.client.cancel(call, Code::Cancelled, 1);
    }
    rig.exchange();
    let call = rig.call(UNARY, &note("room again"));
    let taken: Vec<Step> = std::iter::from_fn(|| rig.take()).collect();
    let number = taken.last().unwrap().call;
    rig.push(Step::new(number, Parts::STATUS));
    assert_eq!(rig.ended(call).0, GrpcStatus::ok());
}

#[test]
fn a_client_that_does_not_read_stops_the_datapath() {
    let mut rig = PortRig::bound();
    let call = rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let number = rig.take().unwrap().call;
    rig.to_client.lock().unwrap().is_stopped = true;
    let message = note(&"x".repeat(100_000));
    let (mut pushed, mut given_back) = (0, 0u64);
    let refused = loop {
        let step = rig.reply(number, Parts::MESSAGE, &[], Some(&message));
        if let Err(step) = rig.port.push_step(CONNECTION, step) {
            break step;
        }
        rig.exchange();
        given_back += rig.take().map_or(0, |step| u64::from(step.window_bytes));
        pushed += 1;
        assert!(pushed < 10_000, "the datapath is never stopped");
    };
    // An honest server stops long before that: its stream's window is not given back.
    assert!(given_back < 1 << 20, "{given_back}");
    assert!(rig.share.held() < (128 << 20) + (1 << 20), "{}", rig.share.held());
    assert!(rig.port.blocked_since().is_some());
    rig.to_client.lock().unwrap().is_stopped = false;
    rig.exchange();
    rig.push(refused);
    rig.push(Step::new(number, Parts::STATUS));
    assert_eq!(rig.ended(call).0, GrpcStatus::ok());
    assert_eq!(rig.messages().len(), pushed + 1);
    assert_eq!((rig.share.held(), rig.port.receive_heap_bytes()), (0, 0));
    assert!(rig.port.blocked_since().is_none());
}

#[test]
fn replies_count_until_the_socket_has_taken_them() {
    let mut rig = PortRig::bound();
    rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let number = rig.take().unwrap().call;
    rig.to_client.lock().unwrap().is_stopped = true;
    let reply = rig.reply(number, Parts::MESSAGE, &[], Some(&note(&"x".repeat(100_000))));
    rig.push(reply);
    rig.exchange();
    // It is in the queue of its stream.
    assert!(rig.share.held() >= 100_000, "{}", rig.share.held());
    rig.to_client.lock().unwrap().is_stopped = false;
    rig.exchange();
    assert_eq!((rig.messages().len(), rig.share.held()), (1, 0));
}

#[test]
fn replies_count_however_small_they_are() {
    const REPLIES: usize = 5_000;
    let mut rig = PortRig::bound();
    rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let number = rig.take().unwrap().call;
    rig.to_client.lock().unwrap().is_stopped = true;
    for _ in 0..REPLIES {
        let reply = rig.reply(number, Parts::MESSAGE, &[], Some(b""));
        rig.push(reply);
    }
    // Each takes an allocation and its places in queues.
    assert!(rig.share.held() >= 100 * REPLIES as u64, "{}", rig.share.held());
    // Others use the rest of the share.
    let others = rig.share.charge(128 << 20);
    let reply = rig.reply(number, Parts::MESSAGE, &[], Some(b""));
    let refused = rig.port.push_step(CONNECTION, reply).unwrap_err();
    assert!(rig.port.blocked_since().is_some());
    drop(others);
    rig.push(refused);
    rig.to_client.lock().unwrap().is_stopped = false;
    rig.exchange();
    assert_eq!((rig.messages().len(), rig.share.held()), (REPLIES + 1, 0));
}

#[test]
fn a_port_waits_until_its_carrier_has_sent_what_it_keeps() {
    let mut rig = PortRig::bound();
    {
        let mut pipe = rig.to_client.lock().unwrap();
        pipe.kept = Some(Vec::new());
        pipe.is_stopped = true;
    }
    rig.port.drain(rig.now);
    rig.exchange();
    assert!(rig.port.interest().is_some_and(|interest| interest.write));
    assert_eq!(rig.port.ended(), None);
    rig.to_client.lock().unwrap().is_stopped = false;
    rig.exchange();
    let is_told = |event: &GrpcEvent| matches!(event, GrpcEvent::Draining);
    assert!(rig.events.iter().any(is_told), "{:?}", rig.events);
    assert!(rig.port.ended().is_some_and(|reason| reason.contains("drained")));
}

#[test]
fn an_end_behind_the_last_bytes_is_seen_though_the_socket_says_nothing_more() {
    let mut rig = PortRig::bound();
    let call = rig.begin(RequestHead::new(UNARY));
    rig.client.half_close(call, rig.now).unwrap();
    rig.client_writes();
    rig.from_client.lock().unwrap().is_closed = true;
    rig.port.note_ready();
    rig.port.poll(rig.now);
    assert!(rig.port.interest().is_none(), "it has ended");
}

#[test]
fn calls_of_a_lost_connection_are_cancelled() {
    let mut rig = PortRig::bound();
    rig.call(UNARY, &note("a"));
    rig.call(UNARY, &note("b"));
    let numbers = [rig.take().unwrap().call, rig.take().unwrap().call];
    rig.call(UNARY, &note("never begun"));
    rig.from_client.lock().unwrap().is_closed = true;
    rig.exchange();
    assert_eq!(rig.port.ended(), None, "cancellations are to be taken first");
    let cancelled = [rig.take().unwrap(), rig.take().unwrap()];
    assert_eq!(
        cancelled.map(|step| (step.call, step.parts)),
        numbers.map(|number| (number, Parts::CANCEL))
    );
    assert!(rig.take().is_none());
    assert!(rig.port.ended().unwrap().contains("closed"));
    assert!(rig.port.interest().is_none());
}

#[test]
fn a_client_that_speaks_no_http2_is_sent_off() {
    let mut rig = PortRig::new();
    rig.from_client
        .lock()
        .unwrap()
        .bytes
        .extend(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    rig.exchange();
    assert!(
        rig.port.ended().unwrap().contains("HTTP/2"),
        "{:?}",
        rig.port.ended()
    );
}

#[test]
fn a_drained_connection_ends_with_its_last_call() {
    let mut rig = PortRig::bound();
    let call = rig.call(UNARY, &note("a"));
    let number = rig.take().unwrap().call;
    rig.port.drain(rig.now);
    rig.exchange();
    assert!(rig.events.contains(&GrpcEvent::Draining));
    assert!(rig.port.ended().is_none());
    rig.push(Step::new(number, Parts::STATUS));
    assert_eq!(rig.ended(call).0, GrpcStatus::ok());
    rig.exchange();
    assert!(rig.port.ended().unwrap().contains("drained"));
}

#[test]
fn calls_of_a_connection_that_ended_fail_and_others_ask_anew() {
    let mut rig = PortRig::bound();
    let call = rig.call(UNARY, &note("a"));
    rig.take().unwrap();
    rig.port.going_away(CONNECTION);
    let next = rig.call(UNARY, &note("b"));
    assert_eq!(rig.wanted, ["test.Notes", "test.Notes"]);
    rig.port.closed(CONNECTION, Code::Ok);
    assert_eq!(rig.ended(call).0.code, Code::Unavailable);
    rig.bind();
    let number = rig.take().unwrap().call;
    rig.push(Step::new(number, Parts::STATUS));
    assert_eq!(rig.ended(next).0, GrpcStatus::ok());
    let lost = |event: &GrpcEvent| {
        matches!(
            event,
            GrpcEvent::Ended {
                cause: EndCause::Lost,
                ..
            }
        )
    };
    assert!(!rig.events.iter().any(lost));
}

#[test]
fn bodies_pass_byte_for_byte_and_are_not_read() {
    // No message of any schema.
    const OPAQUE: &[u8] = &[0xf8, 0x06, 7, 0x12, 1, b'd', 0x0a, 99];
    let mut rig = PortRig::bound();
    for reply_bytes in [0, 3, 40, 700, 100_000] {
        let call = rig.call(UNARY, OPAQUE);
        let step = rig.take().unwrap();
        assert_eq!(rig.read(&step).1.as_deref(), Some(OPAQUE));
        let reply = OPAQUE
            .iter()
            .copied()
            .cycle()
            .take(reply_bytes)
            .collect::<Vec<u8>>();
        let trailers = block(&[("x-after", b"v")]);
        let ends = Parts::MESSAGE | Parts::STATUS;
        rig.push(PortRig::encoded_reply(step.call, ends, &trailers, &reply));
        assert_eq!(rig.ended(call), (GrpcStatus::new(Code::Ok, ""), trailers));
        assert_eq!(rig.messages().last(), Some(&reply), "{reply_bytes}");
    }
    assert_eq!((rig.share.held(), rig.port.receive_heap_bytes()), (0, 0));
}

#[test]
fn a_reply_in_much_memory_counts_little() {
    let mut rig = PortRig::bound();
    rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let number = rig.take().unwrap().call;
    rig.to_client.lock().unwrap().is_stopped = true;
    for _ in 0..100 {
        let mut reply = PortRig::encoded_reply(number, Parts::MESSAGE, &[], b"short");
        if let Body::Encoded(body) = &mut reply.body {
            body.buffer.bytes.reserve(64 << 10);
        }
        rig.push(reply);
    }
    let held = rig.share.held();
    assert!((100 * 100..100 * 1000).contains(&held), "{held}");
}
