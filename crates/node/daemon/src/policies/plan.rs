//! What has to happen to one datapath for it to have the policies that a table gives it.

use std::collections::HashMap;
use std::sync::Arc;

use provost_datapath::EngineStart;
use provost_engine::{SavedState, Site, Start};

use super::ChangeError;
use super::chain::{stand_in, unfit};
use super::table::{Instance, Table};
use super::transports;
use crate::node::OpenConnection;
use crate::runtime::{Before, ConnectionId, Guard, Planned, Tag, Trial};

/// The policies and the transport of a datapath.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) chain: Vec<Arc<Instance>>,
    pub(crate) transport_version: u32,
}

impl Shape {
    /// What a datapath has.
    pub(crate) fn of(connection: &OpenConnection) -> Shape {
        Shape {
            chain: connection.chain.clone(),
            transport_version: connection.transport_version,
        }
    }

    fn tags(&self) -> impl Iterator<Item = Tag> {
        self.chain.iter().map(|instance| instance.tag)
    }

    /// All engines of a datapath with these policies.
    pub(crate) fn engines(&self) -> Vec<Tag> {
        let mut engines = vec![Tag::FRONTEND];
        engines.extend(self.tags());
        engines.extend([Tag::MARSHALLING, Tag::TRANSPORT]);
        engines
    }

    fn find(&self, tag: Tag) -> Option<&Arc<Instance>> {
        self.chain.iter().find(|instance| instance.tag == tag)
    }

    /// The instance in whose place another one of the same attachment comes.
    fn predecessor(&self, of: &Instance) -> Option<&Arc<Instance>> {
        let is_same =
            |instance: &&Arc<Instance>| instance.name == of.name && instance.kind.name() == of.kind.name();
        self.chain.iter().find(is_same)
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Shape) -> bool {
        self.transport_version == other.transport_version && self.tags().eq(other.tags())
    }
}

/// A datapath as it is at one moment, for those who look at it on another thread.
pub(crate) struct Standing {
    connection: ConnectionId,
    site: Arc<Site>,
    shape: Shape,
    /// What has failed there.
    without: Vec<Tag>,
}

impl Standing {
    pub(crate) fn of(id: ConnectionId, connection: &OpenConnection) -> Standing {
        Standing {
            connection: id,
            site: Arc::clone(&connection.site),
            shape: Shape::of(connection),
            without: connection.without.clone(),
        }
    }

    /// What has to happen to it for it to have what a table gives it, if anything.
    pub(crate) fn order(self, table: &Table, purpose: impl FnOnce() -> Purpose) -> Option<Order> {
        let to = self.wanted(table);
        (self.shape != to).then(|| Order {
            connection: self.connection,
            site: self.site,
            from: self.shape,
            to,
            purpose: purpose(),
        })
    }

    /// What has to happen to it for it to have again what it had, if anything.
    pub(crate) fn order_back(self, had: &Shape, checkpoints: &Checkpoints) -> Option<Order> {
        let to = Shape {
            chain: self.without_failed(had.chain.clone()),
            ..*had
        };
        (self.shape != to).then(|| Order {
            connection: self.connection,
            site: self.site,
            from: self.shape,
            to,
            purpose: Purpose::Back(checkpoints.clone()),
        })
    }

    /// What has failed there stays away: the one before that took its place stays, or none does.
    fn without_failed(&self, chain: Vec<Arc<Instance>>) -> Vec<Arc<Instance>> {
        let chosen = |instance: Arc<Instance>| match self.without.contains(&instance.tag) {
            true => self.shape.predecessor(&instance).cloned(),
            false => Some(instance),
        };
        chain.into_iter().filter_map(chosen).collect()
    }

    /// What a table gives it.
    fn wanted(&self, table: &Table) -> Shape {
        let site = &self.site;
        let chain = self.without_failed(table.chain(site));
        let version = match site.peer.transport {
            "tcp" => table
                .transports
                .version(transports::TCP, &site.app.name, site.connection),
            _ => None,
        };
        Shape {
            chain,
            transport_version: version.unwrap_or(self.shape.transport_version),
        }
    }
}

/// What engines of a datapath had saved when they went, by which one it was.
pub(crate) type Checkpoints = HashMap<Tag, SavedState>;

/// Why a datapath is changed.
pub(crate) enum Purpose {
    /// Something new comes, and is on trial.
    Forward,
    /// It was changed and is changed back, with what its engines had saved before.
    Back(Checkpoints),
    /// An earlier state comes back, as these instances have failed.
    Restore(Arc<[Tag]>),
}

/// A datapath that is to be changed.
pub(crate) struct Order {
    pub(crate) connection: ConnectionId,
    pub(crate) site: Arc<Site>,
    pub(crate) from: Shape,
    pub(crate) to: Shape,
    pub(crate) purpose: Purpose,
}

/// Its new engines, ready to start.
pub(crate) struct Ready {
    pub(crate) connection: ConnectionId,
    pub(crate) site: Arc<Site>,
    pub(crate) from: Shape,
    pub(crate) to: Shape,
    pub(crate) planned: Vec<Planned>,
}

impl Order {
    /// Whether a policy gets an engine ready for it, which may be slow.
    pub(crate) fn prepares_policies(&self) -> bool {
        self.to.tags().any(|tag| self.from.find(tag).is_none())
    }

    /// Gets the new engines ready. May be slow.
    pub(crate) fn prepare(self) -> Result<Ready, ChangeError> {
        let mut planned = vec![Planned::Keep(Tag::FRONTEND)];
        for instance in &self.to.chain {
            planned.push(self.plan(instance)?);
        }
        planned.push(Planned::Keep(Tag::MARSHALLING));
        planned.push(match self.to.transport_version == self.from.transport_version {
            true => Planned::Keep(Tag::TRANSPORT),
            false => Planned::Replace {
                was: Tag::TRANSPORT,
                tag: Tag::TRANSPORT,
                start: transports::start_tcp(self.to.transport_version),
                guard: Guard::default(),
            },
        });
        Ok(Ready {
            connection: self.connection,
            site: self.site,
            from: self.from,
            to: self.to,
            planned,
        })
    }

    fn plan(&self, instance: &Arc<Instance>) -> Result<Planned, ChangeError> {
        let tag = instance.tag;
        if self.from.find(tag).is_some() {
            return Ok(Planned::Keep(tag));
        }
        let site = &self.site;
        let prepare = || {
            instance
                .prepare(site)
                .map_err(|error| unfit(instance, site, error))
        };
        let predecessor = self.from.predecessor(instance);
        let start = match &self.purpose {
            Purpose::Forward | Purpose::Restore(_) => started(prepare()?),
            Purpose::Back(checkpoints) => resumed([prepare()?, prepare()?], checkpoints.get(&tag).cloned()),
        };
        let guard = Guard {
            trial: match &self.purpose {
                Purpose::Forward => trial(&[predecessor.cloned()], site),
                // What comes back may not have been on trial here: it has nothing to fear but what has failed.
                Purpose::Restore(failed) => predecessor
                    .filter(|before| !failed.contains(&before.tag))
                    .and_then(|before| trial(&[Some(Arc::clone(before))], site)),
                Purpose::Back(_) => None,
            },
            stand_in: stand_in(instance, site),
        };
        Ok(match predecessor {
            Some(predecessor) => Planned::Replace {
                was: predecessor.tag,
                tag,
                start,
                guard,
            },
            None => Planned::Insert { tag, start, guard },
        })
    }
}

/// What was in an instance's place before it, and before that one, the last first, as far as each has not proved itself
/// yet; at the end, none stands for an attachment that was not there.
pub(super) type Lineage = [Option<Arc<Instance>>];

/// A trial of an engine on a datapath against what was before it; none, if it has nothing to prove.
pub(super) fn trial(lineage: &Lineage, site: &Arc<Site>) -> Option<Trial> {
    let (before, earlier) = lineage.split_first()?;
    Some(Trial::against(before.as_ref().and_then(|before| {
        // Where it was, it was prepared for this datapath before; should it not fit any more, there is none.
        let start = || Some(started(before.prepare(site).ok()?));
        Some(Before {
            instance: Arc::clone(before),
            starts: [start()?, start()?],
            guard: Guard {
                trial: trial(earlier, site),
                stand_in: stand_in(before, site),
            },
        })
    })))
}

/// The engines of these policies anew, each from what it has saved, for a datapath of which something else is known now.
/// May be slow.
pub(crate) fn renewed(chain: &[Arc<Instance>], site: &Arc<Site>) -> Result<Vec<(Tag, Planned)>, ChangeError> {
    let renew = |instance: &Arc<Instance>| {
        let tag = instance.tag;
        let prepared = instance.prepare(site);
        let planned = Planned::Replace {
            was: tag,
            tag,
            start: started(prepared.map_err(|error| unfit(instance, site, error))?),
            guard: Guard {
                trial: None,
                stand_in: stand_in(instance, site),
            },
        };
        Ok((tag, planned))
    };
    chain.iter().map(renew).collect()
}

/// Starts a policy's engine from what its predecessor has saved.
fn started(start: Start) -> EngineStart {
    Box::new(|predecessor| start(predecessor.saved))
}

/// Starts a policy's engine again: from what its successor has saved, if it reads that, else from what it had saved
/// itself when it went.
fn resumed([first, second]: [Start; 2], checkpoint: Option<SavedState>) -> EngineStart {
    Box::new(move |predecessor| {
        let Some(saved) = predecessor.saved else {
            return first(checkpoint.as_ref());
        };
        first(Some(saved)).or_else(|_| second(checkpoint.as_ref()))
    })
}
