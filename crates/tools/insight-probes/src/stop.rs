//! How an operator ends a measurement early, so that what was measured until then is kept.

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::failure::{Doing, ProbeFailure};
use crate::machine::read;
use crate::proxies::kill_running_proxies;

/// What shells add to a signal's number for the exit status of a program that it has ended.
const ENDED_BY_SIGNAL: i32 = 128;

/// Whether a measurement shall end. Clones hear of the same request.
#[derive(Clone, Debug)]
pub struct StopSignal(Option<watch::Receiver<Option<&'static str>>>);

/// Asks those to end who have its signal.
#[derive(Debug)]
pub struct StopSwitch(watch::Sender<Option<&'static str>>);

impl StopSwitch {
    /// A switch with its signal.
    #[must_use]
    pub fn new() -> (StopSwitch, StopSignal) {
        let (sender, receiver) = watch::channel(None);
        (StopSwitch(sender), StopSignal(Some(receiver)))
    }

    /// Asks them, and says who asks.
    pub fn stop(&self, by: &'static str) {
        self.0.send_replace(Some(by));
    }
}

impl StopSignal {
    /// Of a measurement that nobody stops.
    #[must_use]
    pub const fn never() -> StopSignal {
        StopSignal(None)
    }

    /// Is set by SIGINT, SIGTERM and SIGHUP, which `tell` is told of; not by a SIGHUP that `nohup` has this program ignore. A second one
    /// ends this program at once, without what was measured, and kills the proxies that it has started.
    ///
    /// # Errors
    /// If signals cannot be waited for.
    pub fn of_operator(mut tell: impl FnMut(&str) + Send + 'static) -> Result<StopSignal, ProbeFailure> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .build()
            .doing(|| "start a runtime".into())?;
        let mut signals = {
            let _entered = runtime.enter();
            OperatorSignals::catch().doing(|| "wait for signals".into())?
        };
        let (switch, stop) = StopSwitch::new();
        std::thread::Builder::new()
            .name("stop".into())
            .spawn(move || {
                runtime.block_on(async {
                    let first = signals.next().await;
                    tell(&format!(
                        "{}: stopping; what was measured is kept (once more to end at once)",
                        first.name
                    ));
                    switch.stop(first.name);
                    // Of a terminal that goes away both the shell and the kernel tell.
                    signals.hangup = None;
                    let second = signals.next().await;
                    kill_running_proxies();
                    std::process::exit(ENDED_BY_SIGNAL + second.kind.as_raw_value());
                });
            })
            .doing(|| "start a thread".into())?;
        Ok(stop)
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// If somebody has asked to stop.
    pub(crate) fn check(&self) -> Result<(), ProbeFailure> {
        match self.0.as_ref().and_then(|receiver| *receiver.borrow()) {
            Some(by) => Err(ProbeFailure::Stopped(by)),
            None => Ok(()),
        }
    }

    /// Waits until somebody asks to stop.
    pub(crate) async fn requested(&self) -> ProbeFailure {
        if let Some(mut receiver) = self.0.clone()
            && let Ok(by) = receiver.wait_for(Option::is_some).await
        {
            return ProbeFailure::Stopped(by.unwrap_or_default());
        }
        // Nobody can ask any more.
        std::future::pending().await
    }
}

impl Default for StopSignal {
    fn default() -> StopSignal {
        StopSignal::never()
    }
}

/// The signals by which an operator, or the system, ends a program in the foreground.
struct OperatorSignals {
    interrupt: Signal,
    terminate: Signal,
    /// When its terminal goes away.
    hangup: Option<Signal>,
}

#[derive(Clone, Copy)]
struct CaughtSignal {
    kind: SignalKind,
    name: &'static str,
}

impl OperatorSignals {
    fn catch() -> std::io::Result<OperatorSignals> {
        let ignores_hangup =
            read("/proc/self/status").is_ok_and(|status| is_ignored(&status, SignalKind::hangup()));
        let hangup = (!ignores_hangup).then(|| signal(SignalKind::hangup()));
        Ok(OperatorSignals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: hangup.transpose()?,
        })
    }

    async fn next(&mut self) -> CaughtSignal {
        tokio::select! {
            _ = self.interrupt.recv() => CaughtSignal { kind: SignalKind::interrupt(), name: "SIGINT" },
            _ = self.terminate.recv() => CaughtSignal { kind: SignalKind::terminate(), name: "SIGTERM" },
            Some(_) = heard(&mut self.hangup) => CaughtSignal { kind: SignalKind::hangup(), name: "SIGHUP" },
        }
    }
}

/// The next signal, if it is waited for at all.
async fn heard(signal: &mut Option<Signal>) -> Option<()> {
    signal.as_mut()?.recv().await
}

/// Whether a process whose `/proc/PID/status` this is was started so that it ignores a signal.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_ignores_is_read_from_its_status() {
        let status =
            "Name:\tcat\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000000002\n";
        assert!(is_ignored(status, SignalKind::hangup()));
        assert!(!is_ignored(status, SignalKind::interrupt()));
        assert!(!is_ignored("Name:\tcat\n", SignalKind::hangup()));
    }
}
