//! How long the kernel lets a thread run before others that want its core.
//!
//! Linux 6.12 and later keep a time slice for each ordinary thread. It is no share of the core: a thread with a short one gets as
//! much time as before, in shorter pieces. Whether it has a short one decides two things that calls wait for:
//!
//! - A thread that gives its core away (`sched_yield`) goes back by what is left of its slice. After a few hundred yields
//!   with a slice of more than a millisecond, even a job of the idle class is ahead of it, and keeps the core to the next tick.
//! - A thread that wakes up runs at once in the place of one with a longer slice. That is good for those that poll in turns, and
//!   bad for batches: whoever rings is preempted by whom it rings for.
//!
//! So a thread has a short slice while it polls and yields, and the kernel's while it sleeps instead. No privilege is needed.
//! Threads and processes that a thread starts inherit its slice.
//!
//! A filter of system calls may end a process that asks for a slice, as systemd's `SystemCallFilter=~@resources` does, and
//! nobody can ask a filter what it would do. So without an order to, no thread asks that has a filter.

use std::io;
use std::mem::MaybeUninit;

/// The shortest slice that the kernel grants, in nanoseconds.
const SHORT_NS: u64 = 100_000;

/// What slice a thread has while it polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSliceChoice {
    /// A short one, unless a filter of system calls is in force, which might end the process.
    #[default]
    Auto,
    /// A short one: a filter that is in force allows `sched_getattr` and `sched_setattr`.
    Short,
    Kernel,
}

/// The slice of one thread, which alone calls its methods. Each is a comparison when nothing changes.
#[derive(Clone, Copy, Debug)]
pub struct TimeSlice {
    state: SliceState,
}

/// ```text
/// Unasked ──shorten──► Short ◄──shorten── Kernel
///    │                   └────restore────►
///    └──shorten──► Unchangeable
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SliceState {
    Unasked(TimeSliceChoice),
    Short {
        kernel_ns: u64,
    },
    Kernel,
    /// It was chosen so, or the kernel keeps no slices, or refuses, or the thread is scheduled in another way (real time, idle).
    Unchangeable,
}

impl TimeSlice {
    /// The kernel's, until the thread begins to poll.
    #[must_use]
    pub const fn new(choice: TimeSliceChoice) -> TimeSlice {
        let state = SliceState::Unasked(choice);
        TimeSlice { state }
    }

    /// The calling thread polls from now on.
    #[inline]
    pub fn shorten(&mut self) {
        match self.state {
            SliceState::Short { .. } | SliceState::Unchangeable => {}
            SliceState::Kernel => self.state = shortened(),
            SliceState::Unasked(choice) => {
                let is_wanted = match choice {
                    TimeSliceChoice::Auto => !is_filtered(),
                    TimeSliceChoice::Short => true,
                    TimeSliceChoice::Kernel => false,
                };
                self.state = if is_wanted {
                    shortened()
                } else {
                    SliceState::Unchangeable
                };
            }
        }
    }

    /// The calling thread sleeps instead of polling from now on.
    #[inline]
    pub fn restore(&mut self) {
        if let SliceState::Short { kernel_ns } = self.state {
            self.state = restored(kernel_ns).unwrap_or(SliceState::Unchangeable);
        }
    }
}

/// Whether system calls of this thread may be filtered.
fn is_filtered() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_none_or(|mode| mode.trim() != "0")
}

fn shortened() -> SliceState {
    try_shorten().unwrap_or(SliceState::Unchangeable)
}

fn try_shorten() -> io::Result<SliceState> {
    let mut attributes = scheduling()?;
    let kernel_ns = attributes.sched_runtime;
    let is_ordinary = [libc::SCHED_OTHER, libc::SCHED_BATCH]
        .iter()
        .any(|policy| attributes.sched_policy == policy.cast_unsigned());
    // A kernel that keeps no slices says none.
    if !is_ordinary || kernel_ns <= SHORT_NS {
        return Ok(SliceState::Unchangeable);
    }
    set_slice(&mut attributes, SHORT_NS)?;
    Ok(SliceState::Short { kernel_ns })
}

fn restored(kernel_ns: u64) -> io::Result<SliceState> {
    let mut attributes = scheduling()?;
    // What somebody else has changed meanwhile stays.
    if attributes.sched_runtime == SHORT_NS {
        set_slice(&mut attributes, kernel_ns)?;
    }
    Ok(SliceState::Kernel)
}

/// How the calling thread is scheduled. A kernel that keeps slices says the thread's in `sched_runtime`.
fn scheduling() -> io::Result<libc::sched_attr> {
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    let bytes = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `bytes` there, which is its size.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), bytes, 0) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed, and what the kernel wrote are integers.
    Ok(unsafe { attributes.assume_init() })
}

fn set_slice(attributes: &mut libc::sched_attr, slice_ns: u64) -> io::Result<()> {
    attributes.sched_runtime = slice_ns;
    // What is inherited stays as it is; the others are none of an ordinary thread's.
    attributes.sched_flags &= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    set_scheduling(attributes)
}

fn set_scheduling(attributes: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the kernel reads as much as the structure says that it has, which is what it has.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(attributes), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, as it keeps the slice.
    fn in_a_thread<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(test).join().unwrap()
    }

    #[test]
    fn a_thread_has_a_short_slice_while_it_polls_and_nothing_else_is_changed() {
        in_a_thread(|| {
            let before = scheduling().unwrap();
            let mut slice = TimeSlice::new(TimeSliceChoice::Short);
            for _ in 0..2 {
                slice.shorten();
                let polling = scheduling().unwrap();
                assert!(polling.sched_runtime <= SHORT_NS);
                assert_eq!(polling.sched_nice, before.sched_nice);
                assert_eq!(polling.sched_policy, before.sched_policy);
                assert_eq!(polling.sched_flags, before.sched_flags);
                slice.restore();
                assert_eq!(scheduling().unwrap().sched_runtime, before.sched_runtime);
            }
        });
    }

    #[test]
    fn it_is_left_alone_where_that_is_wished_and_where_a_filter_could_end_the_process() {
        in_a_thread(|| {
            let slice_ns = || scheduling().unwrap().sched_runtime;
            let before_ns = slice_ns();
            TimeSlice::new(TimeSliceChoice::Kernel).shorten();
            assert_eq!(slice_ns(), before_ns);
            let is_kept = is_filtered() || before_ns <= SHORT_NS;
            TimeSlice::new(TimeSliceChoice::Auto).shorten();
            assert_eq!(is_kept, slice_ns() == before_ns);
        });
    }

    #[test]
    fn a_filter_is_seen() {
        in_a_thread(|| {
            let allow_all = [libc::sock_filter {
                code: (libc::BPF_RET | libc::BPF_K) as u16,
                jt: 0,
                jf: 0,
                k: libc::SECCOMP_RET_ALLOW,
            }];
            let program = libc::sock_fprog {
                len: 1,
                filter: allow_all.as_ptr().cast_mut(),
            };
            // SAFETY: it takes numbers alone, and only keeps this thread from gaining rights.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
            let (operation, mode) = (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER);
            // SAFETY: the program is one instruction, which lives past the call; it allows everything, to this thread alone.
            let set = unsafe { libc::prctl(operation, mode, &raw const program) };
            assert!(set != 0 || is_filtered());
        });
    }

    #[test]
    fn another_class_keeps_what_it_has() {
        in_a_thread(|| {
            let mut attributes = scheduling().unwrap();
            attributes.sched_policy = libc::SCHED_IDLE.cast_unsigned();
            set_scheduling(&attributes).unwrap();
            let mut slice = TimeSlice::new(TimeSliceChoice::Short);
            slice.shorten();
            assert_eq!(slice.state, SliceState::Unchangeable);
            assert_eq!(
                scheduling().unwrap().sched_policy,
                libc::SCHED_IDLE.cast_unsigned()
            );
        });
    }
}
