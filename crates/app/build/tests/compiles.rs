//! The checked-in generated code compiles, in a program that forbids unsafe code and whose lints are strict.
#![forbid(unsafe_code)]
#![deny(warnings, missing_docs, unreachable_pub, clippy::pedantic)]

include!("golden/generated/_.rs");

/// Packages below `golden`.
pub mod golden {
    /// Every kind of field.
    pub mod everything {
        include!("golden/generated/golden.everything.rs");
    }
    /// Nested and recursive types, and types of other packages.
    pub mod nesting {
        include!("golden/generated/golden.nesting.rs");
    }
    /// Names and comments that are hard to say in Rust.
    pub mod names {
        include!("golden/generated/golden.names.rs");
    }
    /// Options of one's own.
    pub mod options {
        include!("golden/generated/golden.options.rs");
    }
    /// Names that mean something in Rust.
    pub mod r#type {
        include!("golden/generated/golden.type.rs");
    }
    /// Attributes, and types that are elsewhere.
    pub mod configured {
        include!("golden/configured/golden.configured.rs");
    }
}

/// A message that is elsewhere, as `extern_path` says; the compiler checks that it is the one.
#[repr(C)]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Elsewhere {
    /// The only field, which is a number.
    pub value: u64,
}

provost::__message! { Elsewhere, "golden.configured.Elsewhere", [value], {
    1 "value" "value" [Uint64] [Implicit] field value;
} }

use golden::everything::{Color, Empty, Everything, everything};
use golden::nesting::{Tree, tree};

#[test]
fn enums_print_their_names_and_take_any_number() {
    assert_eq!(format!("{:?} {:?}", Color::RED, Color(77)), "COLOR_RED 77");
    assert_eq!(Color::default(), Color::UNSPECIFIED);
    assert_eq!(Color::from_str_name("COLOR_INFRARED"), Some(Color(-1)));
    assert_eq!(Color::from(2).as_str_name(), Some("COLOR_GREEN"));
    assert_eq!(i32::from(Color::GREEN), 2);
    assert_eq!(tree::node::Kind::KIND_2D, tree::node::Kind(1));
}

#[test]
fn messages_and_oneofs_have_defaults_and_compare() {
    let mut message = Everything {
        int32_field: 1,
        choice: everything::Choice::Number(5),
        ..Everything::default()
    };
    assert_eq!(everything::Choice::default(), everything::Choice::NotSet);
    assert_eq!(message.clone(), message);
    message.color = Color::RED;
    assert_ne!(message, Everything::default());
    assert_eq!(format!("{:?}", Empty::default()), "Empty");
    assert_eq!(Tree::default(), Tree::default());
}

#[test]
fn attributes_and_extern_paths_are_where_they_belong() {
    use golden::configured::{Labelled, labelled};
    let labelled = Labelled {
        elsewhere: Elsewhere { value: 1 }.into(),
        ..Labelled::default()
    };
    assert_eq!(labelled.elsewhere.as_deref().map(|leaf| leaf.value), Some(1));
    let distinct = std::collections::HashSet::from([labelled::Choice::NotSet, labelled::Choice::Number(1)]);
    assert_eq!(distinct.len(), 2);
}

#[test]
fn a_name_in_json_may_have_any_characters() {
    use golden::names::Odd;
    use provost::MessageCodec;
    let odd = Odd {
        quoted: "x".into(),
        ..Odd::default()
    };
    let json = odd.to_json().expect("a form in JSON");
    assert_eq!(json, r#"{"a\"b\\c":"x"}"#);
    assert_eq!(Odd::from_json(&json).expect("what was written"), odd);
}

#[test]
fn services_describe_themselves() {
    use golden::options::vault_service;
    use golden::r#type::sync_service;
    for service in [
        &four_service::SERVICE,
        &sync_service::SERVICE,
        &vault_service::SERVICE,
    ] {
        // Of options of one's own nothing is left, nor of what declares them.
        prost_reflect::DescriptorPool::decode(service.file_descriptor_set).expect("whole files");
        let schema =
            provost_schema::Schema::from_descriptor_set(service.file_descriptor_set).expect("a schema");
        let hash = schema.service_hash(service.name).expect("the service");
        assert_eq!(&hash.0, service.schema_hash);
        let names: Vec<&str> = service.methods.iter().map(|method| method.name).collect();
        let described = schema.service(service.name).expect("the service");
        assert_eq!(
            names,
            described
                .methods
                .iter()
                .map(|method| method.name.as_str())
                .collect::<Vec<_>>()
        );
    }
}

mod servers {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use provost::codegen::{Service, Stream};
    use provost::{Received, Request, Response, Status, Streaming};

    use super::four_client::{self, FourClient};
    use super::four_server::{Four, FourServer};
    use super::golden::everything::Everything;
    use super::{Answer, Ask};
    use provost::well_known::Empty;

    struct Fixed;

    /// A stream that has ended.
    struct Ended;

    impl Stream for Ended {
        type Item = Result<Answer, Status>;
        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Poll::Ready(None)
        }
    }

    impl Four for Fixed {
        async fn unary(&self, request: Request<Received<Ask>>) -> Result<Response<Answer>, Status> {
            Ok(Response::new(Answer {
                text: request.get_ref().text.clone(),
            }))
        }

        type DownStream = Ended;
        async fn down(&self, _: Request<Received<Ask>>) -> Result<Response<Ended>, Status> {
            Ok(Response::new(Ended))
        }

        async fn up(&self, request: Request<Streaming<Ask>>) -> Result<Response<Answer>, Status> {
            let mut asks = request.into_inner();
            while asks.message().await?.is_some() {}
            Ok(Response::new(Answer::default()))
        }

        type BothStream = Ended;
        async fn both(&self, _: Request<Streaming<Ask>>) -> Result<Response<Ended>, Status> {
            Ok(Response::new(Ended))
        }

        async fn nothing(&self, _: Request<Received<Empty>>) -> Result<Response<Empty>, Status> {
            Ok(Response::new(Empty::default()))
        }

        async fn everything(
            &self,
            request: Request<Received<Everything>>,
        ) -> Result<Response<Everything>, Status> {
            Ok(Response::new(request.get_ref().to_owned()))
        }
    }

    /// Never run: it is enough that a compiler takes it.
    async fn call(client: FourClient) -> Result<(), Status> {
        client.unary(Ask { text: "how?".into() }).await?;
        let mut answers = client.down(Request::new(Ask::default())).await?.into_inner();
        while let Some(answer) = answers.message().await? {
            assert_eq!(answer.text, "");
        }
        Ok(())
    }

    fn call_blocking(client: &four_client::blocking::FourClient) -> Result<(), Status> {
        client.unary(Ask::default())?;
        client.up(vec![Ask::default()])?;
        for answer in client.both(std::iter::once(Ask::default()))?.into_inner() {
            answer?;
        }
        Ok(())
    }

    #[test]
    fn servers_and_clients_read_like_plain_rust() {
        fn is_sendable(_: &impl Send) {}
        let _ = |client| is_sendable(&call(client));
        let _ = call_blocking;
        assert_eq!(FourServer::new(Fixed).descriptor().name, "Four");
    }
}
