//! Standing in the queue: a waiter watches the key right ahead of it, and its own, and looks when one of them is gone.

use std::time::Duration;

use super::claim::Claim;
use super::client::Fault;
use super::link::{Sight, Watch};
use super::place::{Place, View};
use super::proto::KeyValue;
use super::seats::Seat;
use crate::Result;
use crate::runtime::clock::Moment;

/// How often a waiter looks for itself, in case that a watch is dead and nobody has noticed.
const RECHECK: Duration = Duration::from_secs(5);
/// Between two looks while the cluster does not answer.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a waiter sits out an outage of the cluster.
const PATIENCE: Duration = Duration::from_secs(10);

impl Claim {
    /// Waits until nobody is ahead (`true`) or our key is gone, alone or with its lease (`false`). Only reads: may be dropped anywhere.
    pub(super) async fn stand(
        &self,
        place: &Place,
        seat: &Seat,
        mut holder: KeyValue,
        mut ahead: Vec<u8>,
    ) -> Result<bool> {
        self.tell(seat, &holder).await;
        let mut failing: Option<Moment> = None;
        let mut watches = None;
        // Each look keeps the lease alive, too.
        let recheck = RECHECK.min(place.uses.lease.term / 3);
        loop {
            if watches.is_none() {
                // Open before the look that decides: nothing that happens in between is missed.
                watches = self.watch(place, &ahead).await;
            }
            match self.look(place).await {
                Ok(View::First) => return Ok(true),
                Ok(View::Gone) => return Ok(false),
                Ok(View::Behind { holder: now, ahead: next }) => {
                    failing = None;
                    if now.create_revision != holder.create_revision {
                        holder = now;
                        self.tell(seat, &holder).await;
                    }
                    if next != ahead {
                        ahead = next;
                        watches = None;
                        continue;
                    }
                }
                Err(Fault::NoLease) => return Ok(false),
                Err(Fault::Error(error)) => {
                    let now = self.session.clock.now();
                    let since = *failing.get_or_insert(now);
                    if !error.is_transient() || now.since(since) > PATIENCE || place.uses.lease.is_over(now) {
                        return Err(error);
                    }
                    watches = None;
                }
            }
            let again = self.session.clock.now().plus(crate::wait::jittered(recheck));
            tokio::select! {
                () = place.uses.lease.ended() => return Ok(false),
                open = something_happens(&mut watches) => if !open {
                    watches = None;
                },
                () = self.session.clock.sleep_until(again) => {}
            }
        }
    }

    /// Watches the key ahead of ours, and ours, from now on. From a revision of the past it could take 100 ms longer: the
    /// server catches up with such watches in a loop of its own.
    async fn watch(&self, place: &Place, ahead: &[u8]) -> Option<(Watch, Watch)> {
        let client = &self.session.client;
        let mut first = client.watch(ahead, 0).await?;
        let mut own = client.watch(&place.mine.key, 0).await?;
        let soon = self.session.clock.now().plus(client.config.timeout);
        let open = async { first.next().await == Sight::Open && own.next().await == Sight::Open };
        let open = self.session.clock.within(Some(soon), open).await;
        (open == Some(true)).then_some((first, own))
    }
}

/// Waits until a watch has seen the end of its key; `false` if the watches themselves have ended.
async fn something_happens(watches: &mut Option<(Watch, Watch)>) -> bool {
    let Some((ahead, own)) = watches else {
        tokio::time::sleep(crate::wait::jittered(PAUSE)).await;
        return false;
    };
    loop {
        let sight = tokio::select! {
            sight = ahead.next() => sight,
            sight = own.next() => sight,
        };
        match sight {
            Sight::Deleted => return true,
            Sight::Ended => return false,
            Sight::Open | Sight::Put(_) => {}
        }
    }
}
