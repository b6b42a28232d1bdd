//! What must hold of any bytes that a peer sends as a generated call, for fuzzers: the function panics if it does not.

use super::format::{self, CallHead};
use super::frames::{self, BeginHead, FrameHead, kind};

/// Takes any bytes as a request, as a response and as frames, the way that clients and servers take them apart. All that
/// they find lies in what came, and what is read is read again from the same head written anew.
pub fn calls(input: &[u8]) {
    request(input);
    response(input);
    frames_of(input);
}

fn request(input: &[u8]) {
    let Some((head, metadata, message)) = CallHead::split(input) else {
        return;
    };
    assert_eq!(metadata.len(), head.metadata_bytes as usize);
    let taken = CallHead::BYTES + format::padded(metadata) + message.len();
    assert_eq!(taken, input.len(), "a request's parts are not all of it");
    let mut again = head.encode().to_vec();
    again.extend_from_slice(&input[CallHead::BYTES..]);
    assert_eq!(CallHead::split(&again), Some((head, metadata, message)));
}

fn response(input: &[u8]) {
    let Some((metadata, trailers, message)) = format::split_answer(input) else {
        return;
    };
    let parts = format::padded(metadata) + format::padded(trailers) + message.len();
    assert_eq!(
        format::ANSWER_HEAD_BYTES + parts,
        input.len(),
        "a response's parts are not all of it"
    );
    assert_eq!(
        format::answer_head(metadata, trailers),
        input[..format::ANSWER_HEAD_BYTES]
    );
}

fn frames_of(input: &[u8]) {
    let mut left = input;
    while let Some((head, payload, rest)) = frames::split(left) {
        assert_eq!(payload.len(), head.bytes as usize);
        let taken = FrameHead::BYTES + format::padded(payload);
        assert_eq!(
            taken + rest.len(),
            left.len(),
            "a frame is not what it takes of its message"
        );
        let again = [&head.encode()[..], &left[FrameHead::BYTES..]].concat();
        assert_eq!(frames::split(&again), Some((head, payload, rest)));
        if head.kind == kind::BEGIN
            && let Some((begin, metadata)) = BeginHead::split(payload)
        {
            let again = [&begin.encode()[..], metadata].concat();
            assert_eq!(BeginHead::split(&again), Some((begin, metadata)));
        }
        left = rest;
    }
}

/// Messages to start from: a request, a response, and frames of a call that begins and one that goes on.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let head = CallHead {
        service: 1,
        method: 2,
        metadata_bytes: 3,
        call: 4,
        timeout_ns: 5,
        response_bytes_max: 6,
    };
    let request = [&head.encode()[..], b"abc\0\0\0\0\0", b"message"].concat();
    let response = [&format::answer_head(b"abc", b"de")[..], &[7; 24]].concat();
    vec![request, response, frames::seed()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_taken_apart_or_refused(input in prop::collection::vec(any::<u8>(), 0..512)) {
            calls(&input);
        }

        #[test]
        fn seeds_with_other_bytes_are_taken_apart_or_refused(
            seed in 0usize..3,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut input = seeds().swap_remove(seed);
            for (at, byte) in changes {
                let at = at.index(input.len());
                input[at] = byte;
            }
            calls(&input[..=cut.index(input.len())]);
            calls(&input);
        }
    }

    #[test]
    fn each_seed_is_whole() {
        let [request, response, frames] = seeds().try_into().unwrap();
        assert!(CallHead::split(&request).is_some());
        assert!(format::split_answer(&response).is_some());
        let (first, payload, rest) = frames::split(&frames).unwrap();
        assert_eq!(first.kind, kind::BEGIN);
        assert!(BeginHead::split(payload).is_some());
        assert!(frames::split(rest).is_some());
    }
}
