//! The same calls on any executor, and what they cost there: processor time at rest, allocations under way.

mod support;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use provost::shared::Prepared;
use provost::{Request, Status};
use provost_allocations::{CountingAllocator, made_by_thread};
use support::{Note, NotesClient, World, listed};

/// Calls of all kinds, some at once.
async fn some_of_all(client: NotesClient) -> Result<(), Status> {
    for number in 0..20 {
        assert_eq!(
            client.echo(Note::new(number, "one")).await?.get_ref().number,
            number
        );
    }
    let mut responses = client.repeat(Note::new(20, "")).await?.into_inner();
    let mut count = 0;
    while responses.message().await?.is_some() {
        count += 1;
    }
    assert_eq!(count, 20);
    let sum = client
        .sum(listed((1..=10).map(|number| Note::new(number, ""))))
        .await?;
    assert_eq!(sum.get_ref().number, 55);
    let mut request = Request::new(Note::new(0, "hang"));
    request.set_timeout(Duration::from_millis(20));
    assert_eq!(
        client.echo(request).await.unwrap_err().code(),
        provost::Code::DeadlineExceeded
    );
    Ok(())
}

#[test]
fn on_one_thread_of_tokio() {
    let world = World::new();
    let app = world.app();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let tasks: Vec<_> = (0..8)
            .map(|_| tokio::spawn(some_of_all(client.clone())))
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
}

#[test]
fn on_many_threads_of_tokio() {
    let world = World::new();
    let app = world.app();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let tasks: Vec<_> = (0..16)
            .map(|_| tokio::spawn(some_of_all(client.clone())))
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
}

#[test]
fn on_async_io() {
    let world = World::new();
    let app = world.app();
    async_io::block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        some_of_all(client).await.unwrap();
    });
}

/// The simplest executor that there can be.
fn run<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

#[test]
fn on_an_executor_of_ten_lines() {
    let world = World::new();
    let app = world.app();
    run(async {
        let client = NotesClient::connect(&app).await.unwrap();
        some_of_all(client).await.unwrap();
    });
}

#[test]
fn on_threads_that_block() {
    let world = World::new();
    let app = world.app();
    let client = provost::blocking::block_on(NotesClient::connect(&app)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let client = client.clone();
            scope.spawn(|| provost::blocking::block_on(some_of_all(client)).unwrap());
        }
    });
}

#[test]
fn a_server_serves_on_tokio_and_spawns_its_handlers() {
    let world = World::empty();
    let app = world.app();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = provost::Server::builder()
            .app(&app)
            .add_service(support::Notes::default())
            .spawn(|handler| drop(tokio::spawn(handler)));
        tokio::spawn(server.serve());
        let mut client = NotesClient::connect(&app).await;
        while client.is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            client = NotesClient::connect(&app).await;
        }
        let client = client.unwrap();
        some_of_all(client.clone()).await.unwrap();
        assert_eq!(
            client.echo(Note::new(0, "panic")).await.unwrap_err().code(),
            provost::Code::Internal
        );
    });
}

#[test]
fn a_future_that_nobody_polls_holds_up_no_other() {
    let world = World::new();
    let app = world.app();
    run(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let mut idle = Box::pin(client.echo(Note::new(0, "hang")));
        // It has the role of the spinner now, and is never polled again.
        let polled = std::future::poll_fn(|context| Poll::Ready(idle.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        for number in 0..10 {
            assert!(client.echo(Note::new(number, "on")).await.is_ok());
        }
    });
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Allocations of this thread while it makes 1000 calls, after it has warmed up.
async fn allocations_of_calls(client: &NotesClient) -> u64 {
    let prepared = Prepared::new(Note::new(7, "prepared"));
    let some = async || {
        for number in 0..500 {
            client
                .echo(Note::new(number, "a text that lives in the send heap"))
                .await
                .unwrap();
            client.echo(prepared.clone()).await.unwrap();
        }
    };
    some().await;
    // A table may still have to grow when the machine holds one thread up for long; then it does not the next time.
    let mut least = u64::MAX;
    for _ in 0..3 {
        let before = made_by_thread();
        some().await;
        least = least.min(made_by_thread() - before);
    }
    least
}

#[test]
fn unary_calls_allocate_nothing_in_private_memory() {
    let world = World::new();
    let app = world.app();
    let allocations = run(async {
        let client = NotesClient::connect(&app).await.unwrap();
        allocations_of_calls(&client).await
    });
    assert_eq!(allocations, 0);
}

#[test]
fn blocking_calls_allocate_nothing_in_private_memory() {
    let world = World::new();
    let app = world.app();
    let client = provost::blocking::block_on(NotesClient::connect(&app)).unwrap();
    assert_eq!(provost::blocking::block_on(allocations_of_calls(&client)), 0);
}

#[test]
fn serving_unary_calls_allocates_nothing_in_private_memory() {
    // The handler itself counts, on the thread that serves: two counts that are equal say that all in between, the
    // end of one call and the begin of the next, allocated nothing.
    support::COUNT.get_or_init(|| made_by_thread);
    let world = World::new();
    let app = world.app();
    run(async {
        let client = NotesClient::connect(&app).await.unwrap();
        for _ in 0..3000 {
            client.echo(Note::new(0, "warm")).await.unwrap();
        }
        let counts = async || {
            let first = client.echo(Note::new(0, "count")).await.unwrap().get_ref().number;
            for _ in 0..500 {
                client.echo(Note::new(0, "between")).await.unwrap();
            }
            client.echo(Note::new(0, "count")).await.unwrap().get_ref().number - first
        };
        let least = counts().await.min(counts().await).min(counts().await);
        assert_eq!(least, 0);
    });
    assert!(world.service.stats.steps.load(Ordering::SeqCst) > 0);
}

#[test]
#[ignore = "prints latencies; run by hand, with --release"]
fn latency() {
    let world = World::new();
    let app = world.app();
    let measure = |name: &str, run: &dyn Fn(&NotesClient) -> Vec<u64>, client: &NotesClient| {
        let mut times = run(client);
        times.sort_unstable();
        let at = |part: f64| times[(times.len() as f64 * part) as usize] as f64 / 1000.0;
        println!("{name}: p50 {:.1} µs, p99 {:.1} µs", at(0.5), at(0.99));
    };
    let client = provost::blocking::block_on(NotesClient::connect(&app)).unwrap();
    async fn times(client: NotesClient) -> Vec<u64> {
        let mut times = Vec::new();
        for number in 0..20_000 {
            let began = std::time::Instant::now();
            client.echo(Note::new(number, "a")).await.unwrap();
            times.push(began.elapsed().as_nanos() as u64);
        }
        times
    }
    measure(
        "blocking",
        &|client| provost::blocking::block_on(times(client.clone())),
        &client,
    );
    measure("ten lines", &|client| run(times(client.clone())), &client);
    let one = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    measure(
        "tokio current_thread",
        &|client| one.block_on(times(client.clone())),
        &client,
    );
    let many = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    measure(
        "tokio multi_thread",
        &|client| many.block_on(times(client.clone())),
        &client,
    );
    measure(
        "tokio spawned",
        &|client| many.block_on(async { tokio::spawn(times(client.clone())).await.unwrap() }),
        &client,
    );
}
