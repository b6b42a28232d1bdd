//! Nodes whose certificates the SPIFFE Workload API gives, with an agent made here.

#[allow(dead_code, reason = "these tests use a part of it")]
mod spiffe_agent;

use std::path::PathBuf;

use provost::Code;
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{Certificates, GetCertificatesRequest, GetStatusRequest};
use provost_e2e::agent::Executor;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Answer, Ask, Echo};
use provost_e2e::{Agent, Node, NodeOptions, Server, World, eventually, watched};
use spiffe_agent::{SpiffeAgent, TrustDomain, no_identity};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// Two nodes, each with its agent's socket; the server's has an app that answers.
struct SpiffePair {
    world: World,
    b: Node,
    _server: Server,
}

fn socket_of(world: &World, node: &str) -> PathBuf {
    world.directory().join(format!("{node}-agent.sock"))
}

/// The tables of a node that asks the agent at its socket.
fn tables(world: &World, node: &str, further: &str) -> String {
    let socket = socket_of(world, node).display().to_string();
    format!(
        "[tls]\nserver_identities = [\"spiffe://*\"]\n{further}\n[tls.spiffe]\nsocket = \"unix://{socket}\"\n"
    )
}

impl SpiffePair {
    /// The agent of `b` has to be there already.
    fn serve(mut world: World) -> SpiffePair {
        let options = NodeOptions {
            tables: tables(&world, "b", ""),
            ..NodeOptions::default()
        };
        let b = world.node("b", &options);
        let server = world.server(&b);
        SpiffePair {
            world,
            b,
            _server: server,
        }
    }

    fn client(&mut self, name: &str, further: &str) -> Node {
        let options = NodeOptions {
            peer: Some(self.b.address),
            tables: tables(&self.world, name, further),
            ..NodeOptions::default()
        };
        self.world.node(name, &options)
    }

    /// What an app on a node says of its first connection.
    fn first(&mut self, node: &Node) -> (Agent, Answer) {
        let mut agent = self.world.starting_agent(node, Executor::TokioCurrent);
        let first = agent.first_answer();
        (agent, first)
    }
}

fn is_refused(answer: &Answer) -> bool {
    let codes = [Code::Unavailable, Code::Unauthenticated, Code::PermissionDenied].map(Code::number);
    matches!(answer, Answer::Failed(parts) if codes.contains(&parts.code))
}

fn logged(node: &Node, text: &str) {
    eventually(text, WAIT_MAX, || node.program.log().contains(text));
}

/// What an operator's tools ask a node for.
struct NodeOperator {
    runtime: Runtime,
    admin: AdminClient<Channel>,
}

impl NodeOperator {
    fn of(node: &Node) -> NodeOperator {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let endpoint = Endpoint::from_shared(format!("unix:{}", node.admin_socket.display())).unwrap();
        let admin = AdminClient::new(runtime.block_on(endpoint.connect()).unwrap());
        NodeOperator { runtime, admin }
    }

    fn certificates(&mut self) -> Certificates {
        let asked = self.admin.get_certificates(GetCertificatesRequest::default());
        self.runtime.block_on(asked).unwrap().into_inner()
    }

    /// Waits until a node warns of something.
    fn is_warned(&mut self, text: &str) {
        eventually(text, WAIT_MAX, || {
            let asked = self.admin.get_status(GetStatusRequest::default());
            let status = self.runtime.block_on(asked).unwrap().into_inner();
            status.warnings.iter().any(|warning| warning.contains(text))
        });
    }
}

#[test]
fn certificates_that_an_agent_renews_rotate_under_calls_and_outlive_it() {
    watched(|| {
        let domain = TrustDomain::new("one.test");
        let world = World::new(ROLE);
        let agent_b = SpiffeAgent::begin(&socket_of(&world, "b"), domain.answer("b"));
        let agent_a = SpiffeAgent::begin(&socket_of(&world, "a"), domain.answer("a"));
        let mut pair = SpiffePair::serve(world);
        let a = pair.client("a", "");
        let (mut agent, first) = pair.first(&a);
        assert_eq!(first, Answer::Ready);
        let (mut operator_a, mut operator_b) = (NodeOperator::of(&a), NodeOperator::of(&pair.b));
        let proves = operator_a.certificates();
        assert_eq!(proves.identity, "spiffe://one.test/a");
        assert_eq!(proves.trust_domains, ["one.test"]);
        assert!(
            proves.ends_unix_s > 0 && proves.workload_api.ends_with("a-agent.sock"),
            "{proves:?}"
        );

        for turn in 1..=2 {
            let calls = agent.begin(Ask::Echo(Echo {
                calls: 300,
                ..Echo::default()
            }));
            agent_a.say(domain.answer(&format!("a-{turn}")));
            agent_b.say(domain.answer(&format!("b-{turn}")));
            eventually("who connects sees the new certificates", WAIT_MAX, || {
                pair.world.agent(&a).calls_well();
                let by = |node: &Node, name: &str| {
                    let identity = format!("identity=\"spiffe://one.test/{name}-{turn}\"");
                    node.program.log().contains(&identity)
                };
                by(&a, "b") && by(&pair.b, "a")
            });
            assert!(matches!(agent.answer(calls), Answer::Done(_)));
        }

        // What is no good is said, and the last good answer stays; so it does without an agent.
        let mut bad = domain.answer("b-3");
        bad.svids[0].x509_svid_key.clear();
        agent_b.say(bad);
        operator_b.is_warned("its answer was not taken");
        pair.world.agent(&a).calls_well();
        // A refusal takes the identity back: what is open goes on, nothing new begins until the node has one again.
        agent_b.refuse(no_identity());
        operator_b.is_warned("register the node's service");
        eventually("a node without an identity lets nobody in", WAIT_MAX, || {
            is_refused(&pair.first(&a).1)
        });
        agent.calls_well();
        agent_b.say(domain.answer("b-3"));
        eventually(
            "a node that has its identity again lets others in",
            WAIT_MAX,
            || pair.first(&a).1 == Answer::Ready,
        );
        drop(agent_a);
        operator_a.is_warned("its last good answer stays in use");
        pair.world.agent(&a).calls_well();

        // It is asked again until it is there again.
        let agent_a = SpiffeAgent::begin(&socket_of(&pair.world, "a"), domain.answer("a-4"));
        eventually("the agent's new answer is used", WAIT_MAX, || {
            pair.world.agent(&a).calls_well();
            pair.b
                .program
                .log()
                .contains("identity=\"spiffe://one.test/a-4\"")
        });
        drop(agent_a);
        agent.calls_well();
    });
}

#[test]
fn a_node_is_served_by_whom_its_bundles_vouch_for_and_nobody_else() {
    watched(|| {
        let (one, two) = (TrustDomain::new("one.test"), TrustDomain::new("two.test"));
        let world = World::new(ROLE);
        let agent_b = SpiffeAgent::begin(&socket_of(&world, "b"), one.answer("b"));
        let _agent_a = SpiffeAgent::begin(&socket_of(&world, "a"), two.answer("a").with(&one));
        let mut pair = SpiffePair::serve(world);
        let a = pair.client("a", "");
        let (_agent, first) = pair.first(&a);
        assert!(is_refused(&first), "{first:?}");

        agent_b.say(one.answer("b").with(&two));
        logged(&pair.b, "trust_domains=2");
        eventually("federated domains let each other in", WAIT_MAX, || {
            pair.first(&a).1 == Answer::Ready
        });

        // What an answer does not say any more is gone.
        agent_b.say(one.answer("b"));
        eventually("a bundle that was taken away lets nobody in", WAIT_MAX, || {
            is_refused(&pair.first(&a).1)
        });
    });
}

#[test]
fn a_node_waits_for_its_agent_and_is_replaced_only_by_one_that_has_an_identity() {
    watched(|| {
        let domain = TrustDomain::new("one.test");
        let world = World::new(ROLE);
        let agent_b = SpiffeAgent::begin(&socket_of(&world, "b"), domain.answer("b"));
        let mut pair = SpiffePair::serve(world);
        let a = pair.client("a", "");
        let (_agent, first) = pair.first(&a);
        assert!(is_refused(&first), "{first:?}");
        assert!(format!("{first:?}").contains("has not answered"), "{first:?}");

        let agent_a = SpiffeAgent::begin(&socket_of(&pair.world, "a"), domain.answer("a"));
        eventually("the agent's first answer is used", WAIT_MAX, || {
            pair.first(&a).1 == Answer::Ready
        });

        let mut agent = pair.world.agent(&a);
        let refuses = agent_b;
        refuses.refuse(no_identity());
        let kept = pair.b.try_replace().unwrap_err();
        assert!(kept.contains("SPIFFE Workload API"), "{kept}");
        refuses.say(domain.answer("b"));
        pair.b.replace();
        agent.calls_well();
        pair.world.agent(&a).calls_well();
        drop(agent_a);
    });
}

#[test]
fn of_several_identities_a_node_takes_the_one_that_it_is_told() {
    watched(|| {
        let domain = TrustDomain::new("one.test");
        let world = World::new(ROLE);
        let _agent_b = SpiffeAgent::begin(&socket_of(&world, "b"), domain.answer("b"));
        let mut several = domain.answer("other");
        several.svids.extend(domain.answer("a").svids);
        let _agent_a = SpiffeAgent::begin(&socket_of(&world, "a"), several);
        let mut pair = SpiffePair::serve(world);
        let options = NodeOptions {
            peer: Some(pair.b.address),
            tables: tables(&pair.world, "a", "") + "id = \"spiffe://one.test/a\"\n",
            ..NodeOptions::default()
        };
        let a = pair.world.node("a", &options);
        assert_eq!(pair.first(&a).1, Answer::Ready);
        logged(&pair.b, "identity=\"spiffe://one.test/a\"");
    });
}
