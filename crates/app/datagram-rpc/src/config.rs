//! What an [`Rpc`](crate::Rpc) is told when it starts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use provost_datagram::{Config, ConfigError};

/// Worker threads at most.
const WORKERS_MAX: usize = 64;

/// What an [`Rpc`](crate::Rpc) is told when it starts.
#[derive(Clone, Debug)]
pub struct RpcConfig {
    /// The protocol's options. What the wire determines, the wire determines.
    pub datagram: Config,
    /// Threads that run the handlers declared as workers'. Not started unless there are such handlers.
    pub workers: usize,
    /// Requests that may wait for a worker; more are answered as [`RpcError::Overloaded`](crate::RpcError::Overloaded).
    pub worker_requests_max: usize,
    /// How long the event loop looks again and again before it sleeps.
    pub spin: Duration,
    /// What other threads may have asked for and is not begun.
    pub mailbox_max: usize,
    /// Bytes of message buffers kept for the next use.
    pub buffer_bytes_kept_max: usize,
}

impl Default for RpcConfig {
    /// Options for a datacentre, with a secret of the protocol that was drawn at random.
    fn default() -> Self {
        // The standard library keys its hashers from the system's random numbers.
        let draw = || RandomState::new().hash_one(std::process::id());
        Self {
            datagram: Config {
                secret: [draw(), draw()],
                ..Config::default()
            },
            workers: 2,
            worker_requests_max: 4096,
            spin: Duration::from_micros(20),
            mailbox_max: 4096,
            buffer_bytes_kept_max: 64 << 20,
        }
    }
}

/// Why an [`Rpc`](crate::Rpc) cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ConfigRefused {
    /// An option of the protocol.
    #[error(transparent)]
    Datagram(#[from] ConfigError),
    /// An option of the library.
    #[error("{option} is {value}; it must be from 1 to {most}")]
    Option {
        /// The option.
        option: &'static str,
        /// What it was set to.
        value: usize,
        /// The most it can be.
        most: usize,
    },
    /// The system gives no thread.
    #[error("cannot start a worker thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl RpcConfig {
    pub(crate) fn check(&self) -> Result<(), ConfigRefused> {
        let most = 1 << 20;
        for (option, value, most) in [
            ("workers", self.workers, WORKERS_MAX),
            ("worker_requests_max", self.worker_requests_max, most),
            ("mailbox_max", self.mailbox_max, most),
        ] {
            if !(1..=most).contains(&value) {
                return Err(ConfigRefused::Option { option, value, most });
            }
        }
        Ok(())
    }
}
