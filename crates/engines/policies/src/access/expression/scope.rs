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
    /// The runtime whose thread evaluates.
    pub(crate) runtime: usize,
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
            runtime: datapath_context.runtime,
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
    constants.extend(own_app(&datapath_context.app));
    constants.extend(peer_app(datapath_context));
    constants
}

fn own_app(app: &AppIdentity) -> [(&'static str, Constant); 6] {
    [
        ("app.name", Constant::String(Arc::clone(&app.name))),
        ("app.user", Constant::String(Arc::clone(&app.user))),
        ("app.workload", Constant::String(Arc::clone(&app.workload))),
        ("app.uid", Constant::Int(i64::from(app.uid))),
        ("app.gid", Constant::Int(i64::from(app.gid))),
        ("app.pid", Constant::Int(i64::from(app.pid))),
    ]
}

/// The app at the other end and its node, as far as they are known: processes and groups only on this node.
fn peer_app(datapath_context: &DatapathContext) -> [(&'static str, Constant); 7] {
    let peer = &datapath_context.peer;
    let known = peer.known_app();
    let text = |text: Option<&Arc<str>>| Constant::String(text.map_or("".into(), Arc::clone));
    let number = |number: Option<i64>| Constant::Int(number.unwrap_or(-1));
    let local = peer.app.as_deref();
    [
        ("peer.node", text(datapath_context.peer_node())),
        ("peer.app.name", text(known.map(|app| app.name))),
        ("peer.app.user", text(known.map(|app| app.user))),
        ("peer.app.workload", text(known.map(|app| app.workload))),
        ("peer.app.uid", number(known.map(|app| i64::from(app.uid)))),
        ("peer.app.gid", number(local.map(|app| i64::from(app.gid)))),
        ("peer.app.pid", number(local.map(|app| i64::from(app.pid)))),
    ]
}
