//! What the world looks like at one moment. All times are relative (ages, and what is left), so there is no
//! horizon: a search ends when nothing new can happen, not when a clock runs out. Only searches with clocks
//! have one.

/// Ticks. The server may run up to one tick fast over a whole term, which is what [`DRIFT`] makes up for.
pub(crate) const TTL: u8 = 3;
/// The term of a pushed grant.
pub(crate) const TERM: u8 = 2;
pub(crate) const DRIFT: u8 = 1;
/// Nothing that is older counts.
const OLD: u8 = 3;
/// A tick in units of tokens: more than there are grants.
pub(crate) const UNITS: u8 = 12;

pub(crate) const OWNERS: usize = 3;

/// A short queue, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line<T>([Option<T>; 5]);

impl<T: Copy> Line<T> {
    pub(crate) const EMPTY: Self = Self([None; 5]);

    pub(crate) fn push(&mut self, item: T) {
        let Some(free) = self.0.iter_mut().find(|slot| slot.is_none()) else {
            panic!("the limits of a search allow more messages than a line has room for");
        };
        *free = Some(item);
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = self.0[0].take();
        self.0.rotate_left(1);
        first
    }

    pub(crate) fn first(&self) -> Option<T> {
        self.0[0]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.0.iter().copied().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(T) -> bool) {
        let kept = *self;
        *self = Self::EMPTY;
        kept.iter().filter(|item| keep(*item)).for_each(|item| self.push(item));
    }
}

/// An identity: the owner, and how many it had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    pub(crate) owner: u8,
    pub(crate) life: u8,
}

impl Id {
    pub(crate) fn index(self) -> usize {
        usize::from(self.owner)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) id: Id,
    pub(crate) token: u8,
}

/// The lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) grant: Grant,
    pub(crate) left: u8,
    pub(crate) asked: bool,
}

/// The three keys at one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) key: Option<Key>,
    pub(crate) queue: Line<Id>,
    pub(crate) fence: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Try(Id),
    Wait(Id),
    Again(Id),
    Leave(Id),
    /// `leave` of an old identity and `wait` of a new one, in one call.
    Change(Id, Id),
    Free(Grant),
    Renew(Grant),
    Attach(Grant, Id),
}

/// A request, and how long ago it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    pub(crate) age: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Body {
    Granted(Grant),
    /// The token of the holder; or that the caller has the lock, and was asked to let go.
    Busy {
        id: Id,
        holder: u8,
        asked: bool,
    },
    Left,
    Freed,
    Renewed,
    NotRenewed,
    ReadOnly,
    PushedGrant(Grant),
    PushedRevocation(Id),
}

/// What the server sends, replies and pushes in one stream. The age is that of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Message {
    pub(crate) body: Body,
    pub(crate) age: u8,
}

/// A connection to one of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub(crate) open: bool,
    pub(crate) server: u8,
    pub(crate) up: Line<Request>,
    pub(crate) down: Line<Message>,
}

impl Link {
    pub(crate) const fn to(server: u8) -> Self {
        Self { open: true, server, up: Line::EMPTY, down: Line::EMPTY }
    }

    pub(crate) fn send(&mut self, verb: Verb) {
        self.up.push(Request { verb, age: 0 });
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.up.is_empty() && self.down.is_empty()
    }

    fn grow_older(&mut self) {
        for request in self.up.iter_mut() {
            if !matches!(request.verb, Verb::Free(_) | Verb::Leave(_)) {
                request.age = OLD.min(request.age + 1);
            }
        }
        for message in self.down.iter_mut() {
            if matches!(message.body, Body::Granted(_) | Body::Busy { asked: false, .. } | Body::Renewed) {
                message.age = OLD.min(message.age + 1);
            }
        }
    }

    fn forget_ages(&mut self) {
        self.up.iter_mut().for_each(|request| request.age = 0);
        self.down.iter_mut().for_each(|message| message.age = 0);
    }
}

/// Where an owner is in its only life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    Waiting,
    Attaching,
    /// Has a guard that says held.
    Holding,
    /// Has a guard that says lost.
    Lost,
    /// Gives back, and waits for the answer.
    Releasing,
    /// Gave up, and undoes what it asked for.
    Undoing,
    Gone,
}

/// A task, alone in its process: a link for what it waits for, and the keeper's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) phase: Phase,
    pub(crate) id: Id,
    /// The largest token of all guards when it began.
    pub(crate) floor: u8,
    /// The holder's token in the last answer, and how long ago that was asked for.
    pub(crate) seen: Option<u8>,
    pub(crate) age: u8,
    /// Unanswered requests of the attempt.
    pub(crate) asking: u8,
    pub(crate) token: u8,
    /// What is left of the guard's lease.
    pub(crate) left: u8,
    pub(crate) renewing: bool,
    pub(crate) waiter: Link,
    pub(crate) keeper: Link,
    /// Requests of ended links that may still arrive, and where.
    pub(crate) late: Line<(u8, Verb)>,
    /// The server that takes an ended link for a live one.
    pub(crate) ghost: Option<u8>,
    /// A push that arrives late, or once more.
    pub(crate) stray: Option<Grant>,
    pub(crate) looks: u8,
    pub(crate) renewals: u8,
}

impl Owner {
    pub(crate) fn grant(&self) -> Grant {
        Grant { id: self.id, token: self.token }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Gone)
            && self.waiter.is_quiet()
            && self.keeper.is_quiet()
            && self.late.is_empty()
            && self.stray.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) stores: [Store; 2],
    /// Whether a server takes writes. One that does not is the other one's replica.
    pub(crate) writable: [bool; 2],
    /// Where a new link leads to.
    pub(crate) primary: u8,
    pub(crate) owners: [Owner; OWNERS],
    /// Of guards, as bits; and the largest.
    pub(crate) used: u128,
    pub(crate) newest: u8,
    /// Tokens of which the lock was taken away: their guards do not count for exclusion.
    pub(crate) taken: u128,
    /// What was detached.
    pub(crate) handle: Option<Grant>,
    /// The clock, if there is one, and the largest token of guards at its last tick.
    pub(crate) now: u8,
    pub(crate) newest_then: u8,
    /// The clocks of the servers against it.
    pub(crate) skew: [i8; 2],
    /// Something was lost that exclusion needs.
    pub(crate) split: bool,
    pub(crate) breaks: u8,
    pub(crate) cancels: u8,
    pub(crate) revocations: u8,
    pub(crate) vanishings: u8,
    pub(crate) strays: u8,
    pub(crate) failovers: u8,
    pub(crate) losses: u8,
    pub(crate) steps_back: u8,
    pub(crate) detaches: u8,
}

impl State {
    pub(crate) fn store(&self) -> &Store {
        &self.stores[usize::from(self.primary)]
    }

    pub(crate) fn lock_is_taken_from_its_holder(&mut self) {
        if let Some(key) = self.store().key {
            self.taken |= 1 << key.grant.token;
        }
    }

    pub(crate) fn tick_servers(&mut self) {
        for store in &mut self.stores {
            if let Some(key) = &mut store.key {
                key.left -= 1;
                if key.left == 0 {
                    store.key = None;
                }
            }
        }
    }

    /// Drops what makes no difference any more, so that states that differ in nothing else are one.
    pub(crate) fn forget(&mut self) {
        for owner in &mut self.owners {
            if !matches!(owner.phase, Phase::Waiting | Phase::Idle) {
                (owner.seen, owner.age, owner.asking, owner.looks, owner.floor) = (None, 0, 0, 0, 0);
                owner.waiter.forget_ages();
            }
            if matches!(owner.phase, Phase::Releasing | Phase::Undoing | Phase::Gone) {
                (owner.left, owner.renewals, owner.renewing) = (0, 0, false);
                owner.keeper.forget_ages();
            }
            if owner.phase == Phase::Gone {
                owner.token = 0;
            }
        }
        if self.owners.iter().all(|owner| owner.phase != Phase::Idle) {
            (self.newest, self.newest_then) = (0, 0);
        }
    }

    /// Counts the tokens anew from 1, in their order: nothing else about them matters without a clock.
    pub(crate) fn count_tokens_anew(&mut self) {
        let mut mentioned = 0_u128;
        self.each_token(|token| mentioned |= 1 << *token);
        mentioned |= 1;
        let below = |token: u8| mentioned & ((1_u128 << token) - 1);
        let rank = |token: u8| u8::try_from(below(token).count_ones()).expect("a small number");
        let bits = |old: u128| {
            (1..128)
                .filter(|token| old & mentioned & 1 << token != 0)
                .fold(0, |new, token| new | 1 << rank(token))
        };
        (self.used, self.taken) = (bits(self.used), bits(self.taken));
        self.each_token(|token| *token = rank(*token));
    }

    fn each_token(&mut self, mut act: impl FnMut(&mut u8)) {
        for store in &mut self.stores {
            act(&mut store.fence);
            store.key.iter_mut().for_each(|key| act(&mut key.grant.token));
        }
        act(&mut self.newest);
        self.handle.iter_mut().for_each(|grant| act(&mut grant.token));
        for owner in &mut self.owners {
            act(&mut owner.floor);
            act(&mut owner.token);
            owner.seen.iter_mut().for_each(&mut act);
            owner.stray.iter_mut().for_each(|grant| act(&mut grant.token));
            let Owner { waiter, keeper, late, .. } = owner;
            let verbs = waiter.up.iter_mut().chain(keeper.up.iter_mut()).map(|request| &mut request.verb);
            for verb in verbs.chain(late.iter_mut().map(|(_, verb)| verb)) {
                if let Verb::Free(grant) | Verb::Renew(grant) | Verb::Attach(grant, _) = verb {
                    act(&mut grant.token);
                }
            }
            for message in waiter.down.iter_mut().chain(keeper.down.iter_mut()) {
                match &mut message.body {
                    Body::Granted(grant) | Body::PushedGrant(grant) => act(&mut grant.token),
                    Body::Busy { holder, .. } => act(holder),
                    _ => {}
                }
            }
        }
    }

    /// Time passes.
    pub(crate) fn tick(&mut self) {
        self.tick_servers();
        for owner in &mut self.owners {
            owner.waiter.grow_older();
            owner.keeper.grow_older();
            if owner.seen.is_some() {
                owner.age = OLD.min(owner.age + 1);
            }
            if owner.phase == Phase::Holding {
                owner.left -= 1;
                if owner.left == 0 {
                    owner.phase = Phase::Lost;
                }
            }
        }
        self.newest_then = self.newest;
    }
}
