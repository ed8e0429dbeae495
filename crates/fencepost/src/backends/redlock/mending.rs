//! Makes a lock anew on nodes that have lost it, once an extension has shown that a majority has not.

use std::sync::Arc;

use super::fleet::{Heard, Question};
use super::milliseconds;
use super::node::{Link, Script};
use super::renewal::{Batch, Extending, SLACK};
use crate::backends::redis::driver::connection::Call;
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;

/// One lock of a batch that was extended.
pub(super) struct Mending {
    pub(super) batch: Arc<Batch>,
    pub(super) index: usize,
}

impl Mending {
    fn lock(&self) -> &Extending {
        &self.batch.locks[self.index]
    }

    /// Sends it so that no node acts later than `until`, the end of the validity.
    fn send_until(&self, link: &Link, sent: Moment, until: Moment, call: Call) -> Result<(), String> {
        let Extending { renewing, life, .. } = self.lock();
        let (px, token) = (milliseconds(*life), renewing.token.to_string());
        let left = u64::try_from(until.since(sent).as_micros()).unwrap_or(u64::MAX);
        let not_after = link.node.time_at_least(sent).saturating_add(left).to_string();
        let keys = [&*self.batch.fleet.config.node_key, renewing.keys.lock(), renewing.keys.counter()];
        let arguments = [&*link.votes, &not_after, "mend", &renewing.value, &px, &token];
        link.eval(Script::Hold, &keys, &arguments, sent, call)
    }
}

impl Question for Mending {
    fn script(&self) -> Script {
        Script::Hold
    }

    fn send(&self, link: &Link, sent: Moment, call: Call) -> Result<(), String> {
        let until = lock(&self.lock().renewing.trace.0).until;
        self.send_until(link, sent, until, call)
    }

    fn send_late(&self, link: &Arc<Link>, sent: Moment, call: Call) -> Result<(), String> {
        let Extending { renewing, life, .. } = self.lock();
        let Some(mut trace) = renewing.trace.held() else {
            return Err("the lock was given back meanwhile".to_owned());
        };
        let until = trace.until;
        if sent >= until {
            return Err("the lease ended meanwhile".to_owned());
        }
        trace.over(link, sent, until.plus(SLACK), until.plus(*life));
        trace.mended = true;
        self.send_until(link, sent, until, call)
    }

    fn halves(&self) -> Option<[Arc<Self>; 2]> {
        None
    }

    /// Whatever it says: the next renewal asks again.
    fn hear(self: Arc<Self>, _: usize, _: Heard) {}
}
