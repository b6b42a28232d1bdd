//! A collector of spans, to which nodes export them.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::service::Routes;

/// A collector that keeps the spans that it gets.
#[derive(Clone, Default)]
pub(crate) struct SpanCollector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for SpanCollector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        self.0
            .lock()
            .unwrap()
            .extend(scopes.flat_map(|scope| scope.spans));
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl SpanCollector {
    /// Serves for as long as the runtime is there, and says where.
    pub(crate) fn serve(&self, runtime: &tokio::runtime::Runtime) -> String {
        serve(runtime, Routes::new(TraceServiceServer::new(self.clone())))
    }

    /// All spans so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.0.lock().unwrap().clone()
    }
}

/// Serves for as long as the runtime is there, and says where.
pub(crate) fn serve(runtime: &tokio::runtime::Runtime, routes: Routes) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = tonic::transport::Server::builder().add_routes(routes);
        server.serve_with_incoming(incoming).await
    });
    format!("http://{address}")
}

/// Numbers of traces and spans as texts have them.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
