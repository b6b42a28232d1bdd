//! An app as its runtime sees it.

use provost_datapath::Nanos;
use provost_ring::AdaptiveSpin;
use provost_wire::limits::CONNECTION_PLACE_BITS;

use crate::blocked_steps::BlockedSteps;
use crate::caller_port::CallerPort;
use crate::ids::{AppId, WaitMode};
use crate::platform::RuntimePlatform;
use crate::poll_token::{KIND_APP, token};
use crate::timers::{BLOCKED_RETRY_NS, TimerQueue, add_timer};

pub(crate) struct PolledApp {
    pub(crate) id: AppId,
    pub(crate) port: CallerPort,
    pub(crate) waiting: WaitMode,
    /// By place: the connection's number and its datapath.
    pub(crate) connections: Vec<ConnectionPlace>,
    pub(crate) free_places: Vec<u32>,
    pub(crate) blocked: BlockedSteps,
    pub(crate) last_work: Nanos,
    pub(crate) adaptive_spin: AdaptiveSpin,
    pub(crate) is_hot: bool,
    pub(crate) is_touched: bool,
    pub(crate) timer: Option<Nanos>,
    pub(crate) maintain_at: Nanos,
    /// Bytes of its receive heap when it was looked after last.
    pub(crate) heap_bytes: u64,
    /// The app is gone, or at fault: nothing more is read from it or told to it. Its connections end until then.
    pub(crate) leaving: Option<Nanos>,
}

pub(crate) struct ConnectionPlace {
    pub(crate) number: u32,
    pub(crate) path: Option<u32>,
    /// The connection with this number has ended because this node drained it.
    pub(crate) was_drained: bool,
}

impl PolledApp {
    /// Whether it is a gRPC client whose connection has ended, or is given up.
    pub(crate) fn is_caller_that_leaves(&self) -> bool {
        self.leaving.is_some() && self.is_caller()
    }

    /// Whether it is a caller that is no app.
    pub(crate) fn is_caller(&self) -> bool {
        matches!(self.port, CallerPort::Calls(_))
    }

    pub(crate) fn heat(&mut self, number: u32, hot: &mut Vec<u32>, now: Nanos) {
        let gap_ns = now.saturating_sub(self.last_work);
        self.last_work = now;
        if !self.is_hot {
            self.is_hot = true;
            self.adaptive_spin.woken_after(gap_ns);
            self.port.disarm();
            hot.push(number);
        }
    }

    pub(crate) fn touch(&mut self, number: u32, touched: &mut Vec<u32>) {
        if !self.is_touched {
            self.is_touched = true;
            touched.push(number);
        }
    }

    /// Tells the app to ring, and says whether nothing came in between.
    pub(crate) fn arm(&mut self, timers: &mut TimerQueue, number: u32, now: Nanos) -> bool {
        if self.leaving.is_some() {
            return true;
        }
        if !self.blocked.is_empty() {
            let retry_at = now + BLOCKED_RETRY_NS;
            add_timer(timers, &mut self.timer, retry_at, token(KIND_APP, number));
        }
        if self.blocked.is_full() {
            return true;
        }
        // A fault is found again, and dealt with, by the next poll.
        match self.port.arm() {
            Ok(true) => {
                if let Some(at) = self.port.wake_at(now) {
                    add_timer(timers, &mut self.timer, at.max(now + 1), token(KIND_APP, number));
                }
                true
            }
            _ => {
                self.port.disarm();
                false
            }
        }
    }

    /// A socket is watched for what its connection waits for now.
    pub(crate) fn watch_again(&mut self, platform: &mut impl RuntimePlatform, number: u32) {
        if self.port.calls().is_some() && self.leaving.is_none() {
            // One that cannot be watched is tried as long as it is polled, and by its timer.
            let _ = self.port.watch(platform, number);
        }
    }

    pub(crate) fn take_place(&mut self) -> u32 {
        let place = self.free_places.pop().unwrap_or_else(|| {
            self.connections.push(ConnectionPlace {
                number: 0,
                path: None,
                was_drained: false,
            });
            (self.connections.len() - 1) as u32
        });
        let uses = (self.connections[place as usize].number >> CONNECTION_PLACE_BITS).wrapping_add(1) & 0xfff;
        // Never 0, so that no connection has the number 0.
        let number = uses.max(1) << CONNECTION_PLACE_BITS | place;
        self.connections[place as usize].number = number;
        self.connections[place as usize].was_drained = false;
        number
    }

    pub(crate) fn set_place(&mut self, number: u32, path: Option<u32>) {
        let place = number & ((1 << CONNECTION_PLACE_BITS) - 1);
        if let Some(entry) = self.connections.get_mut(place as usize)
            && entry.number == number
        {
            if path.is_none() && entry.path.is_some() {
                self.free_places.push(place);
            }
            entry.path = path;
        }
    }

    /// After connections were put at their places: the others are free.
    pub(crate) fn find_free_places(&mut self) {
        let places = (0..).zip(&self.connections);
        let free = places.filter(|(_, place)| place.path.is_none());
        self.free_places = free.map(|(at, _)| at).collect();
    }

    pub(crate) fn path(&self, number: u32) -> Option<u32> {
        self.place(number)?.path
    }

    fn place(&self, number: u32) -> Option<&ConnectionPlace> {
        let place = number & ((1 << CONNECTION_PLACE_BITS) - 1);
        let entry = self.connections.get(place as usize)?;
        (entry.number == number).then_some(entry)
    }

    /// A connection that this node drained has ended.
    pub(crate) fn note_drained(&mut self, number: u32) {
        let place = number & ((1 << CONNECTION_PLACE_BITS) - 1);
        let entry = self.connections.get_mut(place as usize);
        if let Some(entry) = entry.filter(|entry| entry.number == number) {
            entry.was_drained = true;
        }
    }

    /// Whether a connection has ended because this node drained it.
    pub(crate) fn was_drained(&self, number: u32) -> bool {
        self.place(number).is_some_and(|place| place.was_drained)
    }
}
