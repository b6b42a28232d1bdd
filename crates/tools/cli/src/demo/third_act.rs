//! The third act: a client and a server that know nothing of Provost call through both nodes, while an operator limits them and
//! replaces the node that has the server.

use tokio::time::sleep;

use super::governing::{Governed, Nodes, Seen, Stage, Step, during, rate};
use super::operator::Operator;
use super::program::Program;
use super::progress::Progress;
use super::report::grouped;
use super::{DemoError, governing};

/// Calls a second that the limit lets pass.
const LIMIT: u32 = 500;

/// Plays it; the process that has taken the place of the node with the server.
pub(crate) async fn play(
    nodes: Nodes,
    caller: &mut Program,
    progress: &mut Progress,
) -> Result<(Governed, Option<u32>), DemoError> {
    during(caller, progress, |stage, seen| operate(nodes, stage, seen)).await
}

async fn operate(nodes: Nodes, stage: Stage, mut seen: Seen) -> Result<Option<u32>, DemoError> {
    let mut b = Operator::connect("b", &nodes.server_side).await?;
    let tell = |what, seen: String| {
        // Whoever listens is gone only when all is over.
        let _ = stage.try_send(Step { what, seen });
    };
    let free = rate(&mut seen).await;
    tell(
        "grpc",
        format!(
            "a client and a server of tonic, neither of which knows of Provost: {} calls/s through a and b",
            grouped(free)
        ),
    );
    let limit = governing::limit(
        "hello.Greeter",
        &format!("requests_per_second = {LIMIT}\nburst = 10\non_limit = \"queue\"\n"),
    );
    b.attach(limit).await?;
    let limited = rate(&mut seen).await;
    tell(
        "limit",
        format!(
            "attached a limit of {LIMIT} calls/s at b: from {} to {} calls/s",
            grouped(free),
            grouped(limited)
        ),
    );
    let change = b.upgrade("rate-limit", 2).await?;
    tell(
        "engine",
        format!(
            "rate limit started anew with its state: its datapath stood still for {:.0} µs",
            change.pause_us_max
        ),
    );
    b.detach("limit").await?;
    let replaced = b.replace().await?;
    sleep(governing::WATCH).await;
    tell(
        "replace",
        format!(
            "provostd b by a new process ({}), which goes on with every connection: {} calls/s",
            replaced.pid,
            grouped(rate(&mut seen).await)
        ),
    );
    Ok(u32::try_from(replaced.pid).ok())
}
