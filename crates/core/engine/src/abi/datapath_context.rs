//! A datapath context in the form in which it crosses the boundary.

use super::types::{
    App, Bytes, DatapathContext as RawDatapathContext, IdentityForm, Method, SIDE_CLIENT, SIDE_SERVER,
};
use crate::{AppIdentity, DatapathContext, PeerApp, Side};

/// What a [`RawDatapathContext`] points to. It lends from the datapath context.
pub struct ContextForm<'a> {
    datapath_context: &'a DatapathContext,
    app: App,
    peer_app: Option<App>,
    app_identity: IdentityForm,
    peer_app_identity: Option<IdentityForm>,
    methods: Vec<Method>,
    descriptor_set: Vec<u8>,
}

impl<'a> ContextForm<'a> {
    /// The form of a datapath context.
    #[must_use]
    pub fn of(datapath_context: &'a DatapathContext) -> ContextForm<'a> {
        ContextForm {
            datapath_context,
            app: app(&datapath_context.app),
            peer_app: datapath_context.peer.app.as_deref().map(app),
            app_identity: own_identity(datapath_context),
            peer_app_identity: peer_identity(datapath_context),
            methods: methods(datapath_context),
            descriptor_set: datapath_context.schema.to_descriptor_set(),
        }
    }

    /// The form as C has it. It is valid as long as this is borrowed.
    #[must_use]
    pub fn raw(&self) -> RawDatapathContext {
        let DatapathContext {
            node, service, peer, ..
        } = self.datapath_context;
        RawDatapathContext {
            struct_bytes: size_of::<RawDatapathContext>() as u32,
            side: match self.datapath_context.side {
                Side::Client => SIDE_CLIENT,
                Side::Server => SIDE_SERVER,
            },
            reserved: [0; 3],
            connection: self.datapath_context.connection,
            runtime: self.datapath_context.runtime as u64,
            node: Bytes::text(node),
            service: Bytes::text(service),
            peer_identity: Bytes::text(&peer.identity),
            peer_address: Bytes::text(&peer.address),
            transport: Bytes::text(peer.transport),
            descriptor_set: Bytes::of(&self.descriptor_set),
            app: &raw const self.app,
            peer_app: self
                .peer_app
                .as_ref()
                .map_or(std::ptr::null(), std::ptr::from_ref),
            methods: self.methods.as_ptr(),
            method_count: self.methods.len(),
            app_identity: &raw const self.app_identity,
            peer_app_identity: self
                .peer_app_identity
                .as_ref()
                .map_or(std::ptr::null(), std::ptr::from_ref),
        }
    }
}

fn app(app: &AppIdentity) -> App {
    App {
        name: Bytes::text(&app.name),
        id: app.id,
        pid: app.pid,
        uid: app.uid,
        gid: app.gid,
        reserved: 0,
    }
}

fn own_identity(datapath_context: &DatapathContext) -> IdentityForm {
    let app = &*datapath_context.app;
    let known = PeerApp {
        name: &app.name,
        user: &app.user,
        uid: app.uid,
        workload: &app.workload,
    };
    identity(&datapath_context.node, known)
}

fn peer_identity(datapath_context: &DatapathContext) -> Option<IdentityForm> {
    let known = datapath_context.peer.known_app()?;
    let node = datapath_context.peer_node().map_or("", |node| node);
    Some(identity(node, known))
}

fn identity(node: &str, app: PeerApp<'_>) -> IdentityForm {
    IdentityForm {
        node: Bytes::text(node),
        name: Bytes::text(app.name),
        user: Bytes::text(app.user),
        workload: Bytes::text(app.workload),
        uid: app.uid,
        reserved: 0,
    }
}

fn methods(datapath_context: &DatapathContext) -> Vec<Method> {
    let message = |id: provost_schema::MessageId| {
        let message = datapath_context.schema.messages.get(id.0 as usize);
        message.map_or(Bytes::EMPTY, |message| Bytes::text(&message.full_name))
    };
    let method = |(index, method): (usize, &crate::MethodContext)| Method {
        name: Bytes::text(&method.name),
        path: Bytes::text(&method.path),
        input: message(method.input),
        output: message(method.output),
        in_scope: u8::from(datapath_context.scope.get(index).copied().unwrap_or_default()),
        client_streaming: u8::from(method.client_streaming),
        server_streaming: u8::from(method.server_streaming),
        reserved: [0; 5],
    };
    datapath_context.methods.iter().enumerate().map(method).collect()
}
