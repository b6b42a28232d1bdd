//! Apps and peers that take all they can get. While they do, the service uses no more than a bound, others are served, and
//! the calls of good apps go on as beside loops that leave the service alone.

#[allow(dead_code, reason = "these tests use a part of it")]
mod beside;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use beside::{
    ANSWERED_WITHIN, APPS_DECIDE, GoodPair, JudgedAttack, PeakBounds, attacked_by, newcomer_is_served,
    newcomer_offers_a_service, node, node_of, node_within, scene_at,
};
use prost::Message;
use provost_e2e::peer::{Claim, Handshake};
use provost_e2e::{Node, NodeOptions, eventually, scrape};
use provost_hostile::attacks::{Attack, control, greed};
use provost_hostile::collusion::write_message;
use provost_hostile::random::random_of;
use provost_hostile::raw::{Gone, RawApp};
use provost_hostile::scene::{Client, Scene};
use provost_hostile::schema::{TARGETS, TargetSchema, bomb, of_a_long_name};
use provost_namespaces::Namespace;
use provost_shm::{AsFd, Memfd, PacketSocket};
use provost_wire::control::{AddSchema, Connect, Request, Unbind, request};
use provost_wire::descriptor::{Parts, completion_kind};
use rustix::process::{Signal, Uid};

/// What an app has at a node, in descriptors: its rings, bells, heap, segments and socket.
const DESCRIPTORS_PER_APP: usize = 12;

fn schema() -> TargetSchema {
    TargetSchema::load().expect("the schema")
}

fn was_tried(scene: &Scene, what: &str) {
    assert!(scene.report.counted(what) > 0, "nothing was tested: {what}");
}

#[test]
fn a_schema_whose_services_all_reach_everything_costs_little() {
    let (mut world, node) = node("");
    let pair = GoodPair::start(&mut world, &node);
    let (schema, memory) = (
        schema(),
        Memfd::of_bytes("bomb", &bomb(500, 4, 4096)).expect("memory"),
    );
    let bounds = PeakBounds {
        resident_bytes: 128 << 20,
        ..PeakBounds::FEW
    };
    let judged = JudgedAttack::begin(pair, [(&node, bounds)]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (node, memory, judged) = (&node, &memory, &judged);
            scope.spawn(move || {
                while judged.goes_on() {
                    let mut app = RawApp::attach(&node.socket, "bomber").expect("it attaches");
                    let add = request::Body::AddSchema(AddSchema { hash: Vec::new() });
                    let refused = app.ask(add, &[memory.as_fd()]);
                    assert!(matches!(refused, Err(Gone::Refused { .. })), "{refused:?}");
                }
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        newcomer_offers_a_service(&node, &schema);
    });
    judged.end().judge();
}

#[test]
fn attempts_to_reach_who_never_answers_hold_little_and_end_with_their_app() {
    const APPS: usize = 3;
    const ATTEMPTS: usize = 64;
    /// A socket and a second handle to it.
    const DESCRIPTORS_PER_ATTEMPT: usize = 2;
    const THREADS_PER_APP: usize = 8;
    const SLACK: usize = 40;
    /// Fewer than one app has handshakes under way.
    const LEFT: usize = 4;
    let (mut world, node) = node("");
    let schema = schema();
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a listener");
    newcomer_offers_a_service(&node, &schema);
    let pair = GoodPair::start(&mut world, &node);
    let before = node.usage();
    let bounds = PeakBounds {
        descriptors: APPS * (ATTEMPTS * DESCRIPTORS_PER_ATTEMPT + DESCRIPTORS_PER_APP) + SLACK,
        threads: APPS * THREADS_PER_APP + 8,
        resident_bytes: 64 << 20,
        shared_bytes: APPS_DECIDE,
    };
    let judged = JudgedAttack::begin(pair, [(&node, bounds)]);
    let (apps, _reached) = apps_that_reach(&node, &schema, &nobody, [APPS, ATTEMPTS]);
    newcomer_offers_a_service(&node, &schema);
    let outcome = judged.end();
    let begin = Instant::now();
    drop(apps);
    eventually("attempts end with their apps", ANSWERED_WITHIN, || {
        let now = node.usage();
        now.descriptors <= before.descriptors + LEFT && now.threads <= before.threads + LEFT
    });
    println!("{:?} after the apps had gone", begin.elapsed());
    outcome.judge();
}

#[test]
fn operators_wait_for_no_attempt_to_reach_who_never_answers() {
    let (_world, mut node) = node("");
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let _apps = apps_that_reach(&node, &schema(), &nobody, [3, 64]);
    node.program.signal(Signal::HUP);
    eventually("the configuration is read again", ANSWERED_WITHIN, || {
        node.program.log().contains("the configuration was read again")
    });
    println!("{:?}", node.replace());
    newcomer_offers_a_service(&node, &schema());
}

/// Apps of several users, each with as many attempts as it may have, until the node has as many as it may.
#[test]
fn a_node_has_so_many_attempts_at_once_and_goes_on() {
    const USERS: u32 = 4;
    const APPS_OF_USER: usize = 8;
    const ATTEMPTS_OF_APP: u64 = 64;
    if !rustix::process::geteuid().is_root() {
        return provost_skip::forbidden("only root can attach as other users");
    }
    let (world, node) = node_of(&NodeOptions {
        control: "mode = \"0666\"\nallow_any_user = true\n".to_owned(),
        ..NodeOptions::default()
    });
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(world.directory(), everybody).expect("permissions");
    let (schema, full) = (schema(), FullListener::open());
    // From here on the node knows the schema.
    newcomer_offers_a_service(&node, &schema);
    let connect = |timeout: Duration| {
        request::Body::Connect(Connect {
            service: TARGETS[1].to_owned(),
            schema_hash: schema.hash(TARGETS[1]).0.to_vec(),
            address: full.address.clone(),
            timeout_ns: timeout.as_nanos() as u64,
        })
    };
    let refusal = |app: &mut RawApp| match app.ask(connect(Duration::from_millis(50)), &[]) {
        Err(Gone::Refused { message, .. }) => message,
        other => panic!("{other:?}"),
    };
    let mut apps = Vec::new();
    for user in 1..=USERS {
        // As many as the user may have, and those of one app more.
        let mut of_user: Vec<_> = (0..=APPS_OF_USER)
            .map(|_| attached_as(1_000 + user, &node))
            .collect();
        for app in &of_user {
            for id in 1000..1000 + ATTEMPTS_OF_APP {
                let body = Some(connect(Duration::from_secs(3600)));
                let packet = Request { id, body }.encode_to_vec();
                let send = || app.socket.send(&packet, &[]);
                eventually("the node reads requests", ANSWERED_WITHIN, || send().is_ok());
            }
        }
        eventually("the user has as many as it may", ANSWERED_WITHIN, || {
            let refused = of_user
                .iter_mut()
                .map(|app| app.refusals().expect("it is attached"));
            let refused: Vec<&str> = refused.flatten().collect();
            let expected = "the apps of this user try to open 512";
            assert!(refused.iter().all(|why| why.contains(expected)), "{refused:?}");
            refused.len() == ATTEMPTS_OF_APP as usize
        });
        apps.extend(of_user);
    }
    let mut of_another = attached_as(999, &node);
    let refused = refusal(&mut of_another);
    assert!(refused.contains("all apps try to open 2048"), "{refused}");
    newcomer_offers_a_service(&node, &schema);
    drop(apps);
    eventually("attempts end with their apps", ANSWERED_WITHIN, || {
        !refusal(&mut of_another).contains("try to open")
    });
}

/// Who never answers: its queue of connections is full, so that the kernel takes no more of them.
struct FullListener {
    address: String,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl FullListener {
    fn open() -> FullListener {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        rustix::net::listen(&listener, 0).expect("a short queue");
        let address = listener.local_addr().expect("an address");
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
        FullListener {
            address: address.to_string(),
            _waiting: std::iter::from_fn(connect).collect(),
            _listener: listener,
        }
    }
}

/// Attaches as another user.
fn attached_as(user: u32, node: &Node) -> RawApp {
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| {
            // Only this thread is of the user, and it ends.
            let user = Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(user, user, user).expect("another user");
            RawApp::attach(&node.socket, "caller").expect("it attaches")
        });
        attaching.join().expect("it attaches")
    })
}

/// Apps that each try so often to open a connection to one who accepts it and says nothing; and what was accepted.
fn apps_that_reach(
    node: &Node,
    schema: &TargetSchema,
    nobody: &TcpListener,
    [apps, attempts]: [usize; 2],
) -> (Vec<RawApp>, Vec<TcpStream>) {
    let address = nobody.local_addr().expect("an address").to_string();
    let app_with_attempts = || {
        let mut app = RawApp::attach(&node.socket, "caller").expect("it attaches");
        app.bind(schema, TARGETS[1]).expect("it binds");
        for id in 0..attempts as u64 {
            let connect = request::Body::Connect(Connect {
                service: TARGETS[1].to_owned(),
                schema_hash: schema.hash(TARGETS[1]).0.to_vec(),
                address: address.clone(),
                timeout_ns: Duration::from_secs(3600).as_nanos() as u64,
            });
            let packet = Request {
                id: 1000 + id,
                body: Some(connect),
            };
            let beside = [app.heap.as_fd(); 8];
            let send = || app.socket.send(&packet.encode_to_vec(), &beside);
            eventually("the node reads requests", ANSWERED_WITHIN, || send().is_ok());
        }
        app
    };
    let callers = (0..apps).map(|_| app_with_attempts()).collect();
    nobody.set_nonblocking(true).expect("a listener");
    let mut reached = Vec::new();
    eventually("no attempt waits for another one", ANSWERED_WITHIN, || {
        reached.extend(nobody.accept().ok().map(|(stream, _)| stream));
        reached.len() == apps * attempts
    });
    (callers, reached)
}

/// Starts a program that asks a server for names which is at its own address, and which waits for minutes where none answers.
const OTHER_RESOLVER: &[&str] = &[
    "unshare",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs none /mnt && printf 'nameserver 127.0.0.1\\noptions timeout:30 attempts:4\\n' > /mnt/resolv.conf \
     && mount --bind /mnt/resolv.conf /etc/resolv.conf && exec \"$@\"",
    "sh",
];

#[test]
fn names_that_are_never_looked_up_hold_few_threads_and_nobody_else() {
    let [unshare, arguments @ ..] = OTHER_RESOLVER else {
        unreachable!()
    };
    let tried = Command::new(unshare).args(arguments).arg("true").status();
    if !tried.is_ok_and(|status| status.success()) {
        return provost_skip::forbidden("the file that names the resolver cannot be replaced here");
    }
    match Namespace::new() {
        Ok(network) => network.run(|| {
            // It is there, and never answers.
            let _resolver = UdpSocket::bind("127.0.0.1:53")?;
            look_up_what_is_never_found();
            Ok(())
        }),
        Err(error) => return provost_skip::error(&error),
    }
    .expect("a network namespace");
}

fn look_up_what_is_never_found() {
    const APPS: usize = 3;
    const NAMES: u64 = 32;
    const LOOKUPS_PER_APP: usize = 2;
    let (mut world, node) = node_of(&NodeOptions {
        launcher: OTHER_RESOLVER,
        ..NodeOptions::default()
    });
    let pair = GoodPair::start(&mut world, &node);
    let (schema, before) = (schema(), node.usage());
    let bounds = PeakBounds {
        threads: APPS * LOOKUPS_PER_APP + 8,
        ..PeakBounds::FEW
    };
    let judged = JudgedAttack::begin(pair, [(&node, bounds)]);
    let connect = |timeout: Duration| {
        request::Body::Connect(Connect {
            service: TARGETS[1].to_owned(),
            schema_hash: schema.hash(TARGETS[1]).0.to_vec(),
            address: "nobody.invalid:1".to_owned(),
            timeout_ns: timeout.as_nanos() as u64,
        })
    };
    let attached = || {
        let mut app = RawApp::attach(&node.socket, "caller").expect("it attaches");
        app.bind(&schema, TARGETS[1]).expect("it binds");
        app
    };
    let apps: Vec<RawApp> = (0..APPS).map(|_| attached()).collect();
    for app in &apps {
        for id in 1000..1000 + NAMES {
            let body = Some(connect(Duration::from_secs(3600)));
            let packet = Request { id, body }.encode_to_vec();
            let send = || app.socket.send(&packet, &[]);
            eventually("the node reads requests", ANSWERED_WITHIN, || send().is_ok());
        }
    }
    newcomer_is_served(&node);
    newcomer_offers_a_service(&node, &schema);
    // Whether they say a time or not, they are told; the first before the others' time is up.
    let mut hasty = attached();
    for timeout in [Duration::from_millis(500), Duration::from_secs(3600)] {
        let begin = Instant::now();
        let refused = hasty.ask(connect(timeout), &[]);
        let late = matches!(&refused, Err(Gone::Refused { message, .. }) if message.contains("not looked up in time"));
        assert!(late, "{refused:?}");
        println!("refused after {:?}", begin.elapsed());
    }
    drop((apps, hasty));
    eventually(
        "nothing is left of the apps but look-ups",
        ANSWERED_WITHIN,
        || {
            let now = node.usage();
            now.descriptors <= before.descriptors + 8 && now.threads <= before.threads + bounds.threads
        },
    );
    judged.end().judge();
}

#[test]
fn who_connects_to_the_control_socket_and_is_silent_keeps_nobody_out() {
    let (mut world, node) = node("");
    let schema = schema();
    let pair = GoodPair::start(&mut world, &node);
    let bounds = PeakBounds {
        descriptors: 900,
        ..PeakBounds::FEW
    };
    let judged = JudgedAttack::begin(pair, [(&node, bounds)]);
    let mut silent = Vec::new();
    while silent.len() < 600 {
        match PacketSocket::connect(&node.socket) {
            Ok(socket) => silent.push(socket),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    for _ in 0..10 {
        newcomer_offers_a_service(&node, &schema);
    }
    judged.end().judge();
}

#[test]
fn floods_of_control_requests_keep_nobody_out() {
    let (mut world, node) = node("");
    let pair = GoodPair::start(&mut world, &node);
    let (scene, schema) = (scene_at(&node), schema());
    let bounds = PeakBounds {
        resident_bytes: 128 << 20,
        ..PeakBounds::FEW
    };
    let judged = JudgedAttack::begin(pair, [(&node, bounds)]);
    let attacks: [Attack; 2] = [control::run; 2];
    let outcome = attacked_by(judged, &scene, &attacks, || {
        newcomer_offers_a_service(&node, &schema);
    });
    was_tried(&scene, "control: answered");
    outcome.judge();
}

#[test]
fn apps_of_one_user_have_so_many_places_and_cost_what_those_cost() {
    const APPS_MAX: usize = 48;
    let (mut world, node) = node_within(&format!("apps_per_user = {APPS_MAX}\n"), "");
    let pair = GoodPair::start(&mut world, &node);
    let scene = scene_at(&node);
    let bounds = PeakBounds {
        // Those who go and those who come.
        descriptors: 2 * APPS_MAX * DESCRIPTORS_PER_APP,
        threads: 16,
        resident_bytes: 100 << 20,
        shared_bytes: APPS_DECIDE,
    };
    let judged = JudgedAttack::begin(pair, [(&node, bounds)]);
    let outcome = attacked_by(judged, &scene, &[greed::attachments], || {});
    was_tried(&scene, "attachments: attached");
    was_tried(&scene, "attachments: refused");
    outcome.judge();
}

#[test]
fn calls_that_are_cancelled_before_they_are_refused_pile_up_nowhere() {
    refused_calls_pile_up_nowhere("", greed::begin_and_cancel, "begin and cancel: held back");
}

#[test]
fn calls_past_the_limit_whose_refusals_nobody_reads_pile_up_nowhere() {
    let few_calls = "calls_in_flight = 16\n";
    refused_calls_pile_up_nowhere(few_calls, greed::begin_too_many, "begin too many: held back");
}

/// The service takes no more of an app that reads nothing, once there is no room on the way.
fn refused_calls_pile_up_nowhere(limits: &str, attack: Attack, held_back: &str) {
    /// On busy cores it takes the service long to take what there is room for.
    const HELD_BACK_WITHIN: Duration = Duration::from_secs(60);
    // Not detached for what it does not read.
    let (mut world, node) = node_within(limits, "[timeouts]\ncompletion_stall_ms = 600000\n");
    let pair = GoodPair::start(&mut world, &node);
    let scene = scene_at(&node);
    let judged = JudgedAttack::begin(pair, [(&node, PeakBounds::FEW)]);
    let outcome = attacked_by(judged, &scene, &[attack], || {
        newcomer_is_served(&node);
        eventually("the app is held back", HELD_BACK_WITHIN, || {
            scene.report.counted(held_back) > 0
        });
    });
    outcome.judge();
}

#[test]
fn apps_with_room_for_little_disturb_nobody() {
    let (mut world, node) = node("");
    let pair = GoodPair::start(&mut world, &node);
    let scene = scene_at(&node);
    let bounds = PeakBounds {
        descriptors: 40 * DESCRIPTORS_PER_APP,
        threads: 16,
        // Segments of one mebibyte, and messages that wait for room.
        resident_bytes: 100 << 20,
        shared_bytes: APPS_DECIDE,
    };
    let judged = JudgedAttack::begin(pair, [(&node, bounds)]);
    let attacks: [Attack; 2] = [greed::tiny_windows; 2];
    let outcome = attacked_by(judged, &scene, &attacks, || newcomer_is_served(&node));
    was_tried(&scene, "tiny windows: calls");
    outcome.judge();
}

/// An app that unmaps nothing keeps all segments that it ever got. That they are no more than twice what it may have is all that
/// a service can see to.
#[test]
fn retired_segments_that_an_app_keeps_count_against_it() {
    const HEAP_BYTES: u64 = 16 << 20;
    /// So many messages fill most of the heap.
    const MESSAGES: usize = 3;
    const ROUNDS: usize = 4;
    /// A segment is retired five seconds after it has become empty.
    const RETIRED_WITHIN: Duration = Duration::from_secs(9);
    let limits = format!(
        "receive_heap_bytes = {HEAP_BYTES}\nmessage_bytes = {}\n",
        HEAP_BYTES / 2
    );
    let (mut world, node) = node_within(&limits, "");
    let pair = GoodPair::start(&mut world, &node);
    let scene = scene_at(&node);
    let mut hoarder = RawApp::attach(&node.socket, "hoarder").expect("it attaches");
    hoarder.bind(&scene.schema, greed::SERVICE).expect("it binds");
    let client = scene.client("its client", &[greed::SERVICE], &mut random_of(1, 1));
    let mut client = client.expect("it is connected");
    let bounds = PeakBounds {
        resident_bytes: 2 * HEAP_BYTES + (64 << 20),
        ..PeakBounds::FEW
    };
    let judged = JudgedAttack::begin(pair, [(&node, bounds)]);
    let mut retired = 0;
    for round in 0..ROUNDS {
        fill_and_empty(&mut hoarder, &mut client, &scene, MESSAGES);
        let kept: u64 = hoarder
            .segments
            .iter()
            .map(|segment| segment.memory.bytes())
            .sum();
        println!(
            "round {round}: {} MiB kept, {retired} segments retired",
            kept >> 20
        );
        assert!(
            kept <= 2 * HEAP_BYTES,
            "{kept} bytes of an app that may have {HEAP_BYTES}"
        );
        if round + 1 < ROUNDS && kept + HEAP_BYTES / 4 < 2 * HEAP_BYTES {
            retired += segments_retired(&mut hoarder, RETIRED_WITHIN);
        }
    }
    assert!(retired > 1, "nothing was tested: no segment was retired");
    judged.end().judge();
}

/// Has an app receive messages side by side, and give all of them back.
fn fill_and_empty(server: &mut RawApp, client: &mut Client, scene: &Scene, messages: usize) {
    let root = write_message(scene, &client.app);
    for _ in 0..messages {
        let call = client.unary(root);
        client.app.submit(&call).expect("it is taken");
    }
    let mut received = Vec::new();
    eventually("the messages come", ANSWERED_WITHIN, || {
        let completions = server.completions().expect("it is attached");
        received.extend(
            completions
                .into_iter()
                .filter(|step| step.parts.contains(Parts::MESSAGE)),
        );
        received.len() == messages
    });
    for step in &received {
        server.reclaim(step).expect("it is attached");
        let cancel = RawApp::step(step.connection, step.call, Parts::CANCEL);
        server.submit(&cancel).expect("it is attached");
    }
    client.app.completions().expect("it is attached");
}

/// How many segments a server is told to unmap until no more come for a while.
fn segments_retired(server: &mut RawApp, within: Duration) -> usize {
    const MORE_WITHIN: Duration = Duration::from_millis(1500);
    let (mut begin, mut within, mut retired) = (Instant::now(), within, 0);
    while begin.elapsed() < within {
        let completions = server.completions().expect("it is attached");
        let more = completions
            .iter()
            .filter(|completion| completion.kind == completion_kind::SEGMENT_RETIRED);
        let more = more.count();
        if more > 0 {
            retired += more;
            (begin, within) = (Instant::now(), MORE_WITHIN);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    retired
}

#[test]
fn who_connects_to_the_admin_socket_and_is_silent_keeps_nobody_out() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let (mut world, node) = node("");
    let pair = GoodPair::start(&mut world, &node);
    let judged = JudgedAttack::begin(pair, [(&node, PeakBounds::FEW)]);
    let connect = || UnixStream::connect(&node.admin_socket).expect("a connection");
    while judged.goes_on() {
        let _silent: Vec<_> = (0..128).map(|_| connect()).collect();
        let mut operator = connect();
        operator
            .set_read_timeout(Some(ANSWERED_WITHIN))
            .expect("a limit of time");
        operator.write_all(PREFACE).expect("it is read");
        let mut answer = [0; 9];
        operator.read_exact(&mut answer).expect("the admin API answers");
        assert_eq!(answer[3], 4, "SETTINGS come first");
    }
    judged.end().judge();
}

#[test]
fn who_connects_to_metrics_and_health_and_is_silent_keeps_nobody_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("metrics.sock");
    let (mut world, node) = node(&format!("[observe]\nlisten = \"unix:{}\"\n", socket.display()));
    let pair = GoodPair::start(&mut world, &node);
    let judged = JudgedAttack::begin(pair, [(&node, PeakBounds::FEW)]);
    let connect = || UnixStream::connect(&socket).expect("a connection");
    while judged.goes_on() {
        let _silent: Vec<_> = (0..200).map(|_| connect()).collect();
        for page in ["/healthz", "/metrics"] {
            let scraper = connect();
            scraper
                .set_read_timeout(Some(Duration::from_secs(8)))
                .expect("a limit of time");
            let (status, _) = scrape::get(&scraper, page).expect("an answer");
            assert_eq!(status, 200);
        }
    }
    judged.end().judge();
}

#[test]
fn peers_that_say_nothing_keep_nobody_out() {
    // However long it takes to open them all, none loses its place by time.
    let (mut world, node) = node("[timeouts]\nhandshake_ms = 600000\n");
    let pair = GoodPair::start(&mut world, &node);
    let judged = JudgedAttack::begin(pair, [(&node, PeakBounds::STRANGERS)]);
    while judged.goes_on() {
        // More than there are places.
        let _silent: Vec<_> = (0..1_200)
            .map(|_| TcpStream::connect(node.address).expect("a connection"))
            .collect();
        let honest = Claim::honest(provost_e2e::server::descriptor()).shake_hands(node.address);
        assert!(matches!(honest, Handshake::Open(_)), "{honest:?}");
    }
    judged.end().judge();
}

#[test]
fn what_an_app_names_does_not_fill_the_log() {
    const LOG_BYTES_MAX: usize = 1 << 20;
    const LINE_BYTES_MAX: usize = 1 << 10;
    let (mut world, node) = node("");
    let pair = GoodPair::start(&mut world, &node);
    let schema = schema();
    let judged = JudgedAttack::begin(pair, [(&node, PeakBounds::FEW)]);
    let mut app = RawApp::attach(&node.socket, "talkative").expect("it attaches");
    app.bind(&schema, TARGETS[1]).expect("it binds");
    let long = "x".repeat(60_000);
    let hash = schema.hash(TARGETS[1]).0.to_vec();
    let set = Memfd::of_bytes("schema", &of_a_long_name(long.len())).expect("memory");
    let connect = |service: &str, address: String| {
        request::Body::Connect(Connect {
            service: service.to_owned(),
            schema_hash: hash.clone(),
            address,
            timeout_ns: 1_000_000_000,
        })
    };
    let unbind = request::Body::Unbind(Unbind {
        service: long.clone(),
    });
    let add = request::Body::AddSchema(AddSchema { hash: hash.clone() });
    let mut refusals = 0;
    while refusals < 1000 || judged.goes_on() {
        // Wherever an app can name something, it is cut in the answer, and so in what is logged of that.
        let requests = [
            (connect(&long, String::new()), None),
            (connect(TARGETS[1], format!("{long}:1")), None),
            (unbind.clone(), None),
            (add.clone(), Some(&set)),
        ];
        for (request, memory) in requests {
            let descriptors: Vec<_> = memory.into_iter().map(AsFd::as_fd).collect();
            match app.ask(request, &descriptors) {
                Err(Gone::Refused { message, .. }) => {
                    let bytes = message.len();
                    assert!(bytes < LINE_BYTES_MAX, "an answer of {bytes} bytes");
                }
                other => panic!("{other:?}"),
            }
            refusals += 1;
        }
    }
    let outcome = judged.end();
    let log = node.program.log();
    println!("{refusals} refusals, {} bytes of log", log.len());
    assert!(log.len() < LOG_BYTES_MAX, "{} bytes of log", log.len());
    assert!(log.contains("talkative"), "{log}");
    let longest = log.lines().map(str::len).max();
    assert!(longest < Some(LINE_BYTES_MAX), "{longest:?} bytes in a line");
    outcome.judge();
}
