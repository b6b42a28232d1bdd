//! The processes of a setup, from the server up to what its client is pointed at.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::envoy_policy;
use crate::failure::{Doing, Failure};
use crate::link::{Host, NetworkLink};
use crate::machine::free_port;
use crate::node::{Node, Policies, Reach, ServicePlace, admin_socket};
use crate::peers::{self, NodelessPeer};
use crate::plan::{FloorWay, NodeCarrier, ProxyHops, ProxyKind, Setup};
use crate::process::{Environment, Process};
use crate::report::{Load, Report, Watched};
use crate::roles::{Role, SPIN_NS, Served, Waiting};
use crate::timeline::{Outline, Timeline};

/// A setup that runs; it ends when this is dropped, the client's side first.
pub(crate) struct Stack {
    setup: Setup,
    processes: Vec<Process>,
    address: String,
    environment: Environment,
    folder: PathBuf,
    /// The program of others that calls, if one does.
    foreign: Option<PathBuf>,
    /// The hosts of its nodes, if they are not this one.
    _link: Option<NetworkLink>,
}

impl Stack {
    /// Starts the processes of a setup; files go into `folder`.
    pub(crate) fn start(setup: Setup, folder: &Path) -> Result<Stack, Failure> {
        let mut stack = Stack::of(setup, folder);
        match setup {
            Setup::RawTcp => stack.server(&Role::RawServer {
                waiting: Waiting::Blocking,
            })?,
            Setup::RawTcpSpin => stack.server(&Role::RawServer {
                waiting: Waiting::Spinning,
            })?,
            Setup::RawUdp => stack.server(&Role::RawUdpServer)?,
            // Their clients start the other processes, which inherit memory from them.
            Setup::Floor(_) | Setup::SharedMemory | Setup::SharedMemoryOneCore => {}
            Setup::Tonic => stack.server(&Role::TonicServer)?,
            Setup::TonicEnvoyNull => stack.proxied(ProxyKind::Envoy, ProxyHops::Two)?,
            Setup::TonicEnvoy(policy) => {
                let program = ProxyKind::Envoy.program()?;
                let filters = envoy_policy::filters(policy, folder)?;
                stack.server(&Role::TonicServer)?;
                stack.sidecar("ingress", ProxyKind::Envoy, &program, &[])?;
                stack.sidecar("egress", ProxyKind::Envoy, &program, &filters)?;
            }
            Setup::Proxied(proxy, hops) => stack.proxied(proxy, hops)?,
            Setup::Foreign(client, proxy, hops) => {
                stack.foreign = Some(client.program()?);
                stack.proxied(proxy, hops)?;
            }
            Setup::ProxiedWith(chain) => stack.two_grpc_nodes(&Policies::of(chain, folder)?)?,
            Setup::GrpcToApp => {
                stack.serving_node(&Policies::bare())?;
                stack.grpc_node("egress", ServicePlace::Peer, &Policies::bare())?;
            }
            Setup::AppToGrpc => {
                stack.relaying_node()?;
                let peer = stack.next_hop("egress")?;
                stack.node(
                    "egress",
                    Reach::to(ServicePlace::Peer(peer)),
                    &Policies::bare(),
                    folder,
                )?;
            }
            Setup::ProvostBare => stack.two_nodes(&Policies::bare(), &Policies::bare(), folder)?,
            Setup::ProvostNull => stack.two_nodes(&Policies::nulls(1), &Policies::nulls(1), folder)?,
            Setup::ProvostOver(carrier) => stack.two_nodes_over(carrier)?,
            // The server's node has what it has beside the null policy's client, so that the client's is compared.
            Setup::ProvostWith(chain) => {
                let policies = Policies::of(chain, folder)?;
                stack.two_nodes(&policies, &Policies::nulls(1), folder)?;
            }
            Setup::ProvostLocal(waiting) => {
                let reach = Reach::to(ServicePlace::Local).waiting(waiting);
                stack.node("service", reach, &Policies::nulls(1), folder)?;
                stack.app(Served::Echo)?;
            }
            Setup::NodelessPeer(peer) => stack.peer(peer)?,
        }
        Ok(stack)
    }

    /// Starts two nodes without policies, joined by a link or by the loopback interface, with a server for large messages
    /// beside the usual one.
    pub(crate) fn start_beside_bulk(link: Option<NetworkLink>, folder: &Path) -> Result<Stack, Failure> {
        let mut stack = Stack::of(Setup::ProvostBare, folder);
        let (clients, servers, address) = match &link {
            Some(link) => (link.clients(), link.servers(), link.address()),
            None => (Host::Here, Host::Here, loopback()?),
        };
        let bare = Policies::bare();
        stack.keep(Node::start_on(
            &servers,
            "ingress",
            Reach::listen(address),
            &bare,
            folder,
        )?);
        stack.app(Served::Echo)?;
        stack.app(Served::Bulk)?;
        stack.keep(Node::start_on(
            &clients,
            "egress",
            Reach::to(ServicePlace::Peer(address)),
            &bare,
            folder,
        )?);
        stack._link = link;
        Ok(stack)
    }

    /// Starts two nodes with these policies, the client's and the server's.
    pub(crate) fn start_with(egress: &Policies, ingress: &Policies, folder: &Path) -> Result<Stack, Failure> {
        let mut stack = Stack::of(Setup::ProvostBare, folder);
        stack.two_nodes(egress, ingress, folder)?;
        Ok(stack)
    }

    fn of(setup: Setup, folder: &Path) -> Stack {
        Stack {
            setup,
            processes: Vec::new(),
            address: String::new(),
            environment: Environment::new(),
            folder: folder.into(),
            foreign: None,
            _link: None,
        }
    }

    /// Runs a client on the setup.
    pub(crate) fn measure(&self, load: Load) -> Result<Report, Failure> {
        let report = Stack::report(self.start_client(load)?)?;
        match report.count {
            0 => Err(Failure::role("client", "no call was answered")),
            _ => Ok(report),
        }
    }

    /// Starts a client on the setup.
    pub(crate) fn start_client(&self, mut load: Load) -> Result<Process, Failure> {
        load.watched = self.watched();
        Process::start_in("client", &self.client(load), &self.environment)
    }

    /// Starts a client that keeps every completion in a file.
    pub(crate) fn start_timeline(&self, load: Load, path: PathBuf) -> Result<TimelineClient, Failure> {
        let role = Role::ProvostTimeline {
            load,
            path: path.clone(),
        };
        let (process, _) = Process::start_ready_in("client", &role, &self.environment)?;
        Ok(TimelineClient { process, path })
    }

    /// Where the admin API of a node is.
    pub(crate) fn admin_socket(&self, node: &str) -> PathBuf {
        admin_socket(&self.folder.join(format!("{node}.sock")))
    }

    /// The processes of its nodes.
    pub(crate) fn nodes(&self) -> Vec<u32> {
        let is_node = |watched: &Watched| ["ingress", "egress", "service"].contains(&watched.name.as_str());
        let nodes = self.watched().into_iter().filter(is_node);
        nodes.map(|watched| watched.pid).collect()
    }

    /// Starts a client that makes a few calls and is idle after that, where the setup has one.
    pub(crate) fn idle_client(&self) -> Result<Option<Process>, Failure> {
        match self.setup {
            Setup::ProvostBare
            | Setup::ProvostNull
            | Setup::ProvostOver(_)
            | Setup::ProvostLocal(_)
            | Setup::ProvostWith(_) => {
                let (client, _) = Process::start_ready_in("client", &Role::ProvostIdle, &self.environment)?;
                Ok(Some(client))
            }
            _ => Ok(None),
        }
    }

    /// What a client says at its end.
    pub(crate) fn report(client: Process) -> Result<Report, Failure> {
        let line = client.finish()?;
        let last = line.lines().last().unwrap_or_default();
        serde_json::from_str(last).map_err(|error| Failure::role("client", format!("said '{last}': {error}")))
    }

    /// The processes that run whether a client does or not.
    pub(crate) fn watched(&self) -> Vec<Watched> {
        self.processes.iter().map(Process::watched).collect()
    }

    fn client(&self, mut load: Load) -> Role {
        let address = self.address.clone();
        match self.setup {
            Setup::RawTcp => Role::RawClient {
                address,
                waiting: Waiting::Blocking,
                load,
            },
            Setup::RawTcpSpin => Role::RawClient {
                address,
                waiting: Waiting::Spinning,
                load,
            },
            Setup::RawUdp => Role::RawUdpClient { address, load },
            Setup::Floor(FloorWay::Polling) => Role::FloorClient {
                load,
                spin_ns: SPIN_NS,
            },
            Setup::Floor(FloorWay::Sleeping) => Role::FloorClient { load, spin_ns: 0 },
            Setup::Floor(FloorWay::SleepingOnOneCore) => {
                load.cores.truncate(1);
                Role::FloorClient { load, spin_ns: 0 }
            }
            Setup::SharedMemory => Role::SharedMemoryClient { load },
            Setup::SharedMemoryOneCore => {
                load.cores.truncate(1);
                Role::SharedMemoryClient { load }
            }
            Setup::Tonic
            | Setup::TonicEnvoyNull
            | Setup::TonicEnvoy(_)
            | Setup::Proxied(..)
            | Setup::ProxiedWith(_)
            | Setup::GrpcToApp => Role::TonicClient { address, load },
            Setup::NodelessPeer(peer) => Role::PeerClient {
                peer,
                program: self.foreign.clone().unwrap_or_default(),
                address,
                load,
            },
            Setup::Foreign(client, ..) => Role::ForeignClient {
                client,
                program: self.foreign.clone().unwrap_or_default(),
                address,
                load,
            },
            Setup::ProvostBare
            | Setup::ProvostNull
            | Setup::ProvostOver(_)
            | Setup::ProvostLocal(_)
            | Setup::ProvostWith(_)
            | Setup::AppToGrpc => Role::ProvostClient {
                load,
                waiting: self.setup.waiting(),
            },
        }
    }

    fn server(&mut self, role: &Role) -> Result<(), Failure> {
        let (process, address) = Process::start_ready("server", role)?;
        self.processes.push(process);
        self.address = address;
        Ok(())
    }

    /// The server with its node, then the client's node.
    fn two_nodes(&mut self, egress: &Policies, ingress: &Policies, folder: &Path) -> Result<(), Failure> {
        self.serving_node(ingress)?;
        let peer = self.next_hop("egress")?;
        self.node("egress", Reach::to(ServicePlace::Peer(peer)), egress, folder)
    }

    /// The same with a null policy in each node, and this between them.
    fn two_nodes_over(&mut self, carrier: NodeCarrier) -> Result<(), Failure> {
        let (address, nulls, folder) = (loopback()?, Policies::nulls(1), self.folder.clone());
        // Its sockets are open before apps can attach, which is waited for.
        self.node("ingress", Reach::listen(address).over(carrier), &nulls, &folder)?;
        self.app(Served::Echo)?;
        let reach = Reach::to(ServicePlace::Peer(address)).over(carrier);
        self.node("egress", reach, &nulls, &folder)
    }

    /// A node that other nodes reach, and the server that is its app.
    fn serving_node(&mut self, policies: &Policies) -> Result<(), Failure> {
        let address = loopback()?;
        self.node_at("ingress", Reach::listen(address), address, policies)?;
        self.app(Served::Echo)
    }

    /// A node; apps that are started from now on are its.
    fn node(&mut self, name: &str, reach: Reach, policies: &Policies, folder: &Path) -> Result<(), Failure> {
        self.keep(Node::start(name, reach, policies, folder)?);
        Ok(())
    }

    fn keep(&mut self, node: Node) {
        self.environment = node.environment();
        self.processes.push(node.process);
    }

    /// The server, on the node that was started last.
    fn app(&mut self, served: Served) -> Result<(), Failure> {
        let role = Role::ProvostServer {
            served,
            waiting: self.setup.waiting(),
        };
        let (process, _) = Process::start_ready_in("server", &role, &self.environment)?;
        self.processes.push(process);
        Ok(())
    }

    /// gRPC's server behind proxies of one kind, or nodes.
    fn proxied(&mut self, proxy: ProxyKind, hops: ProxyHops) -> Result<(), Failure> {
        match (proxy, hops) {
            (ProxyKind::Provost, ProxyHops::One) => {
                self.server(&Role::TonicServer)?;
                return self.grpc_node("egress", ServicePlace::GrpcServer, &Policies::bare());
            }
            (ProxyKind::Provost, ProxyHops::Two) => return self.two_grpc_nodes(&Policies::bare()),
            _ => {}
        }
        let program = proxy.program()?;
        self.server(&Role::TonicServer)?;
        match hops {
            ProxyHops::One => {}
            ProxyHops::Two => self.sidecar("ingress", proxy, &program, &[])?,
        }
        self.sidecar("egress", proxy, &program, &[])
    }

    /// gRPC's server behind a node of its own, and one beside the client.
    fn two_grpc_nodes(&mut self, egress: &Policies) -> Result<(), Failure> {
        self.relaying_node()?;
        self.grpc_node("egress", ServicePlace::Peer, egress)
    }

    /// gRPC's server and the node that other nodes reach it through.
    fn relaying_node(&mut self) -> Result<(), Failure> {
        self.server(&Role::TonicServer)?;
        let server = self.next_hop("ingress")?;
        let address = loopback()?;
        let reach = Reach::to(ServicePlace::GrpcServer(server)).for_nodes(address);
        self.node_at("ingress", reach, address, &Policies::bare())
    }

    /// A node that gRPC clients call, before what there is.
    fn grpc_node(
        &mut self,
        name: &str,
        service: impl FnOnce(SocketAddr) -> ServicePlace,
        policies: &Policies,
    ) -> Result<(), Failure> {
        let address = loopback()?;
        let reach = Reach::to(service(self.next_hop(name)?)).for_grpc(address);
        self.node_at(name, reach, address, policies)
    }

    /// A node that is reached at this address.
    fn node_at(
        &mut self,
        name: &str,
        reach: Reach,
        address: SocketAddr,
        policies: &Policies,
    ) -> Result<(), Failure> {
        let folder = self.folder.clone();
        let mut node = Node::start(name, reach, policies, &folder)?;
        node.process
            .wait_for("it listens", || TcpStream::connect(address).is_ok())?;
        self.keep(node);
        self.address = address.to_string();
        Ok(())
    }

    /// Where what was started last is reached.
    fn next_hop(&self, name: &str) -> Result<SocketAddr, Failure> {
        let address = self.address.parse();
        address.map_err(|_| Failure::role(name, "has no upstream address"))
    }

    /// Puts a proxy in front of what there is.
    fn sidecar(
        &mut self,
        name: &str,
        proxy: ProxyKind,
        program: &Path,
        filters: &[Value],
    ) -> Result<(), Failure> {
        let listen = loopback()?;
        let upstream = self.next_hop(name)?;
        let path = self.folder.join(format!("{name}.configuration"));
        let log = self.folder.join(format!("{name}.log"));
        let configuration = proxy.configuration(name, listen, upstream, filters);
        std::fs::write(&path, configuration).doing(|| format!("write {}", path.display()))?;
        let arguments = proxy.arguments(&path);
        let mut process = Process::start_program(name, &Host::Here, program, &arguments, &log)?;
        process
            .wait_for("it listens", || TcpStream::connect(listen).is_ok())
            .map_err(|error| with_last_words(name, &error, &log))?;
        self.processes.push(process);
        self.address = listen.to_string();
        Ok(())
    }

    /// The server of a program of others.
    fn peer(&mut self, peer: NodelessPeer) -> Result<(), Failure> {
        let program = peers::program()?;
        let in_folder = |name: &str| self.folder.join(name);
        let (address, ready, log) = (in_folder("calls"), in_folder("ready"), in_folder("server.log"));
        let arguments = peer.server_arguments(&address, &ready);
        let mut process = Process::start_program("server", &Host::Here, &program, &arguments, &log)?;
        process
            .wait_for("clients may come", || ready.exists())
            .map_err(|error| with_last_words("server", &error, &log))?;
        self.processes.push(process);
        self.address = address.to_string_lossy().into_owned();
        self.foreign = Some(program);
        Ok(())
    }
}

/// Why a program did not start, and what it said of that.
fn with_last_words(name: &str, error: &Failure, log: &Path) -> Failure {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let last = said.lines().last().unwrap_or("nothing");
    Failure::role(name, format!("{error}; it said: {last}"))
}

/// A free port of the loopback interface.
fn loopback() -> Result<SocketAddr, Failure> {
    Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)))
}

/// A client that keeps every completion in a file.
pub(crate) struct TimelineClient {
    process: Process,
    path: PathBuf,
}

impl TimelineClient {
    /// Its name and id.
    pub(crate) fn watched(&self) -> Watched {
        self.process.watched()
    }

    /// Waits for its end, and reads what it has kept.
    pub(crate) fn finish(self) -> Result<Timeline, Failure> {
        let said = self.process.finish()?;
        let last = said.lines().last().unwrap_or_default();
        let outline: Outline = serde_json::from_str(last)
            .map_err(|error| Failure::role("client", format!("said '{last}': {error}")))?;
        Timeline::read(outline, &self.path)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        while let Some(process) = self.processes.pop() {
            drop(process);
        }
    }
}
