//! What names mean where an expression is attached.

use std::collections::BTreeMap;
use std::sync::Arc;

use provost_engine::{AppIdentity, DatapathContext, MethodContext, Side};
use provost_marshal::Tables;
use provost_schema::{MessageId, Schema};

use super::constant::Constant;
use crate::access::lists::ValueList;

/// What the names in an expression mean: for one method of a service on one datapath.
#[derive(Clone)]
pub struct Scope {
    pub(crate) schema: Arc<Schema>,
    pub(crate) tables: Arc<Tables>,
    pub(crate) request: MessageId,
    pub(crate) response: MessageId,
    /// The package of the service, within which names of enums can be short.
    pub(crate) package: String,
    /// What does not change on the datapath, by its name with dots.
    pub(crate) constants: BTreeMap<&'static str, Constant>,
    pub(crate) lists: Arc<BTreeMap<String, Arc<ValueList>>>,
}

impl Scope {
    /// The scope of a method.
    #[must_use]
    pub fn new(
        datapath_context: &DatapathContext,
        method: &MethodContext,
        lists: Arc<BTreeMap<String, Arc<ValueList>>>,
    ) -> Scope {
        let package = datapath_context
            .service
            .rsplit_once('.')
            .map_or("", |(package, _)| package);
        Scope {
            schema: Arc::clone(&datapath_context.schema),
            tables: Arc::clone(&datapath_context.tables),
            request: method.input,
            response: method.output,
            package: package.to_owned(),
            constants: constants(datapath_context, method),
            lists,
        }
    }
}

fn constants(datapath_context: &DatapathContext, method: &MethodContext) -> BTreeMap<&'static str, Constant> {
    let text = |text: &str| Constant::String(text.into());
    let mut constants = BTreeMap::from([
        ("method", Constant::String(Arc::clone(&method.path))),
        ("service", Constant::String(Arc::clone(&datapath_context.service))),
        ("node", Constant::String(Arc::clone(&datapath_context.node))),
        (
            "side",
            text(match datapath_context.side {
                Side::Client => "client",
                Side::Server => "server",
            }),
        ),
        (
            "peer.identity",
            Constant::String(Arc::clone(&datapath_context.peer.identity)),
        ),
        (
            "peer.address",
            Constant::String(Arc::clone(&datapath_context.peer.address)),
        ),
        ("peer.transport", text(datapath_context.peer.transport)),
    ]);
    let identity = |app: Option<&AppIdentity>| {
        [
            Constant::String(app.map_or("".into(), |app| Arc::clone(&app.name))),
            Constant::Int(app.map_or(-1, |app| i64::from(app.uid))),
            Constant::Int(app.map_or(-1, |app| i64::from(app.gid))),
            Constant::Int(app.map_or(-1, |app| i64::from(app.pid))),
        ]
    };
    let own = ["app.name", "app.uid", "app.gid", "app.pid"];
    let peers = ["peer.app.name", "peer.app.uid", "peer.app.gid", "peer.app.pid"];
    constants.extend(own.into_iter().zip(identity(Some(&datapath_context.app))));
    constants.extend(
        peers
            .into_iter()
            .zip(identity(datapath_context.peer.app.as_deref())),
    );
    constants
}
