//! [`CallInterceptor`]: code that sees each call before it is made, or before it is handled.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::call_limits::CallLimits;
use crate::context::inherited_deadline_ns;
use crate::descriptor::{MethodKind, ServiceDescriptor};
use crate::extensions::ExtensionMap;
use crate::link::PeerSource;
use crate::metadata::MetadataMap;
use crate::peer::Peer;
use crate::status::Status;

/// Sees each call before it goes on: at a client before anything is sent, at a server before the handler begins. An error
/// ends the call with that status; at a client nothing is sent then, at a server no handler begins.
///
/// Any function of this form is one; a closure names its argument's type:
///
/// ```
/// use provost::{CallHead, Status};
///
/// let authorize = |call: &mut CallHead<'_>| match call.metadata().get("authorization") {
///     Some("Bearer secret") => Ok(()),
///     _ => Err(Status::unauthenticated(format!("{} needs a token", call.path()))),
/// };
/// let builder = provost::Server::builder().intercept(authorize);
/// # drop(builder);
/// ```
///
/// Interceptors are asked in the order in which they were added: a server's own ones before those of a service
/// ([`InterceptedService`](crate::InterceptedService)). They run on the task of the call and must not block. What has to
/// wait, or to see how a call ends, is a layer (feature `tower`).
pub trait CallInterceptor: Send + Sync + 'static {
    /// Lets the call go on, or ends it.
    fn intercept(&self, call: &mut CallHead<'_>) -> Result<(), Status>;
}

impl<F> CallInterceptor for F
where
    F: Fn(&mut CallHead<'_>) -> Result<(), Status> + Send + Sync + 'static,
{
    fn intercept(&self, call: &mut CallHead<'_>) -> Result<(), Status> {
        self(call)
    }
}

/// Several interceptors, asked in order.
pub(crate) type InterceptorList = Vec<Arc<dyn CallInterceptor>>;

/// All of a call but its messages, as an interceptor sees it.
#[derive(Debug)]
pub struct CallHead<'a> {
    pub(crate) path: CallPath,
    pub(crate) kind: MethodKind,
    pub(crate) metadata: &'a mut MetadataMap,
    pub(crate) limits: &'a mut CallLimits,
    pub(crate) extensions: &'a mut ExtensionMap,
    pub(crate) peer: Option<&'a PeerSource>,
}

impl CallHead<'_> {
    /// The service and the method.
    #[must_use]
    pub fn path(&self) -> CallPath {
        self.path
    }

    /// How messages flow in the method.
    #[must_use]
    pub fn kind(&self) -> MethodKind {
        self.kind
    }

    /// The request's metadata. At a client, what the channel adds and what is inherited from the current
    /// [`CallContext`](crate::CallContext) is in there.
    #[must_use]
    pub fn metadata(&self) -> &MetadataMap {
        self.metadata
    }

    /// The request's metadata, to be changed. At a server, calls that the handler makes inherit what this makes of
    /// `traceparent` and of other keys that are passed on.
    #[must_use]
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        self.metadata
    }

    /// The request's extensions, to be read.
    #[must_use]
    pub fn extensions(&self) -> &ExtensionMap {
        self.extensions
    }

    /// The request's extensions, to be changed: a server's handler finds there what interceptors leave.
    #[must_use]
    pub fn extensions_mut(&mut self) -> &mut ExtensionMap {
        self.extensions
    }

    /// Who calls, at a server; see [`Request::peer`](crate::Request::peer).
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.peer?.find()
    }

    /// How much time is left for the call; `None` when there is no limit.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let inherited_ns = match self.limits.deadline_ns {
            0 => inherited_deadline_ns(),
            deadline_ns => Some(deadline_ns),
        };
        let left = |deadline_ns: u64| Duration::from_nanos(deadline_ns.saturating_sub(provost_shm::now_ns()));
        [self.limits.timeout, inherited_ns.map(left)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Bounds the time from now that the call may take, if it has not less anyhow. At a server the handler, and calls that it
    /// makes, see the earlier deadline; the handler is not ended by it.
    pub fn limit_time(&mut self, timeout: Duration) {
        let own = self.limits.timeout.unwrap_or(timeout);
        self.limits.timeout = Some(own.min(timeout));
    }
}

/// The service and the method of a call. It prints as gRPC writes it: `/kv.Kv/Get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallPath {
    service: &'static str,
    method: &'static str,
}

impl CallPath {
    /// The path of a method; its name is empty if there is no such method.
    pub(crate) fn of(service: &ServiceDescriptor, method: u16) -> CallPath {
        let described = service.methods.get(usize::from(method));
        CallPath {
            service: service.name,
            method: described.map_or("", |method| method.name),
        }
    }

    /// Full name of the service, such as `kv.Kv`.
    #[must_use]
    pub const fn service(&self) -> &'static str {
        self.service
    }

    /// Name of the method as in the schema, such as `Get`.
    #[must_use]
    pub const fn method(&self) -> &'static str {
        self.method
    }
}

impl fmt::Display for CallPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.service, self.method)
    }
}
