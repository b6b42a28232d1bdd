//! A server of gRPC's interoperability tests (its `doc/interop-test-descriptions.md`) that is an app: what the library gives a
//! server has to do for all of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use provost::{
    Code, MessageCodec, MetadataMap, Received, Request, Response, SentStream, Server, Status, StreamSender,
    Streaming,
};
use tokio::time::sleep;

use crate::interop::test_service_server::{TestService, TestServiceServer};
use crate::interop::{
    BoolValue, EchoStatus, Empty, Payload, SimpleRequest, SimpleResponse, StreamingInputCallRequest,
    StreamingInputCallResponse, StreamingOutputCallRequest, StreamingOutputCallResponse, TestOrcaReport,
};
use crate::load_reports::open_rca_service_server::{OpenRcaService, OpenRcaServiceServer};
use crate::load_reports::{OrcaLoadReport, OrcaLoadReportRequest};
use crate::server::serve_all;

/// Metadata that a server returns: as initial metadata, and as trailing metadata.
pub(crate) const ECHO_INITIAL: &str = "x-grpc-test-echo-initial";
pub(crate) const ECHO_TRAILING: &str = "x-grpc-test-echo-trailing-bin";
/// By which an app says how its messages are to be compressed, and is told how others were.
pub(crate) const ENCODING: &str = "grpc-internal-encoding-request";
/// Where a call's report of the server's load is.
pub(crate) const LOAD_REPORT: &str = "endpoint-load-metrics-bin";
/// Between two reports of load. Clients ask for less often; nothing forbids more.
const REPORT_EVERY: Duration = Duration::from_millis(100);

type InteropResponses = SentStream<Result<StreamingOutputCallResponse, Status>>;
type ResponseSender = StreamSender<Result<StreamingOutputCallResponse, Status>>;

/// Handlers of both services.
#[derive(Clone, Debug, Default)]
struct InteropService {
    /// The report of load that a client has set last, as protobuf.
    load: Arc<Mutex<Vec<u8>>>,
}

/// Serves both services until the input ends.
pub fn run() -> Result<(), Status> {
    let service = InteropService::default();
    let services = Server::builder()
        .add_service(TestServiceServer::new(service.clone()))
        .add_service(OpenRcaServiceServer::new(service));
    serve_all(services)
}

impl TestService for InteropService {
    async fn empty_call(&self, _: Request<Received<Empty>>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty::default()))
    }

    async fn unary_call(
        &self,
        request: Request<Received<SimpleRequest>>,
    ) -> Result<Response<SimpleResponse>, Status> {
        let asked = request.get_ref();
        came_as_expected(asked.expect_compressed.as_deref(), request.metadata())?;
        asked_status(asked.response_status.as_deref())?;
        let mut response = Response::new(SimpleResponse {
            payload: payload(asked.response_size)?.into(),
        });
        echo_metadata(request.metadata(), &mut response)?;
        if let Some(compressed) = asked.response_compressed.as_deref() {
            compress(compressed, &mut response)?;
        }
        if let Some(asked) = asked.orca_per_query_report.as_deref() {
            let report = encoded(asked)?;
            let inserted = response.trailers_mut().insert_bin(LOAD_REPORT, &report);
            inserted.map_err(internal)?;
        }
        Ok(response)
    }

    type StreamingOutputCallStream = InteropResponses;

    async fn streaming_output_call(
        &self,
        request: Request<Received<StreamingOutputCallRequest>>,
    ) -> Result<Response<InteropResponses>, Status> {
        let (mut sender, responses) = provost::stream(1);
        let mut response = Response::new(responses);
        let asked = request.get_ref();
        // One head is for all messages of a stream: they are compressed, or none is.
        let compressed = asked
            .response_parameters
            .iter()
            .find_map(|of| of.compressed.as_deref());
        if let Some(compressed) = compressed {
            compress(compressed, &mut response)?;
        }
        let asked = StreamingOutputCallRequest::clone(asked);
        tokio::spawn(async move { answer(&asked, &mut sender).await });
        Ok(response)
    }

    async fn streaming_input_call(
        &self,
        request: Request<Streaming<StreamingInputCallRequest>>,
    ) -> Result<Response<StreamingInputCallResponse>, Status> {
        let encoding = request.metadata().clone();
        let mut requests = request.into_inner();
        let mut reply = StreamingInputCallResponse::default();
        while let Some(asked) = requests.message().await? {
            came_as_expected(asked.expect_compressed.as_deref(), &encoding)?;
            let body = asked.payload.as_deref().map_or(0, |payload| payload.body.len());
            reply.aggregated_payload_size += body as i32;
        }
        Ok(Response::new(reply))
    }

    type FullDuplexCallStream = InteropResponses;

    async fn full_duplex_call(
        &self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<InteropResponses>, Status> {
        let (mut sender, responses) = provost::stream(1);
        let mut response = Response::new(responses);
        echo_metadata(request.metadata(), &mut response)?;
        let (service, mut requests) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(asked)) = requests.message().await {
                if let Some(report) = asked.orca_oob_report.as_deref() {
                    service.report_from_now_on(report);
                }
                if answer(&asked, &mut sender).await.is_none() {
                    break;
                }
            }
        });
        Ok(response)
    }

    type HalfDuplexCallStream = InteropResponses;

    async fn half_duplex_call(
        &self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<InteropResponses>, Status> {
        let (mut sender, responses) = provost::stream(1);
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            let mut all = Vec::new();
            while let Ok(Some(asked)) = requests.message().await {
                all.push(asked);
            }
            for asked in &all {
                if answer(asked, &mut sender).await.is_none() {
                    break;
                }
            }
        });
        Ok(Response::new(responses))
    }

    async fn unimplemented_call(&self, _: Request<Received<Empty>>) -> Result<Response<Empty>, Status> {
        Err(Status::unimplemented("no server has this method"))
    }
}

impl OpenRcaService for InteropService {
    type StreamCoreMetricsStream = SentStream<Result<OrcaLoadReport, Status>>;

    async fn stream_core_metrics(
        &self,
        _: Request<Received<OrcaLoadReportRequest>>,
    ) -> Result<Response<Self::StreamCoreMetricsStream>, Status> {
        let (mut sender, reports) = provost::stream(1);
        let load = Arc::clone(&self.load);
        tokio::spawn(async move {
            loop {
                let bytes = load.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let report = OrcaLoadReport::decode(&bytes).map_err(internal);
                if sender.send(report).await.is_err() {
                    return;
                }
                sleep(REPORT_EVERY).await;
            }
        });
        Ok(Response::new(reports))
    }
}

impl InteropService {
    fn report_from_now_on(&self, report: &TestOrcaReport) {
        if let Ok(bytes) = encoded(report) {
            *self.load.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        }
    }
}

/// Sends what a request asks for: a status, which ends the call, or messages. None when there is nothing more to send.
async fn answer(asked: &StreamingOutputCallRequest, sender: &mut ResponseSender) -> Option<()> {
    if let Err(status) = asked_status(asked.response_status.as_deref()) {
        // It fails where the client has gone.
        let _ = sender.send(Err(status)).await;
        return None;
    }
    for of in asked.response_parameters.iter() {
        if let pause @ 1.. = of.interval_us {
            sleep(Duration::from_micros(pause.unsigned_abs().into())).await;
        }
        let response = payload(of.size).map(|payload| StreamingOutputCallResponse {
            payload: payload.into(),
        });
        sender.send(response).await.ok()?;
    }
    Some(())
}

/// The status that a request asks for, if it is not OK.
fn asked_status(asked: Option<&EchoStatus>) -> Result<(), Status> {
    match asked {
        Some(asked) if asked.code != 0 => Err(Status::new(
            Code::from_number(asked.code.unsigned_abs()),
            asked.message.as_str(),
        )),
        _ => Ok(()),
    }
}

/// A payload of so many zeros.
pub(crate) fn payload(bytes: i32) -> Result<Payload, Status> {
    let bytes = usize::try_from(bytes)
        .map_err(|_| Status::invalid_argument(format!("no payload has {bytes} bytes")))?;
    Ok(Payload {
        body: vec![0; bytes].as_slice().into(),
    })
}

/// Whether a message has come compressed is told by the head of its call, where all messages are alike.
fn came_as_expected(expected: Option<&BoolValue>, metadata: &MetadataMap) -> Result<(), Status> {
    let is_compressed = metadata
        .get(ENCODING)
        .is_some_and(|encoding| encoding != "identity");
    match expected {
        Some(expected) if expected.value != is_compressed => {
            Err(Status::invalid_argument("a message is not compressed as it says"))
        }
        _ => Ok(()),
    }
}

/// Has the messages of a response compressed, or not.
fn compress<T>(compressed: &BoolValue, response: &mut Response<T>) -> Result<(), Status> {
    let encoding = if compressed.value { "gzip" } else { "identity" };
    let inserted = response.metadata_mut().insert(ENCODING, encoding);
    inserted.map_err(internal)
}

/// Returns the metadata that a client wants to see again.
fn echo_metadata<T>(from: &MetadataMap, response: &mut Response<T>) -> Result<(), Status> {
    if let Some(initial) = from.get(ECHO_INITIAL) {
        let inserted = response.metadata_mut().insert(ECHO_INITIAL, initial);
        inserted.map_err(internal)?;
    }
    if let Some(trailing) = from.get_bin(ECHO_TRAILING) {
        let inserted = response.trailers_mut().insert_bin(ECHO_TRAILING, trailing);
        inserted.map_err(internal)?;
    }
    Ok(())
}

/// A report of load, as clients read it.
fn encoded(report: &TestOrcaReport) -> Result<Vec<u8>, Status> {
    let report = OrcaLoadReport {
        cpu_utilization: report.cpu_utilization,
        mem_utilization: report.memory_utilization,
        request_cost: report.request_cost.clone(),
        utilization: report.utilization.clone(),
    };
    report.encode().map_err(internal)
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}
