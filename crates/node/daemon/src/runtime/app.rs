//! An app as its runtime sees it.

use provost_datapath::{Nanos, Step};
use provost_frontend::AppPort;
use provost_ring::Patience;
use provost_shm::Doorbell;
use provost_wire::limits::CONNECTION_PLACE_BITS;

use super::command::{AppId, Waiting};
use super::timers::{Timers, add_timer};
use super::worker::{BLOCKED_RETRY_NS, KIND_APP, token};

pub(super) struct App {
    pub(super) id: AppId,
    pub(super) port: AppPort,
    pub(super) doorbell: Doorbell,
    pub(super) waiting: Waiting,
    /// By place: the connection's number and its datapath.
    pub(super) connections: Vec<Place>,
    pub(super) free_places: Vec<u32>,
    /// A step that found its datapath full.
    pub(super) stuck: Option<(u32, Step)>,
    pub(super) last_work: Nanos,
    pub(super) patience: Patience,
    pub(super) is_hot: bool,
    pub(super) is_touched: bool,
    pub(super) timer: Option<Nanos>,
    pub(super) maintain_at: Nanos,
    /// Bytes of its receive heap when it was looked after last.
    pub(super) heap_bytes: u64,
    /// The app is gone, or at fault: nothing more is read from it or told to it. Its connections end until then.
    pub(super) leaving: Option<Nanos>,
}

pub(super) struct Place {
    pub(super) number: u32,
    pub(super) path: Option<u32>,
}

impl App {
    pub(super) fn heat(&mut self, number: u32, hot: &mut Vec<u32>, now: Nanos) {
        let gap_ns = now.saturating_sub(self.last_work);
        self.last_work = now;
        if !self.is_hot {
            self.is_hot = true;
            self.patience.woken_after(gap_ns);
            self.port.disarm();
            hot.push(number);
        }
    }

    pub(super) fn touch(&mut self, number: u32, touched: &mut Vec<u32>) {
        if !self.is_touched {
            self.is_touched = true;
            touched.push(number);
        }
    }

    /// Tells the app to ring, and says whether nothing came in between.
    pub(super) fn arm(&mut self, timers: &mut Timers, number: u32, now: Nanos) -> bool {
        if self.leaving.is_some() {
            return true;
        }
        if self.stuck.is_some() {
            add_timer(
                timers,
                &mut self.timer,
                now + BLOCKED_RETRY_NS,
                token(KIND_APP, number),
            );
            return true;
        }
        // A fault is found again, and dealt with, by the next poll.
        match self.port.arm() {
            Ok(true) => {
                if let Some(at) = self.port.wake_at() {
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

    pub(super) fn take_place(&mut self) -> u32 {
        let place = self.free_places.pop().unwrap_or_else(|| {
            self.connections.push(Place {
                number: 0,
                path: None,
            });
            (self.connections.len() - 1) as u32
        });
        let uses = (self.connections[place as usize].number >> CONNECTION_PLACE_BITS).wrapping_add(1) & 0xfff;
        // Never 0, so that no connection has the number 0.
        let number = uses.max(1) << CONNECTION_PLACE_BITS | place;
        self.connections[place as usize].number = number;
        number
    }

    pub(super) fn set_place(&mut self, number: u32, path: Option<u32>) {
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
    pub(super) fn find_free_places(&mut self) {
        let places = (0..).zip(&self.connections);
        let free = places.filter(|(_, place)| place.path.is_none());
        self.free_places = free.map(|(at, _)| at).collect();
    }

    pub(super) fn path(&self, number: u32) -> Option<u32> {
        let place = number & ((1 << CONNECTION_PLACE_BITS) - 1);
        let entry = self.connections.get(place as usize)?;
        (entry.number == number).then_some(entry.path)?
    }
}
