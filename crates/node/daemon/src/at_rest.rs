//! Pages of code, and free memory of the control plane's thread, that only starting, connecting and ending needed: given back when
//! nothing of that has happened for a moment. They would be most of what a service at rest has in memory. What calls have left is given
//! back by runtimes that rest, and what other threads have by those when they end.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::connections::ConnectionRegistry;

/// How long connections neither begin nor end before code is given back.
const SETTLES: Duration = Duration::from_secs(1);
/// At least so long between two times, as what is needed again has to be mapped again.
const PAUSE: Duration = Duration::from_secs(5);

/// Keeps what calls free. Gives code and free memory back once what was started has come to rest, and when connections have changed.
pub(crate) async fn manage_memory(connections: Rc<ConnectionRegistry>) {
    provost_shm::keep_freed_memory();
    loop {
        while timeout(SETTLES, connections.changed()).await.is_ok() {}
        if let Err(error) = provost_shm::release_program_pages() {
            tracing::debug!(%error, "code that nothing needs now stays in memory");
        }
        provost_shm::release_freed_memory_of_thread();
        sleep(PAUSE).await;
        connections.changed().await;
    }
}
