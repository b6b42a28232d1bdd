//! What an application asks of the compression of its messages. It says so in metadata, which goes through nodes of any version; the end
//! that speaks gRPC takes it out and does it.

use provost_wire::metadata;

use provost_compression::MessageEncoding;

/// Metadata by which an application asks, as gRPC's own libraries call it. Its value is the name of an encoding.
pub const COMPRESSION_REQUEST: &str = "grpc-internal-encoding-request";

/// Takes what is asked out of a block. Of several requests the last one counts; an encoding that is not known here is as if nothing were
/// asked.
#[must_use]
pub fn take_compression_request(block: &mut Vec<u8>) -> Option<MessageEncoding> {
    // Nearly no block has one, and those stay as they are.
    metadata::find(block, COMPRESSION_REQUEST)?;
    let (mut rest, mut asked) = (Vec::with_capacity(block.len()), None);
    for (key, value) in metadata::entries(block) {
        if key == COMPRESSION_REQUEST {
            asked = MessageEncoding::named(value);
        } else {
            // It is shorter than the block that it comes of.
            let _ = metadata::append(&mut rest, key, value);
        }
    }
    *block = rest;
    asked
}

/// Asks in a block that messages are compressed like this, or that they are not. Metadata that leaves no room for it goes without.
pub fn ask_compression(block: &mut Vec<u8>, encoding: MessageEncoding) {
    let _ = metadata::append(block, COMPRESSION_REQUEST, encoding.name().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_taken_out_and_the_rest_stays() {
        let mut block = Vec::new();
        metadata::append(&mut block, "a", b"1").unwrap();
        let plain = block.clone();
        assert_eq!(take_compression_request(&mut block), None);
        assert_eq!(block, plain);
        ask_compression(&mut block, MessageEncoding::Zstd);
        ask_compression(&mut block, MessageEncoding::Gzip);
        assert_eq!(take_compression_request(&mut block), Some(MessageEncoding::Gzip));
        assert_eq!(block, plain);
        metadata::append(&mut block, COMPRESSION_REQUEST, b"snappy").unwrap();
        assert_eq!(take_compression_request(&mut block), None);
        assert_eq!(block, plain);
    }
}
