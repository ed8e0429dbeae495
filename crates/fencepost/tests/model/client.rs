//! What a client does with what it reads, and with a link that has ended.

use crate::rules::{Limits, Rules};
use crate::search::{Promise, Sight, Sights};
use crate::state::{Body, DRIFT, Grant, Link, Message, Owner, Phase, State, TERM, TTL, Verb};

/// One owner that does something.
pub(crate) struct Client<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) at: usize,
    pub(crate) rules: &'a Rules,
    pub(crate) limits: &'a Limits,
    pub(crate) sights: &'a mut Sights,
    pub(crate) broken: Option<Promise>,
}

impl Client<'_> {
    fn owner(&mut self) -> &mut Owner {
        &mut self.state.owners[self.at]
    }

    pub(crate) fn start(&mut self, tries: bool) {
        self.owner().floor = if self.limits.ticks > 0 { self.state.newest_then } else { self.state.newest };
        let owner = self.owner();
        (owner.phase, owner.asking) = (Phase::Waiting, 1);
        owner.waiter.send(if tries { Verb::Try(owner.id) } else { Verb::Wait(owner.id) });
    }

    pub(crate) fn look(&mut self) {
        let owner = self.owner();
        owner.asking += 1;
        owner.waiter.send(Verb::Again(owner.id));
    }

    pub(crate) fn cancel(&mut self) {
        let rules = self.rules;
        let owner = self.owner();
        owner.phase = Phase::Undoing;
        if !rules.leaves {
            owner.phase = Phase::Gone;
        } else if !rules.leaves_on_the_same_link {
            owner.keeper.send(Verb::Leave(owner.id));
        } else if owner.waiter.open {
            owner.waiter.send(Verb::Leave(owner.id));
        }
    }

    pub(crate) fn release(&mut self) {
        let owner = self.owner();
        owner.phase = Phase::Releasing;
        owner.keeper.send(Verb::Free(owner.grant()));
    }

    pub(crate) fn attach(&mut self, handle: Grant) {
        let rules = self.rules;
        let owner = self.owner();
        if !rules.attach_changes_identity {
            owner.id = handle.id;
        }
        (owner.phase, owner.token) = (Phase::Attaching, handle.token);
        owner.keeper.send(Verb::Attach(handle, owner.id));
    }

    /// The waiter's link ends. What the server has not read may still arrive, what it answered is lost.
    pub(crate) fn break_waiter(&mut self, ghost: bool) {
        let owner = self.owner();
        let Link { server, up, .. } = owner.waiter;
        up.iter().for_each(|request| owner.late.push((server, request.verb)));
        owner.waiter = Link { open: false, ..Link::to(server) };
        owner.ghost = ghost.then_some(server);
    }

    pub(crate) fn break_keeper(&mut self) {
        let owner = self.owner();
        let Link { server, up, .. } = owner.keeper;
        up.iter().for_each(|request| owner.late.push((server, request.verb)));
        self.reconnect_keeper();
    }

    /// A new link, on which what was not answered is repeated.
    fn reconnect_keeper(&mut self) {
        let (primary, handle) = (self.state.primary, self.state.handle);
        let owner = self.owner();
        owner.keeper = Link::to(primary);
        owner.renewing = false;
        match (owner.phase, handle) {
            (Phase::Releasing, _) => owner.keeper.send(Verb::Free(owner.grant())),
            (Phase::Attaching, Some(handle)) => owner.keeper.send(Verb::Attach(handle, owner.id)),
            _ => {}
        }
    }

    pub(crate) fn connect(&mut self) {
        let (primary, limits) = (self.state.primary, self.limits);
        let owner = self.owner();
        owner.waiter = Link::to(primary);
        // The channel is the same, so the new link counts for it.
        owner.ghost = None;
        match owner.phase {
            Phase::Waiting if owner.asking > 0 && limits.renames => {
                let old = owner.id;
                owner.id.life += 1;
                owner.waiter.send(Verb::Change(old, owner.id));
            }
            Phase::Waiting => owner.waiter.send(Verb::Again(owner.id)),
            Phase::Undoing => owner.waiter.send(Verb::Leave(owner.id)),
            Phase::Idle => {
                owner.keeper = Link::to(primary);
                return;
            }
            _ => return,
        }
        (owner.asking, owner.seen, owner.age) = (1, None, 0);
    }

    pub(crate) fn read_keeper(&mut self, Message { body, age }: Message) {
        let (lease, key) = (self.lease(TTL, age), self.state.store().key);
        let owner = self.owner();
        match body {
            Body::Renewed if owner.phase == Phase::Attaching => match lease {
                0 => owner.phase = Phase::Gone,
                left => {
                    self.sights.note(Sight::Attached);
                    (self.owner().phase, self.owner().left) = (Phase::Holding, left);
                }
            },
            Body::NotRenewed if owner.phase == Phase::Attaching => {
                owner.phase = Phase::Gone;
                let its_own = key.is_some_and(|key| key.grant == owner.grant() && !key.asked);
                self.sights.note(Sight::AttachRefused);
                if its_own && !self.state.split {
                    self.broken = Some(Promise::NotStranded);
                }
            }
            Body::Renewed => {
                owner.renewing = false;
                if owner.phase == Phase::Holding {
                    owner.left = owner.left.max(lease);
                    self.sights.note(Sight::Renewed);
                }
            }
            Body::NotRenewed => {
                owner.renewing = false;
                if owner.phase == Phase::Holding {
                    owner.phase = Phase::Lost;
                }
            }
            Body::Freed => owner.phase = Phase::Gone,
            Body::ReadOnly => self.reconnect_keeper(),
            Body::Left => owner.phase = Phase::Gone,
            other => panic!("the keeper asks for no {other:?}"),
        }
    }

    pub(crate) fn read_waiter(&mut self, Message { body, age }: Message) {
        let rules = self.rules;
        match body {
            Body::Granted(grant) => {
                let lease = self.lease(TTL, if rules.grant_from_send { age } else { 0 });
                let owner = self.owner();
                if grant.id == owner.id {
                    owner.asking = owner.asking.saturating_sub(1);
                }
                match owner.phase {
                    Phase::Waiting if grant.id == owner.id && lease > 0 => self.hold(grant.token, lease),
                    // Too old. It finds out whether it has the lock still, or gives up.
                    Phase::Waiting if grant.id == owner.id && owner.looks > 0 => {
                        owner.looks -= 1;
                        self.look();
                    }
                    Phase::Waiting if grant.id == owner.id => {
                        owner.phase = Phase::Gone;
                        self.unwanted(grant);
                    }
                    _ => self.unwanted(grant),
                }
            }
            Body::Busy { id, holder, asked } => {
                let owner = self.owner();
                if owner.id != id || owner.phase != Phase::Waiting {
                    return;
                }
                owner.asking = owner.asking.saturating_sub(1);
                if asked {
                    owner.phase = Phase::Gone;
                    owner.waiter.send(Verb::Free(Grant { id, token: holder }));
                    self.sights.note(Sight::AskedBeforeItKnew);
                } else {
                    (owner.seen, owner.age) = ((holder > 0).then_some(holder), age);
                }
            }
            Body::PushedGrant(grant) => self.pushed(grant),
            Body::PushedRevocation(id) => {
                let owner = self.owner();
                if owner.phase == Phase::Holding && owner.id == id {
                    owner.phase = Phase::Lost;
                    self.sights.note(Sight::RevocationHeard);
                }
            }
            Body::Left => {
                if self.owner().phase == Phase::Undoing {
                    self.owner().phase = Phase::Gone;
                }
            }
            Body::Freed => {}
            Body::ReadOnly => {
                // Refused, so it is not unanswered.
                let owner = self.owner();
                owner.asking = 0;
                if rules.readonly_ends_the_link {
                    owner.waiter = Link { open: false, ..owner.waiter };
                    (owner.waiter.up, owner.waiter.down) =
                        (crate::state::Line::EMPTY, crate::state::Line::EMPTY);
                } else if owner.phase == Phase::Undoing {
                    owner.phase = Phase::Gone;
                }
            }
            other => panic!("a waiter asks for no {other:?}"),
        }
    }

    pub(crate) fn pushed(&mut self, grant: Grant) {
        let (rules, limits) = (self.rules, self.limits);
        let owner = self.owner();
        if owner.phase != Phase::Waiting || owner.id != grant.id {
            return self.unwanted(grant);
        }
        if owner.asking >= limits.requests {
            return self.sights.note(Sight::PushLeftToItsAnswer);
        }
        let (seen, age) = (owner.seen, owner.age);
        let above = seen.is_some_and(|seen| grant.token > seen) || !rules.push_above_seen;
        let lease = self.lease(TERM, if rules.push_from_send { age } else { 0 });
        if above && lease > 0 {
            self.sights.note(Sight::PushBelieved);
            self.hold(grant.token, lease);
        } else {
            self.sights.note(Sight::PushNotBelieved);
            self.look();
        }
    }

    fn lease(&self, term: u8, age: u8) -> u8 {
        term.saturating_sub(if self.rules.drift { DRIFT } else { 0 }).saturating_sub(age)
    }

    fn hold(&mut self, token: u8, left: u8) {
        let owner = self.owner();
        (owner.phase, owner.token, owner.left, owner.seen) = (Phase::Holding, token, left, None);
        let repeated = self.state.used >> token & 1 == 1 && self.limits.ticks == 0;
        if token <= self.owner().floor || repeated {
            self.broken = Some(Promise::Order);
        }
        self.state.used |= 1 << token;
        self.state.newest = self.state.newest.max(token);
    }

    /// A grant that no guard has goes back.
    fn unwanted(&mut self, grant: Grant) {
        let rules = self.rules;
        let owner = self.owner();
        let had =
            matches!(owner.phase, Phase::Holding | Phase::Lost | Phase::Releasing) && owner.grant() == grant;
        if had || !rules.unwanted_is_freed || !owner.waiter.open {
            return;
        }
        let undo = if rules.unwanted_is_freed_by_token { Verb::Free(grant) } else { Verb::Leave(grant.id) };
        owner.waiter.send(undo);
        self.sights.note(Sight::UnwantedFreed);
    }
}
