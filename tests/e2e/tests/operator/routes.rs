//! The way to other nodes, and what a node writes to its log.

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::eventually;
use serde_json::json;

use crate::command::{Operator, setting, tested};

#[test]
fn routes_say_which_endpoints_answer_and_why_others_do_not() {
    tested(|| {
        let mut setting = setting("[[route]]\nservice = \"shop.Orders\"\nendpoints = [\"127.0.0.1:1\"]\n");
        let operator = Operator::of(&setting.a);
        let listed = |service: &str| {
            let all = operator.json(&["routes"]);
            let mut routes = all["routes"].as_array().unwrap().clone();
            routes.retain(|route| route["service"] == service);
            routes.pop().unwrap()
        };
        let probe = listed("probe.Probe");
        assert_eq!(
            (&probe["transport"], &probe["connections"]),
            (&json!("tcp"), &json!(1))
        );
        let endpoint = &probe["endpoints"][0];
        assert_eq!(endpoint["address"], setting.b.address.to_string());
        assert!(endpoint["reached"].as_u64() >= Some(1), "{probe}");
        assert_eq!(endpoint["failed_in_a_row"], 0, "{probe}");
        assert!(endpoint["reached_at_unix_us"].as_i64() > Some(0), "{probe}");
        let untried = listed("shop.Orders");
        assert_eq!(
            (&untried["transport"], &untried["connections"]),
            (&json!(""), &json!(0))
        );
        assert_eq!(untried["endpoints"][0]["reached"], 0);
        assert!(operator.text(&["routes"]).contains("not tried yet"));

        // The app looks for its server again and again.
        setting.b.program.kill();
        eventually("the endpoint does not answer", WAIT_MAX, || {
            listed("probe.Probe")["endpoints"][0]["failed_in_a_row"].as_u64() >= Some(1)
        });
        let gone = listed("probe.Probe");
        assert_eq!(gone["connections"], 0, "{gone}");
        let problem = gone["endpoints"][0]["problem"].as_str().unwrap();
        assert!(problem.contains("refused"), "{problem}");
        let table = operator.text(&["routes"]);
        let words: Vec<_> = table.split_whitespace().collect();
        let reason = problem.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            table.contains("failed ") && words.join(" ").contains(&reason),
            "{table}"
        );
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
        assert!(operator.text(&["certs"]).contains("no [tls] is configured"));
    });
}

#[test]
fn what_a_node_logs_is_changed_while_it_runs_until_its_configuration_is_read_again() {
    tested(|| {
        let listener = "[[grpc.listener]]\nname = \"door\"\naddress = \"127.0.0.1:0\"\napp = \"by-hand\"\n";
        let setting = setting(&format!("[log]\nlevel = \"warn\"\n{listener}"));
        let operator = Operator::of(&setting.a);
        let level = || {
            operator.json(&["log", "level"])["level"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        // What is logged at the level debug, of a call: how often the log has it after one more.
        let clients_logged = || {
            operator.text(&["call", "Probe/Echo"]);
            let log = setting.a.program.log();
            log.matches("a gRPC client has come").count()
        };
        let configured = level();
        assert_eq!(clients_logged(), 0);
        let said = operator.text(&["log", "level", "debug"]);
        assert!(said.contains("\"debug\" instead of"), "{said}");
        assert_eq!(level(), "debug");
        assert_eq!(clients_logged(), 1);
        let said = operator.fails(5, &["log", "level", "debgu"]);
        assert!(said.contains("\"debgu\" is no level"), "{said}");
        assert_eq!(level(), "debug", "nonsense changes nothing");
        operator.text(&["log", "level", "--reset"]);
        assert_eq!(level(), configured);
        assert_eq!(clients_logged(), 1);
        // Nobody silences what he is accounted for by.
        for silent in ["off", "audit=off"] {
            operator.text(&["log", "level", silent]);
            let record = format!("\"method\":\"SetLog\",\"arguments\":{{\"level\":\"{silent}\"}}");
            eventually("the change is audited", WAIT_MAX, || {
                setting.a.program.log().contains(&record)
            });
        }
        operator.text(&["log", "level", "info,provostd=trace"]);
        operator.text(&["config", "reload"]);
        assert_eq!(level(), configured);
    });
}
