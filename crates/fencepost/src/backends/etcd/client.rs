//! What one client of a cluster has in one process: its connection, its leases and its queues.

use std::sync::Arc;

use super::config::Config;
use super::driver::cluster::Cluster;
use super::hold::KeyRead;
use super::leases::Leases;
use super::local_queue::LocalQueue;
use crate::Result;
use crate::backends::common::batch::Batches;
use crate::runtime::clock::Clock;

pub(super) struct Client {
    pub(super) cluster: Arc<Cluster>,
    pub(super) leases: Leases,
    pub(super) queue: LocalQueue,
    /// One at a time uses a handle of a name. What an attach has begun it ends, or undoes, before the next
    /// one looks.
    pub(super) handles: LocalQueue,
    /// The reads of renewals, many in one transaction.
    pub(super) reads: Arc<Batches<KeyRead>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Client").field(&self.cluster.config).finish()
    }
}

impl Client {
    pub(super) fn new(config: Config, clock: Clock) -> Result<Arc<Self>> {
        let cluster = Arc::new(Cluster::new(config, clock)?);
        Ok(Arc::new(Self {
            leases: Leases::new(cluster.clone()),
            queue: LocalQueue::default(),
            handles: LocalQueue::default(),
            reads: Arc::new(Batches::new(cluster.keeper.clone())),
            cluster,
        }))
    }

    /// Carries something out on the keeper's runtime: to its end, even if the caller does not wait for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let ended = || Err(self.cluster.unavailable("the keeper has ended"));
        self.cluster.background.carry_out(&self.cluster.keeper, job).await.unwrap_or_else(ended)
    }

    /// Revokes the leases that no lock uses; the others go with their last lock.
    pub(super) async fn close(&self) {
        self.leases.retire_all();
        let cluster = &self.cluster;
        // Where one is not answered the others would not be either, and end by themselves.
        let soon = cluster.clock.now().plus(cluster.config.timeout);
        cluster.clock.within(Some(soon), cluster.background.done()).await;
        cluster.close();
    }
}
