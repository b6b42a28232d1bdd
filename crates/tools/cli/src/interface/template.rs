//! A message of a type, with every field there to be filled in, as proto3 JSON.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

/// How deep messages lie within each other in a template; deeper ones are empty.
const DEPTH_MAX: usize = 4;
/// Fields of a template in all; of what is left out there is nothing.
const FIELDS_MAX: usize = 2_000;

/// A message whose fields hold their defaults: one element in each list and map, the first field of each oneof.
pub(crate) fn template(message: &MessageDescriptor) -> Value {
    of_message(message, 0, &mut { FIELDS_MAX })
}

fn of_message(message: &MessageDescriptor, depth: usize, left: &mut usize) -> Value {
    if let Some(known) = well_known(message.full_name()) {
        return known;
    }
    if depth >= DEPTH_MAX {
        return json!({});
    }
    let mut object = Map::new();
    for field in message.fields() {
        let Some(fewer) = left.checked_sub(1) else { break };
        let is_further = field
            .containing_oneof()
            .and_then(|oneof| oneof.fields().next())
            .is_some_and(|first| first != field);
        if !is_further {
            *left = fewer;
            object.insert(field.json_name().to_owned(), of_field(&field, depth, left));
        }
    }
    object.into()
}

fn of_field(field: &FieldDescriptor, depth: usize, left: &mut usize) -> Value {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let key = match entry.map_entry_key_field().kind() {
                Kind::String => "key",
                Kind::Bool => "false",
                _ => "0",
            };
            json!({ key: of_kind(&entry.map_entry_value_field().kind(), depth, left) })
        }
        kind if field.is_list() => json!([of_kind(&kind, depth, left)]),
        kind => of_kind(&kind, depth, left),
    }
}

fn of_kind(kind: &Kind, depth: usize, left: &mut usize) -> Value {
    match kind {
        Kind::Double | Kind::Float => json!(0.0),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Uint32 | Kind::Fixed32 => json!(0),
        // JSON's numbers do not reach so far everywhere: 64 bits are written as strings.
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 | Kind::Uint64 | Kind::Fixed64 => json!("0"),
        Kind::Bool => json!(false),
        Kind::String | Kind::Bytes => json!(""),
        Kind::Enum(enumeration) => json!(enumeration.default_value().name()),
        Kind::Message(message) => of_message(message, depth + 1, left),
    }
}

/// The types that JSON writes in a way of their own.
fn well_known(full_name: &str) -> Option<Value> {
    Some(match full_name.strip_prefix("google.protobuf.")? {
        "Timestamp" => json!("1970-01-01T00:00:00Z"),
        "Duration" => json!("0s"),
        "FieldMask" | "StringValue" | "BytesValue" => json!(""),
        "Struct" | "Empty" => json!({}),
        "ListValue" => json!([]),
        "Value" => Value::Null,
        "Any" => json!({ "@type": "type.googleapis.com/google.protobuf.Empty", "value": {} }),
        "BoolValue" => json!(false),
        "DoubleValue" | "FloatValue" => json!(0.0),
        "Int32Value" | "UInt32Value" => json!(0),
        "Int64Value" | "UInt64Value" => json!("0"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use prost_reflect::DynamicMessage;

    use super::super::tests::interface;
    use super::*;

    const PROTO: &str = "\
syntax = \"proto3\";
package t;
import \"google/protobuf/any.proto\";
import \"google/protobuf/duration.proto\";
import \"google/protobuf/empty.proto\";
import \"google/protobuf/field_mask.proto\";
import \"google/protobuf/struct.proto\";
import \"google/protobuf/timestamp.proto\";
import \"google/protobuf/wrappers.proto\";
service S { rpc Call(M) returns (M); }
enum E { ZERO = 0; ONE = 1; }
message M {
  double a = 1; float b = 2; int32 c = 3; uint64 d = 4; bool e = 5; string f = 6; bytes g = 7; E h = 8;
  repeated M i = 9; map<int64, E> j = 10; map<bool, string> k = 11; oneof o { string l = 12; M m = 13; }
  google.protobuf.Timestamp n = 14; google.protobuf.Duration p = 15; google.protobuf.FieldMask q = 16;
  google.protobuf.Struct r = 17; google.protobuf.Value s = 18; google.protobuf.ListValue t = 19;
  google.protobuf.Empty u = 20; google.protobuf.Any v = 21; google.protobuf.BoolValue w = 22;
  google.protobuf.Int64Value x = 23; google.protobuf.DoubleValue y = 24; google.protobuf.BytesValue z = 25;
  google.protobuf.UInt32Value aa = 26; google.protobuf.StringValue ab = 27; optional string some_name = 28;
}
";

    #[test]
    fn a_template_is_a_message_of_its_type() {
        let service = interface(PROTO, "S").unwrap();
        let message = service.method("Call").unwrap().input();
        let template = template(&message);
        assert_eq!(template["someName"], json!(""), "{template}");
        assert!(template.get("m").is_none(), "one field of a oneof: {template}");
        assert_eq!(template["j"], json!({ "0": "ZERO" }));
        let text = template.to_string();
        let mut reader = serde_json::Deserializer::from_str(&text);
        DynamicMessage::deserialize(message, &mut reader).unwrap();
    }

    #[test]
    fn a_type_that_is_made_of_itself_a_thousand_times_has_a_bound() {
        let fields: String = (1..=1_000)
            .map(|number| format!("M f{number} = {number};\n"))
            .collect();
        let proto = format!(
            "syntax = \"proto3\"; package t; message M {{ {fields} }} service S {{ rpc Call(M) returns (M); }}"
        );
        let message = interface(&proto, "S").unwrap().method("Call").unwrap().input();
        let text = template(&message).to_string();
        assert!(text.len() < 20 * FIELDS_MAX, "{} bytes", text.len());
    }
}
