//! All that one client of a cluster has: its connection, leases and lines of waiters. A forked child gets its own.

use std::sync::Arc;
use std::time::Duration;

use super::client::{Client, Fault};
use super::config::Config;
use super::keys::Keys;
use super::leases::{Leases, Mine, Ours, Use, is_own};
use super::proto::{KeyValue, RangeRequest, Request};
use super::record;
use super::renewals::Renewals;
use super::seats::{Seat, Seats};
use crate::backend::WaitObservation;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::Clock;
use crate::runtime::keeper::Keeper;
use crate::{Holder, Name, Result};

#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Arc<Client>,
    pub(super) leases: Arc<Leases>,
    pub(super) seats: Arc<Seats>,
    /// One at a time uses a handle of a name: what an attach has begun it ends, or undoes, before the next one looks.
    handles: Arc<Seats>,
    pub(super) renewals: Arc<Renewals>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) background: BackgroundTasks,
    pub(super) clock: Clock,
    process: u32,
}

impl Session {
    pub(super) fn new(config: Config, clock: &Clock) -> Result<Arc<Self>> {
        let keeper = Keeper::of(clock)?;
        let client = Arc::new(Client::new(config, clock.clone())?);
        Ok(Arc::new(Self {
            leases: Arc::new(Leases::new(client.clone(), keeper.clone())),
            client,
            seats: Arc::default(),
            handles: Arc::default(),
            renewals: Arc::new(Renewals::new(keeper.clone())),
            keeper,
            background: BackgroundTasks::default(),
            clock: clock.clone(),
            process: std::process::id(),
        }))
    }

    /// Whether it was made by this process. The threads and sockets of a parent are not ours.
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Carries something out on the keeper's runtime: to its end, even if the caller does not wait for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if !self.is_ours() {
            return Err(self.client.unavailable("this lock is of the process that this one was forked from"));
        }
        let ended = || Err(self.client.unavailable("the keeper has ended"));
        self.background.carry_out(&self.keeper, job).await.unwrap_or_else(ended)
    }

    /// Who contends for a name, in order.
    pub(super) async fn contenders(&self, name: &Name) -> Result<Vec<KeyValue>> {
        let keys = Keys::new(&self.client.config.prefix, name);
        Ok(keys.contenders(self.read(keys.range()).await?.1))
    }

    /// All keys of a range, and the revision at which they were read.
    pub(super) async fn read(&self, (key, range_end): (Vec<u8>, Vec<u8>)) -> Result<(i64, Vec<KeyValue>)> {
        self.read_by(vec![RangeRequest { key, range_end, ..RangeRequest::default() }]).await
    }

    /// What several ranges hold at one revision.
    pub(super) async fn read_by(&self, ranges: Vec<RangeRequest>) -> Result<(i64, Vec<KeyValue>)> {
        let reads = ranges.into_iter().map(Request::Range).collect();
        let answer = self.client.txn(vec![], reads, vec![]).await;
        let answer = answer.map_err(|fault| fault.into_error(&self.client))?.value;
        Ok((answer.revision(), answer.into_kvs()))
    }

    /// Who holds a lock, and who waits for it.
    pub(super) async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        let contenders = self.contenders(name).await?;
        let Some((first, queue)) = contenders.split_first() else { return Ok(None) };
        let mut holder = self.describe(name, first).await;
        holder.queue = queue.iter().map(|kv| record::holder(name, kv, None)).collect();
        Ok(Some(holder))
    }

    /// The holder that a key tells of, with the time its lease has left.
    pub(super) async fn describe(&self, name: &Name, kv: &KeyValue) -> Holder {
        record::holder(name, kv, self.time_left(kv.lease).await)
    }

    /// `None` for a key without a lease, or where the cluster does not answer: this is for people to read.
    pub(super) async fn time_left(&self, lease: i64) -> Option<Duration> {
        if lease == 0 {
            return None;
        }
        let left = self.client.time_to_live(lease, false).await.ok()?.ttl;
        Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
    }

    /// Waits for the turn to use a handle of a name.
    pub(super) async fn handle_turn(&self, name: &Name) -> Result<Seat> {
        let mut turn = self.handles.enter(name);
        let deadline = self.clock.now().plus(self.client.config.timeout);
        match self.clock.within(Some(deadline), turn.front(&WaitObservation::default())).await {
            Some(()) => Ok(turn),
            None => {
                Err(self.client.unavailable("what this process did before with the handle has not ended"))
            }
        }
    }

    /// Ends a lease that a key has left, in the background; not one that others share.
    pub(super) fn drop_lease(self: &Arc<Self>, id: i64) {
        if is_own(id) {
            let session = self.clone();
            self.background.spawn(&self.keeper, async move { session.leases.end_empty(id).await });
        }
    }

    /// Gives up a place in the queue, or a lock, in the background. The seat goes when the key has.
    pub(super) fn leave(self: &Arc<Self>, uses: Use, mine: Mine, ours: Ours, seat: impl Send + 'static) {
        let session = self.clone();
        self.background.spawn(&self.keeper, async move {
            if let Err(Fault::Error(error)) = session.leases.delete_ours(&mine.key, ours).await {
                tracing::debug!(%error, "a key could not be deleted; it goes with its lease, or as soon as it can");
                drop(mine);
                session.leases.retire(&uses.lease);
            }
            drop(seat);
        });
    }
}
