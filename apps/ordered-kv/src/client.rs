//! A client that waits for its answers.

use std::io;
use std::time::{Duration, Instant};

use provost_datagram_rpc::{Completion, ConfigRefused, Handlers, Rpc, RpcConfig, RpcError, SessionId, Wire};

use crate::protocol::{
    ABSENT, DELETE, DONE, FULL, GET, PAIR_BYTES, PUT, RANGE, RANGE_KEYS_MAX, SCAN, key_of, pair, pair_of,
    scanned_of, span,
};
use crate::tree::{Scanned, TreeFull};

/// How long a client waits for an answer. A server that is gone is found out earlier.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// One look at the wire and the clock at least so often.
const TURN_MAX: Duration = Duration::from_millis(100);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the wire is of no use: {0}")]
    Wire(#[from] io::Error),
    #[error(transparent)]
    Config(#[from] ConfigRefused),
    #[error("the server could not be asked: {0}; is it running there?")]
    Call(#[from] RpcError),
    #[error(transparent)]
    Full(#[from] TreeFull),
    #[error("the server answered with status {status} and {bytes} bytes, which is no answer to this request")]
    Answer {
        status: u16,
        /// How long it was.
        bytes: usize,
    },
    #[error("the server did not answer in time; is it overloaded?")]
    Unanswered,
}

/// A client of one server.
#[derive(Debug)]
pub struct Client<W: Wire> {
    rpc: Rpc<W, Vec<Completion>>,
    session: SessionId,
}

impl<W: Wire> Client<W> {
    /// A client over this wire of the server at this address.
    ///
    /// # Errors
    /// If no session can be asked for.
    pub fn connect(wire: W, to: W::Address) -> Result<Self, ClientError> {
        let mut rpc = Rpc::new(RpcConfig::default(), wire, Vec::new(), Handlers::new())?;
        let session = rpc.parts().1.connect(to)?;
        Ok(Self { rpc, session })
    }

    /// What a key has.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn get(&mut self, key: u64) -> Result<Option<u64>, ClientError> {
        let (status, response) = self.call(GET, &key.to_le_bytes(), 8)?;
        match (status, key_of(&response)) {
            (DONE, Some(value)) => Ok(Some(value)),
            (ABSENT, _) => Ok(None),
            _ => Err(wrong(status, &response)),
        }
    }

    /// Sets a key.
    ///
    /// # Errors
    /// If there is no answer, or no room.
    pub fn put(&mut self, key: u64, value: u64) -> Result<(), ClientError> {
        match self.call(PUT, &pair(key, value), 0)? {
            (DONE, _) => Ok(()),
            (FULL, _) => Err(TreeFull.into()),
            (status, response) => Err(wrong(status, &response)),
        }
    }

    /// Takes a key away; says whether it was there.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn delete(&mut self, key: u64) -> Result<bool, ClientError> {
        match self.call(DELETE, &key.to_le_bytes(), 0)? {
            (DONE, _) => Ok(true),
            (ABSENT, _) => Ok(false),
            (status, response) => Err(wrong(status, &response)),
        }
    }

    /// Sums up the values of up to so many keys from this one on.
    ///
    /// # Errors
    /// If there is no answer, or there are more keys than [`SCAN_KEYS_MAX`](crate::protocol::SCAN_KEYS_MAX).
    pub fn scan(&mut self, first: u64, keys: u32) -> Result<Scanned, ClientError> {
        let (status, response) = self.call(SCAN, &span(first, keys), 12)?;
        match (status, scanned_of(&response)) {
            (DONE, Some(scanned)) => Ok(scanned),
            _ => Err(wrong(status, &response)),
        }
    }

    /// Up to so many keys from this one on, with their values, in order.
    ///
    /// # Errors
    /// If there is no answer, or there are more keys than [`RANGE_KEYS_MAX`].
    pub fn range(&mut self, first: u64, keys: u32) -> Result<Vec<(u64, u64)>, ClientError> {
        let room = keys.min(RANGE_KEYS_MAX) as usize * PAIR_BYTES;
        let (status, response) = self.call(RANGE, &span(first, keys), room)?;
        let pairs: Option<Vec<_>> = response.chunks(PAIR_BYTES).map(pair_of).collect();
        match (status, pairs) {
            (DONE, Some(pairs)) => Ok(pairs),
            _ => Err(wrong(status, &response)),
        }
    }

    fn call(
        &mut self,
        request_type: u16,
        request: &[u8],
        room: usize,
    ) -> Result<(u16, Vec<u8>), ClientError> {
        let (answers, mut context) = self.rpc.parts();
        answers.clear();
        let call = context.call_of(request_type, request, room);
        context
            .enqueue_request(self.session, call, |answers, _, completion| {
                answers.push(completion);
            })
            .map_err(|refused| refused.error)?;
        let began = Instant::now();
        while self.rpc.state().is_empty() {
            if began.elapsed() > ANSWER_WITHIN {
                return Err(ClientError::Unanswered);
            }
            self.rpc.turn_and_rest(TURN_MAX)?;
        }
        let (answers, mut context) = self.rpc.parts();
        let Some(completion) = answers.pop() else {
            return Err(ClientError::Unanswered);
        };
        let answer = (completion.outcome?, completion.response.to_vec());
        context.recycle(completion.request);
        context.recycle(completion.response);
        Ok(answer)
    }
}

fn wrong(status: u16, response: &[u8]) -> ClientError {
    ClientError::Answer {
        status,
        bytes: response.len(),
    }
}
