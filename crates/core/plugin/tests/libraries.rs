//! Loads libraries, good ones and odd ones, and runs calls through their engines.
#![forbid(unsafe_code)]

mod build;

use build::{Built, c_engine, c_engine_with, example, example_with};
use provost_engine::rig::{Rig, Service, end_of, environment, metadata_of, metrics, policy, with_metadata};
use provost_engine::{
    AppIdentity, AttestedApp, Code, DatapathContext, Parts, PeerIdentity, Policy, PolicyKind, RestoreError,
    Side, Step,
};
use provost_plugin::{LoadError, load};
use std::sync::Arc;

const PROTO: &str = "syntax = \"proto3\"; package t;
    message M { string name = 1; bytes data = 2; }
    service S { rpc Get(M) returns (M); rpc Watch(stream M) returns (stream M); }";
const KEY: &str = "x-call-number";

fn kind(library: &Built) -> Arc<dyn PolicyKind> {
    load(&library.path()).unwrap()
}

fn numbered(features: &str, config: &str) -> Arc<dyn Policy> {
    policy(&*kind(&example("example-numbered", features)), config, None).unwrap()
}

fn rig(service: &Service, policy: &dyn Policy) -> Rig {
    Rig::new(service.datapath_context(Side::Client), policy)
}

/// The number that a call of the rig gets.
fn number(rig: &mut Rig, service: &Service, call: u64) -> Option<String> {
    rig.send(service.request(call, 0, &[]));
    rig.poll();
    let sent = rig.to_wire();
    assert!(sent.len() <= 1 && sent.iter().all(|step| step.call == call));
    let number = sent.first().and_then(|step| metadata_of(step, KEY));
    rig.receive(service.response(call, 0, &[]));
    rig.poll();
    rig.to_app();
    number
}

#[test]
fn calls_go_through_a_loaded_engine_and_its_numbers_are_reported() {
    let library = example("example-numbered", "");
    let kind = kind(&library);
    assert_eq!((kind.name(), kind.version()), ("numbered", 1));
    assert!(kind.example().contains("key ="));
    let policy = policy(&*kind, "", None).unwrap();
    let service = Service::from_source(PROTO);
    let mut rig = rig(&service, &*policy);
    for call in 1..=3 {
        assert_eq!(number(&mut rig, &service, call), Some(call.to_string()));
    }
    let name = format!("example_numbered_calls_total{{key={KEY}}}");
    assert_eq!(metrics(&*policy), [(name, 3.0)]);
    // The configuration is the library's to judge.
    let error = kind
        .configure(&"keys = 1".parse().unwrap(), &environment(), None)
        .err()
        .unwrap();
    assert!(error.to_string().contains("keys"), "{error}");
    // The same content is the same kind, wherever it is.
    let again = example("example-numbered", "");
    assert_eq!(
        load(&again.path()).unwrap().summary().as_ptr(),
        kind.summary().as_ptr()
    );
}

#[test]
fn another_version_goes_on_with_the_state_and_back() {
    let (first, second) = (numbered("", ""), numbered("version-2", ""));
    let service = Service::from_source(PROTO);
    let mut rig = rig(&service, &*first);
    // A stream that is under way keeps its number across the changes.
    let part = |parts| Step::new(100, parts);
    rig.send(Step {
        method: 1,
        ..part(Parts::BEGIN)
    });
    rig.poll();
    assert_eq!(metadata_of(&rig.to_wire()[0], KEY).as_deref(), Some("1"));
    for (at, policy) in [&second, &first, &second, &first].into_iter().enumerate() {
        rig.replace(&**policy).unwrap();
        let call = at as u64 + 2;
        assert_eq!(number(&mut rig, &service, call), Some(call.to_string()));
        rig.send(part(Parts::END));
        rig.poll();
        assert_eq!(metadata_of(&rig.to_wire()[0], KEY).as_deref(), Some("1"));
    }
    // What the node shares goes over as well.
    let shared = first.save();
    let kind = kind(&example("example-numbered", "version-2"));
    let next = kind
        .configure(&toml::Table::new(), &environment(), Some(&shared))
        .unwrap();
    assert_eq!(metrics(&*next)[0].1, metrics(&*first)[0].1);
}

#[test]
fn a_library_for_another_abi_or_state_is_refused_and_changes_nothing() {
    let other_abi = example("example-numbered", "other-abi");
    let refused = load(&other_abi.path()).err().unwrap();
    assert!(
        matches!(
            refused,
            LoadError::Abi {
                found: 99,
                supported: 1,
                ..
            }
        ),
        "{refused}"
    );
    assert!(refused.to_string().contains("version 99"), "{refused}");

    let service = Service::from_source(PROTO);
    let first = numbered("", "");
    let mut rig = rig(&service, &*first);
    assert_eq!(number(&mut rig, &service, 1).as_deref(), Some("1"));
    let refused = rig.replace(&*numbered("other-state", "")).unwrap_err();
    assert!(
        matches!(
            refused,
            RestoreError::Version {
                found: 1,
                newest: 7,
                ..
            }
        ),
        "{refused}"
    );
    let refused = rig.replace(&*numbered("fails-restore", "")).unwrap_err();
    assert!(refused.to_string().contains("likes no state"), "{refused}");
    assert_eq!(number(&mut rig, &service, 2).as_deref(), Some("2"));
    // The other way round: a state of a form that the older version does not know.
    let mut rig = Rig::new(
        service.datapath_context(Side::Client),
        &*numbered("other-state", ""),
    );
    let refused = rig.replace(&*first).unwrap_err();
    assert!(
        matches!(
            refused,
            RestoreError::Version {
                found: 7,
                newest: 1,
                ..
            }
        ),
        "{refused}"
    );
}

#[test]
fn a_panic_is_a_fault_that_loses_no_step() {
    let service = Service::from_source(PROTO);
    let (sound, panics) = (numbered("", ""), numbered("panics", ""));
    let mut rig = rig(&service, &*panics);
    for call in 1..=4 {
        rig.send(service.request(call, 0, &[]));
    }
    rig.poll();
    let fault = rig.engine().unwrap().fault().unwrap().to_owned();
    assert!(
        fault.starts_with("numbered: it panicked at ") && fault.contains("numbered/src/lib.rs:"),
        "{fault}"
    );
    assert!(fault.ends_with(": told to panic at step 3"), "{fault}");
    // What was not judged waits, and the version before goes on with it.
    assert_eq!(rig.to_wire().len(), 2);
    rig.poll();
    assert_eq!((rig.to_wire().len(), rig.queues.tx_in.len()), (0, 2));
    rig.replace(&*sound).unwrap();
    rig.poll();
    let calls: Vec<u64> = rig.to_wire().iter().map(|step| step.call).collect();
    assert_eq!(calls, [3, 4]);
}

#[test]
fn panics_elsewhere_are_contained_too() {
    let service = Service::from_source(PROTO);
    let policy = numbered("panics-elsewhere", "");
    let mut rig = rig(&service, &*policy);
    assert_eq!(number(&mut rig, &service, 1).as_deref(), Some("1"));
    // It panicked when the call ended: the next step is not judged.
    rig.send(service.request(2, 0, &[]));
    rig.poll();
    assert!(rig.engine().unwrap().fault().is_some());
    assert_eq!(rig.queues.tx_in.len(), 1);
    rig.replace(&*numbered("", "")).unwrap();
    rig.poll();
    assert_eq!(rig.to_wire().len(), 1);
    // Where there is nobody to tell, nothing is what it gives.
    assert!(metrics(&*policy).is_empty());
    assert!(policy.save().bytes.is_empty());
    let kind = kind(&example("example-numbered", ""));
    let refused = provost_engine::rig::policy(&*kind, "key = 'panic'", None)
        .err()
        .unwrap();
    assert!(refused.to_string().starts_with("it panicked at "), "{refused}");
    let policy = provost_engine::rig::policy(&*kind, "key = 'panic-at-prepare'", None).unwrap();
    let refused = policy
        .prepare(&service.datapath_context(Side::Client))
        .err()
        .unwrap();
    assert!(refused.to_string().starts_with("it panicked at "), "{refused}");
}

/// Of which the service is told nothing.
#[test]
fn a_panic_in_a_thread_of_the_engines_own_is_printed() {
    const NAME: &str = "a_panic_in_a_thread_of_the_engines_own_is_printed";
    const LOADS: &str = "PROVOST_TEST_LOADS";
    if std::env::var_os(LOADS).is_some() {
        numbered("", "key = 'panic-in-a-thread'");
        return;
    }
    // In a process of its own, whose output can be read.
    let loading = std::process::Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture"])
        .env(LOADS, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&loading.stderr);
    assert!(loading.status.success(), "{printed}");
    assert!(printed.contains("told to, in a thread"), "{printed}");
}

#[test]
fn a_library_whose_panics_would_end_the_service_is_refused() {
    let abort = ["--config", "profile.dev.panic=\"abort\""];
    let refused = load(&example_with("example-api-key", "", &abort).path())
        .err()
        .unwrap();
    assert!(refused.to_string().contains("panic = \"unwind\""), "{refused}");
}

#[test]
fn the_example_policy_works_as_a_library() {
    let policy = policy(&*kind(&example("example-api-key", "")), "keys = ['secret']", None).unwrap();
    let service = Service::from_source(PROTO);
    let mut rig = Rig::new(service.datapath_context(Side::Server), &*policy);
    for (call, key) in [(1, "wrong"), (2, "secret")] {
        rig.receive(with_metadata(
            service.request(call, 0, &[]),
            &[("x-api-key", key)],
        ));
    }
    rig.poll();
    assert_eq!(rig.to_app().iter().map(|step| step.call).collect::<Vec<_>>(), [2]);
    let told = rig.to_wire();
    assert_eq!(end_of(&told[0]), Some(Code::Unauthenticated));
    assert_eq!(
        metadata_of(&told[0], ":message").as_deref(),
        Some("bring a key in x-api-key")
    );
}

#[test]
fn an_engine_in_c_works() {
    let kind = kind(&c_engine("sdk/examples/c/size_limit.c", &[]));
    let refused = policy(&*kind, "message-bytes-max = 'many'", None).err().unwrap();
    assert!(refused.to_string().contains("give a number"), "{refused}");
    let policy = policy(&*kind, "message-bytes-max = 100", None).unwrap();
    let service = Service::from_source(PROTO);
    let mut rig = rig(&service, &*policy);
    rig.send(service.request(1, 0, &[("data", rig_bytes(10))]));
    rig.send(service.request(2, 0, &[("data", rig_bytes(200))]));
    rig.poll();
    assert_eq!(
        rig.to_wire().iter().map(|step| step.call).collect::<Vec<_>>(),
        [1]
    );
    assert_eq!(end_of(&rig.to_app()[0]), Some(Code::ResourceExhausted));
    assert_eq!(
        metrics(&*policy),
        [("example_size_limit_denied_total".to_owned(), 1.0)]
    );
    rig.replace(&*policy).unwrap();
}

const FIELDS: &str = "syntax = \"proto3\"; package t;
    message Inner { string name = 1; }
    message M { string name = 1; bytes data = 2; sint64 count = 3; Inner inner = 4; repeated uint32 list = 5; }
    service S { rpc Get(M) returns (M); }";

#[test]
fn an_engine_in_c_reads_fields() {
    use provost_engine::rig::Value;
    let kind = kind(&c_engine("crates/core/plugin/tests/field_engine.c", &[]));
    let policy = policy(&*kind, "", None).unwrap();
    let service = Service::from_source(FIELDS);
    let mut rig = rig(&service, &*policy);
    let mut said = |fields: &[(&str, Value)]| {
        rig.send(service.request(1, 0, fields));
        rig.poll();
        assert!(rig.to_wire().is_empty());
        metadata_of(&rig.to_app()[0], ":message").unwrap()
    };
    let values = [
        ("name", Value::String("shop".into())),
        ("data", Value::Bytes(b"xyz".as_slice().into())),
        ("count", Value::I64(-5)),
        ("list", Value::List(vec![Value::U32(7), Value::U32(8)])),
    ];
    // The kinds of values are those of the header; a field of the response, and one that nobody has found, are refused.
    assert_eq!(
        said(&values),
        "name=5:shop data=6:xyz count=2:-5 inner=0:0 list=8:2 answer=(1) none=(1) "
    );
    // A call later nothing is left of the values of the one before.
    assert_eq!(
        said(&[]),
        "name=5: data=6: count=2:0 inner=0:0 list=8:0 answer=(1) none=(1) "
    );
}

#[test]
fn a_field_that_the_schema_does_not_have_keeps_an_engine_in_c_from_being_attached() {
    let service = Service::from_source(FIELDS);
    for path in ["nam", "name.first", "inner.", ""] {
        let definition = format!("WRONG_FIELD=\"{path}\"");
        let kind = kind(&c_engine(
            "crates/core/plugin/tests/field_engine.c",
            &[&definition],
        ));
        let policy = policy(&*kind, "", None).unwrap();
        let refused = policy.prepare(&service.datapath_context(Side::Client)).err();
        let refused = refused
            .unwrap_or_else(|| panic!("\"{path}\" was found"))
            .to_string();
        assert!(!refused.is_empty());
    }
}

#[test]
fn an_engine_in_c_is_told_which_app_calls_from_another_node() {
    let kind = kind(&c_engine("crates/core/plugin/tests/caller_engine.c", &[]));
    let policy = policy(&*kind, "", None).unwrap();
    let service = Service::from_source(FIELDS);
    let said = |peer: PeerIdentity| {
        let context = DatapathContext {
            peer,
            ..service.datapath_context(Side::Server)
        };
        let mut rig = Rig::new(context, &*policy);
        rig.receive(service.request(1, 0, &[]));
        rig.poll();
        metadata_of(&rig.to_wire()[0], ":message").unwrap()
    };
    let unknown = service.datapath_context(Side::Server).peer;
    let attested = AttestedApp {
        node: "far".into(),
        name: "till".into(),
        user: "shop".into(),
        uid: 1001,
        workload: "spiffe://example.org/till".into(),
    };
    assert_eq!(said(unknown.clone()), "unknown app @ ");
    assert_eq!(
        said(PeerIdentity {
            identity: "spiffe://example.org/node".into(),
            attested: Some(attested.into()),
            ..unknown.clone()
        }),
        "till shop 1001 spiffe://example.org/till @ far spiffe://example.org/node"
    );
    let local = AppIdentity {
        id: 7,
        name: "desk".into(),
        pid: 100,
        uid: 1002,
        gid: 1002,
        user: "".into(),
        workload: "".into(),
    };
    let on_this_node = PeerIdentity {
        app: Some(local.into()),
        ..unknown
    };
    assert_eq!(said(on_this_node), "desk  1002  @ node ");
}

fn rig_bytes(count: usize) -> provost_engine::rig::Value {
    provost_engine::rig::Value::Bytes(vec![7; count].into())
}

fn odd(definitions: &[&str]) -> Built {
    c_engine("crates/core/plugin/tests/odd_engine.c", definitions)
}

#[test]
fn descriptions_that_make_no_sense_are_refused_with_a_reason() {
    for (definition, said) in [
        ("ABI=0", "built for version 0 of the engine ABI"),
        ("ABI=2", "built for version 2 of the engine ABI"),
        ("STRUCT_BYTES=16", "too short"),
        ("FLAGS=0", "would end the whole service"),
        ("KIND=TEXT(\"\")", "must have a name"),
        ("KIND=TEXT(\"Odd Name\")", "must have a name"),
        ("KIND={NULL, 1}", "must have a name"),
        (
            "KIND={(const uint8_t *)\"odd\", ((size_t)1 << 60)}",
            "must have a name",
        ),
        ("CONFIGURE=NULL", "no function `configure`"),
        ("JUDGE=NULL", "no function `judge`"),
    ] {
        let refused = load(&odd(&[definition]).path()).err();
        let refused = refused
            .unwrap_or_else(|| panic!("{definition} was not refused"))
            .to_string();
        assert!(refused.contains(said), "{definition}: {refused}");
    }
}

#[test]
fn what_is_no_engine_is_refused() {
    let library = c_engine("crates/core/plugin/tests/no_engine.c", &[]);
    assert!(matches!(load(&library.path()), Err(LoadError::NoSymbol { .. })));
    std::fs::write(library.path(), "no library").unwrap();
    assert!(matches!(load(&library.path()), Err(LoadError::Link { .. })));
    assert!(matches!(
        load(&library.path().join("none")),
        Err(LoadError::Open { .. })
    ));
    let folder = library.path().parent().unwrap().to_owned();
    assert!(matches!(load(&folder), Err(LoadError::Open { .. })));
}

#[test]
fn a_library_that_lacked_another_one_is_loaded_once_that_is_there() {
    let needed = c_engine("crates/core/plugin/tests/no_engine.c", &[]);
    let needed = needed.path();
    let library = c_engine_with(
        "sdk/examples/c/size_limit.c",
        &["-Wl,--no-as-needed", needed.to_str().unwrap()],
    );
    let aside = needed.with_extension("aside");
    std::fs::rename(&needed, &aside).unwrap();
    let refused = load(&library.path()).err().unwrap();
    assert!(matches!(refused, LoadError::Link { .. }), "{refused}");
    std::fs::rename(&aside, &needed).unwrap();
    assert_eq!(load(&library.path()).unwrap().name(), "size-limit");
}

#[test]
fn a_library_that_others_can_write_is_refused() {
    let library = c_engine("sdk/examples/c/size_limit.c", &[]);
    library.set_mode(0o777);
    let refused = load(&library.path()).err().unwrap();
    assert!(matches!(refused, LoadError::Untrusted { .. }), "{refused}");
    assert!(refused.to_string().contains("chmod o-w"), "{refused}");
    library.set_mode(0o755);
    library.set_folder_mode(0o777);
    assert!(matches!(load(&library.path()), Err(LoadError::Untrusted { .. })));
    library.set_folder_mode(0o755);
    assert!(load(&library.path()).is_ok());
}

#[test]
fn what_an_odd_engine_says_is_bounded() {
    let service = Service::from_source(PROTO);
    let refusal = kind(&odd(&["CONFIGURE=long_refusal", "KIND=TEXT(\"odd-1\")"]));
    let refused = policy(&*refusal, "", None).err().unwrap();
    assert!(refused.problem.len() <= 4096 && refused.problem.starts_with("xxx"));
    let nothing = kind(&odd(&["CONFIGURE=makes_nothing", "KIND=TEXT(\"odd-2\")"]));
    assert!(policy(&*nothing, "", None).is_err());
    for judge in ["JUDGE=unknown_verdict", "JUDGE=unknown_code"] {
        let policy = policy(&*kind(&odd(&[judge])), "message-bytes-max = 1", None).unwrap();
        let mut rig = rig(&service, &*policy);
        rig.send(service.request(1, 0, &[]));
        rig.poll();
        assert!(rig.engine().unwrap().fault().is_some(), "{judge}");
        assert_eq!(rig.queues.tx_in.len(), 1);
    }
    let policy = policy(&*kind(&odd(&[])), "message-bytes-max = 1", None).unwrap();
    assert!(policy.save().bytes.is_empty());
    assert!(metrics(&*policy).len() <= 256);
    let mut rig = rig(&service, &*policy);
    rig.replace(&*policy).unwrap();
}
