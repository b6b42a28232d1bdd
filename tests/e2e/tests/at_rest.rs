//! A service, its apps and its servers that have nothing to do sleep: they take no processor time, and hardly ever wake up. A service
//! keeps no code in memory that it does not need then.

use std::time::{Duration, Instant};

use provost::blocking::block_on;
use provost::{App, Channel};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::probe::EchoMessage;
use provost_e2e::probe::probe_client::blocking::ProbeClient;
use provost_e2e::probe::probe_service::SERVICE;
use provost_e2e::{Node, Setting, memory_of, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// For how long processes are watched.
const WINDOW: Duration = Duration::from_secs(2);
/// How often all threads of a process may get a core in that time: there are tasks of once a second, such as the look whether
/// certificates have changed. A thread that polls, or looks every millisecond, gets it thousands of times.
const WAKE_UPS_MAX: u64 = 30;
/// What they may use of one core.
const SHARE_MAX: f64 = 0.01;

/// What all threads of a process have used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessorUse {
    time: Duration,
    /// How often one of them got a core.
    wake_ups: u64,
}

impl ProcessorUse {
    fn of(process: u32) -> ProcessorUse {
        let mut sum = ProcessorUse::default();
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        for thread in threads.flatten() {
            // One that ends meanwhile uses nothing any more.
            let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            // Nanoseconds on a core, nanoseconds waiting for one, and how often it got one.
            let mut fields = text.split_whitespace().map(|field| field.parse::<u64>().unwrap());
            sum.time += Duration::from_nanos(fields.next().unwrap_or(0));
            sum.wake_ups += fields.nth(1).unwrap_or(0);
        }
        sum
    }

    fn since(self, before: ProcessorUse) -> ProcessorUse {
        ProcessorUse {
            time: self.time.saturating_sub(before.time),
            wake_ups: self.wake_ups.saturating_sub(before.wake_ups),
        }
    }

    fn is_rest(self) -> bool {
        self.wake_ups <= WAKE_UPS_MAX && self.time <= WINDOW.mul_f64(SHARE_MAX)
    }
}

/// Waits until all of these processes rest for a whole window: what they have just done may have an end that takes a moment.
fn rest(processes: &[(&str, u32)]) {
    let begun = Instant::now();
    loop {
        let uses = || processes.iter().map(|(_, process)| ProcessorUse::of(*process));
        let before: Vec<_> = uses().collect();
        std::thread::sleep(WINDOW);
        let used: Vec<_> = uses()
            .zip(before)
            .map(|(after, before)| after.since(before))
            .collect();
        if used.iter().all(|used| used.is_rest()) {
            return;
        }
        let names = processes.iter().map(|(name, _)| name);
        let told: Vec<_> = names.zip(&used).collect();
        assert!(
            begun.elapsed() < WAIT_MAX,
            "in {WINDOW:?}, long after the last call: {told:?}"
        );
    }
}

#[test]
fn nobody_wakes_up_for_nothing() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.agent.calls_well();
        rest(&[
            ("the client's node", setting.a.process()),
            ("the server's node", setting.b.process()),
            ("the client", setting.agent.program.id()),
            ("the server", setting.server.program.id()),
        ]);
        // They were asleep, not dead.
        setting.agent.calls_well();
    });
}

/// What a process has of files in its memory, in bytes: of its program, above all.
fn resident_file_bytes(process: u32) -> u64 {
    memory_of(process, "RssFile:").unwrap()
}

/// Connects to a node, calls once and goes.
fn call_in_passing(node: &Node) {
    let app = App::builder()
        .socket(&node.socket)
        .name("passer-by")
        .attach()
        .unwrap();
    let channel = block_on(Channel::builder(&SERVICE).app(&app).connect("probe.Probe"));
    ProbeClient::new(channel.unwrap())
        .echo(EchoMessage::default())
        .unwrap();
}

#[test]
fn code_that_only_a_connection_needed_to_begin_and_end_is_given_back() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.agent.calls_well();
        let process = setting.a.process();
        // The first time, what starting needed is given back with it.
        for _ in 0..2 {
            call_in_passing(&setting.a);
            let most = resident_file_bytes(process);
            let begun = Instant::now();
            loop {
                let now = resident_file_bytes(process);
                if now < most / 4 * 3 {
                    break;
                }
                assert!(begun.elapsed() < WAIT_MAX, "{now} bytes of {most} are resident");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        setting.agent.calls_well();
    });
}
