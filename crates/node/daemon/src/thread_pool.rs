//! Threads for work that waits for others, or computes for long. Work that apps and peers cause by connecting has pools of its own, each
//! with its bound: however much of it there is, and however long some of it goes on after nobody waits for it any more, what operators
//! ask for, reloads and hot restarts find threads. The name of a pool is that of its threads, as `ps -T` shows it.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// Stack of a thread, in bytes: enough for handshakes.
pub(crate) const STACK_BYTES: usize = 512 << 10;
/// How long a thread stays without work.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// Threads on which policies are made ready for connections that open: it takes little, unless one compiles much.
const POLICY_THREADS: usize = 4;

/// The pools of a node.
#[derive(Debug)]
pub(crate) struct WorkThreads {
    /// A thread for each handshake that may be under way. One that has lost its place to another keeps its thread until it
    /// has noticed.
    pub(crate) peer_handshakes: ThreadPool,
    /// The same of gRPC clients.
    pub(crate) client_handshakes: ThreadPool,
    pub(crate) policies: ThreadPool,
}

impl WorkThreads {
    /// For so many handshakes at once of peers, and as many of clients.
    pub(crate) fn new(handshakes: usize) -> io::Result<WorkThreads> {
        Ok(WorkThreads {
            peer_handshakes: ThreadPool::new("peer-handshake", handshakes)?,
            client_handshakes: ThreadPool::new("grpc-handshake", handshakes)?,
            policies: ThreadPool::new("policies", POLICY_THREADS)?,
        })
    }
}

/// An event loop of this thread, with so many others at most that block. Those give back what they have freed when they end.
pub(crate) fn event_loop(name: &'static str, threads_max: usize) -> Builder {
    let mut builder = Builder::new_current_thread();
    builder
        .thread_name(name)
        .max_blocking_threads(threads_max)
        .thread_stack_size(STACK_BYTES)
        .thread_keep_alive(KEEPALIVE)
        .on_thread_stop(provost_shm::release_freed_memory_of_thread);
    builder
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct ThreadPool {
    handle: Handle,
    /// Taken when it ends.
    runtime: Option<Runtime>,
}

impl ThreadPool {
    /// A pool of so many threads at most, which start when they are needed.
    pub(crate) fn new(name: &'static str, threads_max: usize) -> io::Result<ThreadPool> {
        let runtime = event_loop(name, threads_max).build()?;
        Ok(ThreadPool {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// Does this on one of the threads, once one is free.
    pub(crate) fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        self.handle.spawn_blocking(work)
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // Nobody waits for what is still done: handshakes have deadlines of their own.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    #[tokio::test]
    async fn so_many_threads_work_and_what_is_behind_them_waits() {
        const THREADS: usize = 3;
        const RUNS: usize = 10;
        let pool = ThreadPool::new("tested", THREADS).unwrap();
        let begun = Arc::new(AtomicUsize::new(0));
        let (release, released) = mpsc::sync_channel::<()>(RUNS);
        let released = Arc::new(std::sync::Mutex::new(released));
        let work = || {
            let (begun, released) = (Arc::clone(&begun), Arc::clone(&released));
            move || {
                begun.fetch_add(1, Ordering::Relaxed);
                released.lock().unwrap().recv().unwrap();
                std::thread::current().name().unwrap().to_owned()
            }
        };
        let running: Vec<_> = (0..RUNS).map(|_| pool.run(work())).collect();
        while begun.load(Ordering::Relaxed) < THREADS {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(begun.load(Ordering::Relaxed), THREADS);
        for _ in &running {
            release.send(()).unwrap();
        }
        for ended in running {
            assert_eq!(ended.await.unwrap(), "tested");
        }
    }

    /// What this process has of memory that belongs to no file, in bytes.
    fn resident_bytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib: u64 = kib.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    }

    #[tokio::test]
    #[cfg(target_env = "gnu")]
    async fn threads_that_end_give_back_what_their_work_has_freed() {
        const BYTES: usize = 30 << 20;
        provost_shm::keep_freed_memory();
        let pool = ThreadPool::new("freeing", 1).unwrap();
        let work = || {
            drop(std::hint::black_box(vec![1_u8; BYTES]));
            resident_bytes()
        };
        let after_work = pool.run(work).await.unwrap();
        let begun = std::time::Instant::now();
        while resident_bytes() + BYTES as u64 / 2 > after_work {
            assert!(
                begun.elapsed() < 10 * KEEPALIVE,
                "of {after_work} bytes {} are left",
                resident_bytes()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
