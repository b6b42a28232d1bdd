//! A service with fields of all types, messages of it, and expressions over them.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage};
use provost_engine::rig::Service;
use provost_engine::{AppIdentity, DatapathContext, PeerIdentity, Side};
use provost_marshal::{Scratch, View};
use provost_policies::access::expression::{Expression, ExpressionError, Failure, Inputs, Scope, Source};
use provost_policies::access::{ListType, ValueList};

pub(crate) const PROTO: &str = r#"
syntax = "proto3";
package shop.v1;
enum Color { COLOR_UNKNOWN = 0; RED = 1; BLUE = 7; }
message Line {
  string sku = 1; uint32 count = 2; double price = 3; Color color = 4; repeated string tags = 5;
  map<string, int32> stock = 6;
}
message Order {
  string id = 1; int64 total = 2; uint64 size = 3; bool express = 4; double weight = 5; bytes token = 6;
  Color color = 7; Line first = 8; repeated Line lines = 9; repeated string tags = 10;
  repeated int64 numbers = 11; map<string, string> labels = 12; map<int64, Line> by_id = 13;
  optional string note = 14; map<uint32, int64> counts = 17; repeated Color colors = 18; float ratio = 19;
  oneof pay { string card = 15; Line voucher = 16; }
}
message Reply { string id = 1; repeated Line lines = 2; }
service Shop {
  rpc Place(Order) returns (Reply);
  rpc Fetch(Reply) returns (Order);
  rpc Upload(stream Order) returns (Reply);
}
"#;

/// When expressions are evaluated: 2026-11-21 10:51 UTC, a Saturday.
pub(crate) const NOW_UNIX_S: i64 = 1_795_258_260;

pub(crate) struct Shop {
    pub(crate) service: Service,
    pub(crate) datapath_context: DatapathContext,
    pub(crate) pool: DescriptorPool,
}

impl Shop {
    pub(crate) fn open() -> Shop {
        struct One(protox::file::File);
        impl protox::file::FileResolver for One {
            fn open_file(&self, _name: &str) -> Result<protox::file::File, protox::Error> {
                Ok(self.0.clone())
            }
        }
        let service = Service::from_source(PROTO);
        let mut compiler =
            protox::Compiler::with_file_resolver(One(
                protox::file::File::from_source("shop.proto", PROTO).unwrap()
            ));
        compiler.open_file("shop.proto").unwrap();
        let pool = DescriptorPool::decode(&*compiler.encode_file_descriptor_set()).unwrap();
        let datapath_context = DatapathContext {
            peer: PeerIdentity {
                identity: "spiffe://example.org/ns/shop/sa/till".into(),
                address: "192.0.2.7:4000".into(),
                transport: "tcp",
                app: None,
                attested: None,
            },
            app: Arc::new(AppIdentity {
                id: 1,
                name: "till".into(),
                pid: 100,
                uid: 1000,
                gid: 100,
                user: "cashier".into(),
                workload: "spiffe://example.org/till".into(),
            }),
            ..service.datapath_context(Side::Client)
        };
        Shop {
            service,
            datapath_context,
            pool,
        }
    }

    pub(crate) fn message(&self, name: &str) -> MessageDescriptor {
        self.pool.get_message_by_name(&format!("shop.v1.{name}")).unwrap()
    }

    /// The native form of a message.
    pub(crate) fn native(&self, message: &DynamicMessage) -> Vec<u8> {
        let name = message.descriptor().full_name().to_owned();
        let index = self
            .datapath_context
            .schema
            .messages
            .iter()
            .position(|m| m.full_name == name)
            .unwrap();
        let id = provost_schema::MessageId(index as u32);
        let mut native = Vec::new();
        let bytes = message.encode_to_vec();
        self.datapath_context
            .tables
            .decode(id, &bytes, &mut native, 64 << 20, &mut Scratch::default())
            .unwrap();
        native
    }

    pub(crate) fn compile(&self, text: &str) -> Result<Expression, ExpressionError> {
        let lists = BTreeMap::from([
            (
                "blocked".to_owned(),
                Arc::new(ValueList::strings(["alpha", "beta"].into_iter()).unwrap()),
            ),
            (
                "numbers".to_owned(),
                Arc::new(ValueList::parse(ListType::Int, b"1\n7\n-3").unwrap()),
            ),
        ]);
        let scope = Scope::new(
            &self.datapath_context,
            &self.datapath_context.methods[0],
            Arc::new(lists),
        );
        Source::parse(text)?.compile(&scope)
    }

    pub(crate) fn evaluate(
        &self,
        expression: &Expression,
        native: &[u8],
        metadata: &[u8],
    ) -> Result<bool, Failure> {
        expression.evaluate(&Inputs {
            tables: &self.datapath_context.tables,
            metadata,
            message: Some(View::linear(native)),
            protobuf: None,
            is_compressed: false,
            unix_s: NOW_UNIX_S,
        })
    }

    /// The same of a message that is protobuf: by the paths of fields.
    pub(crate) fn evaluate_protobuf(
        &self,
        expression: &Expression,
        protobuf: &[u8],
        metadata: &[u8],
    ) -> Result<bool, Failure> {
        expression.evaluate(&Inputs {
            tables: &self.datapath_context.tables,
            metadata,
            message: None,
            protobuf: Some(protobuf),
            is_compressed: false,
            unix_s: NOW_UNIX_S,
        })
    }

    /// Compiles and evaluates over an order that is given in JSON.
    pub(crate) fn holds(&self, text: &str, json: &str, metadata: &[(&str, &str)]) -> Result<bool, Failure> {
        let expression = self
            .compile(text)
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut deserializer = serde_json::Deserializer::from_str(json);
        let order = DynamicMessage::deserialize(self.message("Order"), &mut deserializer).unwrap();
        let mut block = Vec::new();
        for (key, value) in metadata {
            provost_wire::metadata::append(&mut block, key, value.as_bytes()).unwrap();
        }
        let natively = self.evaluate(&expression, &self.native(&order), &block);
        let as_protobuf = self.evaluate_protobuf(&expression, &order.encode_to_vec(), &block);
        // What has no path is decoded before.
        if as_protobuf != Err(Failure::NotWhole) {
            assert_eq!(as_protobuf, natively, "{text} of {json}");
        }
        natively
    }
}
