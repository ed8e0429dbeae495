//! What was sent for a held lock, so that giving it back undoes all of it, and nothing is sent behind that.

use std::sync::{Arc, Mutex, MutexGuard};

use super::node::Link;
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;

/// What was sent for a held lock, and until when it matters.
#[derive(Debug)]
pub(super) struct Trace(pub(super) Mutex<Sent>);

#[derive(Debug)]
pub(super) struct Sent {
    /// The connections over which nodes were asked for something that makes or keeps the lock, and when a node acts on
    /// what went over each at the latest.
    links: Vec<(Arc<Link>, Moment)>,
    /// The end of the term that is valid now. No extension may begin to count after it.
    pub(super) until: Moment,
    /// When a node acts on the last request at the latest, and when it has forgotten it.
    settled_at: Moment,
    over_at: Moment,
    /// From now on nothing may be sent that makes or keeps the lock: it was given back, or detached.
    pub(super) closed: bool,
    /// Something was sent that makes the lock anew on a node that has lost it.
    pub(super) mended: bool,
}

impl Sent {
    /// Notes that a request is being sent over a link at `now`, which a node acts on until `settled_at` and then has
    /// forgotten by `over_at`.
    pub(super) fn over(&mut self, link: &Arc<Link>, now: Moment, settled_at: Moment, over_at: Moment) {
        self.settled_at = self.settled_at.max(settled_at);
        self.over_at = self.over_at.max(over_at);
        match self.links.iter_mut().find(|(other, _)| Arc::ptr_eq(other, link)) {
            Some((_, latest)) => *latest = settled_at.max(*latest),
            None => {
                // What an ended one carried can arrive for a while.
                self.links.retain(|(other, settled_at)| !other.has_ended() || now <= *settled_at);
                // One for each node and no more, for as long as the lock is held.
                self.links.reserve_exact(1);
                self.links.push((link.clone(), settled_at));
            }
        }
    }

    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        self.links.iter().map(|(link, _)| link.clone()).collect()
    }

    pub(super) fn settled_at(&self) -> Moment {
        self.settled_at
    }

    pub(super) fn over_at(&self) -> Moment {
        self.over_at
    }
}

impl Trace {
    pub(super) fn new(links: Vec<Arc<Link>>, until: Moment, settled_at: Moment, over_at: Moment) -> Self {
        let links = links.into_iter().map(|link| (link, settled_at)).collect();
        Self(Mutex::new(Sent { links, until, settled_at, over_at, closed: false, mended: false }))
    }

    /// Keeps the lock from being given back while something is sent that keeps it; `None` if it has been.
    pub(super) fn held(&self) -> Option<MutexGuard<'_, Sent>> {
        let sent = lock(&self.0);
        (!sent.closed).then_some(sent)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backends::redis::driver::connector::Connector as Dial;
    use crate::backends::redlock::config::Config;
    use crate::backends::redlock::node::Node;
    use crate::backends::redlock::node::tests::mute_link;
    use crate::url::StoreUrl;

    #[tokio::test]
    async fn ended_connections_are_forgotten_once_nothing_of_them_can_arrive() {
        let config = Config::from_url(StoreUrl::parse("redlock://a,b,c").unwrap()).unwrap();
        let node = Arc::new(Node::new(0, Dial::new(config.nodes[0].clone()).unwrap()));
        let at = |seconds| Moment::at(Duration::from_secs(seconds));
        let trace = Trace::new(Vec::new(), at(10), at(1), at(20));
        let mut sent = lock(&trace.0);
        for second in 0..100 {
            let (link, _theirs) = mute_link(&node);
            sent.over(&link, at(second), at(second + 5), at(second + 30));
            link.close();
        }
        assert_eq!(sent.links().len(), 6, "those that were used in the last five seconds");
        assert_eq!((sent.settled_at(), sent.over_at()), (at(104), at(129)));
    }
}
