//! A variant that production does not have: counters without a clock. A node that has lost its counter says
//! so, and a client that needs its vote first reads the counters of a majority that has not, and goes above
//! them. It is here because it shows why the reads must be fresh, and why a quarantine is needed all the
//! same.

use super::rules::{Flaw, Rules};
use super::state::{Actor, Confirmation, Link, NODES, Phase, Read, State};
use crate::quorum::{VoteState, majority};

/// Whether a vote of the attempt is from a node that has lost its counter.
pub(super) fn is_needed(actor: &Actor) -> bool {
    granted(actor).any(|node| actor.links[node].doubtful)
}

fn granted(actor: &Actor) -> impl Iterator<Item = usize> {
    (0..NODES).filter(|&node| matches!(actor.attempt.votes[node], VoteState::Granted { .. }))
}

/// Asks all nodes for their counters.
pub(super) fn ask(actor: &mut Actor) {
    for link in &mut actor.links {
        link.read = Read::Asked;
    }
}

/// A majority has granted, but not all of it can be trusted.
pub(super) fn begin(rules: &Rules, actor: &mut Actor) {
    actor.phase = Phase::Reading;
    if rules.flaw != Flaw::StaleReads {
        ask(actor);
    }
}

impl State {
    /// Whether the counters of a majority are known.
    pub(super) fn may_raise(&self, who: usize) -> bool {
        let actor = &self.actors[who];
        let known = actor.links.iter().filter(|link| matches!(link.read, Read::Said(_))).count();
        actor.phase == Phase::Reading && self.now < actor.attempt.until && known >= majority(NODES)
    }

    /// Picks a token above all that was read, and asks who has granted to confirm it.
    pub(super) fn raise(&mut self, who: usize) {
        let actor = &mut self.actors[who];
        let said = |link: &Link| if let Read::Said(value) = link.read { value + 1 } else { 0 };
        let above = actor.links.iter().map(said).max().unwrap_or(0);
        actor.token = above.max(actor.attempt.token as u8);
        actor.phase = Phase::Raising;
        for link in &mut actor.links {
            link.read = Read::None;
        }
        for node in granted(actor).collect::<Vec<_>>() {
            actor.links[node].confirms = [Confirmation::Asked(actor.token), Confirmation::None];
        }
    }

    /// Whether a majority has confirmed the token.
    pub(super) fn may_return(&self, who: usize) -> bool {
        let actor = &self.actors[who];
        let yes = |link: &&Link| link.confirms[0] == Confirmation::Yes(actor.token);
        let confirmed = actor.links.iter().filter(yes).count();
        actor.phase == Phase::Raising && self.now < actor.attempt.until && confirmed >= majority(NODES)
    }

    /// A node that knows its counter says it.
    pub(super) fn read(&mut self, who: usize, node: usize) -> bool {
        let link = &mut self.actors[who].links[node];
        let said = link.read == Read::Asked && !self.nodes[node].amnesiac;
        if said {
            link.read = Read::Said(self.nodes[node].live.counter);
        }
        said
    }
}
