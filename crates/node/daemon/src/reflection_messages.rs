//! The messages of gRPC's server reflection, which are the same in `v1` and `v1alpha`: what clients ask this node, and this node
//! asks servers.

use prost::Message;

/// A question. Which host is asked does not matter.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReflectionRequest {
    #[prost(string, tag = "1")]
    pub(crate) host: String,
    #[prost(oneof = "ReflectionQuestion", tags = "3, 4, 5, 6, 7")]
    pub(crate) asked: Option<ReflectionQuestion>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ReflectionQuestion {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    #[prost(message, tag = "5")]
    FileContainingExtension(ExtensionRequest),
    #[prost(string, tag = "6")]
    AllExtensionNumbersOfType(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExtensionRequest {
    #[prost(string, tag = "1")]
    pub(crate) containing_type: String,
    #[prost(int32, tag = "2")]
    pub(crate) extension_number: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReflectionResponse {
    #[prost(string, tag = "1")]
    pub(crate) valid_host: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) original_request: Option<ReflectionRequest>,
    #[prost(oneof = "ReflectionAnswer", tags = "4, 5, 6, 7")]
    pub(crate) told: Option<ReflectionAnswer>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ReflectionAnswer {
    #[prost(message, tag = "4")]
    Files(FilesResponse),
    #[prost(message, tag = "5")]
    ExtensionNumbers(ExtensionNumbersResponse),
    #[prost(message, tag = "6")]
    Services(ServicesResponse),
    #[prost(message, tag = "7")]
    Error(ErrorResponse),
}

/// Files as they are in a descriptor set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FilesResponse {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) files: Vec<Vec<u8>>,
}

/// Tells that a type exists, and what extends it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExtensionNumbersResponse {
    #[prost(string, tag = "1")]
    pub(crate) base_type_name: String,
    #[prost(int32, repeated, tag = "2")]
    pub(crate) extension_number: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServicesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) service: Vec<ServiceResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServiceResponse {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ErrorResponse {
    #[prost(int32, tag = "1")]
    pub(crate) error_code: i32,
    #[prost(string, tag = "2")]
    pub(crate) error_message: String,
}
