//! Secrets that a node does not need any more are nowhere in its memory: neither in what it has freed, nor on its stacks, nor in what
//! was moved. The tests look through the memory of the running service, which only root may do.

mod authority;
#[allow(dead_code, reason = "these tests use a part of it")]
mod spiffe_agent;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use authority::Authority;
use base64::Engine;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::peer::Claim;
use provost_e2e::{Node, NodeOptions, World, built, eventually, watched};
use provost_wiping::{SoughtSecret, copies_in};
use rustix::process::{Signal, kill_process};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, KeyLog, RootCertStore, StreamOwned};
use spiffe_agent::{SpiffeAgent, TrustDomain};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// Where the private number is in a key of P-256 in PKCS #8, as rcgen writes it (RFC 5915 within RFC 5958), in bytes.
const PRIVATE_NUMBER: std::ops::Range<usize> = 36..68;
/// The order of P-256's group (FIPS 186-5), the first word the highest.
const ORDER: [u64; 4] = [
    0xFFFF_FFFF_0000_0000,
    0xFFFF_FFFF_FFFF_FFFF,
    0xBCE6_FAAD_A717_9E84,
    0xF3B9_CAC2_FC63_2551,
];

/// A private key in the forms in which it may lie in memory.
struct PrivateKeyForms {
    /// That in which `ring` keeps it while it is in use.
    used: SoughtSecret,
    all: Vec<SoughtSecret>,
}

impl PrivateKeyForms {
    fn of_der(name: &str, der: &[u8]) -> PrivateKeyForms {
        let number = &der[PRIVATE_NUMBER];
        let backwards = |words: [u64; 4]| -> Vec<u8> {
            let words = words.iter().rev();
            words.flat_map(|word| word.to_le_bytes()).collect()
        };
        let words = words_of(number);
        let sought = |form: &str, bytes: &[u8]| SoughtSecret::new(&format!("{name}, {form}"), bytes);
        let used = sought("as it is used", &backwards(in_montgomery_form(words)));
        PrivateKeyForms {
            all: vec![
                used.clone(),
                sought("the first half", &number[..16]),
                sought("the second half", &number[16..]),
                sought("backwards", &backwards(words)),
            ],
            used,
        }
    }

    fn of_file(name: &str, path: &Path) -> PrivateKeyForms {
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let body: String = lines[1..lines.len() - 1].concat();
        let der = base64::engine::general_purpose::STANDARD.decode(body).unwrap();
        let mut forms = PrivateKeyForms::of_der(name, &der);
        // The private number is spread over the first two lines.
        let [first, second] = [&lines[1][48..], &lines[2][..24]];
        let text = |part: &str| SoughtSecret::new(&format!("{name}, in PEM"), part.as_bytes());
        forms.all.extend([text(first), text(second)]);
        forms
    }
}

fn words_of(number: &[u8]) -> [u64; 4] {
    let (words, _) = number.as_chunks::<8>();
    std::array::from_fn(|at| u64::from_be_bytes(words[at]))
}

/// A number of the field times 2^256 (Montgomery 1985): doubled as often, less the order whenever it is not below it.
fn in_montgomery_form(mut number: [u64; 4]) -> [u64; 4] {
    for _ in 0..256 {
        let is_carried = number[0] >> 63 == 1;
        let doubled = std::array::from_fn(|at| {
            let below = number.get(at + 1).map_or(0, |below| below >> 63);
            number[at] << 1 | below
        });
        number = if is_carried || doubled >= ORDER {
            less_order(doubled)
        } else {
            doubled
        };
    }
    number
}

fn less_order(mut number: [u64; 4]) -> [u64; 4] {
    let mut is_borrowed = false;
    for (word, order) in number.iter_mut().zip(ORDER).rev() {
        let (less, first) = word.overflowing_sub(order);
        let (less, second) = less.overflowing_sub(is_borrowed.into());
        (*word, is_borrowed) = (less, first || second);
    }
    number
}

/// Whether this process may look through a node's memory; says so if not.
fn may_look(node: &Node) -> bool {
    let looked = copies_in(node.process(), &[]);
    if let Err(error) = &looked {
        provost_skip::error(error);
    }
    looked.is_ok()
}

fn copies(node: &Node, secrets: &[SoughtSecret]) -> Vec<String> {
    copies_in(node.process(), secrets).expect("the node's memory")
}

/// Waits until a node has no copy of secrets any more.
fn is_wiped(node: &Node, secrets: &[SoughtSecret]) {
    let begun = Instant::now();
    loop {
        let found = copies(node, secrets);
        if found.is_empty() {
            return;
        }
        assert!(begun.elapsed() < WAIT_MAX, "{} copies: {found:#?}", found.len());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Without this the other looks would prove nothing: what is looked for is found while it is in use.
fn is_there(node: &Node, secret: &SoughtSecret) {
    let found = copies(node, std::slice::from_ref(secret));
    assert!(!found.is_empty(), "{secret:?} is not found while it is used");
}

fn options(tables: String) -> NodeOptions {
    NodeOptions {
        tables,
        ..NodeOptions::default()
    }
}

/// A node that serves others, and gRPC clients, within TLS; each with a key of its own.
fn serving_node(world: &mut World, authority: &Authority) -> Node {
    let directory = world.directory().to_owned();
    let tables = authority.vouch_for("b", &directory);
    authority.vouch_for("web", &directory);
    let file = |kind: &str| directory.join(format!("web-{kind}.pem")).display().to_string();
    let listener = format!(
        "[[grpc.listener]]\nname = \"web\"\naddress = \"127.0.0.1:0\"\napp = \"web\"\n[grpc.listener.tls]\ncert = \"{}\"\nkey = \"{}\"\n",
        file("cert"),
        file("key")
    );
    world.node("b", &options(tables + &listener))
}

/// The keys of both listeners, as they are now.
fn keys_of(world: &World) -> [PrivateKeyForms; 2] {
    ["b", "web"]
        .map(|name| PrivateKeyForms::of_file(name, &world.directory().join(format!("{name}-key.pem"))))
}

/// Has other certificates and keys put in the place of both, and waits until they are used.
fn rotate(world: &World, node: &Node, authority: &Authority, serial: u64) {
    let taken = "certificates were read again";
    let before = node.program.log().matches(taken).count();
    for name in ["b", "web"] {
        authority.vouch_for_as(name, name, world.directory(), serial);
    }
    kill_process(pid_of(node), Signal::HUP).unwrap();
    eventually("the new keys are taken", WAIT_MAX, || {
        node.program.log().matches(taken).count() >= before + 2
    });
}

fn pid_of(node: &Node) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(node.process() as i32).unwrap()
}

/// Has calls go through a node from another one, which connects anew each time.
fn call_through(world: &mut World, a: &Node) {
    for _ in 0..2 {
        world.agent(a).calls_well();
    }
}

#[test]
fn private_keys_that_were_replaced_are_nowhere() {
    let provostd = built::program("provostd", "provostd", ROLE);
    watched(move || {
        let authority = Authority::new();
        let mut world = World::new(ROLE);
        let mut b = serving_node(&mut world, &authority);
        if !may_look(&b) {
            return;
        }
        let _server = world.server(&b);
        let a = world.node(
            "a",
            &NodeOptions {
                peer: Some(b.address),
                ..options(authority.vouch_for("a", world.directory()))
            },
        );
        call_through(&mut world, &a);

        let first = keys_of(&world);
        for key in &first {
            is_there(&b, &key.used);
        }
        rotate(&world, &b, &authority, 2);
        call_through(&mut world, &a);
        for key in &first {
            is_wiped(&b, &key.all);
        }

        // The program that is installed goes on in its place, and does the same.
        let script = world.directory().join("successor");
        let config = world.directory().join("b.toml");
        let text = format!(
            "#!/bin/sh\nexec '{}' --config '{}' --take-over\n",
            provostd.display(),
            config.display()
        );
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        b.set_successor(Some(&script));
        eventually("the installed program takes over", WAIT_MAX, || {
            b.try_replace().is_ok()
        });
        let program = std::fs::read_link(format!("/proc/{}/exe", b.process())).unwrap();
        assert_eq!(program, provostd.canonicalize().unwrap());
        call_through(&mut world, &a);
        let second = keys_of(&world);
        for key in &second {
            is_there(&b, &key.used);
        }
        rotate(&world, &b, &authority, 3);
        call_through(&mut world, &a);
        for key in &second {
            is_wiped(&b, &key.all);
        }
    });
}

#[test]
fn keys_that_an_agent_has_replaced_are_nowhere() {
    watched(|| {
        let domain = TrustDomain::new("one.test");
        let mut world = World::new(ROLE);
        let socket = world.directory().join("agent.sock");
        let first = domain.answer("b");
        let key = PrivateKeyForms::of_der("the agent's key", &first.svids[0].x509_svid_key);
        let agent = SpiffeAgent::begin(&socket, first);
        let b = world.node(
            "b",
            &options(format!(
                "[tls]\nserver_identities = [\"spiffe://*\"]\n[tls.spiffe]\nsocket = \"unix://{}\"\n",
                socket.display()
            )),
        );
        if !may_look(&b) {
            return;
        }
        eventually("the node has an identity", WAIT_MAX, || {
            !copies(&b, std::slice::from_ref(&key.used)).is_empty()
        });
        let taken = "certificates were read again";
        let before = b.program.log().matches(taken).count();
        agent.say(domain.answer("b"));
        eventually("the new key is taken", WAIT_MAX, || {
            b.program.log().matches(taken).count() > before
        });
        is_wiped(&b, &key.all);
    });
}

/// The secrets of a connection, as its client learns them.
#[derive(Debug, Default)]
struct ClientSecrets(Mutex<Vec<SoughtSecret>>);

impl KeyLog for ClientSecrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock().unwrap().push(SoughtSecret::new(label, secret));
    }
}

impl ClientSecrets {
    fn of(&self, labels: &[&str]) -> Vec<SoughtSecret> {
        let all = self.0.lock().unwrap();
        let is_meant = |secret: &&SoughtSecret| labels.contains(&secret.name());
        all.iter().filter(is_meant).cloned().collect()
    }
}

/// A connection to a node of somebody for whom the authority has vouched, in which both have said something.
fn open_connection(
    world: &World,
    b: &Node,
    secrets: &Arc<ClientSecrets>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let file = |kind: &str| world.directory().join(format!("a-{kind}.pem"));
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(file("ca")).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_file(file("cert")).unwrap()],
            PrivateKeyDer::from_pem_file(file("key")).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"provost/1".to_vec()];
    config.key_log = Arc::clone(secrets) as Arc<dyn KeyLog>;
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(b.address).unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut stream = StreamOwned::new(connection, socket);
    let claim = Claim::honest(provost_e2e::server::descriptor());
    stream.write_all(&claim.opening()).unwrap();
    let mut answer = [0; 64];
    assert!(stream.read(&mut answer).unwrap() > 0, "the node has hung up");
    stream
}

#[test]
fn secrets_of_connections_are_nowhere_once_they_have_ended() {
    const TRAFFIC: [&str; 2] = ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"];
    const HANDSHAKE: [&str; 3] = [
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
        "SERVER_HANDSHAKE_TRAFFIC_SECRET",
        "EXPORTER_SECRET",
    ];
    watched(|| {
        let authority = Authority::new();
        let mut world = World::new(ROLE);
        let tables = authority.vouch_for("b", world.directory());
        authority.vouch_for("a", world.directory());
        let b = world.node("b", &options(tables));
        if !may_look(&b) {
            return;
        }
        let _server = world.server(&b);
        let secrets = Arc::new(ClientSecrets::default());
        let stream = open_connection(&world, &b, &secrets);
        let [traffic, handshake] = [secrets.of(&TRAFFIC), secrets.of(&HANDSHAKE)];
        assert_eq!([traffic.len(), handshake.len()], [2, 3]);
        for secret in &traffic {
            is_there(&b, secret);
        }
        is_wiped(&b, &handshake);
        drop(stream);
        is_wiped(&b, &traffic);
    });
}
