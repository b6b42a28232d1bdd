//! Targets of `provostd`: its configuration file.

use provostd::config::Config;

/// Any text is a configuration or an error that can be shown.
pub(crate) fn configuration(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match Config::parse(text, "fuzz.toml") {
        Ok(config) => assert!(
            config.check("fuzz.toml").is_ok(),
            "an accepted configuration does not pass its check"
        ),
        Err(error) => assert!(!error.to_string().is_empty(), "an error says nothing"),
    }
}

pub(crate) fn configuration_seeds() -> Vec<Vec<u8>> {
    let seed = r#"
policies = ["null"]
[node]
name = "a"
[control]
socket = "/run/provost/provostd.sock"
mode = "0660"
allow_uids = [1000]
[runtime]
threads = 2
spin_us = 50
[limits]
message_bytes = 1048576
[timeouts]
connect_ms = 100
[[listener]]
address = "127.0.0.1:0"
[[route]]
service = "kv.Kv"
transport = "tcp"
endpoints = ["127.0.0.1:7000"]
[log]
level = "info"
format = "json"
"#;
    vec![Vec::new(), seed.as_bytes().to_vec()]
}
