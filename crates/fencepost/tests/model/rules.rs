//! The rules of the protocol, each of which can be switched off, and the limits of a search.

use crate::state::{DRIFT, Grant, Id, Key, Line, Link, OWNERS, Owner, Phase, State, Store, TTL};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    // --- the script
    /// `renew`, `free` and `attach` name the token.
    pub(crate) renew_names_token: bool,
    pub(crate) free_names_token: bool,
    pub(crate) attach_names_token: bool,
    pub(crate) renew_names_identity: bool,
    pub(crate) renew_never_creates: bool,
    pub(crate) asked_is_not_renewed: bool,
    /// A holder that was asked can still give back.
    pub(crate) asked_is_freed: bool,
    /// `attach` goes on under the new identity.
    pub(crate) attach_changes_identity: bool,
    pub(crate) attach_can_be_repeated: bool,
    /// `again` finds its own grant, and extends it.
    pub(crate) again_finds_its_grant: bool,
    pub(crate) again_extends: bool,
    pub(crate) push_draws_token: bool,
    /// Listeners are counted before the push, not by it.
    pub(crate) counted_first: bool,
    pub(crate) token_above_fence: bool,
    pub(crate) token_from_clock: bool,
    // --- the client
    /// A push is believed only above the holder's token of the last answer, and from when that was asked for.
    pub(crate) push_above_seen: bool,
    pub(crate) push_from_send: bool,
    pub(crate) grant_from_send: bool,
    pub(crate) drift: bool,
    /// A grant that nobody has a guard for is given back, by identity and token.
    pub(crate) unwanted_is_freed: bool,
    pub(crate) unwanted_is_freed_by_token: bool,
    /// Whoever gives up leaves, on the link of what it undoes.
    pub(crate) leaves: bool,
    pub(crate) leaves_on_the_same_link: bool,
    /// A link that says `READONLY` has ended.
    pub(crate) readonly_ends_the_link: bool,
    /// A waiter looks again without a push.
    pub(crate) looks: bool,
}

impl Rules {
    pub(crate) const ALL: Self = Self {
        renew_names_token: true,
        free_names_token: true,
        attach_names_token: true,
        renew_names_identity: true,
        renew_never_creates: true,
        asked_is_not_renewed: true,
        asked_is_freed: true,
        attach_changes_identity: true,
        attach_can_be_repeated: true,
        again_finds_its_grant: true,
        again_extends: true,
        push_draws_token: true,
        counted_first: true,
        token_above_fence: true,
        token_from_clock: true,
        push_above_seen: true,
        push_from_send: true,
        grant_from_send: true,
        drift: true,
        unwanted_is_freed: true,
        unwanted_is_freed_by_token: true,
        leaves: true,
        leaves_on_the_same_link: true,
        readonly_ends_the_link: true,
        looks: true,
    };
}

/// Who takes part and what may happen, how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) owners: u8,
    /// At the beginning the first has the lock.
    pub(crate) held: bool,
    /// The last owner tries instead of waiting.
    pub(crate) last_tries: bool,
    /// Looks, and renewals, of each owner.
    pub(crate) looks: u8,
    pub(crate) renewals: u8,
    /// Links that end: waiters' and keepers'.
    pub(crate) breaks: u8,
    /// The server may take an ended link for a live one.
    pub(crate) ghosts: bool,
    /// After a lost link: what is unanswered is undone, and the attempt goes on under a new identity. Else it
    /// looks again.
    pub(crate) renames: bool,
    /// Requests of an attempt that may be under way at a time.
    pub(crate) requests: u8,
    pub(crate) cancels: u8,
    /// Force-releases, by `ask` or by `seize`.
    pub(crate) revocations: u8,
    /// Times that the lock's key disappears before its time.
    pub(crate) vanishings: u8,
    /// Pushes that arrive once more, at any time.
    pub(crate) strays: u8,
    /// Promotions of the replica, and back. In sync; or of what it had some time ago, while the old one goes
    /// on.
    pub(crate) failovers: u8,
    pub(crate) lag: bool,
    /// Locks that are detached, to be attached by any owner that has not begun; or their handle is copied,
    /// and the guard goes on.
    pub(crate) detaches: u8,
    pub(crate) copied: bool,
    /// Ticks that the clocks go on for; 0: there are none, and tokens are counted.
    pub(crate) ticks: u8,
    pub(crate) skew: [i8; 2],
    /// Times that a server forgets everything, and that its clock goes back.
    pub(crate) losses: u8,
    pub(crate) steps_back: u8,
}

impl Limits {
    pub(crate) const NONE: Self = Self {
        owners: 2,
        held: false,
        last_tries: false,
        looks: 1,
        renewals: 0,
        breaks: 0,
        ghosts: false,
        renames: false,
        requests: 1,
        cancels: 0,
        revocations: 0,
        vanishings: 0,
        strays: 0,
        failovers: 0,
        lag: false,
        detaches: 0,
        copied: false,
        ticks: 0,
        skew: [0, 0],
        losses: 0,
        steps_back: 0,
    };

    pub(crate) fn start(&self) -> State {
        let owner = |index| Owner {
            phase: Phase::Idle,
            id: Id { owner: index, life: 0 },
            floor: 0,
            seen: None,
            age: 0,
            asking: 0,
            token: 0,
            left: 0,
            renewing: false,
            waiter: Link::to(0),
            keeper: Link::to(0),
            late: Line::EMPTY,
            ghost: None,
            stray: None,
            looks: self.looks,
            renewals: self.renewals,
        };
        let empty = Store { key: None, queue: Line::EMPTY, fence: 0 };
        let mut state = State {
            stores: [empty; 2],
            writable: [true, false],
            primary: 0,
            owners: [owner(0), owner(1), owner(2)],
            used: 0,
            newest: 0,
            taken: 0,
            handle: None,
            now: 0,
            newest_then: 0,
            skew: self.skew,
            split: false,
            breaks: self.breaks,
            cancels: self.cancels,
            revocations: self.revocations,
            vanishings: self.vanishings,
            strays: self.strays,
            failovers: self.failovers,
            losses: self.losses,
            steps_back: self.steps_back,
            detaches: self.detaches,
        };
        if self.held {
            let grant = Grant { id: Id { owner: 0, life: 0 }, token: 1 };
            state.stores =
                [Store { key: Some(Key { grant, left: TTL, asked: false }), queue: Line::EMPTY, fence: 1 };
                    2];
            let first = &mut state.owners[0];
            (first.phase, first.token, first.left) = (Phase::Holding, 1, TTL - DRIFT);
            (state.used, state.newest) = (2, 1);
        }
        debug_assert!(usize::from(self.owners) <= OWNERS, "there is room for {OWNERS}");
        state
    }
}
