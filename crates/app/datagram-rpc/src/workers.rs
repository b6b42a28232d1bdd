//! Threads that run the handlers which take longer.
//!
//! ```text
//!   event loop ──► requests (bounded) ──► worker ──► answers (bounded) ──► event loop
//! ```
//!
//! The event loop takes no lock: it pushes, and unparks a worker that sleeps. As many requests are out as there is room
//! for answers, so a worker never waits for the event loop.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;

use crossbeam_queue::ArrayQueue;
use provost_datagram::{MsgBuf, RequestHandle};

use crate::config::RpcConfig;
use crate::error::{STATUS_PANICKED, STATUS_RESERVED};
use crate::handlers::{OnWork, OwnedRequest};
use crate::mailbox::Bell;

/// Looks that a worker without work takes before it sleeps.
const LOOKS_MAX: u32 = 200;
/// Requests with workers, done or not.
const OUT_MAX: usize = 256;

/// A request in a worker's hands.
#[derive(Debug)]
pub struct Work {
    handle: RequestHandle,
    request_type: u16,
    request: OwnedRequest,
    response: MsgBuf,
}

impl Work {
    /// Its type.
    #[must_use]
    pub fn request_type(&self) -> u16 {
        self.request_type
    }

    /// What was sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.request
    }

    /// The response, with room for at least so many bytes. What was written to it before is lost if it has to grow.
    pub fn response(&mut self, bytes: usize) -> &mut MsgBuf {
        if self.response.capacity() < bytes {
            self.response = MsgBuf::with_capacity(bytes.next_power_of_two());
        }
        &mut self.response
    }

    /// Makes these bytes the response.
    pub fn respond(&mut self, bytes: &[u8]) {
        let fitted = self.response(bytes.len()).fill(bytes);
        debug_assert!(fitted, "there is room for so many");
    }
}

pub(crate) struct Job {
    work: Work,
    handler: OnWork,
}

impl Job {
    pub(crate) fn new(
        handle: RequestHandle,
        request_type: u16,
        (request, response): (OwnedRequest, MsgBuf),
        handler: OnWork,
    ) -> Self {
        let work = Work {
            handle,
            request_type,
            request,
            response,
        };
        Self { work, handler }
    }

    fn run(mut self) -> Answer {
        let handler = &self.handler;
        let work = &mut self.work;
        let status = catch_unwind(AssertUnwindSafe(|| handler(work)));
        if status.is_err() {
            self.work.response.set_length(0);
        }
        Answer {
            handle: self.work.handle,
            status: status.map_or(STATUS_PANICKED, |status| status.min(STATUS_RESERVED - 1)),
            response: self.work.response,
        }
    }
}

/// What a worker has to say to a request.
pub(crate) struct Answer {
    pub(crate) handle: RequestHandle,
    pub(crate) status: u16,
    pub(crate) response: MsgBuf,
}

/// The workers of an [`Rpc`](crate::Rpc).
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Requests for which there is no room with the workers.
    waiting: VecDeque<Job>,
    waiting_max: usize,
    out: usize,
}

struct Shared {
    jobs: ArrayQueue<Job>,
    answers: ArrayQueue<Answer>,
    /// Workers that sleep, one bit each.
    asleep: AtomicU64,
    is_over: AtomicBool,
    bell: Arc<Bell>,
}

impl Workers {
    pub(crate) fn start(config: &RpcConfig, bell: Arc<Bell>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            jobs: ArrayQueue::new(OUT_MAX),
            answers: ArrayQueue::new(OUT_MAX),
            asleep: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            bell,
        });
        let mut workers = Self {
            shared,
            threads: Vec::new(),
            waiting: VecDeque::new(),
            waiting_max: config.worker_requests_max,
            out: 0,
        };
        for index in 0..config.workers {
            let shared = workers.shared.clone();
            let name = format!("rpc-worker-{index}");
            let thread = std::thread::Builder::new().name(name);
            workers.threads.push(thread.spawn(move || shared.work(index))?);
        }
        Ok(workers)
    }

    /// Whether another request may wait.
    pub(crate) fn has_room(&self) -> bool {
        self.out < OUT_MAX || self.waiting.len() < self.waiting_max
    }

    /// Hands a request over.
    pub(crate) fn submit(&mut self, job: Job) {
        if self.out < OUT_MAX {
            self.give_to_worker(job);
        } else {
            self.waiting.push_back(job);
        }
    }

    fn give_to_worker(&mut self, job: Job) {
        self.out += 1;
        let pushed = self.shared.jobs.push(job);
        debug_assert!(pushed.is_ok(), "no more are out than there is room for");
        fence(Ordering::SeqCst);
        let asleep = self.shared.asleep.load(Ordering::Relaxed);
        if asleep != 0 {
            let index = asleep.trailing_zeros();
            self.shared.asleep.fetch_and(!(1 << index), Ordering::SeqCst);
            self.threads[index as usize].thread().unpark();
        }
    }

    /// An answer that is there.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Answer> {
        if self.out == 0 {
            return None;
        }
        let answer = self.shared.answers.pop()?;
        self.out -= 1;
        if let Some(job) = self.waiting.pop_front() {
            self.give_to_worker(job);
        }
        Some(answer)
    }

    /// Whether an answer will come or is there.
    pub(crate) fn is_busy(&self) -> bool {
        self.out > 0
    }

    pub(crate) fn has_answers(&self) -> bool {
        !self.shared.answers.is_empty()
    }
}

impl Drop for Workers {
    /// Waits for the handlers that run; requests that wait are dropped.
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // Handlers' panics were caught, so a thread ends well.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, index: usize) {
        while let Some(job) = self.next(index) {
            let pushed = self.answers.push(job.run());
            debug_assert!(pushed.is_ok(), "no more are out than there is room for");
            self.bell.ring();
        }
    }

    fn next(&self, index: usize) -> Option<Job> {
        let mut looks = 0;
        loop {
            if self.is_over.load(Ordering::SeqCst) {
                return None;
            }
            if let Some(job) = self.jobs.pop() {
                return Some(job);
            }
            if looks < LOOKS_MAX {
                looks += 1;
                std::hint::spin_loop();
                continue;
            }
            self.sleep(index);
        }
    }

    /// Sleeps until it is unparked, unless there is work by now.
    fn sleep(&self, index: usize) {
        self.asleep.fetch_or(1 << index, Ordering::SeqCst);
        // Pairs with `give_to_worker`: either that sees the bit, or this sees the job.
        fence(Ordering::SeqCst);
        if self.jobs.is_empty() && !self.is_over.load(Ordering::SeqCst) {
            std::thread::park();
        }
        self.asleep.fetch_and(!(1 << index), Ordering::SeqCst);
    }
}
