//! Who wakes a call that sleeps. A file of its own, because it counts what threads of the process do.

mod support;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use provost::App;
use support::{Note, NotesClient, World};
use tokio::runtime::Runtime;

/// How often the reactor looks after a link that is in use.
const TICK: Duration = Duration::from_millis(4);
/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(10);

fn on_one_thread() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap()
}

/// Calls sleep at once.
fn sleepy_app(world: &World) -> App {
    App::builder()
        .socket(world.socket())
        .spin(Duration::ZERO)
        .attach()
        .unwrap()
}

/// How often the library's thread has slept.
fn sleeps_of_the_reactor() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    // The kernel keeps fifteen bytes of a name.
    let status = statuses.find(|status| status.starts_with("Name:\tprovost-reactor\n"));
    let status = status.expect("no reactor");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

async fn echo(client: &NotesClient, number: u64) {
    assert_eq!(
        client.echo(Note::new(number, "")).await.unwrap().get_ref().number,
        number
    );
}

#[test]
fn calls_that_follow_each_other_are_woken_by_the_service_and_not_by_the_reactor() {
    const CALLS: u64 = 400;
    let world = World::new();
    on_one_thread().block_on(async {
        let client = NotesClient::connect(&sleepy_app(&world)).await.unwrap();
        for number in 0..10 {
            echo(&client, number).await;
        }
        let (before, began) = (sleeps_of_the_reactor(), Instant::now());
        for number in 0..CALLS {
            echo(&client, number).await;
        }
        let sleeps = sleeps_of_the_reactor() - before;
        let ticks = began.elapsed().as_micros() / TICK.as_micros();
        assert!(
            u128::from(sleeps) <= u128::from(CALLS / 4) + 2 * ticks,
            "the reactor slept {sleeps} times in {CALLS} calls and {ticks} ticks"
        );
    });
}

#[derive(Default)]
struct WokenFlag(AtomicBool);

impl Wake for WokenFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_runtime_that_is_held_up_does_not_keep_what_comes_from_the_calls() {
    let world = World::new();
    on_one_thread().block_on(async {
        let client = NotesClient::connect(&sleepy_app(&world)).await.unwrap();
        for number in 0..10 {
            echo(&client, number).await;
        }
        let is_woken = Arc::new(WokenFlag::default());
        let waker = Waker::from(is_woken.clone());
        let mut call = pin!(client.echo(Note::new(11, "")));
        assert!(matches!(
            call.as_mut().poll(&mut Context::from_waker(&waker)),
            Poll::Pending
        ));
        // The runtime's thread hears no doorbell from here on.
        let began = Instant::now();
        while !is_woken.0.load(Ordering::SeqCst) {
            assert!(began.elapsed() < LONG, "nobody delivered the answer");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(call.await.unwrap().get_ref().number, 11);
    });
}

#[test]
fn calls_go_on_when_the_runtime_that_heard_the_doorbell_has_ended() {
    let world = World::new();
    let first = on_one_thread();
    let app = sleepy_app(&world);
    let client = first.block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        for number in 0..10 {
            echo(&client, number).await;
        }
        client
    });
    drop(first);
    for _ in 0..3 {
        on_one_thread().block_on(async {
            for number in 0..10 {
                tokio::time::timeout(LONG, echo(&client, number)).await.unwrap();
            }
        });
    }
    provost::blocking::block_on(echo(&client, 1));
}

#[test]
fn a_runtime_that_nobody_drives_is_not_relied_on() {
    let world = World::new();
    let (runtime, app) = (on_one_thread(), sleepy_app(&world));
    let _entered = runtime.enter();
    // Another executor runs the calls, in a thread that has entered a runtime.
    run_here(async {
        let client = NotesClient::connect(&app).await.unwrap();
        for number in 0..10 {
            echo(&client, number).await;
        }
    });
}

/// Polls a future on this thread, which sleeps in between.
fn run_here<T>(future: impl Future<Output = T>) -> T {
    struct ThreadUnparker(std::thread::Thread);
    impl Wake for ThreadUnparker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(ThreadUnparker(std::thread::current())));
    let mut future = pin!(future);
    let began = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(began.elapsed() < LONG, "the calls do not end");
        std::thread::park_timeout(LONG);
    }
}
