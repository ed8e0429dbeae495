//! A place in the queue of a name. One transaction puts our key there and reads who is ahead; if nobody is, the lock is
//! ours.

use super::claim::Claim;
use super::client::Fault;
use super::leases::{Mine, Use};
use super::proto::{Compare, KeyValue, PutRequest, RangeRequest, Request as Op};
use super::record::Record;
use crate::Error;

/// Our key in the queue.
pub(super) struct Place {
    pub(super) uses: Use,
    pub(super) mine: Mine,
    pub(super) created: i64,
}

/// What stands between us and the lock.
pub(super) enum View {
    /// Nothing: we are the first.
    First,
    /// Others; the one that holds the lock, and the key right ahead of us.
    Behind { holder: KeyValue, ahead: Vec<u8> },
    /// Our key is gone.
    Gone,
}

/// Why there is no place.
pub(super) enum Refusal {
    /// Somebody else has the lock.
    Held(KeyValue),
    /// Try again: this lease is gone, or its key is taken.
    OtherLease,
    Error(Error),
}

impl Claim {
    fn put(&self, key: &[u8], uses: &Use) -> Op {
        let (key, value) = (key.to_vec(), self.record.to_bytes());
        Op::Put(PutRequest { key, value, lease: uses.lease.id, ignore_lease: false })
    }

    fn read_all(&self, max_create_revision: i64) -> Op {
        let (key, range_end) = self.keys.range();
        Op::Range(RangeRequest { key, range_end, max_create_revision, ..RangeRequest::default() })
    }

    /// Takes the lock in one step if nobody at all contends for it, and else does nothing, unless it has to look closer.
    pub(super) async fn take_if_free(&self, uses: &Use) -> Result<(Place, View), Refusal> {
        let mine = self.session.leases.claim(self.keys.of(uses.lease.id));
        let free = Compare::none_in(self.keys.range());
        let (succeeded, revision, contenders) =
            self.put_if(uses, free, vec![self.put(&mine.key, uses)], vec![self.read_all(0)]).await?;
        if succeeded {
            return Ok((Place { uses: uses.clone(), mine, created: revision }, View::First));
        }
        match contenders.into_iter().next() {
            Some(first) if first.key != mine.key || first.lease != uses.lease.id => Err(Refusal::Held(first)),
            // Only names below this one are held, or what is there is of this client: the queue tells.
            _ => {
                drop(mine);
                self.enqueue(uses.clone()).await
            }
        }
    }

    /// Puts our key into the queue and says what is ahead of it.
    pub(super) async fn enqueue(&self, uses: Use) -> Result<(Place, View), Refusal> {
        let mine = self.session.leases.claim(self.keys.of(uses.lease.id));
        let (put, none) = (self.put(&mine.key, &uses), Compare::created(&mine.key, 0));
        let (succeeded, revision, contenders) =
            self.put_if(&uses, none, vec![put, self.read_all(0)], vec![self.read_all(0)]).await?;
        let ours = contenders.iter().find(|kv| kv.key == mine.key);
        let created = match ours {
            _ if succeeded => revision,
            // Put by a request that we had no answer to.
            Some(kv) if Record::of(kv).is_some_and(|record| record.owner == self.record.owner) => {
                kv.create_revision
            }
            Some(kv) if kv.lease == uses.lease.id => {
                // What another attempt of ours has left: nobody but us is in front of this name here.
                let deleted = self.session.leases.delete(&mine.key, kv.create_revision).await;
                deleted.map_err(|fault| Refusal::Error(fault.into_error(&self.session.client)))?;
                return Err(Refusal::OtherLease);
            }
            // A detached lock, which has kept its key: we need another one.
            Some(_) => {
                self.session.leases.retire(&uses.lease);
                return Err(Refusal::OtherLease);
            }
            None => return Err(Refusal::OtherLease),
        };
        let view = view(&contenders, &mine.key, created);
        Ok((Place { uses, mine, created }, view))
    }

    /// One transaction that may put our key, beside a keep-alive where the lease needs one.
    async fn put_if(
        &self,
        uses: &Use,
        compare: Compare,
        success: Vec<Op>,
        failure: Vec<Op>,
    ) -> Result<(bool, i64, Vec<KeyValue>), Refusal> {
        let session = &self.session;
        let (answer, refreshed) = tokio::join!(
            session.client.txn(vec![compare], success, failure),
            session.leases.refresh(&uses.lease),
        );
        let refreshed = match (&answer, refreshed) {
            (Ok(answer), Ok(())) => session.leases.confirm(&uses.lease, answer.stamp()).await,
            (_, refreshed) => refreshed,
        };
        let unknown = answer.as_ref().map_or(true, |answer| answer.unknown);
        if unknown || matches!(refreshed, Err(Fault::NoLease)) {
            session.leases.retire(&uses.lease);
        }
        let answer = match (answer, refreshed) {
            (Err(Fault::NoLease), _) | (Ok(_), Err(Fault::NoLease)) => return Err(Refusal::OtherLease),
            (Err(Fault::Error(error)), _) => return Err(Refusal::Error(error)),
            // A keep-alive without an answer that counts: the lease is as old as it was, and so is the validity that we return.
            (Ok(answer), _) => answer.value,
        };
        let (succeeded, revision) = (answer.succeeded, answer.revision());
        Ok((succeeded, revision, self.keys.contenders(answer.into_kvs())))
    }

    /// What is ahead of our key now, and that our lease lives.
    pub(super) async fn look(&self, place: &Place) -> Result<View, Fault> {
        let (answer, refreshed) = tokio::join!(
            self.session.client.txn(vec![], vec![self.read_all(place.created)], vec![]),
            self.session.leases.refresh(&place.uses.lease),
        );
        refreshed?;
        let answer = answer?;
        self.session.leases.confirm(&place.uses.lease, answer.stamp()).await?;
        let contenders = self.keys.contenders(answer.value.into_kvs());
        Ok(view(&contenders, &place.mine.key, place.created))
    }
}

/// What is ahead of our key among the contenders, who are in order.
fn view(contenders: &[KeyValue], key: &[u8], created: i64) -> View {
    let Some(ours) = contenders.iter().position(|kv| kv.key == key && kv.create_revision == created) else {
        return View::Gone;
    };
    match &contenders[..ours] {
        [] => View::First,
        [holder, ..] => View::Behind { holder: holder.clone(), ahead: contenders[ours - 1].key.clone() },
    }
}
