//! The client of gRPC's interoperability tests (its `doc/interop-test-descriptions.md`) as an app: each case by itself.

use std::fmt::Debug;
use std::time::Duration;

use provost::{Code, MessageCodec, Received, Request, Response, Status, Streaming, stream};
use tokio::time::timeout;

use crate::interop::test_service_client::TestServiceClient;
use crate::interop::unimplemented_service_client::UnimplementedServiceClient;
use crate::interop::{
    BoolValue, EchoStatus, Empty, ResponseParameters, SimpleRequest, SimpleResponse,
    StreamingInputCallRequest, StreamingOutputCallRequest, StreamingOutputCallResponse, TestOrcaReport,
};
use crate::interop_server::{ECHO_INITIAL, ECHO_TRAILING, ENCODING, LOAD_REPORT, payload};
use crate::load_reports::open_rca_service_client::OpenRcaServiceClient;
use crate::load_reports::{OrcaLoadReport, OrcaLoadReportRequest};

/// How long a case may take on a busy machine.
const CASE_MAX: Duration = Duration::from_secs(40);
const TEST_SERVICE: &str = "grpc.testing.TestService";
/// Sizes of a large call.
const REQUEST_BYTES: i32 = 271_828;
const RESPONSE_BYTES: i32 = 314_159;
/// Sizes of the messages of a stream.
const REQUESTS_BYTES: [i32; 4] = [27_182, 8, 1_828, 45_904];
const RESPONSES_BYTES: [i32; 4] = [31_415, 9, 2_653, 58_979];
/// Calls, and connections, of the cases that last.
const SOAK_ITERATIONS: usize = 10;

/// What was not as the case wants it.
type CaseFault = String;

/// Carries out a case against what the node leads to; the error is what was not as it should be.
pub fn run(case: &str) -> Result<(), CaseFault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let outcome = runtime.block_on(async { timeout(CASE_MAX, carry_out(case)).await });
    outcome.unwrap_or_else(|_| Err(format!("not done after {CASE_MAX:?}")))
}

async fn carry_out(case: &str) -> Result<(), CaseFault> {
    let client = TestServiceClient::connect(TEST_SERVICE).await.map_err(fault)?;
    match case {
        "empty_unary" => empty_unary(&client).await,
        "large_unary" => large_unary(&client).await,
        "client_streaming" => client_streaming(&client).await,
        "server_streaming" => server_streaming(&client).await,
        "ping_pong" => ping_pong(&client).await,
        "empty_stream" => empty_stream(&client).await,
        "cancel_after_begin" => cancel_after_begin(&client).await,
        "cancel_after_first_response" => cancel_after_first_response(&client).await,
        "timeout_on_sleeping_server" => timeout_on_sleeping_server(&client).await,
        "custom_metadata" => custom_metadata(&client).await,
        "status_code_and_message" => status_code_and_message(&client).await,
        "special_status_message" => special_status_message(&client).await,
        "unimplemented_method" => {
            let called = client.unimplemented_call(Empty::default()).await;
            ends_with(called, Code::Unimplemented, None)
        }
        "unimplemented_service" => unimplemented_service().await,
        "rpc_soak" => rpc_soak(&client).await,
        "channel_soak" => channel_soak().await,
        "orca_per_rpc" => orca_per_rpc(&client).await,
        "orca_oob" => orca_oob(&client).await,
        "client_compressed_unary" => client_compressed_unary(&client).await,
        "client_compressed_streaming" => client_compressed_streaming(&client).await,
        "server_compressed_unary" => server_compressed_unary(&client).await,
        "server_compressed_streaming" => server_compressed_streaming(&client).await,
        _ => Err("there is no such case".to_owned()),
    }
}

async fn empty_unary(client: &TestServiceClient) -> Result<(), CaseFault> {
    let reply = client.empty_call(Empty::default()).await.map_err(fault)?;
    same(&**reply.get_ref(), &Empty::default())
}

fn large_request() -> Result<SimpleRequest, CaseFault> {
    Ok(SimpleRequest {
        response_size: RESPONSE_BYTES,
        payload: payload(REQUEST_BYTES).map_err(fault)?.into(),
        ..SimpleRequest::default()
    })
}

fn is_large(reply: &Response<Received<SimpleResponse>>) -> Result<(), CaseFault> {
    let body = reply.get_ref().payload.as_deref().map(|payload| &payload.body);
    let is_right = body.is_some_and(|body| body.len() == RESPONSE_BYTES as usize && !body.contains(&1));
    is_right
        .then_some(())
        .ok_or_else(|| format!("a payload of {:?} bytes", body.map(|body| body.len())))
}

async fn large_unary(client: &TestServiceClient) -> Result<(), CaseFault> {
    is_large(&client.unary_call(large_request()?).await.map_err(fault)?)
}

async fn client_streaming(client: &TestServiceClient) -> Result<(), CaseFault> {
    let (mut sender, requests) = stream(REQUESTS_BYTES.len());
    for bytes in REQUESTS_BYTES {
        let request = StreamingInputCallRequest {
            payload: payload(bytes).map_err(fault)?.into(),
            ..StreamingInputCallRequest::default()
        };
        sender.send(request).await.map_err(|_| gone())?;
    }
    drop(sender);
    let reply = client.streaming_input_call(requests).await.map_err(fault)?;
    same(
        &reply.get_ref().aggregated_payload_size,
        &REQUESTS_BYTES.iter().sum(),
    )
}

fn parameters(bytes: i32) -> ResponseParameters {
    ResponseParameters {
        size: bytes,
        ..ResponseParameters::default()
    }
}

/// A request for one response, of these sizes.
fn duplex_request(request_bytes: i32, response_bytes: i32) -> Result<StreamingOutputCallRequest, CaseFault> {
    Ok(StreamingOutputCallRequest {
        response_parameters: [parameters(response_bytes)].into(),
        payload: payload(request_bytes).map_err(fault)?.into(),
        ..StreamingOutputCallRequest::default()
    })
}

/// Reads one message of this size.
async fn reads(responses: &mut Streaming<StreamingOutputCallResponse>, bytes: i32) -> Result<(), CaseFault> {
    let response = responses.message().await.map_err(fault)?;
    let response = response.ok_or("the stream has ended before")?;
    let payload = response.payload.as_deref();
    same(
        &payload.map_or(0, |payload| payload.body.len()),
        &(bytes as usize),
    )
}

/// Reads the end of a stream, which is a good one.
async fn reads_end(responses: &mut Streaming<StreamingOutputCallResponse>) -> Result<(), CaseFault> {
    let further = responses.message().await.map_err(fault)?;
    same(&further.is_none(), &true)
}

async fn server_streaming(client: &TestServiceClient) -> Result<(), CaseFault> {
    let request = StreamingOutputCallRequest {
        response_parameters: RESPONSES_BYTES.map(parameters).into(),
        ..StreamingOutputCallRequest::default()
    };
    let replies = client.streaming_output_call(request).await.map_err(fault)?;
    let mut responses = replies.into_inner();
    for bytes in RESPONSES_BYTES {
        reads(&mut responses, bytes).await?;
    }
    reads_end(&mut responses).await
}

async fn ping_pong(client: &TestServiceClient) -> Result<(), CaseFault> {
    let (mut sender, requests) = stream(1);
    let mut sizes = REQUESTS_BYTES.into_iter().zip(RESPONSES_BYTES);
    let (first_bytes, response_bytes) = sizes.next().unwrap_or_default();
    // Servers may say nothing at all before they have a response.
    let first = duplex_request(first_bytes, response_bytes)?;
    sender.send(first).await.map_err(|_| gone())?;
    let replies = client.full_duplex_call(requests).await.map_err(fault)?;
    let mut responses = replies.into_inner();
    reads(&mut responses, response_bytes).await?;
    for (request_bytes, response_bytes) in sizes {
        let request = duplex_request(request_bytes, response_bytes)?;
        sender.send(request).await.map_err(|_| gone())?;
        reads(&mut responses, response_bytes).await?;
    }
    drop(sender);
    reads_end(&mut responses).await
}

async fn empty_stream(client: &TestServiceClient) -> Result<(), CaseFault> {
    let (sender, requests) = stream::<StreamingOutputCallRequest>(1);
    drop(sender);
    let replies = client.full_duplex_call(requests).await.map_err(fault)?;
    reads_end(&mut replies.into_inner()).await
}

/// A call that nobody waits for any more is cancelled. That the server has heard of it is for other tests to see; the connection
/// goes on.
async fn cancel_after_begin(client: &TestServiceClient) -> Result<(), CaseFault> {
    const BEGUN_WITHIN: Duration = Duration::from_millis(50);
    let (sender, requests) = stream::<StreamingInputCallRequest>(1);
    let call = client.streaming_input_call(requests);
    let outcome = timeout(BEGUN_WITHIN, call).await;
    drop(sender);
    same(&outcome.is_err(), &true)?;
    empty_unary(client).await
}

async fn cancel_after_first_response(client: &TestServiceClient) -> Result<(), CaseFault> {
    let (mut sender, requests) = stream(1);
    let first = duplex_request(REQUESTS_BYTES[0], RESPONSES_BYTES[0])?;
    sender.send(first).await.map_err(|_| gone())?;
    let replies = client.full_duplex_call(requests).await.map_err(fault)?;
    let mut responses = replies.into_inner();
    reads(&mut responses, RESPONSES_BYTES[0]).await?;
    drop(responses);
    // Nobody takes requests of the call any more.
    while sender.send(duplex_request(1, 1)?).await.is_ok() {}
    empty_unary(client).await
}

async fn timeout_on_sleeping_server(client: &TestServiceClient) -> Result<(), CaseFault> {
    let (mut sender, requests) = stream(1);
    let first = StreamingOutputCallRequest {
        payload: payload(REQUESTS_BYTES[0]).map_err(fault)?.into(),
        ..StreamingOutputCallRequest::default()
    };
    sender.send(first).await.map_err(|_| gone())?;
    let mut request = Request::new(requests);
    request.set_timeout(Duration::from_millis(1));
    let outcome = match client.full_duplex_call(request).await {
        Ok(replies) => replies.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    ends_with(outcome, Code::DeadlineExceeded, None)
}

const INITIAL_VALUE: &str = "test_initial_metadata_value";
const TRAILING_VALUE: &[u8] = b"\xab\xab\xab";

fn with_metadata<T>(message: T) -> Result<Request<T>, CaseFault> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert(ECHO_INITIAL, INITIAL_VALUE).map_err(fault)?;
    metadata
        .insert_bin(ECHO_TRAILING, TRAILING_VALUE)
        .map_err(fault)?;
    Ok(request)
}

async fn custom_metadata(client: &TestServiceClient) -> Result<(), CaseFault> {
    let request = SimpleRequest {
        response_size: 1,
        payload: payload(1).map_err(fault)?.into(),
        ..SimpleRequest::default()
    };
    let reply = client.unary_call(with_metadata(request)?).await.map_err(fault)?;
    same(&reply.metadata().get(ECHO_INITIAL), &Some(INITIAL_VALUE))?;
    same(&reply.trailers().get_bin(ECHO_TRAILING), &Some(TRAILING_VALUE))?;

    let (mut sender, requests) = stream(1);
    sender.send(duplex_request(1, 1)?).await.map_err(|_| gone())?;
    let replies = client
        .full_duplex_call(with_metadata(requests)?)
        .await
        .map_err(fault)?;
    same(&replies.metadata().get(ECHO_INITIAL), &Some(INITIAL_VALUE))?;
    let mut responses = replies.into_inner();
    reads(&mut responses, 1).await?;
    drop(sender);
    reads_end(&mut responses).await?;
    let trailers = responses.trailers();
    let trailing = trailers.and_then(|trailers| trailers.get_bin(ECHO_TRAILING));
    same(&trailing, &Some(TRAILING_VALUE))
}

fn status_of(message: &str) -> EchoStatus {
    EchoStatus {
        code: 2,
        message: message.into(),
    }
}

async fn ends_with_status(client: &TestServiceClient, message: &str) -> Result<(), CaseFault> {
    let request = SimpleRequest {
        response_status: status_of(message).into(),
        ..SimpleRequest::default()
    };
    ends_with(client.unary_call(request).await, Code::Unknown, Some(message))
}

async fn status_code_and_message(client: &TestServiceClient) -> Result<(), CaseFault> {
    let message = "test status message";
    ends_with_status(client, message).await?;
    let (mut sender, requests) = stream(1);
    let request = StreamingOutputCallRequest {
        response_status: status_of(message).into(),
        ..StreamingOutputCallRequest::default()
    };
    sender.send(request).await.map_err(|_| gone())?;
    drop(sender);
    let outcome = match client.full_duplex_call(requests).await {
        Ok(replies) => replies.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    ends_with(outcome, Code::Unknown, Some(message))
}

async fn special_status_message(client: &TestServiceClient) -> Result<(), CaseFault> {
    let message = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";
    ends_with_status(client, message).await
}

async fn unimplemented_service() -> Result<(), CaseFault> {
    let connected = UnimplementedServiceClient::connect("grpc.testing.UnimplementedService").await;
    let outcome = match connected {
        Ok(client) => client.unimplemented_call(Empty::default()).await.map(drop),
        Err(status) => Err(status),
    };
    ends_with(outcome, Code::Unimplemented, None)
}

async fn rpc_soak(client: &TestServiceClient) -> Result<(), CaseFault> {
    for _ in 0..SOAK_ITERATIONS {
        large_unary(client).await?;
    }
    Ok(())
}

async fn channel_soak() -> Result<(), CaseFault> {
    for _ in 0..SOAK_ITERATIONS {
        let client = TestServiceClient::connect(TEST_SERVICE).await.map_err(fault)?;
        large_unary(&client).await?;
    }
    Ok(())
}

fn load(processor: f64, memory: f64, utilization: f64) -> TestOrcaReport {
    TestOrcaReport {
        cpu_utilization: processor,
        memory_utilization: memory,
        utilization: [("util".into(), utilization)].into(),
        ..TestOrcaReport::default()
    }
}

fn is_reported(report: &OrcaLoadReport, set: &TestOrcaReport) -> bool {
    report.cpu_utilization == set.cpu_utilization
        && report.mem_utilization == set.memory_utilization
        && report.utilization == set.utilization
        && report.request_cost == set.request_cost
}

async fn orca_per_rpc(client: &TestServiceClient) -> Result<(), CaseFault> {
    let mut set = load(0.8210, 0.5847, 0.30499);
    set.request_cost = [("cost".into(), 3456.32)].into();
    let request = SimpleRequest {
        orca_per_query_report: set.clone().into(),
        ..SimpleRequest::default()
    };
    let reply = client.unary_call(request).await.map_err(fault)?;
    let report = reply.trailers().get_bin(LOAD_REPORT).ok_or("no report of load")?;
    let report = OrcaLoadReport::decode(report).map_err(fault)?;
    same(&is_reported(&report, &set), &true)
}

async fn orca_oob(client: &TestServiceClient) -> Result<(), CaseFault> {
    let reporter = OpenRcaServiceClient::connect("xds.service.orca.v3.OpenRcaService").await;
    let reporter = reporter.map_err(fault)?;
    let reports = reporter
        .stream_core_metrics(OrcaLoadReportRequest::default())
        .await;
    let mut reports = reports.map_err(fault)?.into_inner();
    let (mut sender, requests) = stream(1);
    let mut requests = Some(requests);
    let mut responses = None;
    for set in [load(0.8210, 0.5847, 0.30499), load(0.29309, 0.2, 0.2039)] {
        let request = StreamingOutputCallRequest {
            response_parameters: [parameters(1)].into(),
            orca_oob_report: set.clone().into(),
            ..StreamingOutputCallRequest::default()
        };
        sender.send(request).await.map_err(|_| gone())?;
        if let Some(requests) = requests.take() {
            let replies = client.full_duplex_call(requests).await.map_err(fault)?;
            responses = Some(replies.into_inner());
        }
        reads(responses.as_mut().ok_or("no stream")?, 1).await?;
        loop {
            let report = reports.message().await.map_err(fault)?;
            let report = report.ok_or("the reports have ended")?;
            if is_reported(&report, &set) {
                break;
            }
        }
    }
    Ok(())
}

fn expecting(compressed: bool, encoding: Option<&str>) -> Result<Request<SimpleRequest>, CaseFault> {
    let mut request = Request::new(large_request()?);
    request.get_mut().expect_compressed = BoolValue { value: compressed }.into();
    if let Some(encoding) = encoding {
        request.metadata_mut().insert(ENCODING, encoding).map_err(fault)?;
    }
    Ok(request)
}

async fn client_compressed_unary(client: &TestServiceClient) -> Result<(), CaseFault> {
    let untrue = client.unary_call(expecting(true, Some("identity"))?).await;
    ends_with(untrue, Code::InvalidArgument, None)?;
    for encoding in ["gzip", "deflate"] {
        let compressed = client.unary_call(expecting(true, Some(encoding))?).await;
        is_large(&compressed.map_err(fault)?)?;
    }
    is_large(&client.unary_call(expecting(false, None)?).await.map_err(fault)?)
}

/// All messages of a stream are compressed, or none is: so the case has two streams where gRPC's has one.
async fn client_compressed_streaming(client: &TestServiceClient) -> Result<(), CaseFault> {
    for (says, encoding) in [(true, "identity"), (true, "gzip"), (false, "identity")] {
        let (mut sender, requests) = stream(2);
        for bytes in [27_182, 45_904] {
            let request = StreamingInputCallRequest {
                payload: payload(bytes).map_err(fault)?.into(),
                expect_compressed: BoolValue { value: says }.into(),
            };
            sender.send(request).await.map_err(|_| gone())?;
        }
        drop(sender);
        let mut request = Request::new(requests);
        request.metadata_mut().insert(ENCODING, encoding).map_err(fault)?;
        let outcome = client.streaming_input_call(request).await;
        if says == (encoding == "gzip") {
            let reply = outcome.map_err(fault)?;
            same(&reply.get_ref().aggregated_payload_size, &73_086)?;
        } else {
            ends_with(outcome, Code::InvalidArgument, None)?;
        }
    }
    Ok(())
}

fn is_compressed<T>(reply: &Response<T>) -> bool {
    let encoding = reply.metadata().get(ENCODING);
    encoding.is_some_and(|encoding| encoding != "identity")
}

async fn server_compressed_unary(client: &TestServiceClient) -> Result<(), CaseFault> {
    for value in [true, false] {
        let mut request = large_request()?;
        request.response_compressed = BoolValue { value }.into();
        let reply = client.unary_call(request).await.map_err(fault)?;
        is_large(&reply)?;
        same(&is_compressed(&reply), &value)?;
    }
    Ok(())
}

async fn server_compressed_streaming(client: &TestServiceClient) -> Result<(), CaseFault> {
    let sizes = [(31_415, true), (92_653, false)];
    let asked = sizes.map(|(bytes, value)| ResponseParameters {
        compressed: BoolValue { value }.into(),
        ..parameters(bytes)
    });
    let request = StreamingOutputCallRequest {
        response_parameters: asked.into(),
        ..StreamingOutputCallRequest::default()
    };
    let replies = client.streaming_output_call(request).await.map_err(fault)?;
    same(&is_compressed(&replies), &true)?;
    let mut responses = replies.into_inner();
    for (bytes, _) in sizes {
        reads(&mut responses, bytes).await?;
    }
    reads_end(&mut responses).await
}

/// Whether a call has ended with this code, and with this message.
fn ends_with<T>(outcome: Result<T, Status>, code: Code, message: Option<&str>) -> Result<(), CaseFault> {
    match outcome {
        Ok(_) => Err(format!("{code:?} was expected, not success")),
        Err(status) if status.code() != code => Err(format!("{code:?} was expected, not {status}")),
        Err(status) => same(&status.message(), &message.unwrap_or(status.message())),
    }
}

fn same<T: PartialEq + Debug>(is: &T, expected: &T) -> Result<(), CaseFault> {
    if is == expected {
        return Ok(());
    }
    Err(format!("{is:?} is not {expected:?}"))
}

fn gone() -> CaseFault {
    "nobody takes the requests any more".to_owned()
}

fn fault(error: impl std::fmt::Display) -> CaseFault {
    error.to_string()
}
