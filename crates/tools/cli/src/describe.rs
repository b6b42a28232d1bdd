//! `provost describe`: what a service looks like, and what to type to call it.

use std::fmt::Write;

use clap::Args;
use prost_reflect::MethodDescriptor;
use provost_admin::v1::ListSchemasRequest;
use provost_admin::v1::admin_client::AdminClient;
use serde::Serialize;
use serde_json::Value;

use crate::interface::{SchemaFiles, ServiceInterface, ServiceName, signature, source_of, template};
use crate::watch::Shown;
use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::Failure;
use provost_terminal::numbers::plural;
use provost_terminal::output::{json_document, print};
use provost_terminal::table::Canvas;

/// Options of `provost describe`.
#[derive(Args, Debug)]
pub(crate) struct DescribeOptions {
    /// SERVICE or SERVICE/METHOD; the last part of a service's name is enough where only one ends so. Without it, all services
    /// that the node knows
    #[arg(value_name = "SERVICE[/METHOD]", value_parser = ServiceName::parse)]
    name: Option<ServiceName>,
    #[command(flatten)]
    files: SchemaFiles,
    #[command(flatten)]
    target: Target,
}

/// Prints what is known of a service.
pub(crate) async fn run(asked: &DescribeOptions) -> Result<(), Failure> {
    let Some(name) = &asked.name else {
        let mut node = Node::connect(&asked.target).await?;
        let known = node
            .call(ListSchemasRequest {}, AdminClient::list_schemas)
            .await?;
        return print_shown(&known, asked);
    };
    let node = async || Node::connect(&asked.target).await;
    let interface = ServiceInterface::find(name, &asked.files, node).await?;
    let methods = match &name.method {
        Some(method) => vec![interface.method(method)?],
        None => interface.service.methods().collect(),
    };
    print_shown(&ServiceDescription::of(&interface, &methods), asked)
}

fn print_shown(shown: &impl Shown, asked: &DescribeOptions) -> Result<(), Failure> {
    print(&if asked.target.json {
        json_document(shown)?
    } else {
        shown.draw(Canvas::of_stdout())
    })
}

/// A service, or one method of it, for people and for programs.
#[derive(Debug, Serialize)]
struct ServiceDescription {
    service: String,
    /// Which of its schemas; empty of files.
    hash: String,
    /// Apps that have bound it with this schema.
    apps: Option<u32>,
    /// Where the node has the schema from.
    schema_from: Option<String>,
    methods: Vec<MethodDescription>,
    /// The text of the service and of all that its messages are made of.
    source: String,
}

#[derive(Debug, Serialize)]
struct MethodDescription {
    name: String,
    path: String,
    signature: String,
    request: String,
    response: String,
    client_streaming: bool,
    server_streaming: bool,
    /// A request with every field there.
    template: Value,
}

impl ServiceDescription {
    fn of(interface: &ServiceInterface, methods: &[MethodDescriptor]) -> ServiceDescription {
        let service = &interface.service;
        let schema = interface.schema.as_ref();
        let describe = |method: &MethodDescriptor| MethodDescription {
            name: method.name().to_owned(),
            path: format!("{}/{}", service.full_name(), method.name()),
            signature: signature(method, service.package_name()),
            request: method.input().full_name().to_owned(),
            response: method.output().full_name().to_owned(),
            client_streaming: method.is_client_streaming(),
            server_streaming: method.is_server_streaming(),
            template: template(&method.input()),
        };
        ServiceDescription {
            service: service.full_name().to_owned(),
            hash: schema.map(|schema| schema.hash.clone()).unwrap_or_default(),
            apps: schema.map(|schema| schema.apps),
            schema_from: schema.map(|schema| schema.source.clone()),
            methods: methods.iter().map(describe).collect(),
            source: source_of(service, methods),
        }
    }
}

impl Shown for ServiceDescription {
    fn draw(&self, _: Canvas) -> String {
        let mut out = format!("// {}", self.service);
        if let Some(apps) = self.apps {
            let _ = write!(
                out,
                ", served by {}, schema {:.12} ({})",
                plural(apps.into(), "app"),
                self.hash,
                self.schema_from.as_deref().unwrap_or_default()
            );
        }
        let _ = write!(out, "\n\n{}", self.source);
        if let [method] = &self.methods[..] {
            // What one writes in an apostrophe's place between apostrophes.
            let message = method.template.to_string().replace('\'', r"'\''");
            let _ = writeln!(out, "\n// provost call {} '{message}'", method.path);
        }
        out
    }
}
