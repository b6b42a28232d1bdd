//! What protobuf's `conformance_test_runner` talks with: it sends a message in one form, and wants it back in another.
//!
//! On both streams the length of each message stands before it, in four bytes, the least first. What a test asks for that Provost
//! does not have (proto2, editions, the text format) is skipped, as the tests' protocol allows.
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, Read, Write};

use provost::codec::EncodeError;
use provost::{JsonFormat, MessageCodec};

use conformance::conformance_request::Payload;
use conformance::conformance_response::Result as Answer;
use conformance::{ConformanceRequest, ConformanceResponse, TestCategory, WireFormat};
use protobuf_test_messages::proto3::TestAllTypesProto3;

provost::include_protos!();

/// No request of the tests is as large.
const REQUEST_BYTES_MAX: u32 = 64 << 20;

/// Of the messages that the tests name, the one of a proto3 file.
const MESSAGE: &str = "protobuf_test_messages.proto3.TestAllTypesProto3";

fn main() -> io::Result<()> {
    let (mut requests, mut responses) = (io::stdin().lock(), io::stdout().lock());
    while let Some(bytes) = next_request(&mut requests)? {
        let answer = ConformanceRequest::decode(&bytes)
            .map_or_else(|error| Answer::RuntimeError(error.to_string().into()), answer_to);
        let response = ConformanceResponse { result: answer };
        let bytes = response.encode().map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        responses.write_all(&length.to_le_bytes())?;
        responses.write_all(&bytes)?;
        responses.flush()?;
    }
    Ok(())
}

/// The bytes of the next request; nothing once the runner has no more.
fn next_request(requests: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match requests.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(length);
    if length > REQUEST_BYTES_MAX {
        return Err(io::Error::other(format!("a request of {length} bytes")));
    }
    let mut bytes = vec![0; length as usize];
    requests.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

fn answer_to(request: ConformanceRequest) -> Answer {
    if request.message_type != MESSAGE {
        return skipped(&format!("{} is not of a proto3 file", request.message_type));
    }
    let mut format = JsonFormat::new().any::<TestAllTypesProto3>();
    if request.test_category == TestCategory::JSON_IGNORE_UNKNOWN_PARSING_TEST {
        format = format.ignore_unknown();
    }
    let message = match &request.payload {
        Payload::ProtobufPayload(bytes) => {
            TestAllTypesProto3::decode(bytes).map_err(|error| error.to_string())
        }
        Payload::JsonPayload(text) => format.read(text).map_err(|error| error.to_string()),
        Payload::JspbPayload(_) => return skipped("no JSPB"),
        Payload::TextPayload(_) => return skipped("no text format"),
        Payload::NotSet => return Answer::RuntimeError("no payload".into()),
    };
    match message {
        Ok(message) => written(&message, request.requested_output_format, &format),
        Err(error) => Answer::ParseError(error.into()),
    }
}

fn written(message: &TestAllTypesProto3, form: WireFormat, format: &JsonFormat) -> Answer {
    let failed = |error: EncodeError| Answer::SerializeError(error.to_string().into());
    match form {
        WireFormat::PROTOBUF => message
            .encode()
            .map_or_else(failed, |bytes| Answer::ProtobufPayload(bytes.into())),
        WireFormat::JSON => format
            .write(message)
            .map_or_else(failed, |text| Answer::JsonPayload(text.into())),
        _ => skipped("neither protobuf nor JSON"),
    }
}

fn skipped(reason: &str) -> Answer {
    Answer::Skipped(reason.into())
}
