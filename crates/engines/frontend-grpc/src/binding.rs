//! The services that the calls of a connection are for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use provost_datapath::{CompressedMessages, Nanos};
use provost_marshal::Tables;
use provost_schema::{MessageId, Service};
use provost_wire::Code;

/// Services of one connection that are known, asked for or refused, at most.
pub(crate) const SERVICES_MAX: usize = 256;
/// For how long a refusal answers further calls, before the service is asked for again.
const REFUSED_NS: Nanos = 1_000_000_000;

/// A service that calls of a connection go to: over which connection of the node, and what its messages are where they are native.
#[derive(Clone, Debug)]
pub struct ServiceBinding {
    /// The number of the connection at the port.
    pub connection: u32,
    /// Tables of the schema of the service.
    pub tables: Arc<Tables>,
    /// Its methods by their names.
    pub methods: Arc<HashMap<String, MethodBinding>>,
    /// Whether it may have others.
    pub methods_known: KnownMethods,
    /// Largest message that the connection takes, in bytes.
    pub message_bytes_max: u32,
    /// What becomes of messages that are compressed, of the client and for it.
    pub compressed: CompressedMessages,
}

/// Which methods of a service are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownMethods {
    /// All that it has, as its schema says.
    All,
    /// Those that were called, as there is no schema: the control plane is asked for another.
    ThoseCalled,
}

/// A method of a service that the control plane is to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedService {
    /// The full name of the service, as the client has it.
    pub service: String,
    /// The name of the method that is called first.
    pub method: String,
}

/// One method of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodBinding {
    /// Its number in the schema.
    pub index: u16,
    /// The message of its responses.
    pub output: MessageId,
    /// Whether the client sends any number of messages.
    pub client_streaming: bool,
    /// Whether the server sends any number of messages.
    pub server_streaming: bool,
}

impl MethodBinding {
    /// The methods of a service by their names.
    #[must_use]
    pub fn of_service(service: &Service) -> HashMap<String, MethodBinding> {
        let methods = (0..).zip(&service.methods);
        let binding = |(index, method): (u16, &provost_schema::Method)| {
            let binding = MethodBinding {
                index,
                output: method.output,
                client_streaming: method.client_streaming,
                server_streaming: method.server_streaming,
            };
            (method.name.clone(), binding)
        };
        methods.map(binding).collect()
    }
}

/// Why a service cannot be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRefusal {
    /// The status of its calls.
    pub code: Code,
    /// Why, and what to do about it.
    pub message: String,
}

/// Where calls of a service go, and under which numbers.
#[derive(Debug)]
pub(crate) struct NumberedBinding {
    pub(crate) service: ServiceBinding,
    /// The number that the last call had which began. Only the port's thread uses it.
    last_call: AtomicU64,
}

impl NumberedBinding {
    /// One whose calls have got numbers from another process already.
    pub(crate) fn going_on(service: ServiceBinding, last_number: u64) -> NumberedBinding {
        NumberedBinding {
            service,
            last_call: AtomicU64::new(last_number),
        }
    }

    /// Whether calls of a method go there, or are refused there.
    fn decides_on(&self, method: &str) -> bool {
        let ServiceBinding {
            methods,
            methods_known,
            ..
        } = &self.service;
        *methods_known == KnownMethods::All || methods.contains_key(method)
    }

    /// The highest number that was given.
    pub(crate) fn last_number(&self) -> u64 {
        self.last_call.load(Ordering::Relaxed)
    }

    /// The number of a call that begins now: those that begin later have higher ones.
    pub(crate) fn next_number(&self) -> u64 {
        self.last_call.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Where calls of a service go, or went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindingUse<'a> {
    /// The full name of the service.
    pub(crate) service: &'a str,
    pub(crate) binding: &'a Arc<NumberedBinding>,
    /// Calls that begin now go there.
    pub(crate) is_current: bool,
}

/// What is known of a service.
#[derive(Debug)]
pub(crate) enum ServiceState {
    /// The control plane was asked; these calls wait.
    Wanted {
        waiting: Vec<u32>,
        /// Where calls of other methods go meanwhile.
        bound: Option<Arc<NumberedBinding>>,
    },
    /// Calls go to it.
    Bound(Arc<NumberedBinding>),
    /// Calls are refused for a while.
    Refused { refusal: ServiceRefusal, until: Nanos },
}

/// What becomes of a call of a service.
#[derive(Debug)]
pub(crate) enum ServiceLookup {
    /// It goes to this connection.
    Bound(Arc<NumberedBinding>),
    /// It waits; the control plane is to be asked now, if it was not already.
    Waits {
        asks: bool,
    },
    Refused(ServiceRefusal),
}

/// The services of one connection.
#[derive(Debug, Default)]
pub(crate) struct ServiceTable(HashMap<String, ServiceState>);

impl ServiceTable {
    /// What becomes of a call, whose stream is noted if it waits.
    pub(crate) fn look_up(
        &mut self,
        (service, method): (&str, &str),
        stream: u32,
        now: Nanos,
    ) -> ServiceLookup {
        let mut bound = None;
        match self.0.get_mut(service) {
            Some(
                ServiceState::Bound(binding)
                | ServiceState::Wanted {
                    bound: Some(binding), ..
                },
            ) if binding.decides_on(method) => return ServiceLookup::Bound(Arc::clone(binding)),
            Some(ServiceState::Bound(binding)) => bound = Some(Arc::clone(binding)),
            Some(ServiceState::Wanted { waiting, .. }) => {
                waiting.push(stream);
                return ServiceLookup::Waits { asks: false };
            }
            Some(ServiceState::Refused { refusal, until }) if now < *until => {
                return ServiceLookup::Refused(refusal.clone());
            }
            Some(ServiceState::Refused { .. }) | None => {}
        }
        if self.0.len() >= SERVICES_MAX && !self.0.contains_key(service) {
            self.0
                .retain(|_, state| !matches!(state, ServiceState::Refused { .. }));
        }
        if self.0.len() >= SERVICES_MAX && !self.0.contains_key(service) {
            return ServiceLookup::Refused(ServiceRefusal {
                code: Code::ResourceExhausted,
                message: format!(
                    "this connection has called {SERVICES_MAX} services, which is its limit: call others over \
                     another connection"
                ),
            });
        }
        let waiting = vec![stream];
        self.0
            .insert(service.to_owned(), ServiceState::Wanted { waiting, bound });
        ServiceLookup::Waits { asks: true }
    }

    /// Where calls go now that begin.
    pub(crate) fn bindings(&self) -> Vec<BindingUse<'_>> {
        let bound = self.0.iter().filter_map(|(service, state)| match state {
            ServiceState::Bound(binding)
            | ServiceState::Wanted {
                bound: Some(binding), ..
            } => Some(BindingUse {
                service,
                binding,
                is_current: true,
            }),
            ServiceState::Wanted { bound: None, .. } | ServiceState::Refused { .. } => None,
        });
        bound.collect()
    }

    /// Calls of a service go there, as another process was told.
    pub(crate) fn bind(&mut self, service: &str, binding: Arc<NumberedBinding>) {
        self.0.insert(service.to_owned(), ServiceState::Bound(binding));
    }

    /// A call that waits has ended.
    pub(crate) fn forget_waiting(&mut self, service: &str, stream: u32) {
        if let Some(ServiceState::Wanted { waiting, .. }) = self.0.get_mut(service) {
            waiting.retain(|waiting| *waiting != stream);
        }
    }

    /// The control plane's answer; the calls that waited for it.
    pub(crate) fn answer(
        &mut self,
        service: &str,
        answer: &Result<ServiceBinding, ServiceRefusal>,
        now: Nanos,
    ) -> Vec<u32> {
        let Some(ServiceState::Wanted { waiting, bound }) = self.0.get_mut(service) else {
            // Nobody had asked: what was known stays.
            return Vec::new();
        };
        let (waiting, bound) = (std::mem::take(waiting), bound.take());
        let next = match (answer, bound) {
            (Ok(binding), _) => ServiceState::Bound(Arc::new(NumberedBinding {
                service: binding.clone(),
                last_call: AtomicU64::new(0),
            })),
            // The methods that were called before can be called still.
            (Err(_), Some(before)) => ServiceState::Bound(before),
            (Err(refusal), None) => ServiceState::Refused {
                refusal: refusal.clone(),
                until: now + REFUSED_NS,
            },
        };
        self.0.insert(service.to_owned(), next);
        waiting
    }

    /// Calls go to this connection no more.
    pub(crate) fn forget_connection(&mut self, connection: u32) {
        self.0.retain(|_, state| match state {
            ServiceState::Bound(binding) => binding.service.connection != connection,
            ServiceState::Wanted { bound, .. } => {
                bound.take_if(|binding| binding.service.connection == connection);
                true
            }
            ServiceState::Refused { .. } => true,
        });
    }
}
