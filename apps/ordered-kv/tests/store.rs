//! The store behind its transport.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use provost_datagram_rpc::{Handlers, Rpc, RpcConfig, Wire};
use provost_ordered_kv::client::{Client, ClientError};
use provost_ordered_kv::protocol::{GET, INVALID, SCAN, SCAN_KEYS_MAX, span};
use provost_ordered_kv::server::{Scans, handlers};
use provost_ordered_kv::tree::{Scanned, Tree};
use provost_packets::InProcess;
use provost_udp::{PACKET_BYTES_ETHERNET, UdpWire};

const TURN_MAX: Duration = Duration::from_millis(1);

fn serve<W: Wire>(wire: W, tree: &Arc<Tree>, scans: Scans, stop: &AtomicBool) {
    let mut rpc = Rpc::new(RpcConfig::default(), wire, (), handlers::<W>(tree, scans)).unwrap();
    while !stop.load(Ordering::Relaxed) {
        rpc.turn_and_rest(TURN_MAX).unwrap();
    }
}

/// Ends the server however a test ends.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn exercise<W: Wire>(client: &mut Client<W>) {
    for key in 0..300 {
        client.put(key * 2, key).unwrap();
    }
    assert_eq!(client.get(20).unwrap(), Some(10));
    assert_eq!(client.get(21).unwrap(), None);
    assert!(client.delete(20).unwrap());
    assert!(!client.delete(20).unwrap());
    assert_eq!(client.get(20).unwrap(), None);
    client.put(22, 1000).unwrap();
    assert_eq!(client.range(19, 3).unwrap(), [(22, 1000), (24, 12), (26, 13)]);
    let sum = (0..300).sum::<u64>() - 10 - 11 + 1000;
    assert_eq!(client.scan(0, 1000).unwrap(), Scanned { sum, keys: 299 });
    // More than a packet holds.
    assert_eq!(client.range(0, 1000).unwrap().len(), 299);
    assert_eq!(client.range(600, 10).unwrap(), []);
    let refused = client.scan(0, SCAN_KEYS_MAX + 1);
    assert!(
        matches!(refused, Err(ClientError::Answer { status: INVALID, .. })),
        "{refused:?}"
    );
}

#[test]
fn every_request_does_what_it_says_wherever_scans_run() {
    for scans in [Scans::InWorkers, Scans::InDispatch] {
        let (tree, stop) = (Arc::new(Tree::default()), AtomicBool::new(false));
        let (near, far) = InProcess::pair(1500, 256);
        let to = far.address();
        std::thread::scope(|threads| {
            threads.spawn(|| serve(far, &tree, scans, &stop));
            let _stopping = Stopping(&stop);
            exercise(&mut Client::connect(near, to).unwrap());
        });
    }
}

#[test]
fn several_servers_over_udp_share_a_tree() {
    let (tree, stop) = (Arc::new(Tree::default()), AtomicBool::new(false));
    let wire = || UdpWire::bind(SocketAddr::from(([127, 0, 0, 1], 0)), PACKET_BYTES_ETHERNET).unwrap();
    let (one, other) = (wire(), wire());
    let (to_one, to_other) = (one.address(), other.address());
    std::thread::scope(|threads| {
        threads.spawn(|| serve(one, &tree, Scans::InWorkers, &stop));
        threads.spawn(|| serve(other, &tree, Scans::InWorkers, &stop));
        let _stopping = Stopping(&stop);
        exercise(&mut Client::connect(wire(), to_one).unwrap());
        let mut client = Client::connect(wire(), to_other).unwrap();
        assert_eq!(
            client.get(22).unwrap(),
            Some(1000),
            "set through the other server"
        );
    });
}

#[test]
fn nobody_answers_where_no_server_is() {
    let wire = || UdpWire::bind(SocketAddr::from(([127, 0, 0, 1], 0)), PACKET_BYTES_ETHERNET).unwrap();
    let nobody = wire().address();
    let refused = Client::connect(wire(), nobody).unwrap().get(1);
    assert!(matches!(refused, Err(ClientError::Call(_))), "{refused:?}");
}

/// The order in which a scan and a read behind it are answered. Both ends are turned by this thread, so that only the
/// workers run beside.
fn order(tree: &Arc<Tree>, scans: Scans) -> Vec<u16> {
    let (near, far) = InProcess::pair(1500, 256);
    let to = far.address();
    let mut server = Rpc::new(RpcConfig::default(), far, (), handlers::<InProcess>(tree, scans)).unwrap();
    let mut client = Rpc::new(RpcConfig::default(), near, Vec::new(), Handlers::new()).unwrap();
    let session = client.parts().1.connect(to).unwrap();
    for (request_type, request) in [(SCAN, &span(0, SCAN_KEYS_MAX)[..]), (GET, &[0; 8])] {
        let (_, mut context) = client.parts();
        let call = context.call_of(request_type, request, 16);
        context
            .enqueue_request(session, call, move |answered, _, completion| {
                completion.outcome.unwrap();
                answered.push(request_type);
            })
            .unwrap();
    }
    while client.state().len() < 2 {
        client.run_once().unwrap();
        server.run_once().unwrap();
    }
    client.state().clone()
}

#[test]
fn a_read_overtakes_a_scan_that_a_worker_runs_and_no_other() {
    let tree = Arc::new(Tree::default());
    (0..20_000).for_each(|key| tree.put(key, key).unwrap());
    assert_eq!(order(&tree, Scans::InDispatch), [SCAN, GET]);
    // A thread that is off its core long enough sees the scan end first; that does not happen every time.
    let overtakes = (0..100).any(|_| order(&tree, Scans::InWorkers) == [GET, SCAN]);
    assert!(overtakes, "every scan held up the read behind it");
}

#[test]
fn the_benchmark_writes_what_it_measured() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let mut bench = std::process::Command::new(env!("CARGO_BIN_EXE_ordered-kv"));
    bench.args(["bench", "--quick", "--json"]).arg(&json);
    assert!(bench.status().unwrap().success());
    let figures = std::fs::read_to_string(json).unwrap();
    for setup in [
        "gets alone, udp",
        "scans of 128 in workers, process",
        "scans of 4096 in dispatch, udp",
        "tree alone",
        "a thread that sleeps",
    ] {
        assert!(figures.contains(setup), "no figures of {setup}");
    }
}
