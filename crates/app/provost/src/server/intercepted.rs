//! [`InterceptedService`]: an interceptor of one service alone.

use std::fmt;
use std::sync::Arc;

use super::handler::{Methods, Service};
use crate::descriptor::ServiceDescriptor;
use crate::intercept::CallInterceptor;

/// A service whose calls an interceptor sees first. Generated servers make one by `with_interceptor`.
pub struct InterceptedService<S> {
    inner: S,
    interceptor: Arc<dyn CallInterceptor>,
}

impl<S: Service> InterceptedService<S> {
    /// Has the interceptor see the calls of this service.
    pub fn new(inner: S, interceptor: impl CallInterceptor) -> InterceptedService<S> {
        InterceptedService {
            inner,
            interceptor: Arc::new(interceptor),
        }
    }
}

impl<S: Service> Service for InterceptedService<S> {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        self.inner.descriptor()
    }

    fn register(&self, methods: &mut Methods) {
        methods.intercepted(&self.interceptor, |methods| self.inner.register(methods));
    }
}

impl<S: Clone> Clone for InterceptedService<S> {
    fn clone(&self) -> InterceptedService<S> {
        InterceptedService {
            inner: self.inner.clone(),
            interceptor: self.interceptor.clone(),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for InterceptedService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InterceptedService").field(&self.inner).finish()
    }
}
