//! What expressions mean, by example; and what is said of those that are refused.

use std::sync::Arc;

use crate::shop::{NOW_UNIX_S, Shop};
use prost_reflect::DynamicMessage;
use prost_reflect::prost::Message as _;
use provost_engine::{AttestedApp, PeerIdentity};
use provost_marshal::View;
use provost_policies::access::expression::{EXPRESSION_BYTES_MAX, Failure, Inputs, Source};

const ORDER: &str = r#"{
    "id": "order-é1", "total": "-5", "size": "18446744073709551615", "express": true, "weight": 2.5, "token": "AAEC",
    "color": "BLUE", "first": {"sku": "nut", "count": 3, "tags": ["a", "b"]},
    "lines": [{"sku": "bolt", "count": 1, "price": 0.5, "stock": {"x": 4}}, {"sku": "nail", "count": 0, "color": 1}],
    "tags": ["red", "green"], "numbers": ["1", "2", "-3"], "labels": {"env": "prod", "owner": ""},
    "byId": {"-7": {"sku": "minus"}, "9": {"sku": "nine", "tags": ["z"]}}, "counts": {"4": "40"},
    "note": "", "voucher": {"sku": "gift"}, "colors": ["RED", "BLUE", 99], "ratio": 0.5
}"#;

#[test]
fn conditions_hold_or_do_not() {
    let shop = Shop::open();
    let metadata = [
        ("user", "ann"),
        ("twice", "a"),
        ("twice", "b"),
        ("x-bin", "raw"),
        ("x-forwarded-for", "2001:db8::7"),
    ];
    let check = |text: &str| shop.holds(text, ORDER, &metadata);
    for text in [
        // Comparisons.
        "request.id == 'order-é1'",
        "request.id != 'x'",
        "request.id < 'p'",
        "request.total == -5",
        "request.total < 0 && request.total >= -5",
        "request.size > 5",
        "request.size == 18446744073709551615u",
        "request.express",
        "request.express == true",
        "request.weight == 2.5",
        "request.weight > 2",
        "2 < request.weight",
        "request.token == b'\\x00\\x01\\x02'",
        "request.ratio == 0.5",
        "request.total < request.size",
        "request.express != false",
        "double(request.first.count) in [9, 5, 3, 7, 1, 2]",
        "!(request.weight in [9, 5, 3, 7, 1, 2])",
        "request.weight >= 2.5",
        // Logic.
        "!(request.total > 0)",
        "request.express || request.total / 0 > 1",
        "request.total / 0 > 1 || request.express",
        "!(false && request.total / 0 > 1)",
        "!(request.total / 0 > 1 && !request.express)",
        "request.express ? request.total < 0 : request.total > 0",
        // Enums.
        "request.color == 7",
        "request.color == 'BLUE'",
        "'BLUE' == request.color",
        "request.color == shop.v1.Color.BLUE",
        "request.color == Color.BLUE",
        "request.color != Color.RED",
        "request.color in ['RED', 'BLUE']",
        "request.color in [1, 7]",
        "'RED' in request.colors",
        "99 in request.colors",
        "request.color > Color.RED",
        // Arithmetic.
        "request.total + 6 == 1",
        "request.total * -2 == 10",
        "-request.total == 5",
        "request.total % 3 == -2",
        "request.size - 1 > 0",
        "request.weight * 2.0 == 5.0",
        "request.weight / 0.0 > 1000.0",
        "int(request.weight) == 2",
        "uint(request.first.count) == 3u",
        "double(request.total) == -5.0",
        "request.total - -5 == 0",
        "1 + 2 * 3 == 7",
        // Texts.
        "request.id.startsWith('order-')",
        "request.id.endsWith('1')",
        "request.id.contains('r-é')",
        "request.id.matches('^order-.[0-9]$')",
        "matches(request.id, 'é')",
        "!request.id.matches('^er')",
        "size(request.id) == 8",
        "request.id.size() == 8",
        "size(request.token) == 3",
        "'ab'.startsWith('a')",
        // Lists and maps.
        "'red' in request.tags",
        "!('blue' in request.tags)",
        "request.tags[1] == 'green'",
        "size(request.tags) == 2",
        "request.tags.size() == 2",
        "-3 in request.numbers",
        "request.numbers[0] == 1",
        "request.lines[1].sku == 'nail'",
        "request.lines[0].stock['x'] == 4",
        "'env' in request.labels",
        "request.labels['env'] == 'prod'",
        "!('none' in request.labels)",
        "request.by_id[9].sku == 'nine'",
        "request.by_id[-7].sku == 'minus'",
        "request.by_id[9].tags[0] == 'z'",
        "9u in request.by_id",
        "request.counts[4] == 40",
        "request.counts[4u] == 40",
        "!(-4 in request.counts)",
        "size(request.by_id) == 2",
        "request.id in ['x', 'order-é1']",
        "request.id in ['a', 'b', 'c', 'd', 'e', 'order-é1']",
        "!(request.id in ['a', 'b', 'c', 'd', 'e', 'f'])",
        "request.total in [1, 2, 3, 4, 5, -5]",
        "request.weight in [1.0, 2.5]",
        "request.id in [request.first.sku, request.id]",
        "request.size in [1, 2, 3, 4, 5, 18446744073709551615u]",
        // Quantifiers.
        "request.lines.all(l, l.sku.size() == 4)",
        "request.lines.exists(l, l.count == 0)",
        "request.lines.exists_one(l, l.color == 'RED')",
        "!request.lines.all(l, l.count > 0)",
        "request.tags.exists(t, t.startsWith('gr'))",
        "request.labels.all(k, size(k) > 2)",
        "request.labels.exists(k, request.labels[k] == 'prod')",
        "['a', 'b'].exists(t, t in request.first.tags)",
        "request.lines.all(l, l.tags.all(t, t == 'x'))",
        "[1, 2].all(n, n in request.numbers)",
        "request.by_id.exists(k, request.by_id[k].sku == 'nine')",
        "request.numbers.exists(n, 1 / (n - 1) == 1)",
        "request.lines.exists(l, l.sku == 'bolt' && request.tags.exists(t, t == 'red' && l.count == 1u))",
        // Presence.
        "has(request.first)",
        "has(request.note)",
        "request.note == ''",
        "has(request.voucher)",
        "!has(request.card)",
        "request.card == ''",
        "request.voucher.sku == 'gift'",
        "has(request.total)",
        "has(request.tags)",
        "has(request.labels)",
        "!has(request.first.price)",
        "has(request.lines[0].price)",
        "!has(request.voucher.stock)",
        // Metadata.
        "metadata['user'] == 'ann'",
        "metadata.user == 'ann'",
        "'user' in metadata",
        "has(metadata.user)",
        "!('none' in metadata)",
        "metadata['x-bin'] == b'raw'",
        "'twice' in metadata",
        // What is fixed.
        "method == '/shop.v1.Shop/Place'",
        "service == 'shop.v1.Shop'",
        "side == 'client'",
        "node == 'node'",
        "peer.identity.startsWith('spiffe://example.org/')",
        "peer.address == '192.0.2.7:4000'",
        "peer.transport == 'tcp'",
        "peer.app.name == ''",
        "peer.app.uid == -1",
        "peer.node == '' && peer.app.user == '' && peer.app.workload == ''",
        "app.user == 'cashier' && app.workload.startsWith('spiffe://example.org/')",
        "app.name == 'till' && app.uid == 1000 && app.gid < 101 && app.pid > 0",
        // Addresses.
        "cidr_contains(peer.address, '192.0.2.0/24')",
        "peer.address.cidr_contains('192.0.2.7/32')",
        "!cidr_contains(peer.address, '10.0.0.0/8')",
        "!cidr_contains(peer.address, '::/0')",
        "cidr_contains(metadata['x-forwarded-for'], '2001:db8::/32')",
        // Time.
        "time_between('10:51', '11:00')",
        "!time_between('08:00', '10:51')",
        "time_between('22:00', '10:52')",
        "time_between('12:00', '13:00', '+02:00')",
        "weekday() == 'saturday'",
        "weekday('+14:00') == 'sunday'",
        "weekday() in ['saturday', 'sunday']",
        "unix_time() == 1795258260",
        // Value lists.
        "!(request.id in lists.blocked)",
        "'alpha' in lists.blocked",
        "request.color in lists.numbers",
        "request.tags.exists(t, t in lists.blocked) == false",
        "request.first.count in lists.numbers == false",
    ] {
        assert_eq!(check(text), Ok(true), "{text}");
    }
    for (text, failure) in [
        ("metadata['none'] == 'x'", Failure::NoMetadata),
        ("metadata['twice'] == 'a'", Failure::SeveralValues),
        ("request.labels['none'] == ''", Failure::NoKey),
        ("request.tags[2] == ''", Failure::NoIndex),
        ("request.tags[-1] == ''", Failure::NoIndex),
        ("request.lines[2].sku == ''", Failure::NoIndex),
        ("cidr_contains(request.id, '0.0.0.0/0')", Failure::NotAddress),
        ("request.total / 0 == 1", Failure::DivisionByZero),
        ("request.total % 0 == 1", Failure::DivisionByZero),
        ("request.size + 1u == 0u", Failure::Overflow),
        ("int(request.size) == 0", Failure::Overflow),
        ("uint(request.total) == 0u", Failure::Overflow),
        ("int(request.weight * 1e300) == 0", Failure::Overflow),
        (
            "request.express && request.total / 0 == 1",
            Failure::DivisionByZero,
        ),
        (
            "request.lines.exists_one(l, l.price / 1.0 == 0.5 && request.tags[9] == 'x')",
            Failure::NoIndex,
        ),
        (
            "request.numbers.all(n, 1 / (n - 1) > -9)",
            Failure::DivisionByZero,
        ),
    ] {
        assert_eq!(check(text), Err(failure), "{text}");
    }
}

#[test]
fn absent_messages_have_defaults() {
    let shop = Shop::open();
    for text in [
        "request.first.sku == ''",
        "request.first.tags.all(t, false)",
        "size(request.first.stock) == 0",
        "!('x' in request.first.stock)",
        "!has(request.first)",
        "!has(request.first.sku)",
        "!has(request.note)",
        "request.note == ''",
        "!has(request.express)",
        "!has(request.weight)",
        "request.color == 'COLOR_UNKNOWN'",
        "request.voucher.color == 0",
        "!has(request.tags)",
        "request.token == b''",
    ] {
        assert_eq!(shop.holds(text, "{}", &[]), Ok(true), "{text}");
    }
}

#[test]
fn what_is_known_at_attach_is_not_evaluated_again() {
    let shop = Shop::open();
    for (text, value) in [
        ("true", Some(true)),
        ("peer.identity == 'x' && request.id == 'y'", Some(false)),
        ("app.uid == 1000 || request.id == 'y'", Some(true)),
        (
            "['spiffe://a/', 'spiffe://example.org/'].exists(p, peer.identity.startsWith(p))",
            Some(true),
        ),
        ("app.uid == 1000 && request.id == 'y'", None),
        ("1 / 0 == 1", None),
        ("cidr_contains(peer.address, '192.0.2.0/24')", Some(true)),
        ("time_between('00:00', '24:00')", None),
        ("weekday() == 'saturday'", None),
        ("app.name in lists.blocked", Some(false)),
    ] {
        assert_eq!(shop.compile(text).unwrap().constant(), value, "{text}");
    }
}

#[test]
fn work_is_bounded_whatever_a_message_holds() {
    let shop = Shop::open();
    let numbers: Vec<String> = (0..20_000).map(|n| format!("\"{n}\"")).collect();
    let order = format!(
        r#"{{"numbers": [{}], "id": "{}"}}"#,
        numbers.join(","),
        "x".repeat(2_000_000 / 2)
    );
    for text in [
        "request.numbers.all(n, n >= 0)",
        "-1 in request.numbers",
        "request.numbers.exists(n, request.numbers.exists(m, m + n < 0))",
        "[1, 2, 3].all(n, !request.id.contains('y'))",
        "request.id == request.id",
        "request.id < request.id",
        "request.id.endsWith(request.id)",
        "request.id in ['y', request.id]",
        "request.numbers.all(n, !cidr_contains('192.0.2.1', '10.0.0.0/8') || n < 0)",
    ] {
        assert_eq!(shop.holds(text, &order, &[]), Err(Failure::Steps), "{text}");
    }
    assert_eq!(shop.holds("request.id == 'x'", &order, &[]), Ok(false));
    assert_eq!(shop.holds("5 in request.numbers", &order, &[]), Ok(true));
}

/// How many elements an expression goes over before it has no value.
fn elements_max(shop: &Shop, text: &str) -> usize {
    let of = |count: usize| {
        let order = format!(r#"{{"numbers": [{}]}}"#, vec!["\"1\""; count].join(","));
        shop.holds(text, &order, &[])
    };
    let most = (0..=14).rev().fold(0, |most, bit| match of(most + (1 << bit)) {
        Err(Failure::Steps) => most,
        _ => most + (1 << bit),
    });
    assert_eq!(of(most), Ok(false), "{text}");
    most
}

#[test]
fn the_longer_a_condition_the_fewer_elements_it_is_tried_on() {
    let shop = Shop::open();
    let listed = |count: usize, value: &str| vec![value; count].join(", ");
    for (condition, expected) in [
        // Seven parts, and eight.
        ("n > 1 && n < 9".to_owned(), 8192),
        ("!(n < 9 && n > 0)".to_owned(), 8192 / 2),
        // A hundred comparisons of three parts, and 99 operators between them.
        (vec!["n == 2"; 100].join(" || "), 8192 / 50),
        (format!("n in [{}]", listed(30, "2.5")), 8192 / 5),
        (format!("n in [{}]", listed(15, "request.total")), 8192 / 3),
        // What is searched by halves.
        (format!("n in [{}]", listed(64, "2")), 8192 / 2),
    ] {
        let text = format!("request.numbers.exists(n, {condition})");
        assert_eq!(elements_max(&shop, &text), expected, "{text}");
    }
}

#[test]
fn protobuf_is_decoded_before_a_quantifier_reads_of_it_again_and_again() {
    let shop = Shop::open();
    let protobuf = DynamicMessage::new(shop.message("Order")).encode_to_vec();
    let listed = |count: usize| vec!["'a'"; count].join(", ");
    let long = ["request.id.startsWith(p)"; 4].join(" || ");
    let not_whole = Err(Failure::NotWhole);
    for (text, expected) in [
        (
            "request.id.startsWith('a') || request.id.startsWith('b')".to_owned(),
            Ok(false),
        ),
        (
            "['a', 'b'].exists(p, metadata['user'].startsWith(p))".to_owned(),
            Ok(true),
        ),
        (
            "['a', 'b'].exists(p, request.id.startsWith(p))".to_owned(),
            Ok(false),
        ),
        (
            format!("[{}].exists(p, request.id.startsWith(p))", listed(16)),
            Ok(false),
        ),
        (
            format!("[{}].exists(p, request.id.startsWith(p))", listed(17)),
            not_whole,
        ),
        (format!("[{}].exists(p, {long})", listed(8)), Ok(false)),
        (format!("[{}].exists(p, {long})", listed(9)), not_whole),
        (
            format!(
                "[{0}].exists(q, [{0}].exists(p, request.id.startsWith(p == q ? p : q)))",
                listed(5)
            ),
            not_whole,
        ),
        (
            "request.numbers.exists(n, request.id == 'a')".to_owned(),
            not_whole,
        ),
    ] {
        let expression = shop.compile(&text).unwrap();
        let mut metadata = Vec::new();
        provost_wire::metadata::append(&mut metadata, "user", b"ann").unwrap();
        let judged = shop.evaluate_protobuf(&expression, &protobuf, &metadata);
        assert_eq!(judged, expected, "{text}");
    }
}

#[test]
fn bad_expressions_are_refused_with_their_place() {
    let shop = Shop::open();
    let bad = [
        "request.kolor == 'RED'",
        "request.colr == 'RED'",
        "request.first.skuu == 'x'",
        "request.id == 5",
        "request.total == '5'",
        "requst.id == 'x'",
        "request.id",
        "request.total + 1",
        "request.id.startswith('x')",
        "request.id.startsWith(5)",
        "request.id && true",
        "!request.id",
        "request == response",
        "request.first == 1",
        "request.tags == ['a']",
        "request.tags.id == 'x'",
        "request.labels.env == 'prod'",
        "'x' in request.id",
        "5 in request.tags",
        "request.id in [1, 2]",
        "request.id in ['a', 5]",
        "request.id in []",
        "request.id in lists.nothing",
        "request.total in lists.blocked",
        "lists.blocked == 'x'",
        "request.color == 'GREEN'",
        "request.color == Color.REDD",
        "Colour.RED == 1",
        "metadata['User'] == 'x'",
        "metadata[request.id] == 'x'",
        "metadata == 'x'",
        "request.id in metadata",
        "peer.name == 'x'",
        "peer == 'x'",
        "peer.app == 'x'",
        "request.id.matches('(')",
        "request.id.matches(request.id)",
        "request.id.matches('(?=x)')",
        "has(request.id == 'x')",
        "has(metadata)",
        "has(request.tags[0])",
        "request.tags['a'] == 'x'",
        "request.labels[1] == 'x'",
        "request.by_id['x'].sku == 'y'",
        "request.total + 1.5 > 2.0",
        "request.size + request.total > 1",
        "request.id + 'x' == 'y'",
        "-request.size < 0",
        "request.weight % 2.0 == 0.0",
        "request.express ? 1 : 'x'",
        "request.total ? true : false",
        "request.lines.map(l, l.sku) == []",
        "request.lines.filter(l, l.count > 0).size() > 0",
        "request.lines.all(l, l.sku)",
        "request.id.all(c, true)",
        "request.lines.all(request, true)",
        "request.lines.exists(l, m.sku == 'x')",
        "size(request.total) == 1",
        "size(request.id, 1) == 1",
        "int('5') == 5",
        "string(request.total) == '5'",
        "request.first == null",
        "cidr_contains(peer.address, '10.0.0.1/8')",
        "cidr_contains(peer.address, request.id)",
        "cidr_contains(app.uid, '10.0.0.0/8')",
        "cidr_contain(peer.address, '10.0.0.0/8')",
        "time_between('8:00', '18:00')",
        "time_between('08:00', request.id)",
        "time_between('08:00', '18:00', 'UTC')",
        "weekday() == 6",
        "unix_time(1) > 0",
        "{'a': 1}['a'] == 1",
        "shop.v1.Line{sku: 'x'}.sku == 'x'",
        "response.id == 'x' && request.id == 'y'",
        "request.tags.all(a, request.tags.all(b, request.tags.all(c, request.tags.all(d, request.tags.all(e, true)))))",
        "",
        "request.id ==",
        "request.id == 'x",
        "request.id = 'x'",
        "a b",
        "request.é == 1",
        "(request.id == 'x'",
        "request.express &&\n  request.first.cuont > 3u\n  && true",
        "99999999999999999999 == 1",
        "'\\q' == 'x'",
        "request?.id == 'x'",
        "request.`id` == 'x'",
        "\tequest.id == 'é' || request.idd == 'é'",
    ];
    let mut said = String::new();
    for text in bad {
        let error = shop.compile(text).map(drop).expect_err(text);
        said.push_str(&format!("{text}\n--\n{error}\n\n"));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/access/golden/errors.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &said).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap();
    assert!(
        said == expected,
        "run with BLESS=1 and look at the difference of {path}; now it says:\n{said}"
    );
}

#[test]
fn large_and_deep_expressions_are_refused() {
    for text in [
        " ".repeat(EXPRESSION_BYTES_MAX + 1),
        "(".repeat(2000),
        "!".repeat(3000),
        "[".repeat(70) + &"]".repeat(70),
        "a".to_owned() + &".b".repeat(2000),
        "1".to_owned() + &"+1".repeat(2000),
        "a?".repeat(1000),
        "x.all(a,".repeat(400),
    ] {
        assert!(Source::parse(&text).is_err(), "{}", &text[..20]);
    }
    let many = "a".to_owned() + &"||a".repeat(1300);
    assert!(Source::parse(&many).is_ok());
}

#[test]
fn who_calls_from_another_node_is_known_by_the_word_of_that_node() {
    let mut shop = Shop::open();
    shop.datapath_context.peer.attested = Some(Arc::new(AttestedApp {
        node: "b".into(),
        name: "courier".into(),
        user: "post".into(),
        uid: 1007,
        workload: "spiffe://example.org/courier".into(),
    }));
    for text in [
        "peer.app.name == 'courier' && peer.node == 'b'",
        "peer.app.user == 'post' && peer.app.uid == 1007",
        "peer.app.workload == 'spiffe://example.org/courier'",
        // Groups and processes of other nodes are not known.
        "peer.app.gid == -1 && peer.app.pid == -1",
    ] {
        assert_eq!(shop.holds(text, "{}", &[]), Ok(true), "{text}");
    }
}

/// What stands beside Envoy's terms in the document.
#[test]
fn expressions_beside_envoys_terms_can_be_compiled() {
    let document = include_str!("../../../../../docs/policies/access.md");
    let (_, table) = document.split_once("| Envoy | here |\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let here = table.lines().filter_map(|row| row.split(" | ").nth(1));
    let codes = here.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let is_expression =
        |code: &&str| code.contains("peer.identity") || code.contains(['(', '[']) || code.contains(" in ");
    let expressions: Vec<&str> = codes
        .filter(is_expression)
        .filter(|code| !code.contains(" = "))
        .collect();
    assert_eq!(expressions.len(), 6, "{expressions:?}");
    let shop = Shop::open();
    for expression in expressions {
        assert!(shop.compile(expression).is_ok(), "{expression}");
    }
}

/// The document's rule by app, node, network, day and time.
#[test]
fn a_rule_by_app_network_and_time_of_the_week_holds_when_all_of_them_do() {
    let document = include_str!("../../../../../docs/policies/access.md");
    let (_, rule) = document.split_once("name = \"maintenance\"").unwrap();
    let text = rule.split("'''").nth(1).unwrap();
    const HOUR: i64 = 3600;
    // It is Saturday, 10:51 in UTC and 11:51 in the rule's zone.
    const MONDAY_NIGHT: i64 = NOW_UNIX_S + 60 * HOUR;
    let holds = |change: fn(&mut PeerIdentity), unix_s: i64| {
        let mut shop = Shop::open();
        shop.datapath_context.peer = PeerIdentity {
            identity: "spiffe://example.org/node/b".into(),
            address: "10.20.1.2:4000".into(),
            transport: "tcp",
            app: None,
            attested: Some(Arc::new(AttestedApp {
                node: "b".into(),
                name: "backup".into(),
                user: "backup".into(),
                uid: 34,
                workload: "".into(),
            })),
        };
        change(&mut shop.datapath_context.peer);
        let expression = shop.compile(text).unwrap();
        let message = shop.native(&DynamicMessage::new(shop.message("Order")));
        let inputs = Inputs {
            tables: &shop.datapath_context.tables,
            metadata: &[],
            message: Some(View::linear(&message)),
            protobuf: None,
            is_compressed: false,
            unix_s,
        };
        expression.evaluate(&inputs).unwrap()
    };
    assert!(holds(|_| (), MONDAY_NIGHT));
    assert!(!holds(|_| (), MONDAY_NIGHT - 12 * HOUR), "by day");
    assert!(!holds(|_| (), NOW_UNIX_S + 12 * HOUR), "at the weekend");
    assert!(
        !holds(|peer| peer.attested = None, MONDAY_NIGHT),
        "nobody vouches for the app"
    );
    assert!(!holds(
        |peer| peer.identity = "spiffe://example.org/till".into(),
        MONDAY_NIGHT
    ));
    assert!(!holds(
        |peer| peer.address = "10.21.1.2:4000".into(),
        MONDAY_NIGHT
    ));
}
