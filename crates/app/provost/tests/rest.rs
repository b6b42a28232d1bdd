//! What waiting costs. A file of its own, because it measures the whole process.

mod support;

use std::time::Duration;

use provost::Request;
use provost::blocking::block_on;
use support::{Note, NotesClient, World};

/// Processor time of the process while a call hangs for a second.
async fn spent_while_a_call_hangs(client: &NotesClient) -> Duration {
    assert!(client.echo(Note::new(0, "warm")).await.is_ok());
    let before = processor_time();
    let mut request = Request::new(Note::new(0, "hang"));
    request.set_timeout(Duration::from_secs(1));
    assert!(client.echo(request).await.is_err());
    processor_time() - before
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn waiting_for_long_takes_no_processor_time() {
    let world = World::new();
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let on_tokio = runtime.block_on(spent_while_a_call_hangs(&client));
    let blocking = block_on(spent_while_a_call_hangs(&client));
    // The stand-in for the service wakes every 5 ms; a single spinning thread would take the whole second.
    let bound = Duration::from_millis(300);
    assert!(
        on_tokio < bound && blocking < bound,
        "{on_tokio:?} and {blocking:?} in a second at rest"
    );
}
