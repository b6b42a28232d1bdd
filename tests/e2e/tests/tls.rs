//! Mutual TLS between nodes, with certificates made here.

mod authority;

use std::path::Path;
use std::time::{Duration, SystemTime};

use authority::Authority;
use provost::Code;
use provost_e2e::agent::Executor;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::scrape::{metrics, value};
use provost_e2e::script::{Answer, Ask, Echo, Pour};
use provost_e2e::{Agent, Node, NodeOptions, Server, World, built, eventually, watched};
use rcgen::{CertificateParams, CertificateRevocationListParams, KeyIdMethod, RevokedCertParams};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

const DAY: Duration = Duration::from_secs(86_400);

fn options(tables: String) -> NodeOptions {
    NodeOptions {
        tables,
        ..NodeOptions::default()
    }
}

/// A server on node b, whose `[tls]` is given.
fn served(tables_b: impl FnOnce(&World) -> String) -> (World, Node, Server) {
    let mut world = World::new(ROLE);
    let tables = tables_b(&world);
    let b = world.node("b", &options(tables));
    let server = world.server(&b);
    (world, b, server)
}

/// An agent on another node, whose `[tls]` is given, and what it says of its first connection.
fn client(world: &mut World, name: &str, b: &Node, tables: String) -> (Node, Agent, Answer) {
    let a = world.node(
        name,
        &NodeOptions {
            peer: Some(b.address),
            ..options(tables)
        },
    );
    let mut agent = world.starting_agent(&a, Executor::TokioCurrent);
    let answer = agent.first_answer();
    (a, agent, answer)
}

fn is_refused(answer: &Answer) -> bool {
    let codes = [Code::Unavailable, Code::Unauthenticated, Code::PermissionDenied].map(Code::number);
    matches!(answer, Answer::Failed(parts) if codes.contains(&parts.code))
}

#[test]
fn nodes_of_one_authority_call_each_other() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let authority = Authority::new();
        let (mut world, b, _server) = served(|world| authority.vouch_for("b", world.directory()));
        let tables = authority.vouch_for("a", world.directory());
        let (_a, mut agent, first) = client(&mut world, "a", &b, tables);
        assert_eq!(first, Answer::Ready);
        let proves = b.operate(&["certs", "--json"]);
        assert!(proves.contains("\"identity\": \"spiffe://test/b\""), "{proves}");
        assert!(!proves.contains("\"ends_unix_s\": 0"), "{proves}");
        for bytes in [10, 100_000, 4 << 20] {
            agent.succeeds(Ask::Echo(Echo {
                bytes,
                calls: 3,
                ..Echo::default()
            }));
        }
        let pour = Pour {
            messages: 500,
            bytes: 5_000,
            ..Pour::default()
        };
        assert_eq!(agent.succeeds(Ask::Pour(pour)).count, 500);
    });
}

#[test]
fn a_node_of_another_authority_is_refused() {
    watched(|| {
        let authority = Authority::new();
        let (mut world, b, _server) = served(|world| authority.vouch_for("b", world.directory()));
        let tables = Authority::new().vouch_for("a", world.directory());
        let (a, _agent, first) = client(&mut world, "a", &b, tables);
        assert!(is_refused(&first), "{first:?}");
        logged(&a, "no authority of this node has issued it", 1);
    });
}

#[test]
fn a_node_with_many_connections_leaves_some_to_others() {
    watched(|| {
        let authority = Authority::new();
        let mut world = World::new(ROLE);
        let b = NodeOptions {
            limits: "connections_per_app = 16\n".to_owned(),
            ..options(authority.vouch_for("b", world.directory()))
        };
        let b = world.node("b", &b);
        let _server = world.server(&b);
        let tables = authority.vouch_for("a", world.directory());
        let (a, mut agent, first) = client(&mut world, "a", &b, tables);
        assert_eq!(first, Answer::Ready);
        agent.succeeds(Ask::Clients { clients: 9 });
        let mut second = world.starting_agent(&a, Executor::TokioCurrent);
        let refused = second.first_answer();
        let Answer::Failed(refused) = &refused else {
            panic!("{refused:?}");
        };
        assert_eq!(refused.code, Code::ResourceExhausted.number(), "{refused:?}");
        assert!(
            refused.message.contains("the peer has 10 of the 16 connections"),
            "{refused:?}"
        );
        logged(
            &b,
            "the peer has 10 of the 16 connections that the app may have",
            1,
        );
        let tables = authority.vouch_for("c", world.directory());
        let (_c, mut other, first) = client(&mut world, "c", &b, tables);
        assert_eq!(first, Answer::Ready);
        for agent in [&mut agent, &mut other] {
            agent.calls_well();
        }
    });
}

/// What `provostd --check-config` says of a configuration with these tables, which is at fault.
fn fault_of(daemon: &Path, directory: &Path, tables: &str) -> String {
    let file = directory.join("at-fault.toml");
    std::fs::write(&file, tables).unwrap();
    let mut check = std::process::Command::new(daemon);
    check.args(["--check-config", "--config"]).arg(&file);
    let checked = check.output().unwrap();
    assert_eq!(checked.status.code(), Some(2), "{checked:?}");
    String::from_utf8(checked.stderr).unwrap()
}

#[test]
fn what_is_wrong_with_files_of_certificates_is_said_of_the_file_that_it_is_wrong_with() {
    let daemon = built::program("provostd", "provostd", ROLE);
    watched(move || {
        let world = World::new(ROLE);
        let (authority, directory) = (Authority::new(), world.directory());
        let (one, other) = ["one", "other"]
            .map(|node| authority.vouch_for(node, directory))
            .into();
        let files = other.lines().zip(one.lines());
        // The key of another certificate, and a certificate in the place of a key.
        let keys_swapped: Vec<_> = files
            .map(|(other, one)| if one.starts_with("key") { other } else { one })
            .collect();
        let said = fault_of(&daemon, directory, &keys_swapped.join("\n"));
        assert!(said.contains("the key is not the certificate's"), "{said}");
        let no_key = one.replace("one-key.pem", "one-cert.pem");
        let said = fault_of(&daemon, directory, &no_key);
        assert!(
            said.contains("tls.key") && said.contains("no private key in it"),
            "{said}"
        );
        run_in(
            directory,
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout first-key.pem -out ca.pem -subj /CN=ca\n\
             openssl req -new -key first-key.pem -subj /CN=b -out b.csr\n\
             openssl x509 -req -in b.csr -CA ca.pem -CAkey first-key.pem -CAcreateserial -out first-cert.pem",
        );
        let first_version = one
            .replace("one-key.pem", "first-key.pem")
            .replace("one-cert.pem", "first-cert.pem");
        let said = fault_of(&daemon, directory, &first_version);
        assert!(
            said.contains("tls.cert") && said.contains("certificate of version 1"),
            "{said}"
        );
    });
}

#[test]
fn a_node_without_tls_is_refused() {
    watched(|| {
        let authority = Authority::new();
        let (mut world, b, _server) = served(|world| authority.vouch_for("b", world.directory()));
        let (_a, _agent, first) = client(&mut world, "a", &b, String::new());
        assert!(is_refused(&first), "{first:?}");
    });
}

#[test]
fn a_node_that_is_not_on_the_list_is_refused() {
    watched(|| {
        let authority = Authority::new();
        let (mut world, b, _server) = served(|world| {
            let tables = authority.vouch_for("b", world.directory());
            format!("{tables}allow_peers = [\"spiffe://test/a\"]\n")
        });
        let stranger = authority.vouch_for("c", world.directory());
        let (_c, _agent, first) = client(&mut world, "c", &b, stranger);
        assert!(is_refused(&first), "{first:?}");
        let friend = authority.vouch_for("a", world.directory());
        let (_a, mut agent, first) = client(&mut world, "a", &b, friend);
        assert_eq!(first, Answer::Ready);
        agent.calls_well();
    });
}

/// Waits until a node has logged something so often.
fn logged(node: &Node, text: &str, times: usize) {
    eventually(text, WAIT_MAX, || {
        node.program.log().matches(text).count() >= times
    });
}

#[test]
fn a_certificate_that_ends_soon_is_warned_of_until_another_one_is_there() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let ends = SystemTime::now() + 5 * DAY / 2;
        params.not_after = ends.into();
        let tables = authority.certify("b", "b", params, world.directory());
        let socket = world.directory().join("metrics.sock");
        let observe = format!("[observe]\nlisten = \"unix:{}\"\n", socket.display());
        let b = world.node("b", &options(tables + &observe));
        let told = || {
            let told = value(&metrics(&socket), "provost_tls_certificate_expiry_seconds", &[]);
            told.expect("the metric is there")
        };
        let ends_s = ends.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((told() - ends_s).abs() <= 1.0, "{} instead of {ends_s}", told());
        let status = b.operate(&["status"]);
        assert!(status.contains("b-cert.pem ends in 2 d 1"), "{status}");
        authority.vouch_for("b", world.directory());
        eventually("the warning is gone", WAIT_MAX, || {
            !b.operate(&["status"]).contains("ends in")
        });
        assert!(told() > ends_s + DAY.as_secs_f64(), "{}", told());
    });
}

#[test]
fn certificates_rotate_under_calls_and_the_last_good_ones_stay() {
    watched(|| {
        let authority = Authority::new();
        let (mut world, b, _server) = served(|world| authority.vouch_for("b", world.directory()));
        let directory = world.directory().to_owned();
        let tables = authority.vouch_for("a", &directory);
        let (a, mut agent, first) = client(&mut world, "a", &b, tables);
        assert_eq!(first, Answer::Ready);

        // Both nodes' certificates change twice while calls go on; who connects afterwards sees the new ones.
        for turn in 1..=2 {
            let calls = agent.begin(Ask::Echo(Echo {
                calls: 300,
                ..Echo::default()
            }));
            let name = format!("b-{turn}");
            authority.vouch_for_as("b", &name, &directory, 10 + turn);
            authority.vouch_for_as("a", &format!("a-{turn}"), &directory, 20 + turn);
            let (identity_b, identity_a) = (
                format!("identity=\"spiffe://test/{name}\""),
                format!("identity=\"spiffe://test/a-{turn}\""),
            );
            eventually("who connects sees the new certificates", WAIT_MAX, || {
                world.agent(&a).calls_well();
                a.program.log().contains(&identity_b) && b.program.log().contains(&identity_a)
            });
            assert!(matches!(agent.answer(calls), Answer::Done(_)));
        }

        // A file that is no good is said, and the last good one stays.
        std::fs::write(directory.join("b-cert.pem"), "no certificate").unwrap();
        logged(&b, "certificates were not taken: the last good ones stay", 1);
        world.agent(&a).calls_well();
        agent.calls_well();
    });
}

/// Has the authority write the list of certificates that it took back, by their serial numbers.
fn take_back(authority: &Authority, serials: &[u64], path: &Path) {
    let day = |year| rcgen::date_time_ymd(year, 1, 1);
    let taken_back = serials.iter().map(|serial| RevokedCertParams {
        serial_number: (*serial).into(),
        revocation_time: day(2020),
        reason_code: None,
        invalidity_date: None,
    });
    let list = CertificateRevocationListParams {
        this_update: day(2020),
        next_update: day(2090),
        crl_number: (serials.len() as u64 + 1).into(),
        issuing_distribution_point: None,
        revoked_certs: taken_back.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let text = list.signed_by(&authority.issuer).unwrap().pem().unwrap();
    authority::replace(path, &text);
}

/// Two nodes call a third over this transport, and then the certificate of one of them is taken back.
fn lets_nobody_in_who_was_taken_back(transport: &'static str) {
    watched(move || {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let directory = world.directory().to_owned();
        let list = directory.join("list.pem");
        take_back(&authority, &[], &list);
        let tables = authority.vouch_for("b", &directory);
        let tables = format!("{tables}crls = [\"{}\"]\n", list.display());
        let mut b = world.node("b", &options(tables.clone()));
        let listener = format!(
            "[[listener]]\ntransport = \"datagram\"\naddress = \"{}\"\n",
            b.address
        );
        b.reconfigure(&options(tables + &listener));
        b.restart();
        let _server = world.server(&b);

        let route = routed(&b, &format!("transport = \"{transport}\""));
        let friend = authority.vouch_for_as("a", "a", &directory, 7);
        let stolen = authority.vouch_for_as("c", "c", &directory, 8);
        let (a, mut agent, first) = routed_client(&mut world, "a", friend + &route);
        assert_eq!(first, Answer::Ready);
        let (c, mut thief, first) = routed_client(&mut world, "c", stolen + &route);
        assert_eq!(first, Answer::Ready);
        thief.calls_well();
        assert!(a.operate(&["datapath"]).contains(transport));

        take_back(&authority, &[8], &list);
        logged(&b, "certificates were read again", 1);
        let mut thief = world.starting_agent(&c, Executor::TokioCurrent);
        let first = thief.first_answer();
        assert!(is_refused(&first), "{first:?}");
        world.agent(&a).calls_well();
        agent.calls_well();
    });
}

#[test]
fn a_certificate_that_was_taken_back_lets_nobody_in() {
    built::program("provost", "provost-cli", ROLE);
    lets_nobody_in_who_was_taken_back("tcp");
}

#[test]
fn a_certificate_that_was_taken_back_lets_nobody_in_over_datagrams() {
    built::program("provost", "provost-cli", ROLE);
    lets_nobody_in_who_was_taken_back("datagram");
}

/// A route to a node, with these lines.
fn routed(b: &Node, lines: &str) -> String {
    format!(
        "[[route]]\nservice = \"probe.Probe\"\nendpoints = [\"{}\"]\n{lines}\n",
        b.address
    )
}

/// An agent on a node with these tables, and what it says of its first connection.
fn routed_client(world: &mut World, name: &str, tables: String) -> (Node, Agent, Answer) {
    let a = world.node(name, &options(tables));
    let mut agent = world.starting_agent(&a, Executor::TokioCurrent);
    let answer = agent.first_answer();
    (a, agent, answer)
}

#[test]
fn a_server_that_names_a_workload_only_is_known_by_its_identity_as_configured() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let authority = Authority::new();
        let (mut world, b, _server) =
            served(|world| authority.certify("b", "b", CertificateParams::default(), world.directory()));
        let directory = world.directory().to_owned();
        let tables = |name: &str| authority.certify(name, name, CertificateParams::default(), &directory);

        // By the name of its host it is nobody, and the reason says who it is, and what to do.
        let (_a, _agent, first) = routed_client(&mut world, "a", tables("a") + &routed(&b, ""));
        assert!(is_refused(&first), "{first:?}");
        let said = format!("{first:?}");
        for part in [
            "spiffe://test/b",
            "not of the host 127.0.0.1",
            "server_identities",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }

        let node_wide = tables("c") + "server_identities = [\"spiffe://test/?\"]\n" + &routed(&b, "");
        let (_c, mut agent, first) = routed_client(&mut world, "c", node_wide);
        assert_eq!(first, Answer::Ready);
        agent.calls_well();

        // What a route says takes the place of what the node says, and a reload changes it for connections to come.
        let other = tables("d") + "server_identities = [\"*\"]\n";
        let wrong = routed(&b, "server_identities = [\"spiffe://test/somebody-else\"]");
        let (mut d, _agent, first) = routed_client(&mut world, "d", other.clone() + &wrong);
        assert!(is_refused(&first), "{first:?}");
        assert!(format!("{first:?}").contains("none of server_identities (spiffe://test/somebody-else)"));
        let right = routed(&b, "server_identities = [\"spiffe://test/b\"]");
        d.reconfigure(&options(other + &right));
        d.operate(&["config", "reload"]);
        world.agent(&d).calls_well();
    });
}

/// The blocks of commands under a heading of a document.
fn commands_under<'a>(document: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, section) = document.split_once(heading).expect("the heading");
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1);
    blocks.filter_map(|block| block.split("```").next()).collect()
}

/// What a script prints.
fn run_in(directory: &Path, script: &str) -> String {
    let ran = std::process::Command::new("sh")
        .args(["-e", "-c", script])
        .current_dir(directory)
        .output()
        .expect("a shell");
    assert!(ran.status.success(), "{script}: {ran:?}");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// Commands of the documentation that make certificates by one tool.
struct CertificateCommands {
    authority: String,
    node_b: String,
}

impl CertificateCommands {
    fn of(tool: &str) -> CertificateCommands {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let document = std::fs::read_to_string(document).unwrap();
        let commands = commands_under(&document, "### Making certificates");
        let mut of_tool = commands.iter().filter(|block| block.starts_with(tool));
        let (authority, node_b) = of_tool
            .next()
            .and_then(|block| block.split_once("\n\n"))
            .expect("an authority, and a node");
        CertificateCommands {
            authority: authority.to_owned(),
            node_b: node_b.trim_end().to_owned(),
        }
    }

    /// The same for a node called `a`.
    fn node_a(&self) -> String {
        let names = ["b.key", "b.csr", "b.ext", "b.pem", "node/b", "node b"];
        names.iter().fold(self.node_b.clone(), |script, name| {
            script.replace(name, &name.replace('b', "a"))
        })
    }
}

/// Two nodes with the certificates of these commands call each other.
fn nodes_with_certificates_of(commands: &CertificateCommands) {
    let (mut world, b, _server) = served(|world| {
        run_in(world.directory(), &commands.authority);
        run_in(world.directory(), &commands.node_b);
        files_in(world.directory(), "b")
    });
    let directory = world.directory().to_owned();
    run_in(&directory, &commands.node_a());
    let own = files_in(&directory, "a");
    let tables = own + "server_identities = [\"spiffe://example.org/node/*\"]\n" + &routed(&b, "");
    let (a, mut agent, first) = routed_client(&mut world, "a", tables);
    assert_eq!(first, Answer::Ready);
    agent.calls_well();
    logged(&a, "identity=\"spiffe://example.org/node/b\"", 1);
    logged(&b, "identity=\"spiffe://example.org/node/a\"", 1);
}

/// A node whose certificate has its host's name behind its identity is known by either. The command that shows the names
/// in a certificate shows both.
fn a_host_is_known_by_its_name(commands: &CertificateCommands) {
    let (mut world, b, _server) = served(|world| {
        run_in(world.directory(), &commands.authority);
        run_in(world.directory(), &commands.node_b);
        let show = "openssl x509 -in b.pem -noout -ext subjectAltName";
        let shown = run_in(world.directory(), show);
        for name in ["URI:spiffe://example.org/node/b", "IP Address:127.0.0.1"] {
            assert!(shown.contains(name), "{shown}");
        }
        files_in(world.directory(), "b")
    });
    let directory = world.directory().to_owned();
    run_in(&directory, &commands.node_a());
    let own = files_in(&directory, "a");
    let (_a, mut agent, first) = routed_client(&mut world, "a", own + &routed(&b, ""));
    assert_eq!(first, Answer::Ready);
    agent.calls_well();
}

#[test]
fn certificates_made_with_openssl_as_the_documentation_says_are_taken() {
    watched(|| {
        let commands = CertificateCommands::of("openssl");
        nodes_with_certificates_of(&commands);
        let uri = "URI:spiffe://example.org/node/b";
        let with_host = commands.node_b.replace(uri, &format!("{uri}, IP:127.0.0.1"));
        assert_ne!(with_host, commands.node_b);
        a_host_is_known_by_its_name(&CertificateCommands {
            node_b: with_host,
            ..commands
        });
    });
}

#[test]
fn certificates_made_with_step_as_the_documentation_says_are_taken() {
    let found = std::process::Command::new("step").arg("version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return provost_skip::missing("step", "go install github.com/smallstep/cli/cmd/step@v0.21.0");
    }
    watched(|| {
        let commands = CertificateCommands::of("step");
        nodes_with_certificates_of(&commands);
        a_host_is_known_by_its_name(&CertificateCommands {
            node_b: format!("{} --san 127.0.0.1", commands.node_b),
            ..commands
        });
    });
}

/// The `[tls]` of a node whose files are called as the documentation calls them.
fn files_in(directory: &Path, node: &str) -> String {
    let file = |name: &str| directory.join(name).display().to_string();
    let [ca, cert, key] = ["ca.pem".to_owned(), format!("{node}.pem"), format!("{node}.key")];
    format!(
        "[tls]\nca = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\n",
        file(&ca),
        file(&cert),
        file(&key)
    )
}
