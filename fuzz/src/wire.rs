//! Targets of `provost-wire`: metadata blocks, control messages, frame headers.

use prost::Message;
use provost_wire::control::{self, Attach, Bind, Connect, Reply, Request, SegmentAdded};
use provost_wire::frame::FrameHeader;
use provost_wire::metadata;
use zerocopy::{FromBytes, IntoBytes};

/// What `check` accepts, `entries` reads in full and `append` writes again byte for byte.
pub(crate) fn metadata(input: &[u8]) {
    if metadata::check(input).is_err() {
        return;
    }
    let mut again = Vec::new();
    for (key, value) in metadata::entries(input) {
        assert!(
            metadata::append(&mut again, key, value).is_ok(),
            "an accepted entry cannot be written"
        );
    }
    assert_eq!(again, input, "an accepted block reads as another");
}

pub(crate) fn metadata_seeds() -> Vec<Vec<u8>> {
    let mut block = Vec::new();
    for (key, value) in [
        ("x-user", &b"ann"[..]),
        ("trace-bin", &[0, 255]),
        (metadata::STATUS_MESSAGE, b"why"),
    ] {
        // Seeds are ours: an entry that is refused only makes a shorter seed.
        let _ = metadata::append(&mut block, key, value);
    }
    vec![Vec::new(), block]
}

/// A control message that decodes encodes to something that decodes to the same.
pub(crate) fn control(input: &[u8]) {
    if let Ok(request) = Request::decode(input) {
        assert_eq!(Request::decode(&*request.encode_to_vec()).as_ref(), Ok(&request));
    }
    if let Ok(reply) = Reply::decode(input) {
        assert_eq!(Reply::decode(&*reply.encode_to_vec()).as_ref(), Ok(&reply));
    }
}

pub(crate) fn control_seeds() -> Vec<Vec<u8>> {
    use control::{reply, request};
    let attach = Attach {
        version: 1,
        name: "app".into(),
        receive_window: 1 << 20,
        ..Attach::default()
    };
    let bind = Bind {
        service: "kv.Kv".into(),
        schema_hash: vec![7; 32],
        calls_in_flight_max: 9,
    };
    let connect = Connect {
        service: "kv.Kv".into(),
        address: "127.0.0.1:1".into(),
        ..Connect::default()
    };
    let added = SegmentAdded {
        segment: 1,
        at: 1 << 18,
        bytes: 1 << 20,
    };
    let requests = [
        request::Body::Attach(attach),
        request::Body::Bind(bind),
        request::Body::Connect(connect),
    ];
    let mut seeds: Vec<Vec<u8>> = requests
        .into_iter()
        .map(|body| {
            Request {
                id: 3,
                body: Some(body),
            }
            .encode_to_vec()
        })
        .collect();
    seeds.push(
        Reply {
            id: 0,
            body: Some(reply::Body::SegmentAdded(added)),
        }
        .encode_to_vec(),
    );
    // Field 8, which no body has: a tag listed for the oneof without a member made the decoder panic.
    seeds.push(vec![0x42, 0]);
    seeds
}

/// A header is its bytes, whatever they are.
pub(crate) fn frame_header(input: &[u8]) {
    if let Ok((header, _)) = FrameHeader::read_from_prefix(input) {
        assert_eq!(header.as_bytes(), &input[..header.as_bytes().len()]);
        let _ = format!("{header:?}");
    }
}

pub(crate) fn frame_header_seeds() -> Vec<Vec<u8>> {
    vec![FrameHeader::default().as_bytes().to_vec()]
}
