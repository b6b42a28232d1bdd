//! Dependencies point downwards only, and every crate has its place in this table.

use crate::Complaints;
use crate::workspace::{Package, Workspace};

/// A layer of the workspace, by the folder its crates live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrateRoom {
    Base,
    Sys,
    Core,
    Engines,
    Node,
    App,
    Tools,
    Apps,
    Sdk,
    Sim,
    Tests,
    Fuzz,
    Xtask,
}

use CrateRoom::*;

/// Folder, room, and the rooms that its crates may depend on.
///
/// `App` and `Node` share only `Base` and `Sys`. Concrete engines are named by the daemon, the simulator and the fuzz
/// targets alone; an engine knows no other engine (`CONFORMANCE` is a suite, not an engine).
const ROOMS: [(&str, CrateRoom, &[CrateRoom]); 13] = [
    ("crates/base/", Base, &[Base]),
    ("crates/sys/", Sys, &[Base, Sys]),
    ("crates/core/", Core, &[Base, Sys, Core]),
    ("crates/engines/", Engines, &[Base, Sys, Core]),
    ("crates/node/", Node, &[Base, Sys, Core, Engines, Node]),
    ("crates/app/", App, &[Base, Sys, App]),
    ("crates/tools/", Tools, &[Base, Sys, Core, Node, App, Tools, Apps]),
    ("apps/", Apps, &[Base, Sys, App, Apps]),
    ("sdk/", Sdk, &[Core]),
    ("sim/", Sim, &[Base, Sys, Core, Engines, Node, App, Apps, Sim]),
    ("tests/", Tests, &[Base, Sys, Core, Node, App, Tools, Apps, Tests]),
    ("fuzz/", Fuzz, &[Base, Sys, Core, Engines, Node, App, Tools, Fuzz]),
    ("xtask/", Xtask, &[Base]),
];

/// The node's protocol that programs can link as well, and what is left of it beside a NIC, for they do no I/O.
const LINKED: [&str; 2] = ["provost-datagram", "provost-nic-host"];
/// The libraries through which they do, and applications that run the protocol themselves.
const LINKING: [&str; 3] = ["provost-datagram-rpc", "provost-nic-rpc", "provost-raft-kv"];
/// What their tests run it on.
const LINKED_SIMULATION: &str = "provost-datagram-sim";

/// By what messages are read and written, on either side; it does no I/O either.
const MARSHALLING: [&str; 2] = ["provost", "provost-marshal"];

/// The threads of the data plane. They know engines by tag and start function, and nothing of policies, configuration or
/// the control plane: beside the rooms below, only the engines through whose ports they poll apps and gRPC clients.
const RUNTIME: &str = "provost-runtime";
/// The rooms below the runtime.
const RUNTIME_ROOMS: [CrateRoom; 3] = [Base, Sys, Core];
/// What it must not depend on although it is in one of them: what policies are written against.
const RUNTIME_IGNORES: [&str; 2] = ["provost-engine", "provost-plugin"];
/// A caller's port is not an engine: the runtime polls it itself, ahead of all datapaths of the caller.
const RUNTIME_PORTS: [&str; 2] = ["provost-frontend", "provost-frontend-grpc"];
/// A runtime that waits on an executor of its own would be part of the control plane.
const EXECUTORS: [&str; 3] = ["tokio", "async-io", "futures-executor"];
/// What predicts a mesh's cost: it performs no I/O and knows no other crate.
const PREDICTION: &str = "provost-insight";

/// The suite that every transport's tests instantiate.
const CONFORMANCE: &str = "provost-conformance";

/// Every edge that points upwards or sideways where it must not, and every crate without a room.
pub(crate) fn complaints(workspace: &Workspace) -> Complaints {
    let members: Vec<LayeredCrate> = workspace
        .members
        .iter()
        .map(|package| member(workspace, package))
        .collect();
    check(&members)
}

struct LayeredCrate {
    name: String,
    folder: String,
    dependencies: Vec<(String, String)>,
}

fn member(workspace: &Workspace, package: &Package) -> LayeredCrate {
    let kind = |kind: &Option<String>| kind.clone().unwrap_or_else(|| "normal".into());
    LayeredCrate {
        name: package.name.clone(),
        folder: workspace
            .relative(&package.manifest_path)
            .to_string_lossy()
            .into_owned(),
        dependencies: package
            .dependencies
            .iter()
            .map(|edge| (edge.name.clone(), kind(&edge.kind)))
            .collect(),
    }
}

fn check(members: &[LayeredCrate]) -> Complaints {
    let mut complaints = Vec::new();
    for member in members {
        let Some((_, _, allowed)) = room(&member.folder) else {
            complaints.push(format!(
                "{}: {} is in no room of the layering table",
                member.name, member.folder
            ));
            continue;
        };
        complaints.extend(runtime_complaints(member, members));
        for (name, kind) in &member.dependencies {
            let Some(target) = members.iter().find(|other| other.name == *name) else {
                continue;
            };
            let Some((_, target_room, _)) = room(&target.folder) else {
                continue;
            };
            let suite = name == CONFORMANCE && kind == "dev";
            let links = LINKING.contains(&member.name.as_str());
            let linked = links && (LINKED.contains(&&**name) || name == LINKED_SIMULATION && kind == "dev");
            let marshals = [&*member.name, name] == MARSHALLING;
            let is_allowed = allowed.contains(target_room) && member.name != PREDICTION;
            if !is_allowed && !suite && !linked && !marshals {
                complaints.push(format!(
                    "{} ({}) must not depend on {name} ({}): {kind} dependency against the layering",
                    member.name, member.folder, target.folder
                ));
            }
        }
    }
    complaints
}

/// What the runtime depends on and must not.
fn runtime_complaints(member: &LayeredCrate, members: &[LayeredCrate]) -> Complaints {
    let is_forbidden = |name: &String| {
        let target = members.iter().find(|other| other.name == *name);
        let room = target.and_then(|target| room(&target.folder));
        let is_above = room.is_some_and(|(_, room, _)| !RUNTIME_ROOMS.contains(room));
        let is_ignored = RUNTIME_IGNORES.contains(&name.as_str()) || EXECUTORS.contains(&name.as_str());
        is_ignored || is_above && !RUNTIME_PORTS.contains(&name.as_str())
    };
    let normal = member.dependencies.iter().filter(|(_, kind)| kind != "dev");
    normal
        .filter(|(name, _)| member.name == RUNTIME && is_forbidden(name))
        .map(|(name, _)| {
            format!("{RUNTIME} must not depend on {name}: it knows engines by tag and start function alone")
        })
        .collect()
}

fn room(folder: &str) -> Option<&'static (&'static str, CrateRoom, &'static [CrateRoom])> {
    ROOMS.iter().find(|(prefix, _, _)| folder.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_in(folder: &str, name: &str, dependencies: &[&str]) -> LayeredCrate {
        LayeredCrate {
            name: name.into(),
            folder: format!("{folder}/Cargo.toml"),
            dependencies: dependencies
                .iter()
                .map(|name| ((*name).into(), "normal".into()))
                .collect(),
        }
    }

    #[test]
    fn downward_edges_pass_and_upward_ones_are_named() {
        let base = crate_in("crates/base/wire", "wire", &[]);
        let core = crate_in("crates/core/datapath", "engine", &["wire", "serde"]);
        assert_eq!(check(&[base, core]), Complaints::new());
        let base = crate_in("crates/base/wire", "wire", &["engine"]);
        let core = crate_in("crates/core/datapath", "engine", &[]);
        assert_eq!(check(&[base, core]).len(), 1);
    }

    #[test]
    fn app_and_node_never_see_each_other() {
        let app = crate_in("crates/app/provost", "app", &["daemon"]);
        let node = crate_in("crates/node/daemon", "daemon", &["app"]);
        assert_eq!(check(&[app, node]).len(), 2);
    }

    #[test]
    fn the_runtime_knows_the_port_and_no_policy_engine_or_executor() {
        let others = || {
            vec![
                crate_in("crates/core/datapath", "provost-datapath", &[]),
                crate_in("crates/core/engine", "provost-engine", &[]),
                crate_in("crates/engines/frontend", "provost-frontend", &[]),
                crate_in("crates/engines/policies", "provost-policies", &[]),
                crate_in("crates/node/admin", "provost-admin", &[]),
            ]
        };
        let checked = |dependencies: &[&str]| {
            let mut members = others();
            members.push(crate_in("crates/node/runtime", RUNTIME, dependencies));
            check(&members).len()
        };
        assert_eq!(checked(&["provost-datapath", "provost-frontend"]), 0);
        for forbidden in ["provost-engine", "provost-policies", "provost-admin", "tokio"] {
            assert_eq!(checked(&["provost-datapath", forbidden]), 1, "{forbidden}");
        }
    }

    #[test]
    fn prediction_knows_no_other_crate() {
        let base = crate_in("crates/base/wire", "wire", &[]);
        let prediction = crate_in("crates/tools/insight", PREDICTION, &["wire", "serde"]);
        let other = crate_in("crates/tools/cli", "cli", &["wire", PREDICTION]);
        assert_eq!(check(&[base, prediction, other]).len(), 1);
    }

    #[test]
    fn a_crate_without_a_room_is_a_complaint() {
        assert_eq!(check(&[crate_in("crates/attic/old", "old", &[])]).len(), 1);
    }

    #[test]
    fn the_repository_is_layered() {
        assert_eq!(complaints(&Workspace::load().unwrap()), Complaints::new());
    }
}
