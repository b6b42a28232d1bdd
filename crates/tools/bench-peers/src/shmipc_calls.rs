//! Ping-pong over shmipc's streams, each a call in flight, all of one session. Messages are written into its shared memory and read
//! there.

use std::hint::black_box;
use std::os::unix::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use provost_figures::Latencies;
use shmipc::buffer::BufferReader;
use shmipc::config::{Config, SizePercentPair};
use shmipc::session::{SessionManager, SessionManagerConfig};
use shmipc::stream::Stream;
use shmipc::transport::{DefaultUnixConnect, DefaultUnixListen};
use shmipc::{Error, Listener};
use tokio::runtime::{Builder, Runtime};

use crate::run::LoadRun;
use crate::{PeerLoad, PeerResult, RESPONSE};

/// The largest request, and what its benchmark adds to it.
const SLICE_BYTES: u32 = 64 + 256;

/// Answers until the process is ended.
pub(crate) fn serve(path: &str, ready: impl FnOnce() -> std::io::Result<()>) -> PeerResult<()> {
    runtime()?.block_on(async {
        let address = SocketAddr::from_pathname(path)?;
        let mut listener = Listener::new(DefaultUnixListen, address, config()).await?;
        ready()?;
        loop {
            tokio::spawn(answer(listener.accept().await?));
        }
    })
}

/// The first 8 bytes of a stream say how long each of its requests is.
async fn answer(mut stream: Stream) -> PeerResult<()> {
    let length = u64::from_le_bytes(stream.read_exact_bytes(8).await?[..].try_into()?);
    loop {
        match stream.read_exact_bytes(length as usize).await {
            Ok(request) => black_box((request.first(), request.last())),
            Err(Error::StreamClosed | Error::EndOfStream) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        stream.recv_buf().release_previous_read();
        stream.reserve(RESPONSE.len())?.copy_from_slice(RESPONSE);
        stream.flush(false).await?;
    }
}

/// Makes load until it is told to stop.
pub(crate) fn call(path: &str, load: PeerLoad, run: &LoadRun) -> PeerResult<Latencies> {
    runtime()?.block_on(async {
        let sessions = SessionManagerConfig::new()
            .with_config(config())
            .with_session_num(1);
        let address = SocketAddr::from_pathname(path)?;
        let manager = SessionManager::new(sessions, DefaultUnixConnect, address).await?;
        let latencies = Arc::new(Mutex::new(Latencies::default()));
        let callers = (0..load.calls_in_flight).map(|_| {
            let stream = manager.get_stream()?;
            Ok(tokio::spawn(caller(
                stream,
                load.request_bytes,
                run.clone(),
                latencies.clone(),
            )))
        });
        let callers: Vec<_> = callers.collect::<Result<_, Error>>()?;
        run.ready();
        for caller in callers {
            caller.await??;
        }
        let latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(latencies.clone())
    })
}

/// One call after the other.
async fn caller(
    mut stream: Stream,
    request_bytes: usize,
    run: LoadRun,
    latencies: Arc<Mutex<Latencies>>,
) -> PeerResult<()> {
    let payload = vec![b'x'; request_bytes];
    stream.write_bytes(&(request_bytes as u64).to_le_bytes())?;
    while !run.is_stopped() {
        let began = Instant::now();
        stream.reserve(request_bytes)?.copy_from_slice(&payload);
        stream.flush(false).await?;
        if stream.read_exact_bytes(RESPONSE.len()).await?[..] != RESPONSE[..] {
            return Err("an answer is not what was sent".into());
        }
        stream.release_read_and_reuse();
        run.record(
            &mut latencies.lock().unwrap_or_else(PoisonError::into_inner),
            began,
        );
    }
    stream.close().await?;
    Ok(())
}

/// On one thread, as apps are elsewhere in the bench; a second one makes these calls slower.
fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// What shmipc recommends for small messages that are to come soon, and slices of the size that its own benchmark has for them.
fn config() -> Config {
    let slices = SizePercentPair {
        size: SLICE_BYTES,
        percent: 100,
    };
    Config {
        buffer_slice_sizes: vec![slices],
        ..Config::default().with_v4_eventfd()
    }
}
