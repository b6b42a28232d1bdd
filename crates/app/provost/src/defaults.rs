//! What a channel has for all of its calls: defaults and interceptors.

use std::sync::Arc;
use std::time::Duration;

use crate::call_limits::{MessageBounds, Readiness, bytes_max};
use crate::context::add_inherited;
use crate::descriptor::ServiceDescriptor;
use crate::intercept::{CallPath, InterceptorList};
use crate::metadata::MetadataMap;
use crate::request::Request;
use crate::status::Status;

/// What the calls of a channel have that do not say otherwise.
///
/// ```
/// use std::time::Duration;
/// use provost::{CallDefaults, MetadataMap, Readiness};
///
/// let mut metadata = MetadataMap::new();
/// metadata.insert("x-client", "billing")?;
/// let defaults = CallDefaults::new()
///     .timeout(Duration::from_secs(2))
///     .metadata(metadata)
///     .readiness(Readiness::Wait)
///     .response_bytes_max(1 << 20);
/// # Ok::<_, provost::MetadataError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallDefaults {
    timeout: Option<Duration>,
    metadata: MetadataMap,
    readiness: Option<Readiness>,
    messages: MessageBounds,
}

impl CallDefaults {
    /// None but the library's own.
    #[must_use]
    pub fn new() -> CallDefaults {
        CallDefaults::default()
    }

    /// How long calls may take that have no timeout of their own.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> CallDefaults {
        self.timeout = Some(timeout);
        self
    }

    /// Metadata of every call. Of a key that a call has itself, the call's own values stand alone.
    #[must_use]
    pub fn metadata(mut self, metadata: MetadataMap) -> CallDefaults {
        self.metadata = metadata;
        self
    }

    /// What calls do when there is no connection, and they do not say.
    #[must_use]
    pub fn readiness(mut self, readiness: Readiness) -> CallDefaults {
        self.readiness = Some(readiness);
        self
    }

    /// Ends a call with `RESOURCE_EXHAUSTED` in place of sending a message that is longer than this.
    #[must_use]
    pub fn request_bytes_max(mut self, bytes: usize) -> CallDefaults {
        self.messages.request_bytes_max = bytes_max(bytes);
        self
    }

    /// Ends a call with `RESOURCE_EXHAUSTED` when a message comes back that is longer than this.
    #[must_use]
    pub fn response_bytes_max(mut self, bytes: usize) -> CallDefaults {
        self.messages.response_bytes_max = bytes_max(bytes);
        self
    }

    fn complete<T>(&self, request: &mut Request<T>) {
        let limits = request.limits_mut();
        limits.timeout = limits.timeout.or(self.timeout);
        limits.readiness = limits.readiness.or(self.readiness);
        limits.messages = self.messages;
        if !self.metadata.is_empty() {
            request.metadata_mut().add_missing(&self.metadata);
        }
    }
}

/// What all calls of a channel go through before they begin.
#[derive(Clone, Default)]
pub(crate) struct ChannelRules {
    pub(crate) defaults: CallDefaults,
    pub(crate) interceptors: InterceptorList,
    #[cfg(feature = "tower")]
    pub(crate) layers: Option<Arc<dyn crate::layer::CallLayers>>,
}

/// The rules of a channel, to be changed; other clones of the channel keep theirs.
pub(crate) fn rules_of(rules: &mut Option<Arc<ChannelRules>>) -> &mut ChannelRules {
    Arc::make_mut(rules.get_or_insert_default())
}

impl ChannelRules {
    /// Completes a request, first by the defaults and then by what is inherited, and asks the interceptors.
    pub(crate) fn prepare<T>(
        &self,
        service: &'static ServiceDescriptor,
        method: u16,
        request: &mut Request<T>,
    ) -> Result<(), Status> {
        self.defaults.complete(request);
        add_inherited(request.metadata_mut());
        let Some(described) = service.methods.get(usize::from(method)) else {
            return Ok(());
        };
        let mut head = request.head(CallPath::of(service, method), described.kind);
        let mut interceptors = self.interceptors.iter();
        interceptors.try_for_each(|interceptor| interceptor.intercept(&mut head))
    }
}
