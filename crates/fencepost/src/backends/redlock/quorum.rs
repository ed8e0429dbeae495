//! What a majority has decided. Pure: answers of nodes go in, steps to take come out; no clock, no network, nothing
//! but the standard library, so that the state search and the simulation drive the very same code.
//!
//! Why a token is unique (the proof is in SAFETY.md): a node *confirms* token `t` for an attempt in one atomic step in
//! which its lock key belongs to the attempt and its counter is, or is made, exactly `t`. A lock is returned when
//! a majority has confirmed the same token, and any two majorities share a node.

use std::fmt;

/// The most nodes a set can have.
pub(crate) const MAX_NODES: usize = 15;

/// The size of a majority of `n` nodes.
pub(crate) fn majority(n: usize) -> usize {
    n / 2 + 1
}

/// The tokens that an owner can have, the one to go by first, if `counters` are those of the nodes that were
/// seen to have its key. Its token T is the one that a majority M has confirmed.
///
/// - A node of M whose key has been the owner's since has T in its counter: while the key is the owner's,
///   only its own confirmations and extensions move the counter, and never above T.
/// - Of k nodes that have the key, so k + |M| - n or more are of M. A counter that fewer of them have is not
///   T.
/// - Any other node has a grant of its own: a larger one that came too late to be the token, or a smaller
///   one. The first extension that reaches a node raises a smaller one to T. So the smallest is T, but for a
///   node that the holder has not reached since its grant; with all nodes in sight T is certain even then.
///
/// A node that was mended after it had granted others may have left M. If that leaves no counter that enough
/// of them have, the smallest is still T or above it.
pub(crate) fn tokens(n: usize, counters: &[u64]) -> Vec<u64> {
    let enough = (counters.len() + majority(n)).saturating_sub(n).max(1);
    let agree = |counter: &u64| counters.iter().filter(|other| *other == counter).count();
    let mut tokens: Vec<u64> = counters.iter().copied().filter(|counter| agree(counter) >= enough).collect();
    if tokens.is_empty() {
        tokens.extend(counters.iter().min());
    }
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// A set of nodes, by index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Nodes(u16);

impl Nodes {
    /// The first `n` nodes.
    pub(crate) fn all(n: usize) -> Self {
        (0..n).collect()
    }

    pub(crate) fn insert(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    pub(crate) fn contains(self, node: usize) -> bool {
        self.0 >> node & 1 == 1
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_NODES).filter(move |&node| self.contains(node))
    }
}

impl FromIterator<usize> for Nodes {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        nodes.into_iter().fold(Self::default(), |mut set, node| {
            set.insert(node);
            set
        })
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// What one node said to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// Its key is ours, and its counter stood at this value when it said so.
    Granted(u64),
    /// Its key is somebody else's.
    Denied,
    /// It gave no vote: out of reach, in quarantine, too late, not fit.
    Silent,
    /// It has confirmed this token while its key was ours.
    Confirmed(u64),
    /// It did not confirm this token: its key is not ours any more, or not from the grant that it answered.
    Refused(u64),
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Wait,
    /// Ask these nodes for the lock.
    Ask(Nodes),
    /// Ask these nodes to confirm the token.
    Confirm {
        token: u64,
        nodes: Nodes,
    },
    /// The lock is ours. Said once.
    Won {
        token: u64,
    },
    /// The lock will not be ours; give back what was granted. Said once.
    Failed,
}

/// Where one node stands with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum Seat {
    /// Not asked yet.
    #[default]
    Idle,
    /// Asked, not answered.
    Asked,
    /// Has granted with this value.
    Granted { value: u64, confirm: Confirm },
    /// Denied, silent, or refused to confirm.
    Out,
}

/// Whether a node that granted has confirmed the attempt's current token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Confirm {
    No,
    Asked,
    Yes,
}

/// One attempt to acquire a lock. `T` is time, `S` storage for one [`Seat`] a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt<T, S = Vec<Seat>> {
    pub(super) seats: S,
    /// The largest value granted so far: the token, if a majority confirms it.
    pub(super) token: u64,
    /// When a lock won by this attempt would end.
    pub(super) until: T,
    /// Ask one node after the other, starting here, until one has granted; only then the rest.
    pub(super) gate: Option<u8>,
    pub(super) decided: bool,
}

impl<T: Copy + Ord, S: AsRef<[Seat]> + AsMut<[Seat]>> Attempt<T, S> {
    /// An attempt that asks all nodes at once. `until` counts from before the first request is sent.
    pub(crate) fn at_once(seats: S, until: T) -> (Self, Nodes) {
        let mut attempt = Self { seats, token: 0, until, gate: None, decided: false };
        attempt.seats.as_mut().fill(Seat::Asked);
        let all = Nodes::all(attempt.seats.as_ref().len());
        (attempt, all)
    }

    /// An attempt that asks the node `first`, and the others only when that one has granted. Of many contenders who
    /// agree on the first node only one goes on, so that they cannot split the votes.
    pub(crate) fn in_order(seats: S, first: usize, until: T) -> (Self, Nodes) {
        let gate = u8::try_from(first).ok();
        let mut attempt = Self { seats, token: 0, until, gate, decided: false };
        attempt.seats.as_mut()[first] = Seat::Asked;
        (attempt, [first].into_iter().collect())
    }

    /// Takes in what a node said.
    pub(crate) fn hear(&mut self, node: usize, answer: Answer, now: T) -> Step {
        // No counter is zero after a grant: such an answer is no vote.
        let answer = if answer == Answer::Granted(0) { Answer::Silent } else { answer };
        let seat = &mut self.seats.as_mut()[node];
        match (answer, *seat) {
            // One vote a node: whatever else it says about the same request changes nothing.
            (Answer::Granted(value), Seat::Asked) => {
                *seat = Seat::Granted { value, confirm: Confirm::No };
            }
            (Answer::Denied | Answer::Silent, Seat::Asked) => *seat = Seat::Out,
            // A confirmation counts for the token that it names, not for a larger one that became the token since.
            (Answer::Confirmed(token), Seat::Granted { value, confirm: Confirm::Asked })
                if token == self.token =>
            {
                *seat = Seat::Granted { value, confirm: Confirm::Yes };
            }
            (Answer::Refused(token), Seat::Granted { confirm: Confirm::Asked, .. })
                if token == self.token =>
            {
                *seat = Seat::Out;
            }
            (Answer::Silent, Seat::Granted { confirm: Confirm::Asked, .. }) => *seat = Seat::Out,
            _ => return Step::Wait,
        }
        if self.decided {
            return Step::Wait;
        }
        if now >= self.until {
            return self.give_up();
        }
        if let Answer::Granted(value) = answer {
            self.raise(value);
        }
        self.step(node, answer)
    }

    /// Ends the attempt, for example because its time is over.
    pub(crate) fn give_up(&mut self) -> Step {
        match std::mem::replace(&mut self.decided, true) {
            true => Step::Wait,
            false => Step::Failed,
        }
    }

    /// The nodes that were asked for the lock, whatever they said: they may have it.
    pub(crate) fn asked(&self) -> Nodes {
        self.which(|seat| !matches!(seat, Seat::Idle))
    }

    /// The nodes that have granted and not refused since.
    pub(crate) fn granted(&self) -> Nodes {
        self.which(|seat| matches!(seat, Seat::Granted { .. }))
    }

    /// A larger value becomes the token, and nobody has confirmed that yet but who granted with it.
    fn raise(&mut self, value: u64) {
        if value > self.token {
            self.token = value;
            for seat in self.seats.as_mut() {
                if let Seat::Granted { confirm, .. } = seat {
                    *confirm = Confirm::No;
                }
            }
        }
    }

    fn step(&mut self, node: usize, answer: Answer) -> Step {
        let (n, token) = (self.seats.as_ref().len(), self.token);
        let (mut granted, mut confirmed, mut open) = (0, 0, 0);
        for seat in self.seats.as_ref() {
            match seat {
                Seat::Idle | Seat::Asked => open += 1,
                Seat::Granted { value, confirm } => {
                    granted += 1;
                    confirmed += usize::from(*value == token || *confirm == Confirm::Yes);
                }
                Seat::Out => {}
            }
        }
        if confirmed >= majority(n) {
            self.decided = true;
            return Step::Won { token };
        }
        if granted + open < majority(n) {
            return self.give_up();
        }
        if granted >= majority(n) {
            let nodes = self.unconfirmed();
            if !nodes.is_empty() {
                return Step::Confirm { token, nodes };
            }
        }
        match self.gate {
            Some(gate) if usize::from(gate) == node => self.pass_gate(node, answer),
            _ => Step::Wait,
        }
    }

    /// The nodes that granted with a smaller value and have not been asked to confirm the token. They are, now.
    fn unconfirmed(&mut self) -> Nodes {
        let token = self.token;
        let mut nodes = Nodes::default();
        for (node, seat) in self.seats.as_mut().iter_mut().enumerate() {
            if let Seat::Granted { value, confirm } = seat
                && *value < token
                && *confirm == Confirm::No
            {
                *confirm = Confirm::Asked;
                nodes.insert(node);
            }
        }
        nodes
    }

    /// The gate has answered: after a grant the way is free, after a denial closed; a silent one is replaced by the
    /// next node.
    fn pass_gate(&mut self, gate: usize, answer: Answer) -> Step {
        match answer {
            Answer::Silent => {}
            Answer::Granted(_) => {
                self.gate = None;
                return Step::Ask(self.rest());
            }
            _ => return self.give_up(),
        }
        match self.next_gate(gate) {
            Some(next) => Step::Ask([next].into_iter().collect()),
            None => self.give_up(),
        }
    }

    /// The gate takes long to answer: asks the next node. Its answer still counts, but the way is not closed by it.
    pub(crate) fn pass_slow_gate(&mut self) -> Step {
        let gate = match self.gate {
            Some(gate) if !self.decided => gate,
            _ => return Step::Wait,
        };
        let next = self.next_gate(usize::from(gate));
        next.map_or(Step::Wait, |next| Step::Ask([next].into_iter().collect()))
    }

    /// The next node that has not been asked is the gate, and is asked now; `None` if there is none.
    fn next_gate(&mut self, gate: usize) -> Option<usize> {
        let n = self.seats.as_ref().len();
        let next = (1..n).map(|step| (gate + step) % n).find(|&node| self.seats.as_ref()[node] == Seat::Idle);
        self.gate = next.and_then(|next| u8::try_from(next).ok());
        if let Some(next) = next {
            self.seats.as_mut()[next] = Seat::Asked;
        }
        next
    }

    /// All nodes that were not asked yet. They are, now.
    fn rest(&mut self) -> Nodes {
        let rest = self.which(|seat| *seat == Seat::Idle);
        for node in rest.iter() {
            self.seats.as_mut()[node] = Seat::Asked;
        }
        rest
    }

    fn which(&self, mut is: impl FnMut(&Seat) -> bool) -> Nodes {
        let seats = self.seats.as_ref().iter().enumerate();
        seats.filter(|(_, seat)| is(seat)).map(|(node, _)| node).collect()
    }
}

/// What one node said to an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum Kept {
    /// Nothing yet.
    #[default]
    Open,
    /// Its key is ours, for the new term.
    Yes,
    /// Its key is somebody else's, or gone.
    No,
    /// It gave no vote.
    Silent,
}

/// What an extension came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Extended {
    Wait,
    /// A majority has our key, and said so before the old term ended.
    Yes,
    /// So many nodes have another key, or none, that no majority can be ours. As long as the lock is valid they are a minority.
    Lost,
    /// It came to nothing, and may be tried again while the old term lasts.
    Failed,
}

/// One round of extending a held lock. `S` is storage for one [`Kept`] a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Extension<T, S = Vec<Kept>> {
    pub(super) nodes: S,
    /// The end of the term that is being extended. What is heard later cannot be built on: others may have had
    /// the lock in between.
    pub(super) until: T,
    pub(super) decided: bool,
}

impl<T: Copy + Ord, S: AsRef<[Kept]> + AsMut<[Kept]>> Extension<T, S> {
    /// An extension of a lock that is valid until `until`.
    pub(crate) fn new(nodes: S, until: T) -> Self {
        Self { nodes, until, decided: false }
    }

    /// Takes in what a node said. Decides once.
    pub(crate) fn hear(&mut self, node: usize, kept: Kept, now: T) -> Extended {
        let heard = &mut self.nodes.as_mut()[node];
        if *heard != Kept::Open || kept == Kept::Open {
            return Extended::Wait;
        }
        *heard = kept;
        if self.decided {
            return Extended::Wait;
        }
        let outcome = self.outcome(now);
        self.decided = outcome != Extended::Wait;
        outcome
    }

    fn outcome(&self, now: T) -> Extended {
        let nodes = self.nodes.as_ref();
        let count = |kept: Kept| nodes.iter().filter(|heard| **heard == kept).count();
        let (n, yes, open) = (nodes.len(), count(Kept::Yes), count(Kept::Open));
        if now >= self.until {
            Extended::Failed
        } else if yes >= majority(n) {
            Extended::Yes
        } else if count(Kept::No) > n - majority(n) {
            Extended::Lost
        } else if yes + open < majority(n) {
            Extended::Failed
        } else {
            Extended::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: u64 = 100;

    fn attempt(n: usize) -> Attempt<u64> {
        let (attempt, asked) = Attempt::at_once(vec![Seat::Idle; n], LATE);
        assert_eq!(asked, Nodes::all(n));
        attempt
    }

    fn nodes(list: &[usize]) -> Nodes {
        list.iter().copied().collect()
    }

    #[test]
    fn equal_grants_of_a_majority_win_in_one_round() {
        let mut attempt = attempt(5);
        assert_eq!(attempt.hear(0, Answer::Granted(7), 1), Step::Wait);
        assert_eq!(attempt.hear(3, Answer::Granted(7), 1), Step::Wait);
        assert_eq!(attempt.hear(4, Answer::Granted(7), 1), Step::Won { token: 7 });
        assert_eq!(attempt.hear(1, Answer::Granted(9), 1), Step::Wait, "a straggler changes nothing");
        assert_eq!(attempt.granted(), nodes(&[0, 1, 3, 4]));
    }

    #[test]
    fn where_counters_disagree_a_second_round_confirms_the_largest() {
        let mut attempt = attempt(3);
        assert_eq!(attempt.hear(0, Answer::Granted(7), 1), Step::Wait);
        assert_eq!(attempt.hear(1, Answer::Granted(9), 1), Step::Confirm { token: 9, nodes: nodes(&[0]) });
        assert_eq!(attempt.hear(0, Answer::Confirmed(9), 1), Step::Won { token: 9 });
    }

    #[test]
    fn a_confirmation_of_a_smaller_token_does_not_count() {
        let mut attempt = attempt(5);
        for (node, value) in [(0, 7), (1, 8)] {
            attempt.hear(node, Answer::Granted(value), 1);
        }
        let all_but_two = attempt.hear(2, Answer::Granted(9), 1);
        assert_eq!(all_but_two, Step::Confirm { token: 9, nodes: nodes(&[0, 1]) });
        let raised = attempt.hear(3, Answer::Granted(10), 1);
        assert_eq!(raised, Step::Confirm { token: 10, nodes: nodes(&[0, 1, 2]) });
        assert_eq!(attempt.hear(0, Answer::Confirmed(9), 1), Step::Wait);
        assert_eq!(attempt.hear(0, Answer::Confirmed(10), 1), Step::Wait);
        assert_eq!(attempt.hear(1, Answer::Confirmed(9), 1), Step::Wait);
        assert_eq!(attempt.hear(1, Answer::Confirmed(10), 1), Step::Won { token: 10 });
    }

    #[test]
    fn a_node_votes_once() {
        let mut attempt = attempt(3);
        attempt.hear(0, Answer::Granted(7), 1);
        assert_eq!(attempt.hear(0, Answer::Granted(7), 1), Step::Wait);
        assert_eq!(attempt.hear(0, Answer::Granted(9), 1), Step::Wait);
        assert_eq!(attempt.hear(1, Answer::Granted(7), 1), Step::Won { token: 7 });
    }

    #[test]
    fn it_fails_as_soon_as_no_majority_is_left() {
        let mut attempt = attempt(5);
        attempt.hear(0, Answer::Denied, 1);
        attempt.hear(1, Answer::Silent, 1);
        assert_eq!(attempt.hear(2, Answer::Denied, 1), Step::Failed);
        assert_eq!(attempt.hear(3, Answer::Granted(1), 1), Step::Wait, "it fails once");
        assert_eq!(attempt.asked(), Nodes::all(5));
    }

    #[test]
    fn a_refused_confirmation_takes_the_vote_back() {
        let mut attempt = attempt(3);
        attempt.hear(0, Answer::Granted(7), 1);
        attempt.hear(1, Answer::Granted(9), 1);
        assert_eq!(attempt.hear(0, Answer::Refused(9), 1), Step::Wait);
        assert_eq!(attempt.hear(2, Answer::Granted(8), 1), Step::Confirm { token: 9, nodes: nodes(&[2]) });
        assert_eq!(attempt.hear(2, Answer::Refused(9), 1), Step::Failed);
    }

    #[test]
    fn answers_after_the_end_of_the_validity_win_nothing() {
        let mut attempt = attempt(3);
        attempt.hear(0, Answer::Granted(7), LATE - 1);
        assert_eq!(attempt.hear(1, Answer::Granted(7), LATE), Step::Failed);
    }

    #[test]
    fn in_order_only_who_passes_the_gate_goes_on() {
        let (mut attempt, first) = Attempt::in_order(vec![Seat::Idle; 3], 2, LATE);
        assert_eq!(first, nodes(&[2]));
        assert_eq!(attempt.hear(2, Answer::Granted(5), 1), Step::Ask(nodes(&[0, 1])));
        assert_eq!(attempt.hear(0, Answer::Granted(5), 1), Step::Won { token: 5 });
    }

    #[test]
    fn a_denied_gate_leaves_the_others_alone_and_a_silent_one_is_passed() {
        let (mut attempt, _) = Attempt::in_order(vec![Seat::Idle; 3], 2, LATE);
        assert_eq!(attempt.hear(2, Answer::Silent, 1), Step::Ask(nodes(&[0])));
        assert_eq!(attempt.hear(0, Answer::Denied, 1), Step::Failed);
        assert_eq!(attempt.asked(), nodes(&[0, 2]));
    }

    #[test]
    fn a_slow_gate_is_passed_and_its_answer_still_counts() {
        let (mut attempt, _) = Attempt::in_order(vec![Seat::Idle; 3], 1, LATE);
        assert_eq!(attempt.pass_slow_gate(), Step::Ask(nodes(&[2])));
        assert_eq!(attempt.hear(1, Answer::Granted(5), 1), Step::Wait, "it is not the gate any more");
        assert_eq!(attempt.hear(2, Answer::Granted(5), 1), Step::Won { token: 5 });
        assert_eq!(attempt.pass_slow_gate(), Step::Wait);
        let (mut attempt, _) = Attempt::in_order(vec![Seat::Idle; 3], 1, LATE);
        for next in [2, 0] {
            assert_eq!(attempt.pass_slow_gate(), Step::Ask(nodes(&[next])));
        }
        assert_eq!(attempt.pass_slow_gate(), Step::Wait);
        assert_eq!(attempt.hear(0, Answer::Denied, 1), Step::Wait, "two may still grant it");
        assert_eq!(attempt.hear(1, Answer::Denied, 1), Step::Failed);
    }

    #[test]
    fn the_token_of_an_owner_is_the_smallest_counter_that_enough_of_its_nodes_have() {
        assert_eq!(tokens(3, &[7, 7, 9]), [7], "a late grant");
        assert_eq!(tokens(3, &[7, 7, 5]), [7], "a late grant that nothing has reached since");
        assert_eq!(tokens(3, &[9, 7]), [7, 9]);
        assert_eq!(tokens(5, &[9, 7, 9]), [7, 9], "most of them are not enough");
        assert_eq!(tokens(5, &[9, 9, 7, 7]), [7, 9]);
        assert_eq!(tokens(5, &[7, 9, 9, 7, 7]), [7]);
        assert_eq!(tokens(3, &[9, 7, 8]), [7], "two of them were mended");
        assert_eq!(tokens(3, &[9]), [9]);
        assert!(tokens(3, &[]).is_empty());
    }

    #[test]
    fn an_extension_needs_a_majority_before_the_old_term_ends() {
        let mut extension = Extension::new(vec![Kept::Open; 3], LATE);
        assert_eq!(extension.hear(0, Kept::Yes, 1), Extended::Wait);
        assert_eq!(extension.hear(0, Kept::Yes, 1), Extended::Wait, "a node counts once");
        assert_eq!(extension.hear(1, Kept::Yes, 1), Extended::Yes);
        let mut extension = Extension::new(vec![Kept::Open; 3], LATE);
        extension.hear(0, Kept::Yes, 1);
        assert_eq!(extension.hear(1, Kept::Yes, LATE), Extended::Failed);
    }

    #[test]
    fn an_extension_is_lost_when_others_have_too_many_nodes_and_only_then() {
        let mut extension = Extension::new(vec![Kept::Open; 5], LATE);
        extension.hear(0, Kept::No, 1);
        extension.hear(1, Kept::No, 1);
        assert_eq!(extension.hear(2, Kept::No, 1), Extended::Lost);
        let mut extension = Extension::new(vec![Kept::Open; 5], LATE);
        extension.hear(0, Kept::No, 1);
        extension.hear(1, Kept::Silent, 1);
        assert_eq!(extension.hear(2, Kept::Silent, 1), Extended::Failed);
    }
}
