//! The engine's saved state, version 1: records of 11 bytes in any order, each a kind, a call (`u64`) and a number
//! (`u16`), little-endian.

use provost_wire::Code;

use crate::owed::Lane;

const RECORD_BYTES: usize = 11;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// Kind 0: an open call; the number is its method.
    Call { call: u64, method: u16 },
    /// Kinds 1 (to the peer) and 2 (to the app): a cancellation not yet told; the number is its status.
    Owed { lane: Lane, call: u64, code: Code },
}

impl Record {
    pub(crate) fn write(self) -> [u8; RECORD_BYTES] {
        let (kind, call, number) = match self {
            Record::Call { call, method } => (0, call, method),
            Record::Owed {
                lane: Lane::Tx,
                call,
                code,
            } => (1, call, code as u16),
            Record::Owed {
                lane: Lane::Rx,
                call,
                code,
            } => (2, call, code as u16),
        };
        let mut bytes = [kind; RECORD_BYTES];
        bytes[1..9].copy_from_slice(&call.to_le_bytes());
        bytes[9..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// Reads what [`Record::write`] wrote for each record.
    pub(crate) fn read_all(bytes: &[u8]) -> Result<Vec<Record>, String> {
        let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
        if !rest.is_empty() {
            return Err(format!("{} bytes are not a whole number of records", bytes.len()));
        }
        records.iter().map(Record::read).collect()
    }

    fn read(bytes: &[u8; RECORD_BYTES]) -> Result<Record, String> {
        let &[kind, a, b, c, d, e, f, g, h, low, high] = bytes;
        let call = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let number = u16::from_le_bytes([low, high]);
        let lane = match kind {
            0 => return Ok(Record::Call { call, method: number }),
            1 => Lane::Tx,
            2 => Lane::Rx,
            _ => return Err(format!("a record of kind {kind}")),
        };
        let code = Code::ALL.get(usize::from(number)).copied();
        let code = code.ok_or_else(|| format!("call {call} is cancelled with status {number}"))?;
        Ok(Record::Owed { lane, call, code })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_damage_is_noticed() {
        let records = [
            Record::Call {
                call: u64::MAX - 1,
                method: 513,
            },
            Record::Owed {
                lane: Lane::Tx,
                call: 7,
                code: Code::Internal,
            },
            Record::Owed {
                lane: Lane::Rx,
                call: 8,
                code: Code::Unauthenticated,
            },
        ];
        let mut bytes: Vec<u8> = records.iter().flat_map(|record| record.write()).collect();
        assert_eq!(Record::read_all(&bytes).unwrap(), records);
        assert!(Record::read_all(&bytes[1..]).is_err());
        bytes[0] = 3;
        assert!(Record::read_all(&bytes).is_err());
        bytes[0] = 1;
        assert!(Record::read_all(&bytes).is_err());
    }
}
