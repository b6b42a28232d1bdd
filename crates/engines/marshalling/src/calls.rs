//! Which method each open call is of: only the step that begins a call says so.

use provost_datapath::CallMap;
use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

/// The open calls of a connection.
#[derive(Debug)]
pub(crate) struct MarshalledCalls {
    methods: CallMap<u16>,
}

/// More than [`CALLS_IN_FLIGHT_MAX`] calls are open.
#[derive(Debug)]
pub(crate) struct TooMany;

impl MarshalledCalls {
    pub(crate) fn new() -> MarshalledCalls {
        MarshalledCalls {
            methods: CallMap::default(),
        }
    }

    pub(crate) fn begin(&mut self, call: u64, method: u16) -> Result<(), TooMany> {
        if self.methods.len() >= CALLS_IN_FLIGHT_MAX {
            return Err(TooMany);
        }
        self.methods.insert(call, method);
        Ok(())
    }

    pub(crate) fn method(&self, call: u64) -> Option<u16> {
        self.methods.get(&call).copied()
    }

    /// Forgets the call; which method it is of.
    pub(crate) fn end(&mut self, call: u64) -> Option<u16> {
        self.methods.remove(&call)
    }

    pub(crate) fn len(&self) -> usize {
        self.methods.len()
    }

    /// Calls and their methods, in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u16)> {
        self.methods.iter().map(|(&call, &method)| (call, method))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_calls_is_bounded() {
        let mut calls = MarshalledCalls::new();
        for call in 0..CALLS_IN_FLIGHT_MAX as u64 {
            calls.begin(call, 0).unwrap();
        }
        assert!(calls.begin(u64::MAX, 0).is_err());
        calls.end(0);
        assert!(calls.begin(u64::MAX, 0).is_ok());
    }
}
