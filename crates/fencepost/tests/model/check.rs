//! The promises that can be seen in a single state.

use crate::rules::{Limits, Rules};
use crate::search::{Promise, Sights};
use crate::server::Server;
use crate::state::{Body, Phase, State, TERM, TTL, Verb};

pub(crate) fn broken(state: &State, rules: &Rules, limits: &Limits) -> Option<Promise> {
    if !state.split {
        let mut holding = state
            .owners
            .iter()
            .filter(|owner| owner.phase == Phase::Holding && state.taken >> owner.token & 1 == 0);
        // What a guard has is at the server, so nobody else can be granted it.
        let first = holding.next();
        if first.is_some_and(|owner| state.store().key.is_none_or(|key| key.grant != owner.grant()))
            || holding.next().is_some()
        {
            return Some(Promise::Exclusion);
        }
    }
    let lost_messages = limits.breaks > state.breaks || limits.failovers > state.failovers;
    let store = state.store();
    if state.owners.iter().all(|owner| owner.is_done())
        && !lost_messages
        && !state.split
        && state.handle.is_none()
        && (store.key.is_some() || !store.queue.is_empty())
    {
        return Some(Promise::NothingLeft);
    }
    let stranded = (0..usize::from(limits.owners)).any(|at| is_stranded(state, at, rules, limits));
    stranded.then_some(Promise::NotStranded)
}

/// Whether a waiter that nobody else is in the way of looks again and again without being granted the lock.
fn is_stranded(state: &State, at: usize, rules: &Rules, limits: &Limits) -> bool {
    let owner = &state.owners[at];
    let others_are_done = (0..state.owners.len()).all(|other| other == at || state.owners[other].is_done());
    let quiet =
        owner.waiter.is_quiet() && owner.keeper.is_quiet() && owner.late.is_empty() && owner.stray.is_none();
    if owner.phase != Phase::Waiting || owner.asking > 0 || !others_are_done || !quiet {
        return false;
    }
    if !rules.looks {
        // It waits for a push that nobody sends.
        return true;
    }
    let mut state = *state;
    let (id, mut link) = (owner.id, owner.waiter);
    let its_own = state.store().key.is_some_and(|key| key.grant.id == id);
    let others = u8::try_from(state.store().queue.len()).unwrap_or(u8::MAX);
    let patience = if its_own { 1 } else { TTL + TERM * others + 1 };
    for _ in 0..=patience {
        if !link.open {
            (link.open, link.server) = (true, state.primary);
            state.owners[at].waiter = link;
        }
        let mut sights = Sights::default();
        let mut server =
            Server { state: &mut state, at: link.server, rules, limits, sights: &mut sights, broken: None };
        match server.run(Verb::Again(id)) {
            Body::Granted(_) | Body::Busy { asked: true, .. } => return false,
            Body::ReadOnly if rules.readonly_ends_the_link => link.open = false,
            _ => state.tick_servers(),
        }
        // Pushes of this look are not looked at.
        for owner in &mut state.owners {
            owner.waiter.down = crate::state::Line::EMPTY;
        }
    }
    true
}
