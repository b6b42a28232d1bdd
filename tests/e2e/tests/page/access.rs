//! Who may see what of a page, over which way, and that nobody keeps others from it.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{built, eventually, watched};
use serde_json::Value;

use crate::node_page::{
    POLICIES, ROLE, TOKEN, address, ask_port, ask_socket, ask_with, echo, folder, page_at_port, pair,
    token_file,
};

/// Users that nobody is.
const VIEWER: u32 = 64_011;
const STRANGER: u32 = 64_012;
/// More connections than a page has.
const MANY: usize = 40;

fn rows<'a>(overview: &'a Value, listing: &str) -> &'a Vec<Value> {
    let rows = overview[listing]["rows"].as_array();
    rows.unwrap_or_else(|| panic!("{listing}: {overview:#}"))
}

#[test]
fn a_page_at_a_socket_tells_who_calls_whom_how_fast_and_through_what() {
    watched(|| {
        let place = folder();
        let socket = place.path().join("page.sock");
        let page = format!("[page]\nlisten = \"unix:{}\"\n", socket.display());
        let mut setting = pair(page + POLICIES);
        setting.agent.succeeds(echo(20));
        let document = ask_socket(&socket, "/");
        assert_eq!(document.status, 200);
        assert!(
            document.head.contains("content-type: text/html"),
            "{}",
            document.head
        );
        assert!(
            document
                .head
                .contains("content-security-policy: default-src 'none'")
        );
        assert!(document.body.contains("<h2 id=\"datapaths-heading\">"));

        let told = ask_socket(&socket, "/api/overview");
        assert_eq!(told.status, 200, "{told:?}");
        let told = told.json();
        assert_eq!(
            (&told["role"], &told["shows_taps"]),
            (&Value::from("admin"), &Value::from(true))
        );
        let overview = &told["overview"];
        assert_eq!(overview["status"]["state"], "serving");
        let [path] = &rows(overview, "call_paths")[..] else {
            panic!("{overview:#}");
        };
        assert_eq!(
            (&path["app"], &path["side"]),
            (&Value::from("e2e-role"), &Value::from("client"))
        );
        assert_eq!(
            (&path["service"], &path["calls_begun"]),
            (&Value::from("probe.Probe"), &Value::from(20))
        );
        let [datapath] = &rows(overview, "datapaths")[..] else {
            panic!("{overview:#}");
        };
        let engines: Vec<_> = datapath["engines"].as_array().unwrap().iter().collect();
        let kinds: Vec<_> = engines
            .iter()
            .map(|engine| engine["kind"].as_str().unwrap())
            .collect();
        assert_eq!(
            kinds,
            [
                "frontend",
                "metrics",
                "tap",
                "rate-limit",
                "marshalling",
                "transport-tcp"
            ]
        );
        assert_eq!(engines[1]["policy"], "counts");
        let methods = rows(&overview["traffic"], "methods");
        let echo = methods.iter().find(|method| method["method"] == "Echo");
        assert_eq!(
            echo.map(|echo| &echo["calls"]),
            Some(&Value::from(20)),
            "{methods:?}"
        );
        assert_eq!(overview["traffic"]["counted_by"][0], "counts");

        let of = |name: &str| -> Value {
            let policies = overview["policies"].as_array().unwrap().iter();
            let mut named = policies.filter(|attached| attached["policy"]["name"] == name);
            named
                .next()
                .unwrap_or_else(|| panic!("{name}: {overview:#}"))
                .clone()
        };
        assert_eq!(of("counts")["calls_judged"], 20);
        assert_eq!(of("limits-fails")["calls_judged"], 0);
        let unmatched = overview["status"]["never_matched"].as_array().unwrap();
        assert_eq!(unmatched.len(), 1, "{unmatched:?}");
        assert!(
            unmatched[0]
                .as_str()
                .unwrap()
                .starts_with("limits-fails: no call"),
            "{unmatched:?}"
        );

        let taps = ask_socket(&socket, "/api/taps").json();
        let samples = taps["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 20);
        assert_eq!(samples[0]["method"], "/probe.Probe/Echo");

        setting.a.operate(&["policy", "attach", "--kind", "null"]);
        eventually("the change is told", WAIT_MAX, || {
            let told = ask_socket(&socket, "/api/overview").json();
            let newest = &told["overview"]["changes"][0];
            newest["summary"] == "attached null on 1 datapath" && newest["state"] == "on probation"
        });
        let changes = setting.a.operate(&["changes"]);
        assert!(changes.contains("attached null on 1 datapath"), "{changes}");
    });
}

#[test]
fn a_page_at_a_port_is_for_whoever_has_the_token_and_for_nobody_elses_origin() {
    watched(|| {
        let place = folder();
        let file = token_file(place.path());
        let setting = pair(page_at_port(&file, "view") + POLICIES);
        let page = address(&setting.a);
        // What is the same on every node needs no token.
        assert_eq!(ask_port(page, "GET /", &["Host: 127.0.0.1"]).status, 200);
        let bare = ask_port(page, "GET /api/overview", &["Host: localhost"]);
        assert_eq!(bare.status, 401);
        assert!(bare.error().contains("the token is missing") && bare.error().contains("page.token_file"));
        let wrong = ask_with(&TOKEN.replace('7', "8"), page, "/api/overview");
        assert!(
            wrong.status == 401 && wrong.error().contains("this is not the token"),
            "{wrong:?}"
        );
        let right = ask_with(TOKEN, page, "/api/overview");
        assert_eq!((right.status, &right.json()["role"]), (200, &Value::from("view")));
        // The role decides: what is in calls is for operators.
        let taps = ask_with(TOKEN, page, "/api/taps");
        assert!(
            taps.status == 403 && taps.error().contains("\"operate\""),
            "{taps:?}"
        );

        // By the name of a web site that leads here, from a page of a web site, and by another method.
        let authorization = format!("Authorization: Bearer {TOKEN}");
        let refused = |lines: &[&str]| {
            let lines: Vec<&str> = lines.iter().copied().chain([authorization.as_str()]).collect();
            ask_port(page, "GET /api/overview", &lines)
        };
        for host in ["Host: evil.example", "Host: evil.example:80", "Host: 0.0.0.0"] {
            let answer = refused(&[host]);
            assert!(
                answer.status == 421 && answer.error().contains("ask for localhost"),
                "{answer:?}"
            );
        }
        assert_eq!(ask_port(page, "GET /", &["Host: evil.example"]).status, 421);
        for other in ["Origin: http://evil.example", "Sec-Fetch-Site: cross-site"] {
            let answer = refused(&["Host: localhost", other]);
            assert!(
                answer.status == 403 && answer.error().contains("another web site"),
                "{answer:?}"
            );
            assert!(!answer.head.contains("access-control-allow-origin"), "{answer:?}");
        }
        let posted = ask_port(
            page,
            "POST /api/overview",
            &["Host: localhost", &authorization, "Content-Length: 0"],
        );
        assert_eq!(posted.status, 405);
        let unknown = ask_with(TOKEN, page, "/api/nothing");
        assert_eq!(unknown.status, 404);

        // A new token is good at once, and the old one no more; a file that everybody can read is good for nobody.
        let fresh = TOKEN.replace('7', "9");
        std::fs::write(&file, &fresh).unwrap();
        assert_eq!(ask_with(TOKEN, page, "/api/overview").status, 401);
        assert_eq!(ask_with(&fresh, page, "/api/overview").status, 200);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let open = ask_with(&fresh, page, "/api/overview");
        assert!(
            open.status == 500 && open.error().contains("chmod o="),
            "{open:?}"
        );
    });
}

#[test]
fn users_see_at_a_socket_what_their_roles_let_them_see() {
    if !rustix::process::geteuid().is_root() {
        return provost_skip::forbidden("only root can run programs as other users");
    }
    if Command::new("curl").arg("--version").output().is_err() {
        return provost_skip::missing("curl", "Debian package curl");
    }
    watched(|| {
        let place = folder();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let socket = place.path().join("page.sock");
        let tables = format!(
            "[admin]\nmode = \"0666\"\nview_uids = [{VIEWER}]\n[page]\nlisten = \"unix:{}\"\n{POLICIES}",
            socket.display()
        );
        let setting = pair(tables);
        let ask_as = |user: u32, path: &str| -> Value {
            let output = Command::new("curl")
                .args(["--silent", "--show-error", "--max-time", "20", "--unix-socket"])
                .arg(&socket)
                .arg(format!("http://localhost{path}"))
                .uid(user)
                .gid(user)
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {output:?}"))
        };
        let seen = ask_as(VIEWER, "/api/overview");
        assert_eq!(
            (&seen["role"], &seen["shows_taps"]),
            (&Value::from("view"), &Value::from(false))
        );
        let taps = ask_as(VIEWER, "/api/taps");
        assert!(
            taps["error"].as_str().unwrap().contains("admin.operate_uids"),
            "{taps}"
        );
        let refused = ask_as(STRANGER, "/api/overview");
        let said = refused["error"].as_str().unwrap();
        assert!(
            said.contains(&format!("user {STRANGER}")) && said.contains("admin.view_uids"),
            "{said}"
        );
        // Refusals are accounted for, as those of the admin API are.
        eventually("the refusal is in the log", WAIT_MAX, || {
            let log = setting.a.program.log();
            log.contains("PERMISSION_DENIED") && log.contains(&STRANGER.to_string())
        });
    });
}

#[test]
fn connections_that_ask_for_nothing_keep_nobody_from_the_page() {
    watched(|| {
        let place = folder();
        let file = token_file(place.path());
        let setting = pair(page_at_port(&file, "view"));
        let page = address(&setting.a);
        let silent: Vec<TcpStream> = (0..MANY).map(|_| TcpStream::connect(page).unwrap()).collect();
        assert_eq!(ask_with(TOKEN, page, "/api/overview").status, 200);
        drop(silent);
        let long = format!("GET /{}", "x".repeat(10_000));
        assert_eq!(ask_port(page, &long, &["Host: localhost"]).status, 431);
    });
}

#[test]
fn the_page_goes_on_in_the_process_that_replaces_the_daemon() {
    watched(|| {
        let place = folder();
        let file = token_file(place.path());
        // A port that the system chose: the new process has the same one only if it was handed over.
        let mut setting = pair(page_at_port(&file, "view"));
        let page = address(&setting.a);
        let process = |status: &Value| status["overview"]["status"]["pid"].clone();
        let before = process(&ask_with(TOKEN, page, "/api/overview").json());
        let replaced = setting.a.replace();
        let after = process(&ask_with(TOKEN, page, "/api/overview").json());
        assert_eq!(after, replaced.process);
        assert_ne!(before, after);
    });
}

#[test]
fn a_page_that_others_could_see_is_refused_before_anything_starts() {
    let daemon = built::present("provostd", "provostd", ROLE);
    watched(move || {
        let place = folder();
        let file = place.path().join("token");
        std::fs::write(&file, TOKEN).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let check = |page: &str| -> String {
            let config = place.path().join("node.toml");
            std::fs::write(&config, format!("[page]\n{page}\n")).unwrap();
            let mut command = Command::new(&daemon);
            let output = command
                .arg("--check-config")
                .arg("--config")
                .arg(&config)
                .output()
                .unwrap();
            assert!(!output.status.success(), "{page}: {output:?}");
            String::from_utf8(output.stderr).unwrap()
        };
        let token = format!("token_file = \"{}\"", file.display());
        for (page, said) in [
            (
                "listen = \"0.0.0.0:9480\"".to_owned(),
                "can be reached from other hosts",
            ),
            (
                "listen = \"127.0.0.1:9480\"".to_owned(),
                "name a file with a token",
            ),
            (format!("listen = \"127.0.0.1:9480\"\n{token}"), "chmod o="),
            (
                "listen = \"127.0.0.1:9480\"\ntoken_file = \"/nowhere\"".to_owned(),
                "/nowhere cannot be read",
            ),
        ] {
            let refused = check(&page);
            assert!(
                refused.contains(said) && refused.contains("node.toml") && refused.contains("page."),
                "{page}: {refused}"
            );
        }
    });
}
