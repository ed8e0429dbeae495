//! What one client of a cluster has in one process: its connection, its leases and its queues.

use std::sync::Arc;

use super::config::Config;
use super::driver::client::Client;
use super::hold::KeyRead;
use super::leases::Leases;
use super::local_queue::LocalQueue;
use crate::Result;
use crate::backends::common::batch::Batches;
use crate::runtime::clock::Clock;

pub(super) struct Session {
    pub(super) client: Arc<Client>,
    pub(super) leases: Leases,
    pub(super) queue: LocalQueue,
    /// One at a time uses a handle of a name. What an attach has begun it ends, or undoes, before the next
    /// one looks.
    pub(super) handles: LocalQueue,
    /// The reads of renewals, many in one transaction.
    pub(super) reads: Arc<Batches<KeyRead>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Session").field(&self.client.config).finish()
    }
}

impl Session {
    pub(super) fn new(config: Config, clock: Clock) -> Result<Arc<Self>> {
        let client = Arc::new(Client::new(config, clock)?);
        Ok(Arc::new(Self {
            leases: Leases::new(client.clone()),
            queue: LocalQueue::default(),
            handles: LocalQueue::default(),
            reads: Arc::new(Batches::new(client.keeper.clone())),
            client,
        }))
    }

    /// Carries something out on the keeper's runtime: to its end, even if the caller does not wait for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let ended = || Err(self.client.unavailable("the keeper has ended"));
        self.client.background.carry_out(&self.client.keeper, job).await.unwrap_or_else(ended)
    }

    /// Revokes the leases that no lock uses; the others go with their last lock.
    pub(super) async fn close(&self) {
        self.leases.retire_all();
        let client = &self.client;
        // Where one is not answered the others would not be either, and end by themselves.
        let soon = client.clock.now().plus(client.config.timeout);
        client.clock.within(Some(soon), client.background.done()).await;
        client.close();
    }
}
