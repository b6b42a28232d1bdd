//! The node's page for people: one document that shows what goes on, and the JSON that it reads.
//!
//! ```text
//! browser ──GET /──────────────► document (the same for everybody, without a word about the node)
//!         ──GET /api/overview──► access: Host, origin, role ──► overview ──► the admin API, in this process
//!         ──GET /api/taps──────► access: Host, origin, role ──► the admin API's Tap
//! ```
//!
//! It changes nothing: there is no method but GET, and behind it only those of the admin API that look. What somebody sees
//! is what their role in the admin API lets them see.

mod access;
mod document;
mod overview;
mod traffic;

use std::io;
use std::rc::Rc;

use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, StatusCode};
use provost_admin::v1::TapRequest;
use provost_admin::v1::admin_server::Admin;
use serde_json::json;
use tonic::Status;

use crate::admin::{self, Caller, Server};
use crate::config::ListenAddress;
use crate::control_plane::ControlPlane;
use crate::http_server::{self, HttpAnswer, HttpResponder, HttpVisitor, plain, typed};
use crate::stream_listener::{SocketMode, StreamListener, UnixSocketTerms};

use access::{AccessRefusal, PageAccess};
use document::PageDocument;
use overview::OverviewSource;

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 16;
/// Calls that are shown of each tap, at most.
const TAPPED_CALLS_MAX: u32 = 20;
/// What is read for the page.
const JSON_TYPE: &str = "application/json";
/// What every answer carries: it is for this page alone, is not kept anywhere, and tells nobody where it came from.
const HEADERS: [(&str, &str); 6] = [
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// Opens the socket; one of Unix gets these permission bits. A socket file that nobody listens at any more is replaced.
pub(crate) fn open(address: &ListenAddress, mode: u32) -> io::Result<StreamListener> {
    let terms = UnixSocketTerms {
        mode: SocketMode::Exactly(mode),
        backlog: BACKLOG,
    };
    StreamListener::open(address, terms)
}

/// Serves the page, for ever.
pub(crate) async fn serve(plane: ControlPlane, listener: StreamListener) {
    let barrier = Rc::clone(&plane.quiesce_barrier);
    http_server::serve(barrier, listener, Rc::new(PageResponder::new(plane))).await;
}

/// The page of one node.
struct PageResponder {
    access: PageAccess,
    admin: Rc<Server>,
    document: PageDocument,
    overview: OverviewSource,
}

impl PageResponder {
    fn new(plane: ControlPlane) -> PageResponder {
        let access = PageAccess::new(&plane.config.started.page);
        let admin = Rc::new(admin::service(plane));
        PageResponder {
            access,
            document: PageDocument::new(),
            overview: OverviewSource::new(Rc::clone(&admin)),
            admin,
        }
    }

    async fn routed(&self, visitor: &HttpVisitor, request: &Request<Incoming>) -> HttpAnswer {
        if let Err(refusal) = access::check_host(request) {
            return refused(&refusal);
        }
        let path = request.uri().path();
        if path == "/" {
            return self.document.answer();
        }
        if !path.starts_with("/api/") {
            return plain(
                StatusCode::NOT_FOUND,
                "there are /, /api/overview and /api/taps\n",
            );
        }
        let caller = match self.access.caller(&self.admin, visitor, request) {
            Ok(caller) => caller,
            Err(refusal) => return refused(&refusal),
        };
        let told = match path {
            "/api/overview" => self.overview.read(&caller).await,
            "/api/taps" => self.taps(&caller).await,
            _ => Err(Status::not_found("there are /api/overview and /api/taps")),
        };
        told.map_or_else(|status| failed(&status), |json| typed(json, JSON_TYPE))
    }

    /// The calls that taps have kept, with what was to be redacted redacted.
    async fn taps(&self, caller: &Caller) -> Result<String, Status> {
        let asked = TapRequest {
            recent: TAPPED_CALLS_MAX,
            ..TapRequest::default()
        };
        let mut samples = self.admin.tap(caller.request(asked)).await?.into_inner();
        let mut told = Vec::new();
        while let Some(sample) = samples.next().await {
            told.push(sample?);
        }
        Ok(json!({ "samples": told }).to_string())
    }
}

impl HttpResponder for PageResponder {
    async fn answer(&self, visitor: &HttpVisitor, request: &Request<Incoming>) -> HttpAnswer {
        let mut answer = self.routed(visitor, request).await;
        for (name, value) in HEADERS {
            let name = HeaderName::from_static(name);
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}

fn refused(refusal: &AccessRefusal) -> HttpAnswer {
    told_why(refusal.status(), &refusal.to_string())
}

/// What the admin API says, as HTTP has it.
fn failed(status: &Status) -> HttpAnswer {
    let code = match status.code() {
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => StatusCode::FORBIDDEN,
        tonic::Code::NotFound => StatusCode::NOT_FOUND,
        tonic::Code::FailedPrecondition => StatusCode::CONFLICT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    told_why(code, status.message())
}

fn told_why(status: StatusCode, why: &str) -> HttpAnswer {
    let mut answer = typed(json!({ "error": why }).to_string(), JSON_TYPE);
    *answer.status_mut() = status;
    answer
}
