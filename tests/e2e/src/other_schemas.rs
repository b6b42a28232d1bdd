//! Clients of `probe.Probe` that were built from schemas other than the server's, and a server of such a schema.

use std::pin::Pin;
use std::task::{Context, Poll};

use provost::codegen::Stream;
use provost::{MetadataMap, Received, Request, Response, SentStream, Status, Streaming};

use crate::agent::check_payload;
use crate::probe_compatible::probe_server::{Probe, ProbeServer};
use crate::probe_compatible::{CountsReply, CountsRequest};
use crate::script::{Done, OtherSchema};
use crate::server::{WHICH_SERVER, name_server, payload, serve};
use crate::{probe_compatible, probe_incompatible, probe_larger};

/// Messages of each stream: together several times a stream's window.
const DRIPS: u32 = 4_000;
const DRIP_BYTES: usize = 1_000;

/// Calls the server with a client of this schema.
pub(crate) async fn echo_as(schema: OtherSchema) -> Result<Done, Status> {
    match schema {
        OtherSchema::Compatible => compatible().await,
        OtherSchema::Incompatible => {
            let client = probe_incompatible::probe_client::ProbeClient::connect("probe.Probe").await?;
            client.echo(probe_incompatible::EchoMessage::default()).await?;
            Ok(Done::default())
        }
        OtherSchema::Larger => {
            let client = probe_larger::probe_client::ProbeClient::connect("probe.Probe").await?;
            client.counts(probe_larger::CountsRequest::default()).await?;
            client.later(probe_larger::CountsRequest::default()).await?;
            Ok(Done::default())
        }
    }
}

async fn compatible() -> Result<Done, Status> {
    let client = probe_compatible::probe_client::ProbeClient::connect("probe.Probe").await?;
    let message = probe_compatible::EchoMessage {
        text: "compatible".into(),
        payload: payload(100),
        numbers: [1, u64::MAX].into(),
        labels: [("a".into(), "b".into())].into(),
        note: "the server does not know this field".into(),
    };
    let reply = client.echo(message).await?.into_inner();
    check_payload(&reply.payload, 100)?;
    let same = reply.text == *"compatible" && reply.numbers[..] == [1, u64::MAX] && reply.labels["a"] == *"b";
    if !same {
        return Err(Status::data_loss(format!("the echo differs: {reply:?}")));
    }
    let filled = client.fill(Drips { sent: 0 }).await?.into_inner();
    let mut chat = client.chat(Drips { sent: 0 }).await?.into_inner();
    let mut done = Done::default();
    while let Some(drip) = chat.message().await? {
        check_payload(&drip.payload, DRIP_BYTES)?;
        done.count += 1;
    }
    match (filled.count, done.count) {
        (filled, chatted) if filled == u64::from(DRIPS) && chatted == filled => Ok(done),
        counts => Err(Status::data_loss(format!("of {DRIPS} messages came {counts:?}"))),
    }
}

/// Which server a new connection leads to, as metadata.
pub(crate) async fn which_server() -> Result<MetadataMap, Status> {
    let client = probe_compatible::probe_client::ProbeClient::connect("probe.Probe").await?;
    let request = CountsRequest {
        key: WHICH_SERVER.into(),
    };
    Ok(client.counts(request).await?.metadata().clone())
}

/// Serves `probe.Probe` by its compatible schema, as [`server::run`](crate::server::run) does by the usual one.
pub fn serve_compatible() -> Result<(), Status> {
    serve(ProbeServer::new(CompatibleProbe))
}

/// Answers `Counts` and `Echo` alone.
struct CompatibleProbe;

impl Probe for CompatibleProbe {
    async fn counts(
        &self,
        request: Request<Received<CountsRequest>>,
    ) -> Result<Response<CountsReply>, Status> {
        let mut response = Response::new(CountsReply::default());
        name_server(&request.get_ref().key, &mut response);
        Ok(response)
    }

    async fn echo(
        &self,
        request: Request<Received<probe_compatible::EchoMessage>>,
    ) -> Result<Response<probe_compatible::EchoMessage>, Status> {
        Ok(Response::new(probe_compatible::EchoMessage::clone(
            request.get_ref(),
        )))
    }

    type ChatStream = SentStream<Result<probe_compatible::Drop, Status>>;

    async fn chat(
        &self,
        _: Request<Streaming<probe_compatible::Drop>>,
    ) -> Result<Response<Self::ChatStream>, Status> {
        Err(Status::unimplemented("nobody chats here"))
    }

    async fn fill(
        &self,
        _: Request<Streaming<probe_compatible::Drop>>,
    ) -> Result<Response<probe_compatible::FillReply>, Status> {
        Err(Status::unimplemented("nobody fills here"))
    }
}

/// Requests with a field that the server does not know, and that makes them larger here than there.
struct Drips {
    sent: u32,
}

impl Stream for Drips {
    type Item = probe_compatible::Drop;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.sent == DRIPS {
            return Poll::Ready(None);
        }
        self.sent += 1;
        Poll::Ready(Some(probe_compatible::Drop {
            number: self.sent,
            payload: payload(DRIP_BYTES),
            notes: (0..20).map(|_| "no server knows this".into()).collect(),
        }))
    }
}
