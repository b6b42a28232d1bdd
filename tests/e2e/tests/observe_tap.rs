//! What a tap is told to hide never leaves the daemon: not through `provost tap` in any form, not through the admin API, not
//! through a file that the command line writes, not through the log.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use provost::Request;
use provost_e2e::probe::EchoMessage;
use provost_e2e::probe::probe_client::blocking::ProbeClient;
use provost_e2e::{NodeOptions, Setting, built, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// What must not be seen, also not in part.
const SECRETS: [&str; 4] = ["canary-text", "canary-label", "canary-bytes", "canary-token"];
/// What is to be seen, so that the test does not look at nothing.
const PLAIN: &str = "seen-metadata";
/// Samples that each reader waits for.
const SAMPLES: &str = "6";

fn call(client: &ProbeClient) {
    let [text, label, bytes, token] = SECRETS;
    let mut request = Request::new(EchoMessage {
        text: text.into(),
        // Large enough to stay in the app's memory, where it is copied from for the tap.
        payload: bytes.as_bytes().repeat(1000).as_slice().into(),
        labels: [("key".into(), label.into())].into_iter().collect(),
        ..EchoMessage::default()
    });
    request.metadata_mut().insert("x-token", token).unwrap();
    request.metadata_mut().insert("x-plain", PLAIN).unwrap();
    client.echo(request).unwrap();
}

fn assert_hidden(what: &str, text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{what} shows {secret}: {text}");
        // Bytes are base64 in JSON.
        let first: Vec<u8> = secret.bytes().cycle().take(30).collect();
        let encoded = base64(&first);
        assert!(
            !text.contains(&encoded),
            "{what} shows {secret} in base64: {text}"
        );
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |number: u32, shift: u32| DIGITS[(number >> shift & 63) as usize] as char;
    let groups = bytes.chunks_exact(3).flat_map(|group| {
        let number = u32::from(group[0]) << 16 | u32::from(group[1]) << 8 | u32::from(group[2]);
        [18, 12, 6, 0].map(|shift| digit(number, shift))
    });
    groups.collect()
}

#[test]
fn what_is_redacted_never_leaves_the_daemon() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let tap = |redact: &str| NodeOptions {
            tables: format!(
                "[log]\nlevel = \"debug\"\n[[policy]]\nname = \"tap\"\nkind = \"tap\"\nmethods = [\"Echo\"]\n\
                 [policy.config]\nredact = {redact}\nredact_metadata = [\"x-token\"]\n"
            ),
            ..NodeOptions::default()
        };
        // By paths on one side, by the message's full name on the other.
        let by_path = tap("[\"text\", \"payload\", \"labels\"]");
        let by_name = tap(
            "[\".probe.EchoMessage.text\", \".probe.EchoMessage.payload\", \".probe.EchoMessage.labels\"]",
        );
        let setting = Setting::with(ROLE, &by_path, &by_name);
        let client = setting.a.client();
        let over = Arc::new(AtomicBool::new(false));
        let calling = {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    call(&client);
                }
            })
        };
        for node in [&setting.a, &setting.b] {
            let file = setting.world.directory().join("tapped");
            for form in [&["--json"][..], &[]] {
                let arguments = [&["tap", "-n", SAMPLES][..], form].concat();
                let printed = node.operate(&arguments);
                assert!(
                    printed.contains(PLAIN) && printed.contains("[redacted]"),
                    "{printed}"
                );
                assert_hidden("provost tap", &printed);
                // As an operator keeps samples, to try a policy on them later.
                std::fs::write(&file, &printed).unwrap();
            }
            let dry_runs = node.operate(&["policy", "test", "--kind", "null"]);
            assert_hidden("provost policy test", &dry_runs);
            for listing in [
                &["policy", "list", "--json"][..],
                &["datapath", "--json"],
                &["status", "--json"],
            ] {
                assert_hidden("a listing", &node.operate(listing));
            }
            assert_hidden("the log", &node.program.log());
        }
        over.store(true, Ordering::Relaxed);
        calling.join().unwrap();
    });
}

#[test]
fn the_test_would_see_what_is_not_hidden() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let open = "[[policy]]\nname = \"tap\"\nkind = \"tap\"\n[policy.config]\nredact_bytes = false\n";
        let options = NodeOptions {
            tables: open.into(),
            ..NodeOptions::default()
        };
        let setting = Setting::with(ROLE, &options, &NodeOptions::default());
        let client = setting.a.client();
        let program = built::program("provost", "provost-cli", ROLE);
        let reader = Command::new(program)
            .args(["tap", "-n", "1", "--json"])
            .env("PROVOST_ADMIN_SOCKET", &setting.a.admin_socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let calling = {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    call(&client);
                }
            })
        };
        let output = reader.wait_with_output().unwrap();
        over.store(true, Ordering::Relaxed);
        calling.join().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let [words, label, bytes, token] = SECRETS;
        let encoded = base64(&bytes.bytes().cycle().take(30).collect::<Vec<_>>());
        for secret in [words, label, token, encoded.as_str()] {
            assert!(text.contains(secret), "{secret}: {text}");
        }
    });
}
