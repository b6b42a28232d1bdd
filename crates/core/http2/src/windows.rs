//! Flow control (RFC 9113, sections 5.2 and 6.9), the same on both levels.

use crate::frame::NUMBER_MAX;

/// What the peer may send, and what is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveWindow {
    /// Bytes that the peer may still send; below 0 after the setting fell.
    pub(crate) bytes: i64,
    /// What the window is when nothing is held.
    pub(crate) target: u32,
    /// Bytes that were released, and that the peer does not know of.
    pub(crate) credit: u32,
}

/// The peer sent more than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowExceeded;

impl ReceiveWindow {
    pub(crate) fn new(bytes: u32, target: u32) -> ReceiveWindow {
        ReceiveWindow {
            bytes: i64::from(bytes),
            target,
            credit: 0,
        }
    }

    /// Bytes came, which the window has to have room for.
    pub(crate) fn take(&mut self, bytes: u32) -> Result<(), WindowExceeded> {
        if i64::from(bytes) > self.bytes {
            return Err(WindowExceeded);
        }
        self.bytes -= i64::from(bytes);
        Ok(())
    }

    /// Their reader is done with them. Never more than came, so the window never exceeds its target.
    pub(crate) fn release(&mut self, bytes: u32) {
        let held = i64::from(self.target) - self.bytes - i64::from(self.credit);
        let released = i64::from(bytes).min(held.max(0));
        self.credit += released as u32;
    }

    /// The setting changed by so much (RFC 9113, section 6.9.2).
    pub(crate) fn retarget(&mut self, target: u32) {
        self.bytes += i64::from(target) - i64::from(self.target);
        self.target = target;
    }

    /// Whether so much was released that the peer should hear of it: half of the window.
    pub(crate) fn is_update_due(&self) -> bool {
        self.credit > 0 && self.credit >= self.target / 2
    }

    /// The increment to tell the peer.
    pub(crate) fn update(&mut self) -> u32 {
        let increment = std::mem::take(&mut self.credit);
        self.bytes += i64::from(increment);
        increment
    }

    pub(crate) fn is_plausible(&self) -> bool {
        let reach = i64::from(NUMBER_MAX);
        self.target <= NUMBER_MAX
            && (-reach..=i64::from(self.target)).contains(&self.bytes)
            && self.bytes + i64::from(self.credit) <= i64::from(self.target)
    }
}

/// What this end may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendWindow {
    /// Below 0 after the peer's setting fell.
    pub(crate) bytes: i64,
}

impl SendWindow {
    pub(crate) fn new(bytes: u32) -> SendWindow {
        SendWindow {
            bytes: i64::from(bytes),
        }
    }

    /// Bytes that may be sent now.
    pub(crate) fn room(self) -> usize {
        self.bytes.max(0) as usize
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        self.bytes -= bytes as i64;
    }

    /// RFC 9113, section 6.9.1: a window never exceeds 2³¹ − 1.
    pub(crate) fn grow(&mut self, bytes: i64) -> Result<(), WindowExceeded> {
        if self.bytes + bytes > i64::from(NUMBER_MAX) {
            return Err(WindowExceeded);
        }
        self.bytes += bytes;
        Ok(())
    }

    pub(crate) fn is_plausible(self) -> bool {
        let reach = i64::from(NUMBER_MAX);
        (-reach..=reach).contains(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9113, section 6.9.1: a sender that exceeds the window breaks the protocol.
    #[test]
    fn rfc9113_6_9_1_more_than_the_window_is_refused() {
        let mut window = ReceiveWindow::new(10, 10);
        window.take(10).unwrap();
        assert_eq!(window.take(1), Err(WindowExceeded));
        window.release(4);
        assert!(!window.is_update_due());
        window.release(100);
        assert!(window.is_update_due());
        assert_eq!((window.update(), window.bytes), (10, 10));
    }

    /// RFC 9113, section 6.9.2: a window can become negative, and must grow above 0 before anything is sent.
    #[test]
    fn rfc9113_6_9_2_windows_become_negative() {
        let mut window = SendWindow::new(10);
        window.spend(8);
        window.grow(-5).unwrap();
        assert_eq!((window.bytes, window.room()), (-3, 0));
        window.grow(4).unwrap();
        assert_eq!(window.room(), 1);
        assert_eq!(window.grow(i64::from(NUMBER_MAX)), Err(WindowExceeded));
    }
}
