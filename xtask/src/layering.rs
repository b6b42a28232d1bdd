//! Dependencies point downwards only, and every crate has its place in this table.

use crate::Complaints;
use crate::workspace::{Package, Workspace};

/// A layer of the workspace, by the folder its crates live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
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

use Room::*;

/// Folder, room, and the rooms that its crates may depend on.
///
/// `App` and `Node` share only `Base` and `Sys`. Concrete engines are named by the daemon, the simulator and the fuzz
/// targets alone; an engine knows no other engine (`CONFORMANCE` is a suite, not an engine).
const ROOMS: [(&str, Room, &[Room]); 13] = [
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
    ("fuzz/", Fuzz, &[Base, Sys, Core, Engines, Node, App, Fuzz]),
    ("xtask/", Xtask, &[]),
];

/// The node's protocol that programs can link as well, for it does no I/O.
const LINKED: &str = "provost-datagram";
/// The library through which they do, and applications that run the protocol themselves.
const LINKING: [&str; 2] = ["provost-datagram-rpc", "provost-raft-kv"];
/// What their tests run it on.
const LINKED_SIMULATION: &str = "provost-datagram-sim";

/// By what messages are read and written, on either side; it does no I/O either.
const MARSHALLING: [&str; 2] = ["provost", "provost-marshal"];

/// The suite that every transport's tests instantiate.
const CONFORMANCE: &str = "provost-conformance";

/// Every edge that points upwards or sideways where it must not, and every crate without a room.
pub(crate) fn complaints(workspace: &Workspace) -> Complaints {
    let members: Vec<Member> = workspace
        .members
        .iter()
        .map(|package| member(workspace, package))
        .collect();
    check(&members)
}

struct Member {
    name: String,
    folder: String,
    dependencies: Vec<(String, String)>,
}

fn member(workspace: &Workspace, package: &Package) -> Member {
    let kind = |kind: &Option<String>| kind.clone().unwrap_or_else(|| "normal".into());
    Member {
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

fn check(members: &[Member]) -> Complaints {
    let mut complaints = Vec::new();
    for member in members {
        let Some((_, _, allowed)) = room(&member.folder) else {
            complaints.push(format!(
                "{}: {} is in no room of the layering table",
                member.name, member.folder
            ));
            continue;
        };
        for (name, kind) in &member.dependencies {
            let Some(target) = members.iter().find(|other| other.name == *name) else {
                continue;
            };
            let Some((_, target_room, _)) = room(&target.folder) else {
                continue;
            };
            let suite = name == CONFORMANCE && kind == "dev";
            let links = LINKING.contains(&member.name.as_str());
            let linked = links && (name == LINKED || name == LINKED_SIMULATION && kind == "dev");
            let marshals = [&*member.name, name] == MARSHALLING;
            if !allowed.contains(target_room) && !suite && !linked && !marshals {
                complaints.push(format!(
                    "{} ({}) must not depend on {name} ({}): {kind} dependency against the layering",
                    member.name, member.folder, target.folder
                ));
            }
        }
    }
    complaints
}

fn room(folder: &str) -> Option<&'static (&'static str, Room, &'static [Room])> {
    ROOMS.iter().find(|(prefix, _, _)| folder.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_in(folder: &str, name: &str, dependencies: &[&str]) -> Member {
        Member {
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
    fn a_crate_without_a_room_is_a_complaint() {
        assert_eq!(check(&[crate_in("crates/attic/old", "old", &[])]).len(), 1);
    }

    #[test]
    fn the_repository_is_layered() {
        assert_eq!(complaints(&Workspace::load().unwrap()), Complaints::new());
    }
}
