//! To whom names of apps belong, and what an app may bind and connect to: programs of other users, and reloads.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use provost::Code;
use provost_e2e::agent::Executor;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Agent, Answer, Node, NodeOptions, Program, World, eventually, watched};
use rustix::process::Signal;
use serde_json::Value;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Users that nobody is, and a group that every system has, by its name.
const HONEST: u32 = 64_001;
const MALLORY: u32 = 64_002;
const MEMBERS: &str = "daemon";

/// Everybody may open the socket and attach: what counts is whose a name or a service is.
const OPEN_SOCKET: &str = "mode = \"0666\"\nallow_any_user = true\n";

/// A node, and what of its configuration changes.
struct AppPlace {
    world: World,
    node: Node,
    audit: PathBuf,
    reloads: usize,
}

impl AppPlace {
    fn new(tables: &str) -> AppPlace {
        let mut world = World::new(ROLE);
        let audit = world.directory().join("audit.log");
        let node = world.node("a", &options(tables, &audit));
        AppPlace {
            world,
            node,
            audit,
            reloads: 0,
        }
    }

    /// Has the node read another configuration.
    fn reload(&mut self, tables: &str) {
        self.node.reconfigure(&options(tables, &self.audit));
        self.reloads += 1;
        self.node.program.signal(Signal::HUP);
        let read = "the configuration was read again";
        eventually("the configuration is read", WAIT_MAX, || {
            self.node.program.log().matches(read).count() >= self.reloads
        });
    }

    fn server(&mut self, name: &str, user: u32) -> Program {
        self.world.role_as(&self.node, name, user, &["server"])
    }

    /// A server of this name and user does not get to serve, and says why.
    fn is_refused(&mut self, name: &str, user: u32, reason: &str) {
        let mut server = self.server(name, user);
        has_failed(&mut server, reason);
    }

    /// A server of this name and user serves.
    fn serves(&mut self, name: &str, user: u32) -> Program {
        let before = self.bound();
        let server = self.server(name, user);
        eventually("a server serves", WAIT_MAX, || self.bound() > before);
        server
    }

    /// How often something was bound.
    fn bound(&self) -> usize {
        self.node.program.log().matches(" bound app=").count()
    }

    /// Records of the audit log about authority, with this action and user.
    fn records(&self, action: &str, user: u32) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.audit).unwrap_or_default();
        let records = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_meant = |record: &Value| {
            record["event"] == "authority" && record["action"] == action && record["uid"] == user
        };
        records.filter(is_meant).collect()
    }

    /// The audit log tells of a refusal by a rule.
    fn is_audited(&self, action: &str, user: u32, rule: &str) {
        eventually("the audit log has it", WAIT_MAX, || {
            let records = self.records(action, user);
            records
                .iter()
                .any(|record| record["rule"] == rule && record["outcome"] == "PERMISSION_DENIED")
        });
    }
}

fn options(tables: &str, audit: &std::path::Path) -> NodeOptions {
    NodeOptions {
        control: OPEN_SOCKET.to_owned(),
        tables: format!("{tables}\n[observe]\naudit_file = \"{}\"\n", audit.display()),
        ..NodeOptions::default()
    }
}

fn has_failed(program: &mut Program, reason: &str) {
    let ended: Option<ExitStatus> = program.ends_within(WAIT_MAX);
    assert!(ended.is_some_and(|status| !status.success()), "{ended:?}");
    assert!(program.log().contains(reason), "{reason}: {}", program.log());
}

/// Runs a test that starts programs as other users.
fn as_other_users(body: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return provost_skip::forbidden("only root can run programs as other users");
    }
    watched(body);
}

/// A client that has called well.
fn client(place: &mut AppPlace) -> Agent {
    let mut agent = place.world.agent(&place.node);
    agent.calls_well();
    agent
}

#[test]
fn without_tables_a_service_is_its_first_users_and_the_node_says_that_it_is_open() {
    as_other_users(|| {
        let mut place = AppPlace::new("");
        assert!(place.node.program.log().contains("no [[app]]"));
        let first = place.serves("first", HONEST);
        place.is_refused(
            "thief",
            MALLORY,
            &format!("probe.Probe is bound by user {HONEST}"),
        );
        let rule = "a service belongs to the user who has bound it, without [[app]]";
        place.is_audited("bind", MALLORY, rule);
        assert_eq!(place.records("bind", MALLORY)[0]["service"], "probe.Probe");
        let _second = place.serves("second", HONEST);
        client(&mut place);
        drop(first);
    });
}

#[test]
fn a_name_is_whose_a_table_says_and_does_what_the_table_says() {
    as_other_users(|| {
        let tables = format!(
            "[[app]]\nname = \"shop\"\nusers = [{HONEST}, {MALLORY}]\nmay_bind = [\"probe.*\"]\n\
             [[app]]\nname = \"client\"\nusers = [{HONEST}]\nmay_bind = [\"bank.*\"]\n\
             [[app]]\nname = \"e2e-role\"\nusers = [\"root\"]\n"
        );
        let mut place = AppPlace::new(&tables);
        assert!(!place.node.program.log().contains("no [[app]]"));
        place.is_refused("shop", 0, "users of [[app]] \"shop\"");
        place.is_audited("attach", 0, "users of [[app]] \"shop\"");
        place.is_refused(
            "nobody",
            HONEST,
            "no [[app]] of the node's configuration has the name \"nobody\"",
        );
        // Each refusal says which file an operator has to change.
        let file = place.world.directory().join("a.toml");
        let refusal = format!(
            "may_bind of [[app]] \"client\" of the node's configuration does not have it ({}, line ",
            file.display()
        );
        place.is_refused("client", HONEST, &refusal);
        place.is_audited("bind", HONEST, "may_bind of [[app]] \"client\"");
        let _one = place.serves("shop", HONEST);
        // What both tables say goes for users beside each other.
        let _other = place.serves("shop", MALLORY);
        client(&mut place);
    });
}

#[test]
fn a_name_can_be_a_programs_or_a_groups() {
    as_other_users(|| {
        let mut place = AppPlace::new("");
        let mut earlier = place.serves("tool", HONEST);
        let tool = place.world.directory().join("tool");
        let replacement = place.world.directory().join("replacement");
        std::fs::copy(&tool, &replacement).unwrap();
        std::fs::rename(&replacement, &tool).unwrap();
        place.reload(&format!(
            "[[app]]\nname = \"tool\"\nexecutables = [\"{}\"]\nmay_bind = [\"*\"]\n\
             [[app]]\nname = \"member\"\ngroups = [\"{MEMBERS}\"]\nmay_bind = [\"*\"]\n",
            tool.display()
        ));
        // The file that was at that path before is another program.
        has_failed(&mut earlier, "executables of [[app]] \"tool\"");
        drop(place.serves("tool", MALLORY));
        // Another file, also of that name, is another program.
        let elsewhere = place.world.directory().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o755)).unwrap();
        let copied = Command::new("cp").arg(&tool).arg(&elsewhere).status();
        assert!(copied.unwrap().success());
        place.is_refused("elsewhere/tool", MALLORY, "executables of [[app]] \"tool\"");
        place.is_refused("member", HONEST, "groups of [[app]] \"member\"");
        let member = place.world.directory().join("member");
        let bound = place.bound();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &HONEST.to_string(), "--regid", &HONEST.to_string()])
            .args(["--groups", MEMBERS])
            .arg(member)
            .arg("server")
            .env("PROVOST_SOCKET", &place.node.socket);
        if Command::new("setpriv").arg("--version").output().is_err() {
            return provost_skip::missing("setpriv", "apt-get install util-linux");
        }
        let _server = Program::start("member", command, place.world.directory());
        eventually("a member of the group serves", WAIT_MAX, || place.bound() > bound);
    });
}

#[test]
fn a_reload_ends_what_is_not_allowed_any_more_with_a_reason() {
    as_other_users(|| {
        let shop = |more: &str| format!("[[app]]\nname = \"shop\"\n{more}\n");
        let role = |more: &str| format!("[[app]]\nname = \"e2e-role\"\n{more}\n");
        let binds = "may_bind = [\"probe.Probe\"]";
        let mut place = AppPlace::new(&(shop(binds) + &role("")));
        let mut server = place.serves("shop", HONEST);
        let mut agent = client(&mut place);

        // The server's right to bind ends: it is told why, and ends.
        place.reload(&(shop("may_bind = [\"bank.*\"]") + &role("")));
        has_failed(&mut server, "may_bind of [[app]] \"shop\"");
        place.is_audited("bind", HONEST, "may_bind of [[app]] \"shop\"");
        let failure = agent.fails(provost_e2e::Ask::Echo(provost_e2e::script::Echo::default()));
        assert_eq!(failure.code, Code::Unavailable, "{failure:?}");

        // With it again it serves; then its name is another user's, and it is detached.
        place.reload(&(shop(binds) + &role("")));
        let mut server = place.serves("shop", HONEST);
        place.reload(&(shop(&format!("users = [{MALLORY}]\n{binds}")) + &role("")));
        has_failed(&mut server, "users of [[app]] \"shop\"");
        place.is_audited("attach", HONEST, "users of [[app]] \"shop\"");

        // A client that may not connect any more: its connection ends, and it gets no other.
        let _server = place.serves("shop", MALLORY);
        let mut agent = client(&mut place);
        place.reload(&(shop(binds) + &role("may_connect = [\"bank.*\"]")));
        place.is_audited("connect", 0, "may_connect of [[app]] \"e2e-role\"");
        eventually("calls fail once the connection is over", WAIT_MAX, || {
            let call = agent.begin(provost_e2e::Ask::Echo(provost_e2e::script::Echo::default()));
            matches!(agent.answer(call), Answer::Failed(_))
        });
        let mut another = place.world.starting_agent(&place.node, Executor::TokioCurrent);
        let first = another.first_answer();
        let is_refused =
            matches!(&first, Answer::Failed(parts) if parts.code == Code::PermissionDenied.number());
        assert!(is_refused, "{first:?}");
    });
}

#[test]
fn a_hot_restart_keeps_what_an_app_was_found_to_run() {
    as_other_users(|| {
        let mut place = AppPlace::new("");
        drop(place.serves("tool", HONEST));
        let tool = place.world.directory().join("tool");
        let tables = format!(
            "[[app]]\nname = \"tool\"\nexecutables = [\"{}\"]\nmay_bind = [\"*\"]\n[[app]]\nname = \"e2e-role\"\n",
            tool.display()
        );
        place.reload(&tables);
        let mut server = place.serves("tool", HONEST);
        // As an upgrade of its package does it: the app that runs goes on with the file that is gone.
        std::fs::remove_file(&tool).unwrap();
        place.reload(&tables);
        place.node.replace();
        client(&mut place);
        assert!(server.is_running());
        // A process of the file that is there now has the name, too.
        drop(place.serves("tool", HONEST));
    });
}

/// Starts a node where processes of this namespace have no number, as those of a sibling container have none.
const OTHER_NAMESPACE: &[&str] = &[
    "unshare",
    "--pid",
    "--fork",
    "--kill-child",
    "env",
    "-u",
    "E2E_PARENT",
];

#[test]
fn apps_of_another_pid_namespace_attach_and_their_user_counts() {
    let [unshare, arguments @ ..] = OTHER_NAMESPACE else {
        unreachable!()
    };
    let tried = Command::new(unshare).args(arguments).arg("true").status();
    if !tried.is_ok_and(|status| status.success()) {
        return provost_skip::forbidden("no PID namespaces can be made here");
    }
    watched(|| {
        let mut world = World::new(ROLE);
        let user = rustix::process::geteuid().as_raw();
        let node = world.node(
            "a",
            &NodeOptions {
                tables: format!("[[app]]\nname = \"*\"\nusers = [{user}]\nmay_bind = [\"*\"]\n"),
                launcher: OTHER_NAMESPACE,
                ..NodeOptions::default()
            },
        );
        let _server = world.server(&node);
        world.agent(&node).calls_well();
        let log = node.program.log();
        let attached = log.lines().filter(|line| line.contains(" attached "));
        assert_eq!(
            attached.filter(|line| line.contains("pid=0 ")).count(),
            2,
            "{log}"
        );
        // What is known of a process by its number is not known of these.
        let by_program = NodeOptions {
            tables: "[[app]]\nname = \"*\"\nexecutables = [\"/bin/sh\"]\n".to_owned(),
            launcher: OTHER_NAMESPACE,
            ..NodeOptions::default()
        };
        let strict = world.node("b", &by_program);
        let refused = world
            .starting_agent(&strict, Executor::TokioCurrent)
            .first_answer();
        assert!(matches!(refused, Answer::Failed(_)), "{refused:?}");
    });
}
