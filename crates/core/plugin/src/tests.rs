//! What crosses the boundary arrives as it was: contexts, fields, metadata, verdicts, times, ends.

use std::path::Path;
use std::sync::{Arc, Mutex};

use provost_engine::abi::{EngineDescription, description};
use provost_engine::rig::{Rig, Service, Value as Field, end_of, metadata_of, policy, with_metadata};
use provost_engine::{
    AttachError, AuditEvent, Code, ConfigError, DatapathContext, Denial, Ended, Environment, EventSink,
    FieldPath, Filter, FilterPolicy, Parts, PolicyKind, SharedState, Side, Step, StepView, Value, Verdict,
    Watch,
};

use crate::kind::LoadedKind;

const PROTO: &str = "syntax = \"proto3\"; package t;
    message Inner { string name = 1; int32 level = 2; }
    message M { Inner inner = 1; bytes data = 2; map<string, Inner> others = 3; optional double weight = 4; }
    message Other { bool flag = 1; }
    service S { rpc Get(M) returns (Other); rpc Watch(stream M) returns (stream M); }";

static READER: EngineDescription = description::<Reader>();

/// Denies what it reads of a message, so that a test sees it.
struct Reader(Environment);

#[derive(serde::Deserialize)]
struct NoConfig {}

impl FilterPolicy for Reader {
    const KIND: &'static str = "reader";
    const SUMMARY: &'static str = "for tests";
    const EXAMPLE: &'static str = "";
    type Config = NoConfig;
    type Filter = Reads;

    fn configure(
        _: NoConfig,
        environment: &Environment,
        _: Option<&SharedState>,
    ) -> Result<Reader, ConfigError> {
        Ok(Reader(environment.clone()))
    }

    fn filter(&self, datapath_context: &DatapathContext) -> Result<Reads, AttachError> {
        let path = |path| {
            datapath_context
                .tables
                .field_path(datapath_context.methods[0].input, path)
        };
        let path = |name| path(name).map_err(|error| AttachError::new(error.to_string()));
        Ok(Reads {
            name: path("inner.name")?,
            level: path("inner.level")?,
            weight: path("weight")?,
            events: Arc::clone(&self.0.events),
        })
    }
}

struct Reads {
    name: FieldPath,
    level: FieldPath,
    weight: FieldPath,
    events: Arc<dyn EventSink>,
}

impl Filter for Reads {
    type Call = ();

    fn watch(&self) -> Watch {
        Watch::ALL
    }

    fn judge(&mut self, _: &mut (), step: &mut StepView<'_>) -> Verdict {
        if step.direction() == provost_engine::Direction::Response {
            return Verdict::Pass;
        }
        if step.held_since().is_none() {
            return Verdict::Hold {
                until: step.now() + 10,
            };
        }
        let name = match step.field(&self.name) {
            Ok(Some(Value::String(name))) => name.to_owned(),
            other => format!("{other:?}"),
        };
        let level = format!("{:?}", step.field(&self.level));
        let weight = format!("{:?}", step.field(&self.weight));
        let user = step
            .metadata("user")
            .map(|user| String::from_utf8_lossy(user).into_owned());
        let method = step.method().map_or("none", |method| &method.path);
        let waited = step.now() - step.held_since().unwrap_or_default();
        let seen = format!(
            "{name} {level} {weight} {user:?} {method} {waited} {}",
            step.deadline()
        );
        Verdict::Deny(Denial {
            retry_pushback_ms: Some(250),
            ..Denial::new(Code::PermissionDenied, seen)
        })
    }

    fn ended(&mut self, _: (), end: &Ended) {
        self.events.audit(AuditEvent {
            policy: "".into(),
            action: "deny",
            app: "app".into(),
            method: "m".into(),
            peer: "p".into(),
            call: 7,
            code: end.code,
            reason: "because".into(),
        });
    }
}

#[derive(Default)]
struct Kept(Mutex<Vec<AuditEvent>>);

impl EventSink for Kept {
    fn audit(&self, event: AuditEvent) {
        self.0.lock().unwrap().push(event);
    }
}

fn kind() -> &'static LoadedKind {
    Box::leak(Box::new(LoadedKind::of(Path::new("here"), &READER).unwrap()))
}

#[test]
fn fields_metadata_times_and_verdicts_cross_as_they_are() {
    let service = Service::from_source(PROTO);
    let policy = policy(&kind(), "", None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    let request = service.request(
        1,
        0,
        &[
            ("weight", Field::F64(2.5)),
            ("data", Field::Bytes(vec![1; 9000].into())),
        ],
    );
    let mut request = with_metadata(request, &[("user", "bob")]);
    request.deadline = 77;
    rig.send(request);
    rig.poll_at(100);
    assert_eq!(rig.wake_at(), Some(110));
    rig.poll_at(115);
    let told = rig.to_app();
    assert_eq!(end_of(&told[0]), Some(Code::PermissionDenied));
    assert_eq!(
        metadata_of(&told[0], "grpc-retry-pushback-ms").as_deref(),
        Some("250")
    );
    assert_eq!(
        metadata_of(&told[0], ":message").as_deref(),
        Some("Ok(None) Ok(None) Ok(Some(Double(2.5))) Some(\"bob\") /t.S/Get 15 77")
    );
}

#[test]
fn events_reach_the_service_under_the_policys_own_name() {
    let service = Service::from_source(PROTO);
    let kept = Arc::new(Kept::default());
    let environment = Environment {
        events: kept.clone(),
        ..provost_engine::rig::environment()
    };
    let policy = kind().configure(&toml::Table::new(), &environment, None);
    let policy = policy.unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Server), &*policy);
    rig.receive(Step {
        method: 1,
        ..Step::new(1, Parts::BEGIN)
    });
    rig.poll_at(100);
    rig.receive(Step::cancel(1, Code::Cancelled));
    rig.poll_at(101);
    let events = kept.0.lock().unwrap();
    let event = &events[0];
    assert_eq!((&*event.policy, event.action, event.call), ("test", "deny", 7));
    assert_eq!((event.code, &*event.reason), (Code::Cancelled, "because"));
}

#[test]
fn a_context_without_the_fields_is_refused_with_the_librarys_words() {
    let other = Service::from_source(
        "syntax = \"proto3\"; package t; message M {} service S { rpc Get(M) returns (M); }",
    );
    let policy = policy(&kind(), "", None).unwrap();
    let refused = policy
        .prepare(&other.datapath_context(Side::Client))
        .err()
        .unwrap();
    assert!(refused.to_string().contains("inner"), "{refused}");
}
