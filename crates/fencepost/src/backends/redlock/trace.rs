//! What was sent for a held lock, so that giving it back undoes all of it, and nothing is sent behind that.

use std::sync::{Arc, Mutex, MutexGuard};

use super::node::Link;
use crate::backend::lock;
use crate::clock::Moment;

/// What was sent for a held lock, and until when it matters.
#[derive(Debug)]
pub(super) struct Trace(pub(super) Mutex<Sent>);

#[derive(Debug)]
pub(super) struct Sent {
    /// The connections over which nodes were asked for something that makes or keeps the lock.
    pub(super) links: Vec<Arc<Link>>,
    /// The end of the term that is valid now. No extension may begin to count after it.
    pub(super) until: Moment,
    /// When a node acts on the last request at the latest, and when it has forgotten it.
    pub(super) settled_at: Moment,
    pub(super) over_at: Moment,
    /// From now on nothing may be sent that makes or keeps the lock.
    pub(super) given_back: bool,
}

impl Sent {
    /// Notes that a request is being sent over a link.
    pub(super) fn over(&mut self, link: &Arc<Link>, sent: Moment) {
        // What an ended one carried cannot arrive any more.
        self.links.retain(|other| !other.has_ended() || sent <= self.settled_at);
        if !self.links.iter().any(|other| Arc::ptr_eq(other, link)) {
            self.links.push(link.clone());
        }
    }
}

impl Trace {
    pub(super) fn new(links: Vec<Arc<Link>>, until: Moment, settled_at: Moment, over_at: Moment) -> Self {
        Self(Mutex::new(Sent { links, until, settled_at, over_at, given_back: false }))
    }

    /// Keeps the lock from being given back while something is sent that keeps it; `None` if it has been.
    pub(super) fn held(&self) -> Option<MutexGuard<'_, Sent>> {
        let sent = lock(&self.0);
        (!sent.given_back).then_some(sent)
    }
}
