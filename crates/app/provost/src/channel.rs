//! [`Channel`]: a connection to a service that is kept up.

use crate::codegen::ServiceDescriptor;
use crate::status::Status;

/// Where a service is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    service: String,
    address: String,
}

impl Target {
    /// Where the node's configuration routes this service to; it may bear another name than the schema gives it.
    #[must_use]
    pub fn service(name: impl Into<String>) -> Target {
        Target {
            service: name.into(),
            address: String::new(),
        }
    }

    /// At `host:port`, whatever the configuration says.
    #[must_use]
    pub fn address(address: impl Into<String>) -> Target {
        Target {
            service: String::new(),
            address: address.into(),
        }
    }
}

impl From<&str> for Target {
    fn from(name: &str) -> Target {
        Target::service(name)
    }
}

/// A connection to a service. Cheap to clone; all clones share the connection.
#[derive(Clone, Debug)]
pub struct Channel {}

impl Channel {
    /// Connects to a service through this process's [`App`](crate::App).
    pub async fn connect(service: &'static ServiceDescriptor, target: impl Into<Target>) -> Result<Channel, Status> {
        let _ = (service, target.into());
        todo!()
    }
}
