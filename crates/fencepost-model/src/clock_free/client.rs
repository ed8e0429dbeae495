//! The client of an attempt: the production code, or a mutant of it; here in a few bytes.

use super::mutants;
use crate::quorum::{Answer, Attempt, Confirm, Nodes, Seat, Step};

/// Which client decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// `quorum::Attempt`.
    Production,
    Mutant(mutants::Rule),
}

/// A `quorum::Attempt<u8, [Seat; N]>`, packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Client<const N: usize> {
    seats: [u8; N],
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
    pub(crate) const IDLE: Self = Self { seats: [0; N], token: 0, gate: NO_GATE, decided: false, extra: 0 };

    pub(crate) fn at_once() -> (Self, Nodes) {
        let (attempt, asked) = Attempt::at_once([Seat::Idle; N], UNTIL);
        (Self::pack(&attempt, 0), asked)
    }

    pub(crate) fn in_order(first: usize) -> (Self, Nodes) {
        let (attempt, asked) = Attempt::in_order([Seat::Idle; N], first, UNTIL);
        (Self::pack(&attempt, 0), asked)
    }

    pub(crate) fn hear(&mut self, rule: Rule, node: usize, answer: Answer) -> Step {
        let mut attempt = self.unpack();
        let mut extra = self.extra;
        let step = match rule {
            Rule::Production => attempt.hear(node, answer, NOW),
            Rule::Mutant(rule) => mutants::hear(rule, &mut attempt, &mut extra, node, answer),
        };
        *self = Self::pack(&attempt, extra);
        step
    }

    pub(crate) fn give_up(&mut self) -> Step {
        let mut attempt = self.unpack();
        let step = attempt.give_up();
        *self = Self::pack(&attempt, self.extra);
        step
    }

    pub(crate) fn seat(&self, node: usize) -> Seat {
        unpack(self.seats[node])
    }

    /// A seat as it is stored: all that its order among others needs.
    pub(crate) fn packed_seat(&self, node: usize) -> u8 {
        self.seats[node]
    }

    pub(crate) fn set_seat(&mut self, node: usize, seat: Seat) {
        self.seats[node] = pack(seat);
    }

    /// The same client where node `order[i]` is called `i`.
    pub(crate) fn renamed(&self, order: &[usize; N]) -> Self {
        let extra = order.iter().enumerate().map(|(new, old)| (self.extra >> old & 1) << new).sum();
        Self { seats: order.map(|old| self.seats[old]), extra, ..*self }
    }

    fn unpack(&self) -> Attempt<u8, [Seat; N]> {
        Attempt {
            seats: self.seats.map(unpack),
            token: self.token.into(),
            until: UNTIL,
            gate: (self.gate != NO_GATE).then_some(self.gate),
            decided: self.decided,
        }
    }

    fn pack(attempt: &Attempt<u8, [Seat; N]>, extra: u8) -> Self {
        Self {
            seats: attempt.seats.map(pack),
            token: small(attempt.token),
            gate: attempt.gate.unwrap_or(NO_GATE),
            decided: attempt.decided,
            extra,
        }
    }
}

fn pack(seat: Seat) -> u8 {
    match seat {
        Seat::Idle => 0,
        Seat::Asked => 1,
        Seat::Out => 2,
        Seat::Granted { value, confirm: Confirm::No } => 3 + 3 * small(value),
        Seat::Granted { value, confirm: Confirm::Asked } => 4 + 3 * small(value),
        Seat::Granted { value, confirm: Confirm::Yes } => 5 + 3 * small(value),
    }
}

fn unpack(byte: u8) -> Seat {
    match byte {
        0 => Seat::Idle,
        1 => Seat::Asked,
        2 => Seat::Out,
        _ => {
            let confirm = [Confirm::No, Confirm::Asked, Confirm::Yes][usize::from(byte % 3)];
            Seat::Granted { value: (byte / 3 - 1).into(), confirm }
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
        let granted = (0..16).flat_map(|value| confirms.map(|confirm| Seat::Granted { value, confirm }));
        for seat in [Seat::Idle, Seat::Asked, Seat::Out].into_iter().chain(granted) {
            assert_eq!(unpack(pack(seat)), seat);
        }
    }
}
