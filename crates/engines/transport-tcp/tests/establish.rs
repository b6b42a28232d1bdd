//! Opening connections: what works, and how what does not work ends, quickly and with a reason.

#[path = "../../../core/tls/tests/certificates/mod.rs"]
mod certificates;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use certificates::Authority;
use provost_conformance::methods;
use provost_transport_tcp::{
    AcceptError, CallerAttestation, ConnectError, ConnectParams, Decision, Encoding, EstablishError,
    Established, Greeting, Hello, Limits, PeerIdentity, TlsConfig, TlsConfigError, accept, connect,
};
use provost_wire::Code;

const WAIT_MAX: Duration = Duration::from_secs(60);

fn welcome(_: Greeting<'_>) -> Decision {
    Decision::Welcome {
        encoding: Encoding::Native,
        methods: methods(),
        limits: Limits::default(),
    }
}

/// A server for one connection.
fn serve(
    tls: Option<&TlsConfig>,
    wait_max: Duration,
    decide: impl FnMut(Greeting<'_>) -> Decision + Send + 'static,
) -> (SocketAddr, JoinHandle<Result<Established, AcceptError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let tls = tls.map(|tls| tls.server().unwrap());
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        accept(stream, tls, Instant::now() + wait_max, decide)
    });
    (address, thread)
}

fn params(address: &str, tls: Option<&TlsConfig>) -> ConnectParams {
    ConnectParams {
        address: address.to_owned(),
        hello: Hello {
            service: "kv.Kv".into(),
            schema_hash: [1; 32],
            methods: methods(),
            limits: Limits::default(),
            caller: None,
        },
        descriptor_set: Arc::from(*b"descriptors"),
        tls: tls.map(|tls| tls.client().unwrap()),
        deadline: Instant::now() + WAIT_MAX,
    }
}

fn call(address: SocketAddr, tls: Option<&TlsConfig>) -> Result<Established, ConnectError> {
    connect(&params(&address.to_string(), tls))
}

/// A signal that stops the process and lets it go on ends system calls that have a time limit.
#[test]
fn a_signal_does_not_end_a_handshake() {
    let (server_waits, waiting) = std::sync::mpsc::sync_channel(1);
    let decide = move |greeting: Greeting<'_>| {
        // The client waits for this answer in a system call.
        server_waits.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        welcome(greeting)
    };
    let (address, server) = serve(None, WAIT_MAX, decide);
    let client = std::thread::spawn(move || call(address, None));
    waiting.recv_timeout(WAIT_MAX).unwrap();
    let stop = "kill -STOP $1; sleep 0.02; kill -CONT $1; sleep 0.02; ".repeat(3);
    let process = std::process::id().to_string();
    let stopped = std::process::Command::new("sh")
        .args(["-c", &stop, "sh", &process])
        .status();
    assert!(stopped.unwrap().success());
    client.join().unwrap().unwrap();
    server.join().unwrap().unwrap();
}

#[test]
fn a_schema_is_fetched_when_asked_for_and_a_refusal_names_the_field() {
    let decide = |Greeting { hello, schema, .. }: Greeting<'_>| match schema {
        None => Decision::NeedSchema,
        Some(schema) => Decision::Refuse {
            code: Code::FailedPrecondition,
            reason: format!(
                "{}: kv.Entry.key changed from string to bytes ({})",
                hello.service,
                schema.len()
            ),
        },
    };
    let (address, server) = serve(None, WAIT_MAX, decide);
    let error = call(address, None).unwrap_err();
    assert_eq!(error.code, Code::FailedPrecondition);
    assert!(
        error.message.contains("kv.Entry.key") && error.message.contains("(11)"),
        "{error}"
    );
    assert!(matches!(
        server.join().unwrap(),
        Err(AcceptError {
            error: EstablishError::Handshake(_),
            ..
        })
    ));
}

#[test]
fn mutual_tls_proves_both_ends_by_spiffe_id_or_dns_name() {
    let authority = Authority::new();
    let client = authority.node("client", &["client.test", "spiffe://mesh/ns/a/sa/client"]);
    let server_files = authority.node("server", &["127.0.0.1", "server.test"]);
    let (address, server) = serve(Some(&server_files), WAIT_MAX, welcome);
    let near = call(address, Some(&client)).unwrap();
    let far = server.join().unwrap().unwrap();
    assert_eq!(near.peer, PeerIdentity::Dns("server.test".into()));
    assert_eq!(
        far.peer,
        PeerIdentity::Spiffe("spiffe://mesh/ns/a/sa/client".into())
    );
    assert_eq!(far.service, "kv.Kv");
}

#[test]
fn the_caller_is_told_to_a_server_that_has_proved_itself() {
    let authority = Authority::new();
    let files = authority.node("both", &["127.0.0.1"]);
    let caller = CallerAttestation {
        node: "a".into(),
        app: "till".into(),
        user: "shop".into(),
        uid: 1001,
        workload: "spiffe://mesh/till".into(),
    };
    for (tls, told) in [(Some(&files), Some(caller.clone())), (None, None)] {
        let (hears, heard) = std::sync::mpsc::sync_channel(1);
        let decide = move |greeting: Greeting<'_>| {
            hears.send(greeting.hello.caller.clone()).unwrap();
            welcome(greeting)
        };
        let (address, server) = serve(tls, WAIT_MAX, decide);
        let mut params = params(&address.to_string(), tls);
        params.hello.caller = Some(caller.clone());
        connect(&params).unwrap();
        server.join().unwrap().unwrap();
        assert_eq!(heard.recv().unwrap(), told);
    }
}

#[test]
fn certificates_of_another_authority_are_refused_on_either_side() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server_files = authority.node("server", &["127.0.0.1"]);
    let mut stranger = other.node("client", &["client.test"]);
    // It trusts the server, but the server does not trust it.
    stranger.ca = server_files.ca.clone();
    let (address, server) = serve(Some(&server_files), WAIT_MAX, welcome);
    let error = call(address, Some(&stranger)).unwrap_err();
    assert_eq!(error.code, Code::Unauthenticated, "{error}");
    assert!(matches!(
        server.join().unwrap(),
        Err(AcceptError {
            error: EstablishError::Tls(_),
            ..
        })
    ));

    let suspicious = other.node("client", &["client.test"]);
    let (address, server) = serve(Some(&server_files), WAIT_MAX, welcome);
    let error = call(address, Some(&suspicious)).unwrap_err();
    assert_eq!(error.code, Code::Unauthenticated, "{error}");
    assert!(server.join().unwrap().is_err());

    let misnamed = authority.node("misnamed", &["elsewhere.test"]);
    let client = authority.node("client", &["client.test"]);
    let (address, server) = serve(Some(&misnamed), WAIT_MAX, welcome);
    let error = call(address, Some(&client)).unwrap_err();
    assert!(
        error.code == Code::Unauthenticated && error.message.contains("elsewhere.test"),
        "{error}"
    );
    assert!(server.join().unwrap().is_err());
}

#[test]
fn one_end_with_tls_and_one_without_end_clearly() {
    let authority = Authority::new();
    let server_files = authority.node("server", &["127.0.0.1"]);
    let client = authority.node("client", &["client.test"]);
    let (address, server) = serve(Some(&server_files), WAIT_MAX, welcome);
    let error = call(address, None).unwrap_err();
    assert!(error.message.contains("TLS"), "{error}");
    assert!(matches!(
        server.join().unwrap(),
        Err(AcceptError {
            error: EstablishError::Tls(_),
            ..
        })
    ));
    let (address, server) = serve(None, WAIT_MAX, welcome);
    let error = call(address, Some(&client)).unwrap_err();
    assert!(error.message.contains("TLS"), "{error}");
    let error = server.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("TLS"), "{error}");
}

#[test]
fn garbage_is_refused_at_once_and_silence_at_the_deadline() {
    let (address, server) = serve(None, WAIT_MAX, welcome);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = server.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("HTTP"), "{error}");

    let (address, server) = serve(None, Duration::from_millis(50), welcome);
    let mut stream = TcpStream::connect(address).unwrap();
    assert!(matches!(
        server.join().unwrap(),
        Err(AcceptError {
            error: EstablishError::Deadline,
            ..
        })
    ));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();

    // Drop by drop does not help a client past the deadline.
    let (address, server) = serve(None, Duration::from_millis(200), welcome);
    let mut stream = TcpStream::connect(address).unwrap();
    for byte in b"PVST\x01\0\0\0".iter().cycle() {
        if server.is_finished() || stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(server.join().unwrap().is_err());
}

#[test]
fn another_version_is_named_to_the_client() {
    let (address, server) = serve(None, WAIT_MAX, welcome);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"PVST\x63\0\0\0").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.contains("version 99") && answer.contains("version 1"),
        "{answer}"
    );
    assert!(
        server
            .join()
            .unwrap()
            .unwrap_err()
            .to_string()
            .contains("version 99")
    );
}

#[test]
fn a_server_that_is_not_there_and_names_that_do_not_exist_are_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(call(address, None).unwrap_err().code, Code::Unavailable);
    let error = connect(&params("no-such-host.invalid:1", None)).unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
    assert!(
        error.message.contains("kv.Kv at no-such-host.invalid:1"),
        "{error}"
    );
    // A server that accepts and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut params = params(&silent.local_addr().unwrap().to_string(), None);
    params.deadline = Instant::now() + Duration::from_millis(50);
    let error = connect(&params).unwrap_err();
    assert!(
        error.code == Code::Unavailable && error.message.contains("in time"),
        "{error}"
    );
}

#[test]
fn files_that_are_missing_or_wrong_are_named() {
    let authority = Authority::new();
    let good = authority.node("node", &["node.test"]);
    let other = authority.node("other", &["other.test"]);
    let missing = TlsConfig {
        ca: "/no/such/ca.pem".into(),
        ..good.clone()
    };
    assert!(
        missing
            .client()
            .unwrap_err()
            .to_string()
            .contains("/no/such/ca.pem")
    );
    let not_a_certificate = TlsConfig {
        cert: good.key.clone(),
        ..good.clone()
    };
    assert!(matches!(
        not_a_certificate.server(),
        Err(TlsConfigError::File { .. })
    ));
    let not_a_key = TlsConfig {
        key: good.cert.clone(),
        ..good.clone()
    };
    assert!(matches!(not_a_key.server(), Err(TlsConfigError::File { .. })));
    let crossed = TlsConfig {
        key: other.key,
        ..good
    };
    assert!(matches!(crossed.server(), Err(TlsConfigError::Mismatch { .. })));
}
