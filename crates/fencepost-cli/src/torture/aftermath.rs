//! What is found in the store when all clients have ended: entries that should be gone, and locks that cannot
//! be had.

use std::time::Duration;

use fencepost::{Error, Holder, Locks};
use fencepost_testkit::history::{Fault, Moment, Target, What};
use fencepost_testkit::local::Local;
use tokio::time::sleep;

use super::workers::{Shared, locked};
use super::{Plan, lock_name};

/// How much longer than a ttl an entry of a killed client may stay: stores look at their clocks now and then.
const PATIENCE: Duration = Duration::from_secs(20);

/// What was found.
#[derive(Default)]
pub(crate) struct Aftermath {
    pub(crate) found: Vec<What>,
    /// Why the rest is not known, if it is not.
    pub(crate) unknown: Option<String>,
}

impl Aftermath {
    /// Nobody has looked, for this reason.
    pub(crate) fn broken_off(why: &str) -> Self {
        let mut aftermath = Self::default();
        aftermath.break_off(why);
        aftermath
    }

    /// There may be more, that nobody has looked for.
    pub(crate) fn break_off(&mut self, why: &str) {
        self.unknown = Some(format!("what is left in the store is not known: {why}"));
    }

    /// Looks: at once for entries of clients that ended in good order, for all others when their leases must
    /// have ended; and takes each lock once. What was found stays if it is dropped.
    pub(crate) async fn look(&mut self, locks: &Locks, plan: &Plan, shared: &Shared, local: Option<&Local>) {
        if let Err(error) = self.find(locks, plan, shared, local).await {
            self.break_off(&error.to_string());
        }
    }

    async fn find(
        &mut self,
        locks: &Locks,
        plan: &Plan,
        shared: &Shared,
        local: Option<&Local>,
    ) -> fencepost::Result<()> {
        let now = Moment::now();
        let holders = locks.list(&plan.prefix).await?.holders;
        let gone = holders.iter().filter(|holder| should_be_gone(holder, now, plan, shared));
        self.found.extend(gone.map(left_early));
        self.found.extend(leftovers(locks, plan, local).await?);
        for number in 0..plan.locks {
            let lock = lock_name(&plan.prefix, number);
            match locks.lock(&lock).ttl(plan.ttl).wait(plan.ttl + PATIENCE).acquire().await {
                Ok(guard) => guard.release().await?,
                Err(error @ (Error::Busy { .. } | Error::Timeout { .. })) => {
                    let what = format!("when all clients had ended it could not be had: {error}");
                    self.found.push(What::Stuck { lock, what });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether a client that ended in good order had to give this back before: nothing was broken since it was
/// granted, or a ttl before that, that would have kept it from doing so.
fn should_be_gone(holder: &Holder, now: Moment, plan: &Plan, shared: &Shared) -> bool {
    let ended_well = holder.pid.and_then(|pid| locked(&shared.ended_well).get(&pid).copied());
    let since = now.minus(holder.age().unwrap_or_default() + plan.ttl);
    let collector = locked(&shared.collector);
    let whole = |client| {
        let near = |fault: &&Fault| fault.touches(since, now);
        let own = |fault: &Fault| fault.target == Target::Client(client);
        let server = |fault: &Fault| matches!(fault.target, Target::Server(_));
        !collector.faults.iter().filter(near).any(|fault| own(fault) || server(fault))
    };
    ended_well.is_some_and(whole)
}

fn left_early(holder: &Holder) -> What {
    What::Left {
        lock: holder.name.to_string(),
        what: format!("a holder whose client has ended in good order: {holder}"),
    }
}

/// What the store still has of the run when the last lease must have ended.
async fn leftovers(locks: &Locks, plan: &Plan, local: Option<&Local>) -> fencepost::Result<Vec<What>> {
    let deadline = Moment::now().plus(plan.ttl + PATIENCE);
    loop {
        let holders = locks.list(&plan.prefix).await.map(|listing| listing.holders);
        let over = Moment::now() > deadline;
        let left = holders.map(|holders| {
            let shown = holders.iter().map(|holder| (holder.name.to_string(), format!("a holder: {holder}")));
            let entries = local.map(|local| local.entries(&plan.prefix)).unwrap_or_default();
            let inside = entries.into_iter().map(|entry| (entry, "this entry".to_owned()));
            shown.chain(inside).map(|(lock, what)| What::Left { lock, what }).collect::<Vec<_>>()
        });
        if left.as_ref().is_ok_and(Vec::is_empty) || over {
            return left;
        }
        sleep(Duration::from_millis(100)).await;
    }
}
