//! The client of an attempt: the production code, or a mutant of it; here in a few bytes.

use super::mutants;
use crate::quorum::{Attempt, AttemptReply, Confirm, NextStep, NodeSet, VoteState};

/// Which client decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// `quorum::Attempt`.
    Production,
    Mutant(mutants::Rule),
}

/// A `quorum::Attempt<u8, [VoteState; N]>`, packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Client<const N: usize> {
    votes: [u8; N],
    pub(crate) token: u8,
    gate: u8,
    decided: bool,
    /// What a mutant remembers of each node, one bit each.
    pub(crate) extra: u8,
}

const NO_GATE: u8 = u8::MAX;
/// Attempts end at this time, which never comes.
const UNTIL: u8 = 1;
const NOW: u8 = 0;

impl<const N: usize> Client<N> {
    pub(crate) const IDLE: Self = Self { votes: [0; N], token: 0, gate: NO_GATE, decided: false, extra: 0 };

    pub(crate) fn at_once() -> (Self, NodeSet) {
        let (attempt, asked) = Attempt::at_once([VoteState::Idle; N], UNTIL);
        (Self::pack(&attempt, 0), asked)
    }

    pub(crate) fn in_order(first: usize) -> (Self, NodeSet) {
        let (attempt, asked) = Attempt::in_order([VoteState::Idle; N], first, UNTIL);
        (Self::pack(&attempt, 0), asked)
    }

    pub(crate) fn hear(&mut self, rule: Rule, node: usize, answer: AttemptReply) -> NextStep {
        let mut attempt = self.unpack();
        let mut extra = self.extra;
        let step = match rule {
            Rule::Production => attempt.on_reply(node, answer, NOW),
            Rule::Mutant(rule) => mutants::hear(rule, &mut attempt, &mut extra, node, answer),
        };
        *self = Self::pack(&attempt, extra);
        step
    }

    pub(crate) fn give_up(&mut self) -> NextStep {
        let mut attempt = self.unpack();
        let step = attempt.give_up();
        *self = Self::pack(&attempt, self.extra);
        step
    }

    pub(crate) fn seat(&self, node: usize) -> VoteState {
        unpack(self.votes[node])
    }

    /// A seat as it is stored: all that its order among others needs.
    pub(crate) fn packed_seat(&self, node: usize) -> u8 {
        self.votes[node]
    }

    pub(crate) fn set_seat(&mut self, node: usize, seat: VoteState) {
        self.votes[node] = pack(seat);
    }

    /// The same client where node `order[i]` is called `i`.
    pub(crate) fn renamed(&self, order: &[usize; N]) -> Self {
        let extra = order.iter().enumerate().map(|(new, old)| (self.extra >> old & 1) << new).sum();
        Self { votes: order.map(|old| self.votes[old]), extra, ..*self }
    }

    fn unpack(&self) -> Attempt<u8, [VoteState; N]> {
        Attempt {
            votes: self.votes.map(unpack),
            token: self.token.into(),
            until: UNTIL,
            gate: (self.gate != NO_GATE).then_some(self.gate),
            decided: self.decided,
        }
    }

    fn pack(attempt: &Attempt<u8, [VoteState; N]>, extra: u8) -> Self {
        Self {
            votes: attempt.votes.map(pack),
            token: small(attempt.token),
            gate: attempt.gate.unwrap_or(NO_GATE),
            decided: attempt.decided,
            extra,
        }
    }
}

fn pack(seat: VoteState) -> u8 {
    match seat {
        VoteState::Idle => 0,
        VoteState::Asked => 1,
        VoteState::Out => 2,
        VoteState::Granted { value, confirm: Confirm::No } => 3 + 3 * small(value),
        VoteState::Granted { value, confirm: Confirm::Asked } => 4 + 3 * small(value),
        VoteState::Granted { value, confirm: Confirm::Yes } => 5 + 3 * small(value),
    }
}

fn unpack(byte: u8) -> VoteState {
    match byte {
        0 => VoteState::Idle,
        1 => VoteState::Asked,
        2 => VoteState::Out,
        _ => {
            let confirm = [Confirm::No, Confirm::Asked, Confirm::Yes][usize::from(byte % 3)];
            VoteState::Granted { value: (byte / 3 - 1).into(), confirm }
        }
    }
}

pub(crate) fn small(value: u64) -> u8 {
    u8::try_from(value).expect("the counters of a model are small")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_survives_packing() {
        let confirms = [Confirm::No, Confirm::Asked, Confirm::Yes];
        let granted = (0..16).flat_map(|value| confirms.map(|confirm| VoteState::Granted { value, confirm }));
        for seat in [VoteState::Idle, VoteState::Asked, VoteState::Out].into_iter().chain(granted) {
            assert_eq!(unpack(pack(seat)), seat);
        }
    }
}
