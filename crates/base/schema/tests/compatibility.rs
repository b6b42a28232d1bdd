//! Which schemas may be connected, rule by rule.

use provost_schema::{Compatibility, Incompatibility, Schema, compatibility};

/// A schema from the inside of a file with a service `t.S`.
fn schema(body: &str) -> Schema {
    let source = format!("syntax = \"proto3\";\npackage t;\n{body}\n");
    let file =
        protox::file::File::from_source("t.proto", &source).unwrap_or_else(|error| panic!("{error:?}"));
    struct One(protox::file::File);
    impl protox::file::FileResolver for One {
        fn open_file(&self, _: &str) -> Result<protox::file::File, protox::Error> {
            protox::file::File::from_source("t.proto", self.0.source().unwrap_or_default())
        }
    }
    let mut compiler = protox::Compiler::with_file_resolver(One(file));
    compiler
        .open_file("t.proto")
        .unwrap_or_else(|error| panic!("{error:?}"));
    Schema::from_descriptor_set(&compiler.encode_file_descriptor_set())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A schema whose only method takes `message M { … }` and answers with an empty message.
fn request(fields: &str) -> Schema {
    schema(&format!(
        "enum E {{ ZERO = 0; }} message N {{}} message A {{}} message M {{ {fields} }} {SERVICE}"
    ))
}

const SERVICE: &str = "service S { rpc Do(M) returns (A); }";

fn compare(client: &str, server: &str) -> Result<Compatibility, Incompatibility> {
    compatibility(&request(client), &request(server), "t.S")
}

#[test]
fn what_protobuf_reads_alike_is_compatible() {
    let compatible = [
        ("int32 a = 1;", "int64 b = 1;"),
        ("bool a = 1;", "uint64 a = 1;"),
        ("E a = 1;", "int32 a = 1;"),
        ("sint32 a = 1;", "sint64 a = 1;"),
        ("fixed32 a = 1;", "sfixed32 a = 1;"),
        ("fixed64 a = 1;", "sfixed64 a = 1;"),
        ("string a = 1;", "bytes a = 1;"),
        ("string a = 1;", "repeated string a = 1;"),
        ("repeated bytes a = 1;", "bytes a = 1;"),
        ("repeated N a = 1;", "N a = 1;"),
        ("int32 a = 1;", "optional int32 a = 1;"),
        ("int32 a = 1;", "oneof o { int32 a = 1; }"),
        (
            "oneof o { int32 a = 1; string b = 2; }",
            "int32 a = 1; string b = 2;",
        ),
        ("repeated int32 a = 1;", "repeated int32 a = 1 [packed = false];"),
        ("int32 a = 1;", "int32 a = 1; string b = 2;"),
        ("int32 a = 1; string b = 2;", "int32 a = 1;"),
        ("map<string, int32> a = 1;", "map<string, int64> a = 1;"),
        ("N a = 1;", "M a = 1;"),
        ("M a = 1; int32 b = 2;", "M a = 1; int64 b = 2;"),
    ];
    for (client, server) in compatible {
        let expected = Ok(Compatibility::Protobuf {
            method_map: vec![Some(0)],
        });
        assert_eq!(compare(client, server), expected, "{client} against {server}");
    }
}

#[test]
fn what_protobuf_would_misread_is_refused() {
    let incompatible = [
        ("int32 a = 1;", "sint32 a = 1;"),
        ("int32 a = 1;", "fixed32 a = 1;"),
        ("fixed32 a = 1;", "float a = 1;"),
        ("double a = 1;", "fixed64 a = 1;"),
        ("bytes a = 1;", "string a = 1;"),
        ("string a = 1;", "int32 a = 1;"),
        ("N a = 1;", "bytes a = 1;"),
        ("int32 a = 1;", "repeated int32 a = 1;"),
        ("repeated int32 a = 1;", "int32 a = 1;"),
        ("map<string, int32> a = 1;", "map<string, string> a = 1;"),
        ("map<int32, int32> a = 1;", "map<int64, int32> a = 1;"),
        ("map<string, N> a = 1;", "repeated N a = 1;"),
        (
            "int32 a = 1; string b = 2;",
            "oneof o { int32 a = 1; string b = 2; }",
        ),
        (
            "oneof p { int32 a = 1; } oneof q { string b = 2; }",
            "oneof o { int32 a = 1; string b = 2; }",
        ),
        ("M a = 1; int32 b = 2;", "M a = 1; string b = 2;"),
    ];
    for (client, server) in incompatible {
        assert!(compare(client, server).is_err(), "{client} against {server}");
    }
}

#[test]
fn an_error_names_both_sides() {
    let client = schema(
        "message Old { Deep deep = 1; } message Deep { repeated int32 count = 7; } service S { rpc Do(Old) returns (Old); }",
    );
    let server = schema(
        "message New { Deeper deep = 1; } message Deeper { string total = 7; } service S { rpc Do(New) returns (New); }",
    );
    let error = compatibility(&client, &server, "t.S").expect_err("incompatible");
    assert_eq!(
        error.to_string(),
        "field number 7: `t.Deep.count` is `repeated int32` at the client, `t.Deeper.total` is `string` at the server: \
         a single and a repeated number are encoded differently; give the changed field a new number, or bring both \
         sides to the same schema"
    );
    let error = compare(
        "int32 a = 1; string b = 2;",
        "oneof o { int32 a = 1; string b = 2; }",
    )
    .expect_err("lost");
    assert_eq!(
        error.to_string(),
        "`t.M.a` (number 1) and `t.M.b` (number 2) of the client can be set together, but are members of one oneof, \
         `t.M.o`, at the other side, which would lose one of them; give the members of the oneof new numbers, or bring \
         both sides to the same schema"
    );
}

#[test]
fn responses_are_compared_the_other_way_round() {
    let text = schema("message A {} message M { string a = 1; } service S { rpc Do(A) returns (M); }");
    let blob = schema("message A {} message M { bytes a = 1; } service S { rpc Do(A) returns (M); }");
    assert!(
        compatibility(&text, &blob, "t.S").is_err(),
        "the server may answer with bytes that are no UTF-8"
    );
    assert!(compatibility(&blob, &text, "t.S").is_ok());
}

#[test]
fn methods_are_found_by_name() {
    let with = |methods: &str| schema(&format!("message M {{}} service S {{ {methods} }}"));
    let client = with("rpc A(M) returns (M); rpc B(M) returns (M); rpc C(M) returns (stream M);");
    let server = with("rpc C(M) returns (stream M); rpc New(M) returns (M); rpc A(M) returns (M);");
    let map = Compatibility::Protobuf {
        method_map: vec![Some(2), None, Some(0)],
    };
    assert_eq!(compatibility(&client, &server, "t.S"), Ok(map));
    assert_eq!(compatibility(&client, &client, "t.S"), Ok(Compatibility::Equal));

    let unary = with("rpc C(M) returns (M);");
    let error = compatibility(&unary, &client, "t.S").expect_err("streams differently");
    assert!(
        error
            .to_string()
            .starts_with("method t.S/C: the client has it as unary, the server as server-streaming")
    );
    let error = compatibility(&unary, &client, "t.T").expect_err("no such service");
    assert!(
        error
            .to_string()
            .contains("the client's schema has no service `t.T`")
    );
}

#[test]
fn recursive_types_that_multiply_end() {
    // Two rings of coprime lengths meet in every combination.
    let ring = |name: &str, length: usize| {
        let message = |at: usize| format!("message {name}{at} {{ {name}{} next = 1; }}", (at + 1) % length);
        let messages: String = (0..length).map(message).collect();
        schema(&format!(
            "{messages} service S {{ rpc Do({name}0) returns ({name}0); }}"
        ))
    };
    let compared = compatibility(&ring("P", 101), &ring("Q", 103), "t.S");
    assert_eq!(
        compared,
        Ok(Compatibility::Protobuf {
            method_map: vec![Some(0)]
        })
    );
    let compared = compatibility(&ring("P", 1999), &ring("Q", 2003), "t.S");
    assert_eq!(compared, Err(Incompatibility::TooDifferent));
}
