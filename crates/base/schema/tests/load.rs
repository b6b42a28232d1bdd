//! What the loader makes of good and bad descriptor sets.

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type as ProtoType};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto, OneofDescriptorProto,
    ServiceDescriptorProto,
};
use provost_schema::{Cardinality, Schema, SchemaError, SchemaErrorKind, SchemaHash, Slot};

fn field(name: &str, number: i32, ty: ProtoType) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        label: Some(Label::Optional as i32),
        r#type: Some(ty as i32),
        ..FieldDescriptorProto::default()
    }
}

fn message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto {
        name: Some(name.into()),
        field,
        ..DescriptorProto::default()
    }
}

fn file(message_type: Vec<DescriptorProto>) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some("t.proto".into()),
        package: Some("t".into()),
        syntax: Some("proto3".into()),
        message_type,
        ..FileDescriptorProto::default()
    }
}

fn load(file: Vec<FileDescriptorProto>) -> Result<Schema, SchemaError> {
    Schema::from_descriptor_set(&FileDescriptorSet { file }.encode_to_vec())
}

fn refused(file: FileDescriptorProto) -> SchemaError {
    load(vec![file]).map(|_| ()).expect_err("it is wrong")
}

#[test]
fn members_stand_by_alignment_then_number() {
    let proto = message(
        "M",
        vec![
            field("flag", 1, ProtoType::Bool),
            field("name", 2, ProtoType::String),
            field("big", 9, ProtoType::Int64),
            field("small", 3, ProtoType::Float),
            field("other_flag", 4, ProtoType::Bool),
        ],
    );
    let schema = load(vec![file(vec![proto, message("Empty", vec![])])]).expect("a schema");
    let places: Vec<(&str, u32)> = schema.messages[0]
        .fields()
        .map(|field| (field.name.as_str(), field.offset))
        .collect();
    assert_eq!(
        places,
        [
            ("big", 0),
            ("name", 8),
            ("small", 16),
            ("flag", 20),
            ("other_flag", 21)
        ]
    );
    assert_eq!((schema.messages[0].size, schema.messages[0].align), (24, 8));
    assert_eq!((schema.messages[1].size, schema.messages[1].align), (1, 1));
}

#[test]
fn an_optional_field_is_no_oneof() {
    let mut optional = field("maybe", 5, ProtoType::Int64);
    optional.oneof_index = Some(0);
    optional.proto3_optional = Some(true);
    let mut proto = message("M", vec![optional]);
    proto.oneof_decl.push(OneofDescriptorProto {
        name: Some("_maybe".into()),
        options: None,
    });
    let schema = load(vec![file(vec![proto])]).expect("a schema");
    match &schema.messages[0].slots[..] {
        [Slot::Field(field)] => {
            assert!(matches!(
                field.cardinality,
                Cardinality::Optional { value_offset: 8 }
            ));
        }
        slots => panic!("{slots:?}"),
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let mut proto2 = file(vec![]);
    proto2.syntax = None;
    assert_eq!(
        refused(proto2).to_string(),
        "t.proto: proto2 cannot be compiled, only proto3; write `syntax = \"proto3\";` and declare fields as proto3 does"
    );

    let twice = vec![field("a", 1, ProtoType::Bool), field("b", 1, ProtoType::Bool)];
    let error = refused(file(vec![message("M", twice)]));
    assert_eq!(
        (error.element.as_str(), error.path.as_slice()),
        ("t.M.b", [4, 0, 2, 1, 3].as_slice())
    );
    assert_eq!(
        error.to_string(),
        "t.proto: t.M.b: the field number 1 is taken by `a`; give one of them another number"
    );

    let mut unknown = field("a", 1, ProtoType::Message);
    unknown.type_name = Some(".t.Missing".into());
    let error = refused(file(vec![message("M", vec![unknown])]));
    assert_eq!(error.kind, SchemaErrorKind::UnknownType("t.Missing".into()));
}

#[test]
fn what_no_compiler_makes_is_refused() {
    let with = |change: &dyn Fn(&mut FieldDescriptorProto)| {
        let mut changed = field("a", 1, ProtoType::Int32);
        change(&mut changed);
        refused(file(vec![message("M", vec![changed])])).kind
    };
    for number in [0, -1, 19_000, 19_999, 1 << 29] {
        let kind = with(&|field| field.number = Some(number));
        assert_eq!(kind, SchemaErrorKind::FieldNumber(i64::from(number)));
    }
    assert!(matches!(
        with(&|field| field.label = Some(Label::Required as i32)),
        SchemaErrorKind::NotProto3(..)
    ));
    assert!(matches!(
        with(&|field| field.r#type = Some(ProtoType::Group as i32)),
        SchemaErrorKind::NotProto3(..)
    ));
    assert_eq!(with(&|field| field.r#type = None), SchemaErrorKind::Encoding);
    assert_eq!(with(&|field| field.r#type = Some(99)), SchemaErrorKind::Encoding);
    assert!(matches!(
        with(&|field| field.oneof_index = Some(3)),
        SchemaErrorKind::Oneof(_)
    ));
    assert!(matches!(
        with(&|field| field.proto3_optional = Some(true)),
        SchemaErrorKind::Oneof(_)
    ));
    for name in ["", "1a", "a b", "a.b", "größe", "fn(\n)"] {
        assert!(
            matches!(
                with(&|field| field.name = Some(name.into())),
                SchemaErrorKind::Name { .. }
            ),
            "{name}"
        );
    }
    assert!(matches!(
        with(&|field| field.name = Some("x".repeat(300))),
        SchemaErrorKind::Name { .. }
    ));
}

#[test]
fn malformed_maps_and_enums_are_refused() {
    let map = |change: &dyn Fn(&mut DescriptorProto)| {
        let mut entry = message(
            "E",
            vec![
                field("key", 1, ProtoType::String),
                field("value", 2, ProtoType::Bool),
            ],
        );
        entry.options = Some(MessageOptions {
            map_entry: Some(true),
            ..MessageOptions::default()
        });
        change(&mut entry);
        let mut map = field("map", 1, ProtoType::Message);
        map.type_name = Some(".t.M.E".into());
        map.label = Some(Label::Repeated as i32);
        let mut proto = message("M", vec![map]);
        proto.nested_type.push(entry);
        load(vec![file(vec![proto])]).map(|_| ())
    };
    assert!(map(&|_| {}).is_ok());
    assert!(map(&|entry| drop(entry.field.pop())).is_err());
    assert!(map(&|entry| entry.field[0].r#type = Some(ProtoType::Double as i32)).is_err());
    assert!(map(&|entry| entry.field.swap(0, 1)).is_err());
    assert!(map(&|entry| entry.field[1].label = Some(Label::Repeated as i32)).is_err());
    assert!(map(&|entry| entry.field[1].oneof_index = Some(0)).is_err());

    let enumeration = |numbers: &[i32]| {
        let value = |(at, number): (usize, &i32)| EnumValueDescriptorProto {
            name: Some(format!("V{at}")),
            number: Some(*number),
            options: None,
        };
        let value = numbers.iter().enumerate().map(value).collect();
        let mut file = file(vec![]);
        file.enum_type = vec![EnumDescriptorProto {
            name: Some("E".into()),
            value,
            ..EnumDescriptorProto::default()
        }];
        load(vec![file]).map(|_| ())
    };
    assert!(enumeration(&[0, 5, -5]).is_ok());
    for wrong in [&[][..], &[1], &[0, 1, 1]] {
        assert!(enumeration(wrong).is_err(), "{wrong:?}");
    }
}

/// A length-delimited field of which `key` is the encoded key.
fn inside(key: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![key];
    prost::encoding::encode_varint(bytes.len() as u64, &mut out);
    out.extend_from_slice(bytes);
    out
}

#[test]
fn small_bytes_that_would_become_large_are_refused_at_once() {
    // Empty files, messages and fields: two bytes each in the set, hundreds once decoded.
    let empty = |key: u8, count: usize| [key, 0].repeat(count);
    let count = provost_wire::limits::SCHEMA_PARTS_MAX + 1;
    let files = empty(0x0a, count);
    let messages = inside(0x0a, &empty(0x22, count));
    let locations = inside(0x0a, &inside(0x4a, &empty(0x0a, count)));
    let uninterpreted = inside(0x0a, &inside(0x42, &[0xba, 0x3e, 0].repeat(count)));
    for bytes in [files, messages, locations, uninterpreted] {
        let error = Schema::from_descriptor_set(&bytes)
            .map(|_| ())
            .expect_err("too many");
        assert!(matches!(error.kind, SchemaErrorKind::TooMany { .. }), "{error}");
    }
    let large = vec![0; provost_wire::limits::SCHEMA_BYTES_MAX + 1];
    assert!(Schema::from_descriptor_set(&large).is_err());
}

#[test]
fn files_that_are_not_proto3_are_for_options_alone() {
    let rules = || FileDescriptorProto {
        name: Some("rules.proto".into()),
        package: Some("t.rules".into()),
        syntax: None,
        ..file(vec![message("Rules", vec![field("a", 1, ProtoType::Group)])])
    };
    let using = |type_name: &str| {
        let mut of = field("a", 1, ProtoType::Message);
        of.type_name = Some(type_name.into());
        FileDescriptorProto {
            dependency: vec!["rules.proto".into()],
            ..file(vec![message("M", vec![of])])
        }
    };
    let schema = load(vec![rules(), using(".t.M")]).expect("options are left out");
    let names: Vec<&str> = schema
        .messages
        .iter()
        .map(|message| message.full_name.as_str())
        .collect();
    assert_eq!(names, ["t.M"]);
    for used in [".t.rules.Rules", ".t.rules.Rules.A"] {
        let error = load(vec![rules(), using(used)])
            .map(|_| ())
            .expect_err("its type is used");
        assert!(matches!(error.kind, SchemaErrorKind::NotProto3(..)), "{error}");
    }
    for unknown in [".t.rules.Else", ".t.rulesRules", ".t.Rules"] {
        let error = load(vec![rules(), using(unknown)])
            .map(|_| ())
            .expect_err("nobody has it");
        assert!(matches!(error.kind, SchemaErrorKind::UnknownType(_)), "{error}");
    }
    // One that nobody imports, or that has a service, is what somebody means.
    let with_service = FileDescriptorProto {
        service: vec![ServiceDescriptorProto {
            name: Some("S".into()),
            ..ServiceDescriptorProto::default()
        }],
        ..rules()
    };
    for meant in [vec![rules()], vec![with_service, using(".t.M")]] {
        let error = load(meant).map(|_| ()).expect_err("it is proto2");
        assert!(matches!(error.kind, SchemaErrorKind::Syntax { .. }), "{error}");
    }
}

#[test]
fn deep_nesting_is_refused_not_followed() {
    let nested = |depth: usize| {
        let innermost = message("M", vec![]).encode_to_vec();
        let deep = (0..depth).fold(innermost, |bytes, _| {
            let mut outer = message("M", vec![]).encode_to_vec();
            outer.extend(inside(0x1a, &bytes));
            outer
        });
        let mut file = file(vec![]).encode_to_vec();
        file.extend(inside(0x22, &deep));
        Schema::from_descriptor_set(&inside(0x0a, &file))
    };
    assert_eq!(nested(20).expect("a schema").messages.len(), 21);
    assert!(nested(200).is_err());
    assert!(nested(20_000).is_err());
}

#[test]
fn a_hash_is_text_and_back() {
    let hash = SchemaHash(std::array::from_fn(|at| at as u8 * 7));
    assert_eq!(hash.to_string().parse(), Ok(hash));
    assert_eq!(SchemaHash::try_from(hash.as_bytes().as_slice()), Ok(hash));
    assert!("12".parse::<SchemaHash>().is_err());
    assert!("xy".repeat(32).parse::<SchemaHash>().is_err());
    assert!(SchemaHash::try_from([0; 31].as_slice()).is_err());
}

/// So many services, each with a method that takes the first of a chain of messages with so many fields.
fn services_over_one_root(services: usize, messages: usize, fields: i32) -> FileDescriptorProto {
    let chain = (0..messages).map(|at| {
        let mut all: Vec<_> = (1..fields)
            .map(|number| field(&format!("f{number}"), number, ProtoType::Bool))
            .collect();
        let mut next = field("next", fields, ProtoType::Message);
        next.type_name = Some(format!(".t.M{}", (at + 1) % messages));
        all.push(next);
        message(&format!("M{at}"), all)
    });
    let method = MethodDescriptorProto {
        name: Some("Call".into()),
        input_type: Some(".t.M0".into()),
        output_type: Some(".t.M0".into()),
        ..MethodDescriptorProto::default()
    };
    let service = (0..services).map(|at| ServiceDescriptorProto {
        name: Some(format!("S{at}")),
        method: vec![method.clone()],
        ..ServiceDescriptorProto::default()
    });
    FileDescriptorProto {
        name: Some("t.proto".into()),
        package: Some("t".into()),
        service: service.collect(),
        ..file(chain.collect())
    }
}

#[test]
fn hashes_of_all_services_are_those_of_each() {
    let schema = load(vec![services_over_one_root(3, 4, 5)]).unwrap();
    let hashes = schema.service_hashes().unwrap();
    for (service, hash) in schema.services.iter().zip(&hashes) {
        assert_eq!(schema.service_hash(&service.full_name), Some(*hash));
        let alone = schema.for_service(&service.full_name).unwrap();
        assert_eq!(alone.service_hashes().unwrap(), [*hash]);
    }
    assert_ne!(hashes[0], hashes[1], "their names differ");
}

#[test]
fn services_that_reach_the_same_types_again_and_again_are_refused() {
    let one = load(vec![services_over_one_root(1, 16, 4096)]).unwrap();
    assert!(one.service_hashes().is_ok(), "one service may reach everything");
    let many = load(vec![services_over_one_root(17, 16, 4096)]).unwrap();
    assert!(matches!(
        many.service_hashes(),
        Err(SchemaErrorKind::TooMany { .. })
    ));
}

/// Each file of the descriptor set that is made of a schema, with the files that it imports.
fn imports(schema: &Schema) -> Vec<(String, Vec<String>)> {
    let set = FileDescriptorSet::decode(&*schema.to_descriptor_set()).expect("a descriptor set");
    let files = set.file.into_iter();
    files
        .map(|file| (file.name().to_owned(), file.dependency))
        .collect()
}

#[test]
fn a_file_that_is_made_of_a_package_imports_only_what_it_names() {
    let named = |name: &str, type_name: &str| FieldDescriptorProto {
        type_name: Some(type_name.into()),
        ..field(name, 1, ProtoType::Message)
    };
    let in_package = |package: &str, messages| FileDescriptorProto {
        name: Some(format!("from/{package}.proto")),
        package: Some(package.into()),
        ..file(messages)
    };
    let mut outer = message("Outer", vec![]);
    outer
        .nested_type
        .push(message("Inner", vec![named("leaf", ".c.Leaf")]));
    let mut service = in_package("a", vec![]);
    service.service.push(ServiceDescriptorProto {
        name: Some("S".into()),
        method: vec![MethodDescriptorProto {
            name: Some("Get".into()),
            input_type: Some(".b.Outer".into()),
            output_type: Some(".b.Outer.Inner".into()),
            ..MethodDescriptorProto::default()
        }],
        options: None,
    });
    let files = vec![
        service,
        in_package("b", vec![outer]),
        in_package("c", vec![message("Leaf", vec![])]),
    ];
    let schema = load(files).expect("a schema");
    let expected = [
        ("a.proto", vec!["b.proto"]),
        ("b.proto", vec!["c.proto"]),
        ("c.proto", vec![]),
    ];
    let expected =
        expected.map(|(name, imports)| (name.to_owned(), imports.into_iter().map(str::to_owned).collect()));
    assert_eq!(imports(&schema), expected);

    // As many packages as there are types: each could import all.
    let chain = |at: usize| {
        let fields = if at == 0 {
            vec![]
        } else {
            vec![named("next", &format!(".p{}.M", at - 1))]
        };
        in_package(&format!("p{at}"), vec![message("M", fields)])
    };
    let schema = load((0..1000).map(chain).collect()).expect("a schema");
    assert_eq!(
        imports(&schema)
            .iter()
            .map(|(_, imports)| imports.len())
            .sum::<usize>(),
        999
    );
}

#[test]
fn no_package_has_the_file_of_those_without_one() {
    let without = FileDescriptorProto {
        package: None,
        ..file(vec![message("M", vec![])])
    };
    let made = load(vec![without]).expect("a schema").to_descriptor_set();
    let set = FileDescriptorSet::decode(&*made).expect("a descriptor set");
    let name = set.file[0].name().trim_end_matches(".proto").to_owned();
    let of_its_name = FileDescriptorProto {
        package: Some(name),
        ..file(vec![])
    };
    let refused = load(vec![of_its_name]).map(|_| ()).expect_err("no package");
    assert!(matches!(refused.kind, SchemaErrorKind::Name { .. }), "{refused}");
}
