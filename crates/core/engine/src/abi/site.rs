//! A site in the form in which it crosses the boundary.

use super::types::{App, Bytes, Method, SIDE_CLIENT, SIDE_SERVER, Site as RawSite};
use crate::{AppIdentity, Side, Site};

/// What a [`RawSite`] points to. It lends from the site.
pub struct SiteForm<'a> {
    site: &'a Site,
    app: App,
    peer_app: Option<App>,
    methods: Vec<Method>,
    descriptor_set: Vec<u8>,
}

impl<'a> SiteForm<'a> {
    /// The form of a site.
    #[must_use]
    pub fn of(site: &'a Site) -> SiteForm<'a> {
        SiteForm {
            site,
            app: app(&site.app),
            peer_app: site.peer.app.as_deref().map(app),
            methods: methods(site),
            descriptor_set: site.schema.to_descriptor_set(),
        }
    }

    /// The form as C has it. It is valid as long as this is borrowed.
    #[must_use]
    pub fn raw(&self) -> RawSite {
        let Site {
            node, service, peer, ..
        } = self.site;
        RawSite {
            struct_bytes: size_of::<RawSite>() as u32,
            side: match self.site.side {
                Side::Client => SIDE_CLIENT,
                Side::Server => SIDE_SERVER,
            },
            reserved: [0; 3],
            connection: self.site.connection,
            runtime: self.site.runtime as u64,
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

fn methods(site: &Site) -> Vec<Method> {
    let message = |id: provost_schema::MessageId| {
        let message = site.schema.messages.get(id.0 as usize);
        message.map_or(Bytes::EMPTY, |message| Bytes::text(&message.full_name))
    };
    let method = |(index, method): (usize, &crate::MethodSite)| Method {
        name: Bytes::text(&method.name),
        path: Bytes::text(&method.path),
        input: message(method.input),
        output: message(method.output),
        in_scope: u8::from(site.scope.get(index).copied().unwrap_or_default()),
        client_streaming: u8::from(method.client_streaming),
        server_streaming: u8::from(method.server_streaming),
        reserved: [0; 5],
    };
    site.methods.iter().enumerate().map(method).collect()
}
