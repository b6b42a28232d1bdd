//! An app on the same node does not notice what is done to another one's calls: its datapath stays as it is, and its calls
//! take as long as before.
//!
//! An operator's requests cost processor time, and a machine with few cores takes it from whoever calls. That is not what this is
//! about. So the time of the bystander's calls is compared within one run, in windows in turn: while policies of the other app
//! change, and while an operator makes the same requests, as often, for an app that is not there, which change no datapath.
//! (`cargo xtask bench upgrade` shows the figures on a machine that does nothing else.)

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
/// Two windows of each kind, so often, in the order ABBA: what gets slower by and by meets both alike.
const ROUNDS: usize = 8;
/// Requests of an operator in a window.
const REQUESTS: u32 = 48;
/// From one request to the next: what an operator's script would at least take. On a busy machine it is longer.
const BETWEEN: Duration = Duration::from_millis(4);
/// How much longer the slowest calls of a window may take while another app is changed.
const RATIO_MAX: f64 = 1.5;
/// One attempt may have met somebody else's load on the machine, in the windows of one kind more than in the others.
const ATTEMPTS: usize = 3;

fn client(node: &Node, name: &str) -> ProbeClient {
    let app = App::builder().socket(&node.socket).name(name).attach().unwrap();
    let channel = block_on(Channel::builder(&SERVICE).app(&app).connect("probe.Probe"));
    ProbeClient::new(channel.unwrap())
}

/// The app whose policies an operator's requests are about.
struct PolicySubject {
    app: &'static str,
    /// Its limit, and the policy that comes and goes.
    limit: &'static str,
    passing: &'static str,
    /// How many datapaths it has.
    datapaths: u32,
}

/// It calls while it is changed.
const CALLING: PolicySubject = PolicySubject {
    app: "changed",
    limit: "limit",
    passing: "passing",
    datapaths: 1,
};
/// It is not there.
const ABSENT: PolicySubject = PolicySubject {
    app: "absent",
    limit: "limit-of-absent",
    passing: "passing-of-absent",
    datapaths: 0,
};

/// Who makes an operator's requests.
struct Operator {
    runtime: Runtime,
    admin: AdminClient<Transport>,
    requests: u32,
}

impl Operator {
    fn of(node: &Node) -> Operator {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let endpoint = Endpoint::from_shared(format!("unix:{}", node.admin_socket.display())).unwrap();
        let admin = AdminClient::new(runtime.block_on(endpoint.connect()).unwrap());
        Operator {
            runtime,
            admin,
            requests: 0,
        }
    }

    fn attach(&mut self, subject: &PolicySubject, name: &str, kind: &str) -> u32 {
        let policy = Policy {
            name: name.into(),
            kind: kind.into(),
            app: subject.app.into(),
            ..Policy::default()
        };
        let request = AttachPolicyRequest {
            policy: Some(policy),
            ..AttachPolicyRequest::default()
        };
        let change = self.runtime.block_on(self.admin.attach_policy(request)).unwrap();
        change.into_inner().datapaths
    }

    /// Makes one request of each kind in turn.
    fn request(&mut self, subject: &PolicySubject) {
        let datapaths = match self.requests % 4 {
            0 => self.attach(subject, subject.passing, "null"),
            1 => self.set_limit(subject),
            2 => self.upgrade(subject),
            _ => {
                let name = subject.passing.into();
                let request = self.admin.detach_policy(DetachPolicyRequest { name });
                self.runtime.block_on(request).unwrap().into_inner().datapaths
            }
        };
        assert_eq!(datapaths, subject.datapaths);
        self.requests += 1;
    }

    fn set_limit(&mut self, subject: &PolicySubject) -> u32 {
        let request = SetPolicyRequest {
            name: subject.limit.into(),
            config: format!("requests_per_second = {}", 1_000_000 + self.requests),
            ..SetPolicyRequest::default()
        };
        let change = self.runtime.block_on(self.admin.set_policy(request)).unwrap();
        change.into_inner().datapaths
    }

    fn upgrade(&mut self, subject: &PolicySubject) -> u32 {
        let request = UpgradeEngineRequest {
            kind: "rate-limit".into(),
            version: 2,
            policy: subject.limit.into(),
            ..UpgradeEngineRequest::default()
        };
        let change = self.runtime.block_on(self.admin.upgrade_engine(request)).unwrap();
        change.into_inner().datapaths
    }

    /// Makes all requests of a window, one each [`BETWEEN`].
    fn requests(&mut self, subject: &PolicySubject) {
        let mut next = Instant::now();
        for _ in 0..REQUESTS {
            self.request(subject);
            next = (next + BETWEEN).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
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

/// The time in which 99 of 100 calls of the bystander are done while an operator makes requests, in microseconds.
fn p99_us(bystander: &ProbeClient, operator: &mut Operator, subject: &PolicySubject) -> f64 {
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let requests = scope.spawn(|| operator.requests(subject));
        while !requests.is_finished() {
            let call = Instant::now();
            bystander.echo(EchoMessage::default()).unwrap();
            times.push(call.elapsed());
        }
    });
    times.sort_unstable();
    times[times.len() * 99 / 100].as_secs_f64() * 1e6
}

/// That of the windows with which the machine's other work has interfered less: a quarter of them had less.
fn lower_quartile(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 4]
}

/// How much longer the bystander's slowest calls take while the other app is changed.
fn ratio(bystander: &ProbeClient, operator: &mut Operator) -> f64 {
    let (mut unchanged, mut changed) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        unchanged.push(p99_us(bystander, operator, &ABSENT));
        changed.push(p99_us(bystander, operator, &CALLING));
        changed.push(p99_us(bystander, operator, &CALLING));
        unchanged.push(p99_us(bystander, operator, &ABSENT));
    }
    let (unchanged, changed) = (lower_quartile(&mut unchanged), lower_quartile(&mut changed));
    let ratio = changed / unchanged;
    println!(
        "p99 of a bystander: {unchanged:.0} µs while requests change no datapath, {changed:.0} µs while they change another app's: {ratio:.2}"
    );
    ratio
}

#[test]
fn an_app_does_not_notice_that_another_ones_policies_change() {
    watched(|| {
        let setting = Setting::with(ROLE, &NodeOptions::default(), &NodeOptions::default());
        let mut operator = Operator::of(&setting.a);
        let bystander = client(&setting.a, "bystander");
        let caller = Caller::begin(client(&setting.a, CALLING.app));
        for subject in [&CALLING, &ABSENT] {
            let datapaths = operator.attach(subject, subject.limit, "rate-limit");
            assert_eq!(datapaths, subject.datapaths);
        }
        let engines = operator.engines("bystander");
        let mut ratios = Vec::new();
        while ratios.len() < ATTEMPTS {
            ratios.push(ratio(&bystander, &mut operator));
            if ratios.iter().any(|ratio| *ratio <= RATIO_MAX) {
                break;
            }
        }
        assert!(ratios.iter().any(|ratio| *ratio <= RATIO_MAX), "{ratios:?}");
        assert_eq!(operator.engines("bystander"), engines);
        assert!(caller.calls.load(Relaxed) > 0);
    });
}
