//! The bytes of a saved connection: fields one behind the other, little-endian, lengths before what they count.

use std::collections::VecDeque;

use crate::config::EndpointRole;
use crate::connection::{
    DataProgress, DrainState, KeepaliveState, OpenBlock, PendingEvent, ReadState, ResetCause,
};
use crate::error::ErrorCode;
use crate::fields::{FieldIndexing, FieldList};
use crate::floods::{FLOOD_KINDS, FloodBucket, FloodGuard};
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::hpack::saved::{BlockProgress, SavedDecoder, SavedEncoder, SizeUpdate};
use crate::settings::EndpointSettings;
use crate::streams::{ClosedStreams, HalfState, QueueEnd, StreamEnding};
use crate::windows::{ReceiveWindow, SendWindow};

/// The bytes end too early, or stand for no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateDamaged;

/// The bytes that are left to read.
pub(crate) type StateInput<'a> = &'a [u8];

/// A value in one form, wherever it stands in a state.
pub(crate) trait StateField: Sized {
    fn write(&self, out: &mut Vec<u8>);
    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged>;
}

fn take<'a>(input: &mut StateInput<'a>, bytes: usize) -> Result<&'a [u8], StateDamaged> {
    let (taken, rest) = input.split_at_checked(bytes).ok_or(StateDamaged)?;
    *input = rest;
    Ok(taken)
}

macro_rules! state_numbers {
    ($($number:ty),*) => {$(
        impl StateField for $number {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
                let bytes = take(input, size_of::<$number>())?;
                bytes.try_into().map(<$number>::from_le_bytes).map_err(|_| StateDamaged)
            }
        }
    )*};
}

state_numbers!(u8, u32, u64, i64);

impl StateField for usize {
    fn write(&self, out: &mut Vec<u8>) {
        (*self as u64).write(out);
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        u64::read(input)?.try_into().map_err(|_| StateDamaged)
    }
}

impl StateField for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        match u8::read(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(StateDamaged),
        }
    }
}

/// A run of bytes. Lists of anything else are `VecDeque`s.
impl StateField for Vec<u8> {
    fn write(&self, out: &mut Vec<u8>) {
        write_run(self, out);
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        read_run(input).map(<[u8]>::to_vec)
    }
}

fn write_run(run: &[u8], out: &mut Vec<u8>) {
    (run.len() as u32).write(out);
    out.extend_from_slice(run);
}

fn read_run<'a>(input: &mut StateInput<'a>) -> Result<&'a [u8], StateDamaged> {
    let bytes = u32::read(input)?;
    take(input, bytes as usize)
}

impl<T: StateField> StateField for VecDeque<T> {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u32).write(out);
        self.iter().for_each(|item| item.write(out));
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        let count = u32::read(input)?;
        // Each item has a byte at least, so a count that is not true ends soon.
        (0..count).map(|_| T::read(input)).collect()
    }
}

impl<T: StateField> StateField for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        if bool::read(input)? {
            return T::read(input).map(Some);
        }
        Ok(None)
    }
}

impl<A: StateField, B: StateField> StateField for (A, B) {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
        self.1.write(out);
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        Ok((A::read(input)?, B::read(input)?))
    }
}

impl StateField for FieldList {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u32).write(out);
        for field in self.iter() {
            write_run(field.name, out);
            write_run(field.value, out);
            field.indexing.write(out);
        }
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        let mut list = FieldList::new();
        for _ in 0..u32::read(input)? {
            let (name, value) = (read_run(input)?, read_run(input)?);
            list.push_field(name, value, FieldIndexing::read(input)?);
        }
        Ok(list)
    }
}

/// A header as it stands on the wire: all of its values are of one form there.
impl StateField for FrameHeader {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        let bytes = <[u8; FRAME_HEADER_BYTES]>::read(input)?;
        let header = FrameHeader::read(bytes);
        // The reserved bit is not kept.
        if header.bytes() == bytes {
            Ok(header)
        } else {
            Err(StateDamaged)
        }
    }
}

impl StateField for [u8; FRAME_HEADER_BYTES] {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        take(input, FRAME_HEADER_BYTES)?
            .try_into()
            .map_err(|_| StateDamaged)
    }
}

impl StateField for ErrorCode {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        u32::read(input).map(ErrorCode)
    }
}

impl StateField for FloodGuard {
    fn write(&self, out: &mut Vec<u8>) {
        self.buckets.iter().for_each(|bucket| bucket.write(out));
    }

    fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
        let mut buckets = [FloodBucket::default(); FLOOD_KINDS];
        for bucket in &mut buckets {
            *bucket = FloodBucket::read(input)?;
        }
        Ok(FloodGuard { buckets })
    }
}

/// A struct, field by field, in this order.
macro_rules! state_struct {
    ($saved:ty { $($field:ident),* $(,)? }) => {
        impl $crate::state::StateField for $saved {
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$field.write(out);)*
            }

            fn read(
                input: &mut $crate::state::StateInput<'_>,
            ) -> Result<Self, $crate::state::StateDamaged> {
                Ok(Self { $($field: $crate::state::StateField::read(input)?),* })
            }
        }
    };
}
pub(crate) use state_struct;

/// An enum: a byte for the variant, then its fields.
macro_rules! state_enum {
    ($saved:ty { $($tag:literal => $variant:ident $({ $($field:ident),* })? $(($inner:ident))?),* $(,)? }) => {
        impl StateField for $saved {
            fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(($inner))? => {
                        out.push($tag);
                        $($($field.write(out);)*)?
                        $($inner.write(out);)?
                    })*
                }
            }

            fn read(input: &mut StateInput<'_>) -> Result<Self, StateDamaged> {
                Ok(match u8::read(input)? {
                    $($tag => Self::$variant $({ $($field: StateField::read(input)?),* })? $(({
                        let $inner = StateField::read(input)?;
                        $inner
                    }))?,)*
                    _ => return Err(StateDamaged),
                })
            }
        }
    };
}

state_enum!(EndpointRole { 0 => Client, 1 => Server });
state_enum!(FieldIndexing { 0 => Automatic, 1 => Without, 2 => Never });
state_enum!(HalfState { 0 => Head, 1 => Body, 2 => Ended });
state_enum!(QueueEnd { 0 => Open, 1 => Ends, 2 => Trailers(fields) });
state_enum!(ResetCause { 0 => Peer, 1 => Fault, 2 => GoAway });
state_enum!(StreamEnding { 0 => Ended, 1 => ResetByPeer, 2 => ResetByUs, 3 => Skipped, 4 => Forgotten });
state_enum!(DrainState { 0 => No, 1 => Announced { since_ns }, 2 => Final { last_stream } });
state_enum!(ReadState {
    0 => Preface(have),
    1 => Header { bytes, have },
    2 => Payload(header),
    3 => Data(progress),
    4 => Skip(left),
});
state_enum!(PendingEvent {
    0 => Reset { stream, code, cause },
    1 => Writable(stream),
    2 => PeerSettings,
    3 => Pong(payload),
    4 => GoAway { last_stream, code },
});
state_struct!(DataProgress {
    stream,
    data_left,
    padding_left,
    needs_padding_length,
    is_end,
    is_discarded
});
state_struct!(OpenBlock {
    stream,
    is_end,
    continuations,
    since_ns
});
state_struct!(KeepaliveState { heard_ns, pinged_ns });
state_struct!(EndpointSettings {
    header_table_bytes,
    enable_push,
    streams_max,
    stream_window_bytes,
    frame_bytes_max,
    header_list_bytes_max,
});
state_struct!(ReceiveWindow {
    bytes,
    target,
    credit
});
state_struct!(SendWindow { bytes });
state_struct!(ClosedStreams { endings, skipped });
state_struct!(FloodBucket { count, since_ns });
state_struct!(BlockProgress {
    partial,
    bytes,
    list_bytes,
    has_field,
    has_size_update
});
state_struct!(SavedDecoder {
    table,
    table_bytes_max,
    size_allowed,
    size_update_due,
    fields,
    block
});
state_struct!(SizeUpdate { lowest, last });
state_struct!(SavedEncoder {
    table,
    table_bytes_max,
    peer_bytes,
    size_update
});
