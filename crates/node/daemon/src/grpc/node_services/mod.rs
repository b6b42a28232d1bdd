//! Services that the node answers itself at its listeners for gRPC: what gRPC's tools expect of a server.
//!
//! | service | says | by |
//! |---|---|---|
//! | `grpc.health.v1.Health` | whether calls of a service lead anywhere | [`health`] |
//! | `grpc.reflection.v1.ServerReflection`, `v1alpha` | the schemas of services that the client may call | [`reflection`] |
//! | `grpc.channelz.v1.Channelz` | the connections of gRPC that the node has, where the listener is one for operators | [`channelz`] |
//!
//! But for the last one, a client is told of what it may call, and of nothing else.

mod channelz;
mod descriptors;
mod health;
mod reflection;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use provost_frontend_grpc::{NodeAnswer, NodeAnswerEnd, NodeEvent, NodeMethod, NodeMethods, NodeQuestion};
use provost_grpc::GrpcStatus;
use provost_runtime::CallerAnswer;
use provost_wire::Code;

use super::GrpcAccess;
use super::clients::GrpcClient;
use crate::config::NodeService;
use crate::runtime::{AppId, RuntimeCommand};

use channelz::ChannelzMethod;
pub(super) use health::HealthWatches;
pub(super) use reflection::ReflectionTurns;

/// What a client asks, whatever the number of the method is at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskedMethod {
    CheckHealth,
    ListHealth,
    WatchHealth,
    Reflect,
    Channelz(ChannelzMethod),
}

/// Methods by their paths.
const METHODS: [(NodeService, &str, AskedMethod); 12] = [
    (
        NodeService::Health,
        "grpc.health.v1.Health/Check",
        AskedMethod::CheckHealth,
    ),
    (
        NodeService::Health,
        "grpc.health.v1.Health/List",
        AskedMethod::ListHealth,
    ),
    (
        NodeService::Health,
        "grpc.health.v1.Health/Watch",
        AskedMethod::WatchHealth,
    ),
    (
        NodeService::Reflection,
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        AskedMethod::Reflect,
    ),
    (
        NodeService::Reflection,
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        AskedMethod::Reflect,
    ),
    channelz(
        "grpc.channelz.v1.Channelz/GetTopChannels",
        ChannelzMethod::TopChannels,
    ),
    channelz("grpc.channelz.v1.Channelz/GetServers", ChannelzMethod::Servers),
    channelz("grpc.channelz.v1.Channelz/GetServer", ChannelzMethod::Server),
    channelz(
        "grpc.channelz.v1.Channelz/GetServerSockets",
        ChannelzMethod::ServerSockets,
    ),
    channelz("grpc.channelz.v1.Channelz/GetChannel", ChannelzMethod::Channel),
    channelz(
        "grpc.channelz.v1.Channelz/GetSubchannel",
        ChannelzMethod::Subchannel,
    ),
    channelz("grpc.channelz.v1.Channelz/GetSocket", ChannelzMethod::Socket),
];

const fn channelz(path: &'static str, method: ChannelzMethod) -> (NodeService, &'static str, AskedMethod) {
    (NodeService::Channelz, path, AskedMethod::Channelz(method))
}

/// The methods of the services that a listener has.
pub(super) fn methods_of(services: &[NodeService]) -> NodeMethods {
    let chosen = (0..)
        .zip(METHODS)
        .filter(|(_, (service, ..))| services.contains(service));
    let methods = chosen.map(|(number, (_, path, asked))| {
        let client_streaming = asked == AskedMethod::Reflect;
        let method = NodeMethod {
            number,
            client_streaming,
        };
        (path.to_owned(), method)
    });
    Arc::new(methods.collect::<HashMap<_, _>>())
}

/// The names of the services that a listener has.
fn names_of(services: &[NodeService]) -> Vec<String> {
    let methods = METHODS.iter().filter(|(service, ..)| services.contains(service));
    let names = methods.filter_map(|(_, path, _)| Some(path.split_once('/')?.0.to_owned()));
    let mut names: Vec<_> = names.collect();
    names.dedup();
    names
}

impl GrpcAccess {
    /// Answers a client's call of a service of the node.
    pub(crate) fn answer_node_call(self: &Rc<Self>, id: AppId, event: NodeEvent) {
        match event {
            NodeEvent::Ended { stream } => self.watches.forget(id, stream),
            NodeEvent::Asked(question) => {
                let access = Rc::clone(self);
                tokio::task::spawn_local(async move { access.answer(id, question).await });
            }
        }
    }

    async fn answer(self: &Rc<Self>, id: AppId, question: NodeQuestion) {
        let Some(client) = self.clients.find(id) else {
            return;
        };
        let stream = question.stream;
        let answered = self.answer_of(&client, question).await;
        let (messages, then) = answered.unwrap_or_else(|status| (Vec::new(), NodeAnswerEnd::Ends(status)));
        self.send_answer(
            &client,
            NodeAnswer {
                stream,
                messages,
                is_further: false,
                then,
            },
        )
        .await;
    }

    async fn answer_of(
        self: &Rc<Self>,
        client: &Rc<GrpcClient>,
        question: NodeQuestion,
    ) -> Result<(Vec<Vec<u8>>, NodeAnswerEnd), GrpcStatus> {
        let app = self
            .admitted(client)
            .map_err(|refusal| GrpcStatus::new(refusal.code, refusal.message))?;
        let method = METHODS.get(question.method as usize);
        let Some((_, _, asked)) = method.copied() else {
            return Err(GrpcStatus::new(
                Code::Unimplemented,
                "the node has no such method",
            ));
        };
        let single = |message| {
            let end = NodeAnswerEnd::Ends(GrpcStatus::new(Code::Ok, ""));
            (vec![message], end)
        };
        match asked {
            AskedMethod::CheckHealth => Ok(single(self.check_health(&app, &question.message)?)),
            AskedMethod::ListHealth => Ok(single(self.list_health(&app))),
            AskedMethod::WatchHealth => {
                let first = self.watch_health(client, &app, &question)?;
                Ok((vec![first], NodeAnswerEnd::More))
            }
            AskedMethod::Reflect => {
                let services = names_of(&client.listener().config.node_services);
                let said = self.reflect(&app, services, question.message).await?;
                Ok((vec![said], NodeAnswerEnd::Next))
            }
            AskedMethod::Channelz(method) => Ok(single(self.answer_channelz(method, &question.message)?)),
        }
    }

    async fn send_answer(&self, client: &GrpcClient, answer: NodeAnswer) {
        let answer = CallerAnswer {
            app: client.id,
            answer,
        };
        let command = RuntimeCommand::AnswerNodeCall(Box::new(answer));
        if let Err(error) = self.runtimes[client.runtime].send(command).await {
            tracing::error!(%error, "a gRPC client was not answered");
        }
    }
}

fn malformed(error: &prost::DecodeError) -> GrpcStatus {
    GrpcStatus::new(
        Code::Internal,
        format!("the request's message is malformed: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_has_the_methods_of_its_services_only() {
        let health = methods_of(&[NodeService::Health]);
        let mut paths: Vec<_> = health.keys().map(String::as_str).collect();
        paths.sort_unstable();
        assert_eq!(
            paths,
            [
                "grpc.health.v1.Health/Check",
                "grpc.health.v1.Health/List",
                "grpc.health.v1.Health/Watch"
            ]
        );
        assert!(methods_of(&[]).is_empty());
        assert_eq!(
            names_of(&[NodeService::Reflection]),
            [
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection"
            ]
        );
        assert_eq!(names_of(&[NodeService::Channelz]), ["grpc.channelz.v1.Channelz"]);
    }
}
