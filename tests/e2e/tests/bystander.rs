//! An app on the same node does not notice what is done to another one's calls: its datapath stays as it is, and its calls
//! take as long as before.
//!
//! Times are compared within one run, in windows with changes and without in turn. (`cargo xtask bench upgrade` shows the
//! figures on a machine that does nothing else.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use provost::blocking::block_on;
use provost::{App, Channel};
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{
    AttachPolicyRequest, DetachPolicyRequest, ListDatapathsRequest, Policy, SetPolicyRequest,
    UpgradeEngineRequest,
};
use provost_e2e::probe::EchoMessage;
use provost_e2e::probe::probe_client::blocking::ProbeClient;
use provost_e2e::probe::probe_service::SERVICE;
use provost_e2e::{Node, NodeOptions, Setting, watched};
use tokio::runtime::Runtime;
use tonic::transport::{Channel as Transport, Endpoint};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// One window of each kind after the other, so often.
const PAIRS: usize = 12;
const WINDOW: Duration = Duration::from_millis(200);
/// Between two changes: what an operator's script would at least take.
const BETWEEN: Duration = Duration::from_millis(2);
/// Changes in a window, at least; on a busy machine it then takes longer.
const CHANGES_MIN: u64 = 10;
/// How much longer the slowest calls of a window may take while another app is changed. What this is about, such as a
/// datapath that stands still with the other or a lock between them, is far above; a machine with other work is below.
const RATIO_MAX: f64 = 4.0;
/// One attempt may have met somebody else's load on the machine.
const ATTEMPTS: usize = 3;

fn client(node: &Node, name: &str) -> ProbeClient {
    let app = App::builder().socket(&node.socket).name(name).attach().unwrap();
    let channel = block_on(Channel::builder(&SERVICE).app(&app).connect("probe.Probe"));
    ProbeClient::new(channel.unwrap())
}

/// Who changes the other app's policies.
struct Changer {
    runtime: Runtime,
    admin: AdminClient<Transport>,
    changes: u64,
}

impl Changer {
    fn of(node: &Node) -> Changer {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let endpoint = Endpoint::from_shared(format!("unix:{}", node.admin_socket.display())).unwrap();
        let admin = AdminClient::new(runtime.block_on(endpoint.connect()).unwrap());
        Changer {
            runtime,
            admin,
            changes: 0,
        }
    }

    fn attach(&mut self, name: &str, kind: &str) {
        let policy = Policy {
            name: name.into(),
            kind: kind.into(),
            app: "changed".into(),
            ..Policy::default()
        };
        let request = AttachPolicyRequest {
            policy: Some(policy),
            ..AttachPolicyRequest::default()
        };
        let change = self.runtime.block_on(self.admin.attach_policy(request)).unwrap();
        assert_eq!(change.into_inner().datapaths, 1);
    }

    /// One change of each kind in turn.
    fn change(&mut self) {
        let Changer { runtime, admin, .. } = self;
        match self.changes % 4 {
            0 => return self.counted(|changer| changer.attach("passing", "null")),
            1 => {
                let request = SetPolicyRequest {
                    name: "limit".into(),
                    config: format!("requests_per_second = {}", 1_000_000 + self.changes),
                    ..SetPolicyRequest::default()
                };
                runtime.block_on(admin.set_policy(request)).unwrap();
            }
            2 => {
                let request = UpgradeEngineRequest {
                    kind: "rate-limit".into(),
                    version: 2,
                    policy: "limit".into(),
                    ..UpgradeEngineRequest::default()
                };
                runtime.block_on(admin.upgrade_engine(request)).unwrap();
            }
            _ => {
                let name = "passing".into();
                runtime
                    .block_on(admin.detach_policy(DetachPolicyRequest { name }))
                    .unwrap();
            }
        }
        self.changes += 1;
    }

    fn counted(&mut self, change: impl FnOnce(&mut Changer)) {
        change(self);
        self.changes += 1;
    }

    /// The engines of an app's datapath.
    fn engines(&mut self, app: &str) -> Vec<String> {
        let listed = self.admin.list_datapaths(ListDatapathsRequest::default());
        let listed = self.runtime.block_on(listed).unwrap().into_inner().datapaths;
        let own = listed.into_iter().find(|datapath| datapath.app == app).unwrap();
        own.engines
            .iter()
            .map(|engine| format!("{} {} {}", engine.kind, engine.version, engine.policy))
            .collect()
    }
}

/// An app that calls all the time, until it is dropped.
struct Caller {
    over: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Caller {
    fn begin(client: ProbeClient) -> Caller {
        let (over, calls) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let thread = {
            let (over, calls) = (Arc::clone(&over), Arc::clone(&calls));
            std::thread::spawn(move || {
                while !over.load(Relaxed) {
                    client.echo(EchoMessage::default()).unwrap();
                    calls.fetch_add(1, Relaxed);
                }
            })
        };
        Caller {
            over,
            calls,
            thread: Some(thread),
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            std::thread::panicking() || !matches!(ended, Some(Err(_))),
            "a call failed"
        );
    }
}

/// The time in which 99 of 100 calls of a window are done, in microseconds. It lasts until enough has happened in it.
fn p99_us(bystander: &ProbeClient, is_enough: impl Fn() -> bool) -> f64 {
    let began = Instant::now();
    let mut times = Vec::new();
    while began.elapsed() < WINDOW || !is_enough() {
        let call = Instant::now();
        bystander.echo(EchoMessage::default()).unwrap();
        times.push(call.elapsed());
    }
    times.sort_unstable();
    times[times.len() * 99 / 100].as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How much longer the bystander's slowest calls take while the other app is changed.
fn ratio(bystander: &ProbeClient, changer: &mut Changer) -> f64 {
    let (mut calm, mut changed) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        calm.push(p99_us(bystander, || true));
        let (over, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    changer.change();
                    changes.fetch_add(1, Relaxed);
                    std::thread::sleep(BETWEEN);
                }
            });
            changed.push(p99_us(bystander, || changes.load(Relaxed) >= CHANGES_MIN));
            over.store(true, Relaxed);
        });
    }
    let (calm, changed) = (median(calm), median(changed));
    println!("p99 of a bystander: {calm:.0} µs, {changed:.0} µs while another app is changed");
    changed / calm
}

#[test]
fn an_app_does_not_notice_that_another_ones_policies_change() {
    watched(|| {
        let setting = Setting::with(ROLE, &NodeOptions::default(), &NodeOptions::default());
        let mut changer = Changer::of(&setting.a);
        let bystander = client(&setting.a, "bystander");
        let caller = Caller::begin(client(&setting.a, "changed"));
        changer.attach("limit", "rate-limit");
        let engines = changer.engines("bystander");
        let mut ratios = Vec::new();
        while ratios.len() < ATTEMPTS {
            ratios.push(ratio(&bystander, &mut changer));
            if ratios.iter().any(|ratio| *ratio <= RATIO_MAX) {
                break;
            }
        }
        assert!(ratios.iter().any(|ratio| *ratio <= RATIO_MAX), "{ratios:?}");
        assert_eq!(changer.engines("bystander"), engines);
        assert!(caller.calls.load(Relaxed) > 0);
    });
}
