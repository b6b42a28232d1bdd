//! The node at a glance.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use provost_admin::v1;
use provost_admin::v1::status::State;

use super::Role;
use super::desk::Desk;

/// What the node is and does.
pub(crate) async fn status(desk: &Desk, role: Role) -> v1::Status {
    let shared = &desk.shared;
    let uptime_s = desk.began.elapsed().as_secs_f64();
    v1::Status {
        node: shared.config.node.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id() as i32,
        uptime_s,
        service_uptime_s: uptime_s,
        state: match shared.draining.get() {
            true => State::Draining,
            false => State::Serving,
        }
        .into(),
        control_socket: shared.config.control.socket.display().to_string(),
        listeners: shared.addresses.iter().map(ToString::to_string).collect(),
        apps: shared.apps.borrow().len() as u32,
        connections: shared.connections.borrow().len() as u32,
        runtimes: runtimes(desk),
        caller_role: role.name().to_owned(),
        ..v1::Status::default()
    }
}

fn runtimes(desk: &Desk) -> Vec<v1::Runtime> {
    let shared = &desk.shared;
    let apps = shared.apps.borrow();
    let mut datapaths: HashMap<usize, u32> = HashMap::new();
    for connection in shared.connections.borrow().values() {
        if let Some(app) = apps.get(&connection.app) {
            *datapaths.entry(app.runtime).or_default() += 1;
        }
    }
    let busy = desk.busy.borrow_mut().read();
    let describe = |(number, runtime): (usize, &crate::runtime::Runtime)| v1::Runtime {
        number: number as u32,
        apps: runtime.apps() as u32,
        datapaths: datapaths.get(&number).copied().unwrap_or(0),
        busy: busy.get(&number).copied().unwrap_or(0.0),
    };
    shared.runtimes.iter().enumerate().map(describe).collect()
}

/// Which part of the time the runtimes' threads have run, by the kernel's accounts: nothing is counted on their path.
#[derive(Default)]
pub(crate) struct BusyClock {
    threads: HashMap<usize, PathBuf>,
    last: HashMap<usize, (Instant, Duration)>,
}

impl BusyClock {
    /// For each runtime the part since the last reading, 0 to 1; of the first reading, since the thread began.
    fn read(&mut self) -> HashMap<usize, f64> {
        if self.threads.is_empty() {
            self.threads = find_threads();
        }
        let now = Instant::now();
        let mut busy = HashMap::new();
        for (runtime, path) in &self.threads {
            let Some(ran) = time_run(path) else { continue };
            if let Some((then, ran_then)) = self.last.insert(*runtime, (now, ran)) {
                let wall = now.duration_since(then).as_secs_f64();
                let part = ran.saturating_sub(ran_then).as_secs_f64() / wall.max(f64::EPSILON);
                busy.insert(*runtime, part.min(1.0));
            }
        }
        busy
    }
}

/// The account of each runtime's thread, by the name that it was started with.
fn find_threads() -> HashMap<usize, PathBuf> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return HashMap::new();
    };
    let runtime_of = |task: std::io::Result<std::fs::DirEntry>| {
        let path = task.ok()?.path();
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let runtime = name.trim_end().strip_prefix("runtime-")?.parse().ok()?;
        Some((runtime, path.join("schedstat")))
    };
    tasks.filter_map(runtime_of).collect()
}

/// How long a thread has run (the first number of its schedstat, in nanoseconds).
fn time_run(path: &std::path::Path) -> Option<Duration> {
    let account = std::fs::read_to_string(path).ok()?;
    let ran_ns = account.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(ran_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_is_busy_and_one_that_sleeps_is_not() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::Builder::new()
            .name("runtime-61".into())
            .spawn(move || stopped.recv())
            .unwrap();
        let end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ends = std::sync::Arc::clone(&end);
        let worker = std::thread::Builder::new()
            .name("runtime-62".into())
            .spawn(move || {
                while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
            .unwrap();
        let mut clock = BusyClock::default();
        while !(find_threads().contains_key(&61) && find_threads().contains_key(&62)) {
            std::thread::yield_now();
        }
        clock.read();
        std::thread::sleep(Duration::from_millis(200));
        let busy = clock.read();
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        drop(stop);
        let _ = sleeper.join();
        worker.join().unwrap();
        assert!(busy[&62] > busy[&61], "{busy:?}");
    }
}
