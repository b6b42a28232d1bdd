//! Messages of types that are known only when the program runs, as gRPC carries them.

use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Encodes any message, and decodes those of one type.
#[derive(Clone, Debug)]
pub(crate) struct DynamicCodec {
    response: MessageDescriptor,
}

impl DynamicCodec {
    /// For a method that answers with messages of this type.
    pub(crate) fn new(response: MessageDescriptor) -> DynamicCodec {
        DynamicCodec { response }
    }
}

impl Codec for DynamicCodec {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = DynamicCodec;
    type Decoder = DynamicCodec;

    fn encoder(&mut self) -> DynamicCodec {
        self.clone()
    }

    fn decoder(&mut self) -> DynamicCodec {
        self.clone()
    }
}

impl Encoder for DynamicCodec {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, message: DynamicMessage, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message
            .encode(to)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for DynamicCodec {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let message = DynamicMessage::decode(self.response.clone(), from).map_err(|error| {
            Status::internal(format!("an answer is no {}: {error}", self.response.full_name()))
        })?;
        Ok(Some(message))
    }
}
