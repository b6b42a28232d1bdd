//! The policies of one datapath: getting engines ready for one that opens, or that comes from an earlier process.

use std::sync::Arc;

use provost_engine::{AttachError, Engine, RestoreError, SavedState, Site, Start};

use super::attachment::OnFault;
use super::plan::trial;
use super::table::Instance;
use super::{ChangeError, Policies};
use crate::runtime::{Fitted, Guard, StandIn};

/// Policies whose engines are ready for one datapath, in order. It is to be used before the next time that the control
/// plane waits for something, so that no change comes in between.
pub(crate) struct Chain {
    /// The engines.
    pub(crate) links: Vec<Link>,
    /// Attachments that do not fit the datapath and say `on_fault = "pass"`: it goes without.
    pub(crate) left_out: Vec<Arc<Instance>>,
}

/// A policy whose engine is ready.
pub(crate) struct Link {
    /// The policy.
    pub(crate) instance: Arc<Instance>,
    /// Starts its engine: fresh, or with what one of the same attachment has saved.
    pub(crate) start: Start,
    /// What is known of the engine.
    pub(crate) fitted: Fitted,
}

/// An engine that was started, and what is known of it.
pub(crate) struct FittedEngine {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) fitted: Fitted,
}

impl Link {
    /// Starts the engine.
    pub(crate) fn start(self, saved: Option<&SavedState>) -> Result<FittedEngine, RestoreError> {
        Ok(FittedEngine {
            engine: (self.start)(saved)?,
            fitted: self.fitted,
        })
    }
}

impl Chain {
    /// The policies.
    pub(crate) fn instances(&self) -> Vec<Arc<Instance>> {
        self.links.iter().map(|link| Arc::clone(&link.instance)).collect()
    }

    /// Starts all engines fresh.
    pub(crate) fn start(self) -> Result<Vec<FittedEngine>, RestoreError> {
        self.links.into_iter().map(|link| link.start(None)).collect()
    }
}

impl Policies {
    /// Gets the policies of a datapath ready. (Its number must be in the site: exceptions go by it.) An attachment that
    /// does not fit is an error, unless its `on_fault` says otherwise.
    pub(crate) async fn chain(&self, site: &Arc<Site>) -> Result<Chain, ChangeError> {
        loop {
            let generation = self.generation.get();
            let instances = self.table().chain(site);
            let lineages: Vec<_> = instances
                .iter()
                .map(|instance| self.unproved_lineage(instance.tag, site))
                .collect();
            let chain = match instances.is_empty() {
                true => Ok(Chain {
                    links: Vec::new(),
                    left_out: Vec::new(),
                }),
                false => {
                    let site = Arc::clone(site);
                    let prepare = move || prepare_chain(&instances, &lineages, &site);
                    let prepared = tokio::task::spawn_blocking(prepare).await;
                    prepared.map_err(|_| ChangeError::Ending)?
                }
            };
            if self.generation.get() == generation {
                return chain;
            }
        }
    }
}

/// An instance that came just before the datapath is as new to its calls as it would be to those of another that it
/// came to: it is on trial there too.
fn prepare_chain(
    instances: &[Arc<Instance>],
    lineages: &[Vec<Option<Arc<Instance>>>],
    site: &Arc<Site>,
) -> Result<Chain, ChangeError> {
    let (mut links, mut left_out) = (Vec::with_capacity(instances.len()), Vec::new());
    for (instance, lineage) in instances.iter().zip(lineages) {
        match instance.prepare(site) {
            Ok(start) => links.push(Link {
                start,
                fitted: Fitted::new(
                    instance.tag,
                    Guard {
                        trial: trial(lineage, site),
                        stand_in: stand_in(instance, site),
                    },
                ),
                instance: Arc::clone(instance),
            }),
            Err(error) if instance.on_fault() == OnFault::Pass => {
                tracing::warn!(
                    policy = %instance.name,
                    app = %site.app.name,
                    service = %site.service,
                    connection = site.connection,
                    %error,
                    "a connection goes without a policy that does not fit it"
                );
                left_out.push(Arc::clone(instance));
            }
            Err(error) => return Err(unfit(instance, site, error)),
        }
    }
    Ok(Chain { links, left_out })
}

/// What takes the place of an engine of this policy when it fails.
pub(crate) fn stand_in(instance: &Instance, site: &Site) -> StandIn {
    match instance.on_fault() {
        OnFault::Pass => StandIn::Pass,
        OnFault::Deny => StandIn::Deny {
            policy: Arc::clone(&instance.name),
            site: Arc::new(instance.site(site)),
        },
    }
}

pub(crate) fn unfit(instance: &Instance, site: &Site, error: AttachError) -> ChangeError {
    ChangeError::Unfit {
        policy: instance.name.to_string(),
        connection: site.connection,
        app: site.app.name.to_string(),
        service: site.service.to_string(),
        problem: error.problem,
    }
}
