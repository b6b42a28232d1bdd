//! What the rules of a policy do with calls and streams, on both sides, and what is counted and told of it.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use crate::shop::Shop;
use prost_reflect::Value;
use provost_datapath::{Body, ForeignBytes};
use provost_engine::rig::{
    Rig, config, end_of, environment, metric, metrics, protobuf_of, with_metadata, with_protobuf,
};
use provost_engine::{AuditEvent, Code, Environment, EventSink, Parts, Policy, SharedState, Side, Step};
use provost_policies::kind;

const PLACE: u16 = 0;
const FETCH: u16 = 1;
const UPLOAD: u16 = 2;

#[derive(Default)]
struct Log(Mutex<Vec<AuditEvent>>);

impl EventSink for Log {
    fn audit(&self, event: AuditEvent) {
        self.0.lock().unwrap().push(event);
    }
}

struct Bench {
    shop: Shop,
    log: Arc<Log>,
    policy: Arc<dyn Policy>,
    rig: Rig,
}

impl Bench {
    fn new(text: &str) -> Bench {
        Bench::on(Side::Client, text)
    }

    fn on(side: Side, text: &str) -> Bench {
        let mut shop = Shop::open();
        shop.datapath_context.side = side;
        Bench::of(shop, text)
    }

    fn of(shop: Shop, text: &str) -> Bench {
        let log = Arc::new(Log::default());
        let policy = make(&log, text, None);
        let rig = Rig::new(shop.datapath_context.clone(), &*policy);
        Bench {
            shop,
            log,
            policy,
            rig,
        }
    }

    /// Sends a step from the client, and says what becomes of its call: passed, or ended with a status.
    fn send(&mut self, step: Step) -> Result<(), (Code, String)> {
        let call = step.call;
        let side = self.rig.datapath_context.side;
        match side {
            Side::Client => self.rig.send(step),
            Side::Server => self.rig.receive(step),
        }
        self.rig.poll();
        let (onwards, back) = match side {
            Side::Client => (self.rig.to_wire(), self.rig.to_app()),
            Side::Server => (self.rig.to_app(), self.rig.to_wire()),
        };
        let is_passed = onwards
            .iter()
            .any(|step| step.call == call && end_of(step).is_none());
        match back.iter().find(|step| step.call == call) {
            Some(end) => {
                assert!(!is_passed, "what is denied does not go on");
                let message = provost_engine::rig::metadata_of(end, ":message").unwrap_or_default();
                Err((end_of(end).expect("the way back has only ends"), message))
            }
            None => {
                assert!(is_passed);
                Ok(())
            }
        }
    }

    fn place(&mut self, call: u64, id: &str) -> Result<(), (Code, String)> {
        self.send(
            self.shop
                .service
                .request(call, PLACE, &[("id", Value::String(id.into()))]),
        )
    }

    fn metric(&self, name: &str, rule: &str) -> f64 {
        metric(
            &*self.policy,
            &format!("provost_access_{name}_total{{rule={rule}}}"),
        )
    }

    fn audited(&self) -> Vec<AuditEvent> {
        self.log.0.lock().unwrap().clone()
    }
}

fn make(log: &Arc<Log>, text: &str, shared: Option<&SharedState>) -> Arc<dyn Policy> {
    made_in("", (log, text, shared))
}

/// A policy that stands in this configuration.
fn made_in(place: &str, (log, text, shared): (&Arc<Log>, &str, Option<&SharedState>)) -> Arc<dyn Policy> {
    let environment = Environment {
        place: place.into(),
        events: Arc::clone(log) as Arc<dyn EventSink>,
        policy: "acl".into(),
        ..environment()
    };
    kind("access")
        .unwrap()
        .configure(&config(text), &environment, shared)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn denied(reason: &str) -> Result<(), (Code, String)> {
    Err((Code::PermissionDenied, reason.to_owned()))
}

/// Steps of one stream.
fn begin(call: u64, metadata: &[(&str, &str)]) -> Step {
    let step = Step {
        method: UPLOAD,
        ..Step::new(call, Parts::BEGIN)
    };
    match metadata {
        [] => step,
        metadata => with_metadata(step, metadata),
    }
}

fn message(shop: &Shop, call: u64, id: &str) -> Step {
    let step = shop
        .service
        .request(call, UPLOAD, &[("id", Value::String(id.into()))]);
    Step {
        parts: Parts::MESSAGE,
        ..step
    }
}

const FIRST_MATCH: &str = r#"
    default = "deny"
    [[rule]]
    name = "no-secrets"
    methods = ["/shop.v1.Shop/Place"]
    when = "request.id.startsWith('secret/') || request.id in lists.blocked"
    action = "deny"
    [[rule]]
    name = "places"
    methods = ["/shop.v1.Shop/Pl*"]
    when = "size(request.id) < 20"
    action = "allow"
    [lists.blocked]
    values = ["alpha", "beta"]
"#;

#[test]
fn the_first_rule_that_matches_decides_and_else_the_default() {
    for side in [Side::Client, Side::Server] {
        let mut bench = Bench::on(side, FIRST_MATCH);
        assert_eq!(bench.place(1, "ok"), Ok(()));
        assert_eq!(
            bench.place(2, "secret/x"),
            denied("denied by policy \"acl\", rule \"no-secrets\"")
        );
        assert_eq!(
            bench.place(3, "beta"),
            denied("denied by policy \"acl\", rule \"no-secrets\"")
        );
        assert_eq!(
            bench.place(4, &"x".repeat(20)),
            denied("denied by policy \"acl\": no rule allows it")
        );
        let fetch = bench.shop.service.request(5, FETCH, &[]);
        assert_eq!(
            bench.send(fetch),
            denied("denied by policy \"acl\": no rule allows it")
        );
        assert_eq!(bench.metric("allowed", "places"), 1.0);
        assert_eq!(bench.metric("denied", "no-secrets"), 2.0);
        assert_eq!(bench.metric("denied", "default"), 2.0);
        assert_eq!(bench.metric("errors", "no-secrets"), 0.0);
        let audited = bench.audited();
        assert_eq!(audited.len(), 4);
        assert_eq!(
            audited[0],
            AuditEvent {
                policy: "acl".into(),
                action: "deny",
                app: "till".into(),
                method: "/shop.v1.Shop/Place".into(),
                peer: "spiffe://example.org/ns/shop/sa/till".into(),
                call: 2,
                code: Code::PermissionDenied,
                reason: "rule \"no-secrets\"".into(),
            }
        );
    }
}

/// The document's translation of the example in Envoy's documentation, with the methods of this service.
#[test]
fn rules_translated_from_envoys_decide_as_envoys_do() {
    let document = include_str!("../../../../../docs/policies/access.md");
    let (_, example) = document.split_once("[[policy]]\nname = \"rbac\"").unwrap();
    let (_, rules) = example.split_once("[policy.config]\n").unwrap();
    let (rules, _) = rules.split_once("```").unwrap();
    let rules = rules
        .replace("[[policy.config.rule]]", "[[rule]]")
        .replace("/shop.Products/Delete", "/shop.v1.Shop/Place")
        .replace("/shop.Products/", "/shop.v1.Shop/");
    let no_rule = denied("denied by policy \"acl\": no rule allows it");
    for (identity, may_delete) in [
        ("spiffe://cluster.local/ns/default/sa/admin", true),
        ("spiffe://cluster.local/ns/default/sa/superuser", true),
        ("spiffe://cluster.local/ns/default/sa/admins", false),
        ("", false),
    ] {
        let mut shop = Shop::open();
        shop.datapath_context.side = Side::Server;
        shop.datapath_context.peer.identity = identity.into();
        let mut bench = Bench::of(shop, &rules);
        let deleted = bench.place(1, "x");
        let expected = if may_delete { Ok(()) } else { no_rule.clone() };
        assert_eq!(deleted, expected, "{identity}");
        let view = bench.shop.service.request(2, FETCH, &[]);
        assert_eq!(bench.send(view), Ok(()), "{identity}");
    }
}

#[test]
fn in_shadow_mode_everything_passes_and_is_counted() {
    let mut bench = Bench::new(&format!("enforce = false\n{FIRST_MATCH}"));
    for (call, id) in [(1, "ok"), (2, "alpha"), (3, "beta")] {
        assert_eq!(bench.place(call, id), Ok(()));
    }
    assert_eq!(bench.metric("shadow_denied", "no-secrets"), 2.0);
    assert_eq!(bench.metric("shadow_allowed", "places"), 1.0);
    assert_eq!(
        bench.metric("denied", "no-secrets") + bench.metric("allowed", "places"),
        0.0
    );
    assert_eq!(
        bench
            .audited()
            .iter()
            .map(|event| event.action)
            .collect::<Vec<_>>(),
        ["shadow_deny"; 2]
    );
}

#[test]
fn a_denial_says_where_the_policy_stands() {
    let mut bench = Bench::new("default = \"deny\"");
    bench.policy = made_in("/etc/acl.toml", (&bench.log, "default = \"deny\"", None));
    bench.rig = Rig::new(bench.shop.datapath_context.clone(), &*bench.policy);
    let reason = "denied by policy \"acl\": no rule allows it (/etc/acl.toml)";
    assert_eq!(bench.place(1, "x"), denied(reason));
}

#[test]
fn an_expression_without_a_value_denies_or_is_skipped() {
    let rule = "[[rule]]\nname = \"user\"\nwhen = \"metadata['user'] == 'ann'\"\naction = \"deny\"\n";
    let mut bench = Bench::new(&format!("default = \"allow\"\n{rule}"));
    let reason = "denied by policy \"acl\", rule \"user\": no such key in the metadata";
    assert_eq!(bench.place(1, "x"), denied(reason));
    assert_eq!(
        (bench.metric("errors", "user"), bench.metric("denied", "user")),
        (1.0, 1.0)
    );
    assert_eq!(
        &*bench.audited()[0].reason,
        "rule \"user\": no such key in the metadata"
    );
    let step = with_metadata(bench.shop.service.request(2, PLACE, &[]), &[("user", "bob")]);
    assert_eq!(bench.send(step), Ok(()));

    let mut bench = Bench::new(&format!("default = \"allow\"\non_error = \"skip\"\n{rule}"));
    assert_eq!(bench.place(1, "x"), Ok(()));
    assert_eq!(
        (bench.metric("errors", "user"), bench.metric("allowed", "default")),
        (1.0, 1.0)
    );

    let mut bench = Bench::new(&format!("default = \"allow\"\nhide_rule = true\n{rule}"));
    assert_eq!(bench.place(1, "x"), denied("denied by policy"));
}

#[test]
fn each_message_of_a_stream_is_judged_with_the_metadata_of_its_beginning() {
    let mut bench = Bench::new(
        r#"
        default = "deny"
        [[rule]]
        name = "own"
        methods = ["/shop.v1.Shop/Upload"]
        when = "request.id == metadata['user']"
        action = "allow"
        "#,
    );
    for call in [1, 2] {
        assert_eq!(
            bench.send(begin(call, &[("user", "ann"), ("other", "x")])),
            Ok(())
        );
    }
    let (own, other) = (message(&bench.shop, 1, "ann"), message(&bench.shop, 1, "bob"));
    assert_eq!(bench.send(own), Ok(()));
    // A successor of the engine knows the stream's metadata.
    let policy = Arc::clone(&bench.policy);
    bench.rig.replace(&*policy).unwrap();
    let own = message(&bench.shop, 1, "ann");
    assert_eq!(bench.send(own), Ok(()));
    assert!(bench.send(other).is_err());
    // A stream that ends without a message is not allowed by what a message could have said.
    assert!(bench.send(Step::new(2, Parts::END)).is_err());
    // One that began before the policy was there passes.
    let stranger = message(&bench.shop, 9, "bob");
    assert_eq!(bench.send(stranger), Ok(()));
}

#[test]
fn a_stream_is_denied_at_its_beginning_if_no_message_can_change_that() {
    let deny_first = r#"
        default = "allow"
        [[rule]]
        name = "guests"
        when = "!has(metadata.user)"
        action = "deny"
        [[rule]]
        name = "x"
        methods = ["/shop.v1.Shop/Upload"]
        when = "request.id == 'x'"
        action = "deny"
    "#;
    let mut bench = Bench::new(deny_first);
    assert!(bench.send(begin(1, &[])).is_err());
    assert_eq!(bench.send(begin(2, &[("user", "ann")])), Ok(()));
    let ok = message(&bench.shop, 2, "ok");
    assert_eq!(bench.send(ok), Ok(()));
    assert_eq!(bench.send(Step::new(2, Parts::END)), Ok(()));
    assert_eq!(bench.send(begin(3, &[("user", "ann")])), Ok(()));
    assert_eq!(
        bench.send(Step::new(3, Parts::END)),
        Ok(()),
        "no message, none that is denied"
    );
    assert_eq!(bench.send(begin(4, &[("user", "ann")])), Ok(()));
    let wrong = message(&bench.shop, 4, "x");
    assert!(bench.send(wrong).is_err());

    let allow_first = r#"
        default = "allow"
        [[rule]]
        name = "public"
        methods = ["/shop.v1.Shop/Upload"]
        when = "request.id == 'public'"
        action = "allow"
        [[rule]]
        name = "guests"
        when = "!has(metadata.user)"
        action = "deny"
    "#;
    let mut bench = Bench::new(allow_first);
    assert_eq!(bench.send(begin(1, &[])), Ok(()), "its messages may be public");
    let public = message(&bench.shop, 1, "public");
    assert_eq!(bench.send(public), Ok(()));
    let other = message(&bench.shop, 1, "other");
    assert!(bench.send(other).is_err());
    assert_eq!(bench.send(begin(2, &[])), Ok(()));
    assert!(bench.send(Step::new(2, Parts::END)).is_err());
}

#[test]
fn a_unary_call_whose_message_comes_behind_its_beginning_is_judged_like_others() {
    let mut bench = Bench::new(FIRST_MATCH);
    let begin = |call| Step {
        method: PLACE,
        ..Step::new(call, Parts::BEGIN)
    };
    for (call, id, passes) in [(1, "ok", true), (2, "alpha", false)] {
        assert_eq!(bench.send(begin(call)), Ok(()));
        let rest = Step {
            parts: Parts::MESSAGE | Parts::END,
            ..bench
                .shop
                .service
                .request(call, PLACE, &[("id", Value::String(id.into()))])
        };
        assert_eq!(bench.send(rest).is_ok(), passes, "{id}");
    }
}

#[test]
fn responses_are_judged_by_the_rules_that_read_them() {
    let text = r#"
        default = "allow"
        [[rule]]
        name = "no-leak"
        methods = ["/shop.v1.Shop/Place"]
        when = "response.id == metadata['never']"
        action = "deny"
    "#;
    let mut bench = Bench::new(text);
    let step = bench.shop.service.request(1, PLACE, &[]);
    assert_eq!(bench.send(with_metadata(step, &[("never", "secret")])), Ok(()));
    let step = bench.shop.service.request(2, PLACE, &[]);
    assert_eq!(bench.send(with_metadata(step, &[("never", "secret")])), Ok(()));
    for (call, id, code) in [(1, "fine", Code::Ok), (2, "secret", Code::PermissionDenied)] {
        let response = bench
            .shop
            .service
            .response(call, PLACE, &[("id", Value::String(id.into()))]);
        bench.rig.receive(response);
        bench.rig.poll();
        let ends: Vec<_> = bench.rig.to_app().iter().filter_map(end_of).collect();
        assert_eq!(ends, [code]);
    }
}

#[test]
fn a_changed_policy_goes_on_counting_and_does_not_break_streams() {
    let mut bench = Bench::new(FIRST_MATCH);
    let _ = bench.place(1, "alpha");
    assert_eq!(
        bench.send(begin(2, &[("user", "ann")])).map_err(|(code, _)| code),
        Err(Code::PermissionDenied)
    );

    let allow = "default = \"allow\"\n";
    let mut bench = Bench::new(allow);
    assert_eq!(bench.send(begin(3, &[("user", "ann")])), Ok(()));
    // The new rules need metadata that the old ones did not keep: what began under those is left alone.
    let rule = "[[rule]]\nname = \"own\"\nmethods = [\"/shop.v1.Shop/Upload\"]\nwhen = \"request.id == metadata.user\"\naction = \"allow\"\n";
    let shared = bench.policy.save();
    let policy = make(&bench.log, &format!("default = \"deny\"\n{rule}"), Some(&shared));
    bench.rig.replace(&*policy).unwrap();
    let other = message(&bench.shop, 3, "bob");
    assert_eq!(bench.send(other), Ok(()));
    assert_eq!(
        metric(&*policy, "provost_access_allowed_total{rule=default}"),
        1.0
    );
    assert_eq!(bench.send(begin(4, &[])), Ok(()));
    let other = message(&bench.shop, 4, "bob");
    assert!(bench.send(other).is_err(), "there is no metadata.user");
    assert!(
        metrics(&*policy)
            .iter()
            .all(|(name, _)| name.contains("{rule=own}") || name.contains("{rule=default}"))
    );
    let again = make(
        &bench.log,
        &format!("default = \"deny\"\n{rule}"),
        Some(&policy.save()),
    );
    assert_eq!(metric(&*again, "provost_access_denied_total{rule=own}"), 1.0);
    // Counts of a form that is not known are left behind.
    let strange = SharedState {
        version: 77,
        bytes: vec![1, 2, 3],
    };
    let anew = make(&bench.log, "default = \"deny\"", Some(&strange));
    assert_eq!(metric(&*anew, "provost_access_denied_total{rule=default}"), 0.0);
}

#[test]
fn a_policy_that_does_not_suit_the_service_is_not_attached() {
    let shop = Shop::open();
    let log = Arc::new(Log::default());
    let text =
        "default = \"deny\"\n[[rule]]\nname = \"r\"\nwhen = \"request.total > 1\"\naction = \"deny\"\n";
    let policy = make(&log, text, None);
    let error = policy.prepare(&shop.datapath_context).map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rule \"r\" for /shop.v1.Shop/Fetch: line 1, column 9: shop.v1.Reply has no field total\n  |\n\
         1 | request.total > 1\n  |         ^^^^^\n  = help: fields of shop.v1.Reply: id, lines\n\
         \x20 = help: the rule is for all methods; `methods` says which"
    );
}

#[test]
fn bad_configurations_are_refused() {
    let rule = |keys: &str| format!("default = \"deny\"\n[[rule]]\nname = \"a\"\naction = \"deny\"\n{keys}");
    let list = |keys: &str| format!("default = \"deny\"\n[lists.a]\n{keys}");
    for (text, said) in [
        (String::new(), "missing field `default`"),
        ("default = \"maybe\"".into(), "unknown variant `maybe`"),
        ("default = \"deny\"\nrules = 1".into(), "unknown field `rules`"),
        (
            rule("when = \"a ==\""),
            "rule[0].when: rule \"a\", line 1, column 5: a value is expected here",
        ),
        (
            rule("methods = [\"Get\"]"),
            "rule[0].methods: \"Get\" is neither a path",
        ),
        (
            rule("methods = [\"/a*b\"]"),
            "rule[0].methods: \"/a*b\" is neither a path",
        ),
        (
            rule("[[rule]]\nname = \"a\"\naction = \"deny\""),
            "rule[1].name: two rules have the name \"a\"",
        ),
        (
            rule("").replace("\"a\"", "\"default\""),
            "rule[0].name: a name has",
        ),
        (rule("").replace("\"a\"", "\"\""), "rule[0].name: a name has"),
        (list(""), "lists.a: give either `file` or `values`"),
        (list("values = [1]"), "lists.a.values: 1 is not a string"),
        (
            list("values = [\"1\"]\ntype = \"int\""),
            "lists.a.values: \"1\" is not an integer",
        ),
        (
            list("file = \"/does/not/exist\""),
            "lists.a.file: /does/not/exist: No such file",
        ),
        (
            list("file = \"/dev/zero\""),
            "lists.a.file: /dev/zero is not a file",
        ),
        (
            list("values = []").replace("lists.a", "lists.\"a-b\""),
            "lists.a-b: a list's name has",
        ),
    ] {
        let outcome = kind("access")
            .unwrap()
            .configure(&config(&text), &environment(), None)
            .map(drop);
        let error = outcome.expect_err(&text).to_string();
        assert!(error.contains(said), "{text}\n{error}");
    }
}

#[test]
fn the_example_is_a_configuration_and_lists_are_read_from_files() {
    assert!(
        kind("access")
            .unwrap()
            .configure(&config(kind("access").unwrap().example()), &environment(), None)
            .is_ok()
    );
    let path = std::env::temp_dir().join(format!("provost-access-{}.txt", std::process::id()));
    std::fs::write(&path, "# ids\nalpha\nbeta\n").unwrap();
    let text = FIRST_MATCH.replace("values = [\"alpha\", \"beta\"]", &format!("file = {path:?}"));
    let mut bench = Bench::new(&text);
    std::fs::write(&path, "gamma\n").unwrap();
    assert!(bench.place(1, "alpha").is_err());
    assert!(
        bench.place(2, "gamma").is_ok(),
        "a list is read when the policy is configured"
    );
    let policy = make(&bench.log, &text, None);
    bench.rig.replace(&*policy).unwrap();
    assert!(bench.place(3, "alpha").is_ok());
    assert!(bench.place(4, "gamma").is_err());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_large_leaf_is_copied_only_if_its_content_is_read() {
    struct Nobody;
    impl provost_datapath::Keepalive for Nobody {}
    // In the app's memory, which is this test's here.
    let leaf: &'static [u64] = Box::leak(vec![u64::from_le_bytes(*b"leafleaf"); 1024].into_boxed_slice());
    let address = NonZeroUsize::new(leaf.as_ptr().expose_provenance()).unwrap();
    for (when, is_copied) in [
        ("size(request.token) > 9000", false),
        ("has(request.token) && request.id == 'x'", false),
        ("request.id == 'other'", false),
        ("request.id == 'free' || request.token == b'x'", false),
        ("request.token == b'leaf'", true),
    ] {
        let text = format!(
            "default = \"allow\"\n[[rule]]\nname = \"r\"\nmethods = [\"/shop.v1.Shop/Place\"]\nwhen = \"{when}\"\naction = \"{}\"\n",
            if when.contains("free") { "allow" } else { "deny" }
        );
        let mut bench = Bench::new(&text);
        let fields = [
            ("id", Value::String("free".into())),
            ("token", Value::Bytes(vec![b'?'; 8192].into())),
        ];
        let mut step = bench.shop.service.request(1, PLACE, &fields);
        let Body::Gathered(body) = &mut step.body else {
            panic!("the rig makes gathered bodies");
        };
        let head_bytes = body
            .buffer
            .bytes
            .windows(8)
            .position(|bytes| bytes == b"????????")
            .unwrap();
        body.buffer.bytes.truncate(head_bytes);
        body.buffer
            .foreign
            .push(ForeignBytes::new(address, 8192, Arc::new(Nobody)));
        bench.rig.send(step);
        bench.rig.poll();
        let sent = bench.rig.to_wire();
        let [
            Step {
                body: Body::Gathered(body),
                ..
            },
        ] = &sent[..]
        else {
            panic!("{when}: {sent:?}");
        };
        assert_eq!(body.buffer.foreign.is_empty(), is_copied, "{when}");
        assert_eq!(body.buffer.bytes.ends_with(b"leafleaf"), is_copied, "{when}");
    }
}

/// Rules of which the first reads a field by its path, and the second what has none.
const OF_PROTOBUF: &str = "
default = \"allow\"
[[rule]]
name = \"field\"
methods = [\"/shop.v1.Shop/Place\"]
when = \"request.id == 'bad' || size(request.tags) > 2\"
action = \"deny\"
[[rule]]
name = \"element\"
methods = [\"/shop.v1.Shop/Place\"]
when = \"request.lines.exists(l, l.sku == 'bad')\"
action = \"deny\"
";

#[test]
fn rules_read_protobuf_and_what_goes_on_is_what_came() {
    // `id`, an unknown field, `lines` with a `sku`, `id` again: the last one counts.
    let order = |id: &[u8; 3], sku: &[u8; 3]| {
        let line = [&[0x4a, 5, 0x0a, 3][..], sku].concat();
        [&[0x0a, 1, b'x', 0xf8, 0x7f, 1][..], &line, &[0x0a, 3], id].concat()
    };
    let mut bench = Bench::new(OF_PROTOBUF);
    let request = |bench: &Bench, call, bytes: &[u8]| {
        with_protobuf(bench.shop.service.request(call, PLACE, &[]), bytes)
    };
    for (call, (id, sku, rule)) in (1..).zip([
        (b"bad", b"one", "field"),
        (b"one", b"bad", "element"),
        (b"one", b"two", ""),
    ]) {
        let bytes = order(id, sku);
        let step = request(&bench, call, &bytes);
        if rule.is_empty() {
            bench.rig.send(step);
            bench.rig.poll();
            assert_eq!(protobuf_of(&bench.rig.to_wire()[0]), Some(&bytes[..]));
        } else {
            let (code, reason) = bench.send(step).unwrap_err();
            assert_eq!(code, Code::PermissionDenied);
            assert!(reason.contains(rule), "{reason}");
        }
    }
}

#[test]
fn a_message_that_cannot_be_read_is_denied_whatever_is_done_about_errors() {
    // The first names a field of nine bytes that has one; the second has a line of which the same is true.
    for malformed in [&[0x0a, 9, b'x'][..], &[0x4a, 3, 0x0a, 9, b'x']] {
        for on_error in ["deny", "skip"] {
            let text = format!("on_error = \"{on_error}\"{OF_PROTOBUF}");
            let mut bench = Bench::new(&text);
            let step = bench.shop.service.request(1, PLACE, &[]);
            let (code, reason) = bench.send(with_protobuf(step, malformed)).unwrap_err();
            assert_eq!(code, Code::PermissionDenied);
            assert!(reason.contains("malformed"), "{reason}");
            // In shadow mode it changes nothing.
            let mut bench = Bench::new(&format!("enforce = false\n{text}"));
            let step = bench.shop.service.request(1, PLACE, &[]);
            bench.rig.send(with_protobuf(step, malformed));
            bench.rig.poll();
            assert_eq!(protobuf_of(&bench.rig.to_wire()[0]), Some(malformed));
        }
    }
}

#[test]
fn a_message_of_very_many_records_is_decoded_and_judged_all_the_same() {
    let mut bench = Bench::new(OF_PROTOBUF);
    let tags = [0x52, 1, b't'].repeat(3_000);
    let step = bench.shop.service.request(1, PLACE, &[]);
    let (code, reason) = bench.send(with_protobuf(step, &tags)).unwrap_err();
    assert!(
        code == Code::PermissionDenied && reason.contains("field"),
        "{reason}"
    );
    let unknown = [0xf8, 0x7f, 1].repeat(3_000);
    let step = bench.shop.service.request(2, PLACE, &[]);
    assert_eq!(bench.send(with_protobuf(step, &unknown)), Ok(()));
}
