//! The README shows this crate's sources; this holds the two together. Its commands start the server beside its node.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const README: &str = include_str!("../../../README.md");

const SHOWN: [(&str, &str, &str); 5] = [
    ("proto", "proto/hello.proto", include_str!("../proto/hello.proto")),
    ("rust", "build.rs", include_str!("../build.rs")),
    ("rust", "src/lib.rs", include_str!("../src/lib.rs")),
    (
        "rust",
        "src/bin/hello-server.rs",
        include_str!("../src/bin/hello-server.rs"),
    ),
    (
        "rust",
        "src/bin/hello-client.rs",
        include_str!("../src/bin/hello-client.rs"),
    ),
];

#[test]
fn the_readme_shows_the_sources_as_they_are() {
    for (language, path, source) in SHOWN {
        let block = format!("```{language}\n{source}```");
        assert!(
            README.contains(&block),
            "README.md does not show apps/hello/{path} as it is:\n{block}"
        );
    }
}

#[test]
fn the_server_waits_for_a_node_that_starts_after_it() {
    let nowhere = std::env::temp_dir().join(format!("hello-readme-{}.sock", std::process::id()));
    let mut server = Command::new(env!("CARGO_BIN_EXE_hello-server"))
        .env("PROVOST_SOCKET", nowhere)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // One that does not wait ends as soon as it has looked.
    let looked_at = Instant::now() + Duration::from_secs(1);
    let mut ended = None;
    while ended.is_none() && Instant::now() < looked_at {
        std::thread::sleep(Duration::from_millis(10));
        ended = server.try_wait().unwrap();
    }
    let _ = server.kill();
    let _ = server.wait();
    assert_eq!(ended, None);
}
