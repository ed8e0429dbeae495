//! The rules that the scripts and the client follow, each of which a mutant drops, and what a search may do.

use crate::state::{Line, OWNERS, Owner, Phase, Place, ROWS, State};

/// `true`: as it should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// A push counts only if its token is above the counter in the last answer (`claim.rs`, `hint`).
    pub(crate) push_above_counter: bool,
    /// Its short term counts from when the request of that answer was sent (`claim.rs`, `hint`).
    pub(crate) push_from_send: bool,
    /// Any other validity counts from the send, too (`lease.rs`).
    pub(crate) grant_from_send: bool,
    /// And ends before the server's timer can (`lease.rs`).
    pub(crate) drift: bool,
    /// Lost is final, whatever a late answer says (`lease.rs`, `renewed`).
    pub(crate) lost_is_final: bool,
    /// `renew.lua` leaves the lock of another owner alone, and a lock that is gone, gone.
    pub(crate) renew_checks_owner: bool,
    pub(crate) renew_never_creates: bool,
    /// `renew.lua`, and a `wait` or `try`, never shorten.
    pub(crate) renew_never_shortens: bool,
    /// `renew.lua` refuses what was revoked.
    pub(crate) renew_sees_revocation: bool,
    /// `free` and `hand` only touch the lock of the owner they are for.
    pub(crate) release_checks_owner: bool,
    pub(crate) hand_over_checks_owner: bool,
    /// `wait` and `try` set the full ttl when they find the caller already granted.
    pub(crate) regrant_extends: bool,
    /// Every grant raises the counter (`turn.lua`, `prelude.lua`).
    pub(crate) push_raises_counter: bool,
    pub(crate) hand_over_raises_counter: bool,
    /// Each acquisition has a new owner.
    pub(crate) owner_is_fresh: bool,
    /// A waiter that gives up says so, right behind what it asked (`claim.rs`, `drop`).
    pub(crate) leave_is_sent: bool,
    pub(crate) leave_is_behind: bool,
    /// A lock handed to a waiter that has left is given back for it (`hold.rs`, `release`).
    pub(crate) left_is_passed_on: bool,
    /// A waiter that leaves while it is chosen, or was without learning what came of it, undoes the hand-over; and
    /// an answer that there is nothing to undo does not settle it while the hand-over may still arrive.
    pub(crate) unheard_is_undone: bool,
    pub(crate) unheard_is_undone_for_good: bool,
    /// What the server grants to one that is chosen alone counts only if it was asked for since then (`seat.rs`, `serve`).
    pub(crate) chosen_asks_again: bool,
    /// A hand-over to one that has asked behind it, and was told of another holder, is lost (`claim.rs`, `wait`).
    pub(crate) lost_hand_over_is_declined: bool,
    /// A row has an identity that no member has (`row.rs`).
    pub(crate) row_has_an_identity: bool,
    /// It takes a token for each (`turn.lua`, `hand`).
    pub(crate) row_raises_counter_for_each: bool,
    /// A turn is valid by the row's last answered request, not by when it comes (`row.rs`, `turn`).
    pub(crate) row_from_send: bool,
    /// Who has handed the lock on does not give it back (`hold.rs`, `release`).
    pub(crate) passed_is_not_given_back: bool,
    /// A release that was not answered gives back what the row may have, behind what it had itself (`hold.rs`, `give`).
    pub(crate) unheard_row_is_given_back: bool,
    pub(crate) old_identity_first: bool,
    /// A member leaves the queue before its turn becomes a hold, unless the hand-over has taken it out (`claim.rs`,
    /// `wait`), which it has if the counter in its last answer was not yet the row's (`claim.rs`,
    /// `may_stand_in_queue`).
    pub(crate) members_quit: bool,
    pub(crate) taken_out_by_counter: bool,
}

impl Rules {
    pub(crate) const ALL: Self = Self {
        push_above_counter: true,
        push_from_send: true,
        grant_from_send: true,
        drift: true,
        lost_is_final: true,
        renew_checks_owner: true,
        renew_never_creates: true,
        renew_never_shortens: true,
        renew_sees_revocation: true,
        release_checks_owner: true,
        hand_over_checks_owner: true,
        regrant_extends: true,
        push_raises_counter: true,
        hand_over_raises_counter: true,
        owner_is_fresh: true,
        leave_is_sent: true,
        leave_is_behind: true,
        left_is_passed_on: true,
        unheard_is_undone: true,
        unheard_is_undone_for_good: true,
        chosen_asks_again: true,
        lost_hand_over_is_declined: true,
        row_has_an_identity: true,
        row_raises_counter_for_each: true,
        row_from_send: true,
        passed_is_not_given_back: true,
        unheard_row_is_given_back: true,
        old_identity_first: true,
        members_quit: true,
        taken_out_by_counter: true,
    };

    /// What the server has the lock under that one hands to its next row.
    pub(crate) fn row_value(&self, by: u8, rows: u8, first: u8) -> u8 {
        if self.row_has_an_identity { ROWS * (1 + rows) + by } else { first }
    }
}

/// Who takes part and what may happen, how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The process of each owner; fewer than [`OWNERS`] if the rest stays away.
    pub(crate) processes: &'static [u8],
    /// The last owner tries instead of waiting.
    pub(crate) last_tries: bool,
    /// Further questions, and renewals, of each owner.
    pub(crate) asks: u8,
    pub(crate) renewals: u8,
    /// Connections that end, and whose they may be.
    pub(crate) breaks: u8,
    pub(crate) breakers: &'static [u8],
    /// A question that was unanswered then is repeated by the same owner over a new connection; else, as the store does,
    /// the attempt ends.
    pub(crate) repeats: bool,
    /// Waiters that give up.
    pub(crate) cancels: u8,
    /// Releases that are dropped while unanswered and go on in the background.
    pub(crate) aborts: u8,
    /// Revocations, by `ask` or by `now`.
    pub(crate) revocations: u8,
    pub(crate) revoke_now: bool,
    /// Times that the key disappears before its time.
    pub(crate) vanishings: u8,
    /// Hand-overs at the last turn of a process.
    pub(crate) last_turns: bool,
    /// At the beginning the first has the lock, and the others of its process have begun to wait for it.
    pub(crate) begun: bool,
}

impl Limits {
    pub(crate) const NONE: Self = Self {
        processes: &[0, 1],
        last_tries: false,
        asks: 1,
        renewals: 0,
        breaks: 0,
        breakers: &[0],
        repeats: true,
        cancels: 0,
        aborts: 0,
        revocations: 0,
        revoke_now: false,
        vanishings: 0,
        last_turns: false,
        begun: false,
    };

    /// Whether it is this owner's turn to begin. Of owners that differ only in their number the smallest begins.
    pub(crate) fn may_start(&self, state: &State, owner: usize) -> bool {
        // Then they differ: only some connections end.
        let numbers_matter = self.breaks > 0;
        numbers_matter
            || !(0..owner).any(|other| state.owners[other].phase == Phase::Idle && self.alike(other, owner))
    }

    fn alike(&self, one: usize, other: usize) -> bool {
        let size =
            |of: usize| self.processes.iter().filter(|process| **process == self.processes[of]).count();
        let tries = |of: usize| self.last_tries && of + 1 == self.processes.len();
        let together = self.processes[one] == self.processes[other];
        (together || size(one) == 1 && size(other) == 1) && tries(one) == tries(other)
    }

    pub(crate) fn start(&self) -> State {
        let idle = Owner {
            phase: Phase::Idle,
            age: 0,
            counter: None,
            was_first: false,
            letter: None,
            left: 0,
            token: 0,
            turn: None,
            renewing: false,
            revoked: false,
            asked: false,
            knew: false,
            place: Place::None,
            uncertain: false,
            value: 0,
            also: None,
            second: false,
            rows: 0,
            to: None,
            repeated: false,
            last: false,
            asks: self.asks,
            renewals: self.renewals,
            lives: 1,
            connected: true,
            up: Line::EMPTY,
            down: Line::EMPTY,
            late: Line::EMPTY,
            stray: None,
            floor: 0,
        };
        State {
            key: None,
            counter: 0,
            queue: Line::EMPTY,
            owners: [idle; OWNERS],
            row: None,
            row_letter: None,
            used: 0,
            overslept: false,
            breaks: self.breaks,
            cancels: self.cancels,
            aborts: self.aborts,
            revocations: self.revocations,
            vanishings: self.vanishings,
        }
    }
}
