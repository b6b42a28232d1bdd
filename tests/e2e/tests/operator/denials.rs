//! Who is refused something by a key of the configuration is told the key, the file and the line.

use provost::blocking::block_on;
use provost::{App, Channel, Status};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::probe::probe_service::SERVICE;
use provost_e2e::{Node, NodeOptions, World};

use crate::command::{ROLE, tested};

/// A node whose configuration has these lines in `[limits]`, and these tables; and the path of its file.
struct LimitedNode {
    world: World,
    node: Node,
}

impl LimitedNode {
    fn new(limits: &str, tables: &str) -> LimitedNode {
        let mut world = World::new(ROLE);
        let node = world.node("a", &options(limits, tables));
        LimitedNode { world, node }
    }

    fn attach(&self, name: &str) -> Result<App, Status> {
        App::builder().socket(&self.node.socket).name(name).attach()
    }

    /// The file, and the line of it that begins so.
    fn place_of(&self, beginning: &str) -> String {
        let file = self.world.directory().join("a.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let mut lines = text.lines();
        let at = lines.position(|line| line.starts_with(beginning));
        let at = at.unwrap_or_else(|| panic!("no line begins with {beginning}: {text}"));
        format!("({}, line {})", file.display(), at + 1)
    }

    fn is_refused<T>(&self, outcome: Result<T, Status>, parts: &[&str]) {
        let Err(status) = outcome else {
            panic!("nothing was refused by {parts:?}");
        };
        for part in parts {
            assert!(
                status.message().contains(part),
                "{part:?} is missing in: {status}"
            );
        }
    }
}

fn options(limits: &str, tables: &str) -> NodeOptions {
    NodeOptions {
        limits: limits.to_owned(),
        tables: tables.to_owned(),
        ..NodeOptions::default()
    }
}

fn connect(app: &App) -> Result<Channel, Status> {
    block_on(Channel::builder(&SERVICE).app(app).connect("probe.Probe"))
}

#[test]
fn limits_name_their_key_and_its_line() {
    tested(|| {
        let node = LimitedNode::new("apps = 1", "");
        let _first = node.attach("first").unwrap();
        let place = node.place_of("apps = 1");
        let said = "1 app is attached, as many as limits.apps allows";
        node.is_refused(node.attach("second"), &[said, &place]);

        let node = LimitedNode::new("apps_per_user = 2", "");
        let _apps = ["first", "second"].map(|name| node.attach(name).unwrap());
        let place = node.place_of("apps_per_user");
        let said = "2 apps of user ";
        node.is_refused(
            node.attach("third"),
            &[said, "limits.apps_per_user allows", &place],
        );

        let mut node = LimitedNode::new("connections_per_app = 1", "");
        let _server = node.world.server(&node.node);
        let app = node.attach("busy").unwrap();
        let _channel = connect(&app).unwrap();
        let place = node.place_of("connections_per_app");
        node.is_refused(connect(&app), &["limits.connections_per_app = 1", &place]);
    });
}

#[test]
fn a_limit_that_no_file_sets_is_said_to_be_the_default() {
    tested(|| {
        let node = LimitedNode::new("apps = 7", "");
        let file = node.world.directory().join("a.toml");
        let odd = App::builder().socket(&node.node.socket).rings(48, 48);
        let place = format!("(by default, without limits.ring_slots: {})", file.display());
        node.is_refused(
            odd.attach(),
            &["a ring of 48 slots", "limits.ring_slots = ", &place],
        );
        let busy = App::builder().socket(&node.node.socket).busy_poll();
        let key = "runtime.allow_app_busy_poll";
        let place = format!("(by default, without {key}: {})", file.display());
        node.is_refused(busy.attach(), &[&place]);
    });
}

#[test]
fn tables_of_apps_name_the_file_and_the_line_of_the_key_or_of_the_table() {
    tested(|| {
        let tables = "\n\
            [[app]]\nname = \"reader\"\nmay_connect = [\"other.*\"]\n\
            [[app]]\nname = \"single\"\nattachments = 1\nconnections = 1\nmay_connect = [\"probe.*\"]\n\
            [[app]]\nname = \"silent\"\n\
            [[app]]\nname = \"strange\"\nusers = [4242]\n\
            [[app]]\nname = \"e2e-role*\"\nmay_bind = [\"probe.*\"]\n";
        let mut node = LimitedNode::new("apps = 100", tables);
        let _server = node.world.server(&node.node);

        let reader = node.attach("reader").unwrap();
        let place = node.place_of("may_connect = [\"other.*\"]");
        node.is_refused(connect(&reader), &["may_connect of [[app]] \"reader\"", &place]);

        let single = node.attach("single").unwrap();
        let place = node.place_of("attachments = 1");
        let said = "1 app of [[app]] \"single\" is attached, as many as its attachments = 1 allow";
        node.is_refused(node.attach("single"), &[said, &place]);
        let _channel = connect(&single).unwrap();
        let place = node.place_of("connections = 1");
        node.is_refused(connect(&single), &["connections = 1 of its [[app]]", &place]);

        // A key that is not there is looked for in its table.
        let table = node.place_of("name = \"silent\"");
        let above = table.rsplit_once(' ').unwrap().1.trim_end_matches(')');
        let above: usize = above.parse().unwrap();
        let place = table.replace(&format!("line {above}"), &format!("line {}", above - 1));
        let user = rustix::process::geteuid().as_raw();
        let mut silent = node.world.role_as(&node.node, "silent", user, &["server"]);
        let ended = silent.ends_within(WAIT_MAX);
        assert!(ended.is_some_and(|status| !status.success()), "{ended:?}");
        for part in ["may_bind of [[app]] \"silent\"", &place] {
            let log = silent.log();
            assert!(log.contains(part), "{part:?} is missing in: {log}");
        }

        let place = node.place_of("users = [4242]");
        node.is_refused(node.attach("strange"), &["users of [[app]] \"strange\"", &place]);
        let file = node.world.directory().join("a.toml");
        let place = format!("({})", file.display());
        node.is_refused(
            node.attach("nobody"),
            &["no [[app]]", "has the name \"nobody\"", &place],
        );
    });
}

#[test]
fn a_reload_moves_the_lines_that_refusals_name() {
    tested(|| {
        let mut node = LimitedNode::new("apps = 1", "");
        let _first = node.attach("first").unwrap();
        let before = node.place_of("apps = 1");
        node.is_refused(node.attach("second"), &[&before]);
        node.node
            .reconfigure(&options("# One is enough.\n\napps = 1", ""));
        node.node.operate(&["config", "reload"]);
        let after = node.place_of("apps = 1");
        assert_ne!(before, after);
        node.is_refused(node.attach("second"), &[&after]);
    });
}
