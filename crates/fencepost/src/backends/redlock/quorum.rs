//! What a majority has decided. Pure: replies of nodes go in, next steps come out. It uses no clock, no
//! network and only the standard library, so that the state search and the simulation run the very same code.
//!
//! Why a token is unique (docs/proofs/redlock.md has the proof): a node *confirms* token `t` for an attempt
//! in one atomic step in which its lock key belongs to the attempt and its counter is, or is made, exactly
//! `t`. A lock is returned when a majority has confirmed the same token, and any two majorities share a node.

use std::fmt;

/// The most nodes a set can have.
pub(crate) const MAX_NODES: usize = 15;

/// The size of a majority of `n` nodes.
pub(crate) fn majority(n: usize) -> usize {
    n / 2 + 1
}

/// The tokens that an owner can have, the most likely one first. `counters` are those of the nodes that were
/// seen to have its key. The owner's token T is the one that a majority M has confirmed.
///
/// - A node of M whose key has been the owner's since has T in its counter. While the key is the owner's,
///   only its own confirmations and extensions move the counter, and never above T.
/// - So of k nodes that have the key, at least k + |M| - n are of M. A counter that fewer of them have is not
///   T.
/// - Any other node has a grant of its own: a larger one that came too late to be the token, or a smaller
///   one. The first extension that reaches a node raises a smaller one to T. So the smallest is T, except for
///   a node that the holder has not reached since its grant. If all nodes are seen, T is certain even then.
///
/// A node that was repaired after it had granted others may have left M. If no counter is left that enough of
/// them have, the smallest is still T or above it.
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
pub(crate) struct NodeSet(u16);

impl NodeSet {
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

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        nodes.into_iter().fold(Self::default(), |mut set, node| {
            set.insert(node);
            set
        })
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The reply of one node to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AttemptReply {
    /// Its key is ours, and its counter stood at this value then.
    Granted(u64),
    /// Its key is somebody else's.
    Denied,
    /// It gave no vote: out of reach, in quarantine, too late, not usable.
    Silent,
    /// It has confirmed this token while its key was ours.
    Confirmed(u64),
    /// It did not confirm this token: its key is not ours any more, or is from another grant.
    Refused(u64),
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NextStep {
    Wait,
    /// Ask these nodes for the lock.
    Ask(NodeSet),
    /// Ask these nodes to confirm the token.
    Confirm {
        token: u64,
        nodes: NodeSet,
    },
    /// The lock is ours. Said once.
    Won {
        token: u64,
    },
    /// The lock will not be ours; give back what was granted. Said once.
    Failed,
}

/// The vote of one node in an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum VoteState {
    /// Not asked yet.
    #[default]
    Idle,
    /// Asked; no reply yet.
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

/// One attempt to acquire a lock. `T` is time, `S` stores one [`VoteState`] for each node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt<T, S = Vec<VoteState>> {
    pub(super) votes: S,
    /// The largest value granted so far: the token, if a majority confirms it.
    pub(super) token: u64,
    /// When a lock won by this attempt would end.
    pub(super) until: T,
    /// Ask one node after the other, starting here, until one has granted; only then the rest.
    pub(super) gate: Option<u8>,
    pub(super) decided: bool,
}

impl<T: Copy + Ord, S: AsRef<[VoteState]> + AsMut<[VoteState]>> Attempt<T, S> {
    /// An attempt that asks all nodes at once. `until` counts from before the first request is sent.
    pub(crate) fn at_once(votes: S, until: T) -> (Self, NodeSet) {
        let mut attempt = Self { votes, token: 0, until, gate: None, decided: false };
        attempt.votes.as_mut().fill(VoteState::Asked);
        let all = NodeSet::all(attempt.votes.as_ref().len());
        (attempt, all)
    }

    /// An attempt that asks the node `first`, and the others only after that one has granted. Of many
    /// contenders that agree on the first node only one goes on, so they cannot split the votes.
    pub(crate) fn in_order(votes: S, first: usize, until: T) -> (Self, NodeSet) {
        let gate = u8::try_from(first).ok();
        let mut attempt = Self { votes, token: 0, until, gate, decided: false };
        attempt.votes.as_mut()[first] = VoteState::Asked;
        (attempt, [first].into_iter().collect())
    }

    /// Counts the reply of a node.
    pub(crate) fn on_reply(&mut self, node: usize, reply: AttemptReply, now: T) -> NextStep {
        // No counter is zero after a grant: such a reply is no vote.
        let reply = if reply == AttemptReply::Granted(0) { AttemptReply::Silent } else { reply };
        let vote = &mut self.votes.as_mut()[node];
        match (reply, *vote) {
            // One vote for each node: further replies to the same request change nothing.
            (AttemptReply::Granted(value), VoteState::Asked) => {
                *vote = VoteState::Granted { value, confirm: Confirm::No };
            }
            (AttemptReply::Denied | AttemptReply::Silent, VoteState::Asked) => *vote = VoteState::Out,
            // A confirmation counts for the token that it names, not for a larger one since.
            (AttemptReply::Confirmed(token), VoteState::Granted { value, confirm: Confirm::Asked })
                if token == self.token =>
            {
                *vote = VoteState::Granted { value, confirm: Confirm::Yes };
            }
            (AttemptReply::Refused(token), VoteState::Granted { confirm: Confirm::Asked, .. })
                if token == self.token =>
            {
                *vote = VoteState::Out;
            }
            (AttemptReply::Silent, VoteState::Granted { confirm: Confirm::Asked, .. }) => {
                *vote = VoteState::Out
            }
            _ => return NextStep::Wait,
        }
        if self.decided {
            return NextStep::Wait;
        }
        if now >= self.until {
            return self.give_up();
        }
        if let AttemptReply::Granted(value) = reply {
            self.raise(value);
        }
        self.next_step(node, reply)
    }

    /// Ends the attempt, for example because its time is over.
    pub(crate) fn give_up(&mut self) -> NextStep {
        match std::mem::replace(&mut self.decided, true) {
            true => NextStep::Wait,
            false => NextStep::Failed,
        }
    }

    /// The nodes that were asked for the lock, whatever they replied: they may have it.
    pub(crate) fn asked(&self) -> NodeSet {
        self.which(|vote| !matches!(vote, VoteState::Idle))
    }

    /// The nodes that have granted and not refused since.
    pub(crate) fn granted(&self) -> NodeSet {
        self.which(|vote| matches!(vote, VoteState::Granted { .. }))
    }

    /// A larger value becomes the token. Only the nodes that granted with it have confirmed it yet.
    fn raise(&mut self, value: u64) {
        if value > self.token {
            self.token = value;
            for vote in self.votes.as_mut() {
                if let VoteState::Granted { confirm, .. } = vote {
                    *confirm = Confirm::No;
                }
            }
        }
    }

    fn next_step(&mut self, node: usize, reply: AttemptReply) -> NextStep {
        let (n, token) = (self.votes.as_ref().len(), self.token);
        let (mut granted, mut confirmed, mut open) = (0, 0, 0);
        for vote in self.votes.as_ref() {
            match vote {
                VoteState::Idle | VoteState::Asked => open += 1,
                VoteState::Granted { value, confirm } => {
                    granted += 1;
                    confirmed += usize::from(*value == token || *confirm == Confirm::Yes);
                }
                VoteState::Out => {}
            }
        }
        if confirmed >= majority(n) {
            self.decided = true;
            return NextStep::Won { token };
        }
        if granted + open < majority(n) {
            return self.give_up();
        }
        if granted >= majority(n) {
            let nodes = self.unconfirmed();
            if !nodes.is_empty() {
                return NextStep::Confirm { token, nodes };
            }
        }
        match self.gate {
            Some(gate) if usize::from(gate) == node => self.pass_gate(node, reply),
            _ => NextStep::Wait,
        }
    }

    /// Marks the nodes that granted with a smaller value as asked to confirm the token, and returns them.
    fn unconfirmed(&mut self) -> NodeSet {
        let token = self.token;
        let mut nodes = NodeSet::default();
        for (node, vote) in self.votes.as_mut().iter_mut().enumerate() {
            if let VoteState::Granted { value, confirm } = vote
                && *value < token
                && *confirm == Confirm::No
            {
                *confirm = Confirm::Asked;
                nodes.insert(node);
            }
        }
        nodes
    }

    /// The gate has replied. A grant opens the way to the others, a denial ends the attempt, and a silent
    /// node is replaced by the next one.
    fn pass_gate(&mut self, gate: usize, reply: AttemptReply) -> NextStep {
        match reply {
            AttemptReply::Silent => {}
            AttemptReply::Granted(_) => {
                self.gate = None;
                return NextStep::Ask(self.rest());
            }
            _ => return self.give_up(),
        }
        match self.next_gate(gate) {
            Some(next) => NextStep::Ask([next].into_iter().collect()),
            None => self.give_up(),
        }
    }

    /// The gate takes long to reply: asks the next node. A late reply of it still counts, but ends nothing.
    pub(crate) fn pass_slow_gate(&mut self) -> NextStep {
        let gate = match self.gate {
            Some(gate) if !self.decided => gate,
            _ => return NextStep::Wait,
        };
        let next = self.next_gate(usize::from(gate));
        next.map_or(NextStep::Wait, |next| NextStep::Ask([next].into_iter().collect()))
    }

    /// Makes the next node that was not asked the gate; `None` if there is none.
    fn next_gate(&mut self, gate: usize) -> Option<usize> {
        let n = self.votes.as_ref().len();
        let next =
            (1..n).map(|step| (gate + step) % n).find(|&node| self.votes.as_ref()[node] == VoteState::Idle);
        self.gate = next.and_then(|next| u8::try_from(next).ok());
        if let Some(next) = next {
            self.votes.as_mut()[next] = VoteState::Asked;
        }
        next
    }

    /// Marks all nodes that were not asked yet as asked, and returns them.
    fn rest(&mut self) -> NodeSet {
        let rest = self.which(|vote| *vote == VoteState::Idle);
        for node in rest.iter() {
            self.votes.as_mut()[node] = VoteState::Asked;
        }
        rest
    }

    fn which(&self, mut is: impl FnMut(&VoteState) -> bool) -> NodeSet {
        let votes = self.votes.as_ref().iter().enumerate();
        votes.filter(|(_, vote)| is(vote)).map(|(node, _)| node).collect()
    }
}

/// The reply of one node to an extension.
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

/// The outcome of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Extended {
    Wait,
    /// A majority has our key, and replied so before the old term ended.
    Yes,
    /// So many nodes have another key, or none, that no majority can be ours.
    Lost,
    /// Too few replies. It may be tried again while the old term lasts.
    Failed,
}

/// One extension of a held lock. `S` stores one [`Kept`] for each node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Extension<T, S = Vec<Kept>> {
    pub(super) nodes: S,
    /// The end of the term that is being extended. Later replies do not count: others may have had the lock
    /// in between.
    pub(super) until: T,
    pub(super) decided: bool,
}

impl<T: Copy + Ord, S: AsRef<[Kept]> + AsMut<[Kept]>> Extension<T, S> {
    /// An extension of a lock that is valid until `until`.
    pub(crate) fn new(nodes: S, until: T) -> Self {
        Self { nodes, until, decided: false }
    }

    /// Counts the reply of a node. Decides once.
    pub(crate) fn on_reply(&mut self, node: usize, kept: Kept, now: T) -> Extended {
        let reply = &mut self.nodes.as_mut()[node];
        if *reply != Kept::Open || kept == Kept::Open {
            return Extended::Wait;
        }
        *reply = kept;
        if self.decided {
            return Extended::Wait;
        }
        let outcome = self.outcome(now);
        self.decided = outcome != Extended::Wait;
        outcome
    }

    fn outcome(&self, now: T) -> Extended {
        let nodes = self.nodes.as_ref();
        let count = |kept: Kept| nodes.iter().filter(|reply| **reply == kept).count();
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
        let (attempt, asked) = Attempt::at_once(vec![VoteState::Idle; n], LATE);
        assert_eq!(asked, NodeSet::all(n));
        attempt
    }

    fn nodes(list: &[usize]) -> NodeSet {
        list.iter().copied().collect()
    }

    #[test]
    fn equal_grants_of_a_majority_win_in_one_round() {
        let mut attempt = attempt(5);
        assert_eq!(attempt.on_reply(0, AttemptReply::Granted(7), 1), NextStep::Wait);
        assert_eq!(attempt.on_reply(3, AttemptReply::Granted(7), 1), NextStep::Wait);
        assert_eq!(attempt.on_reply(4, AttemptReply::Granted(7), 1), NextStep::Won { token: 7 });
        assert_eq!(
            attempt.on_reply(1, AttemptReply::Granted(9), 1),
            NextStep::Wait,
            "a straggler changes nothing"
        );
        assert_eq!(attempt.granted(), nodes(&[0, 1, 3, 4]));
    }

    #[test]
    fn where_counters_disagree_a_second_round_confirms_the_largest() {
        let mut attempt = attempt(3);
        assert_eq!(attempt.on_reply(0, AttemptReply::Granted(7), 1), NextStep::Wait);
        assert_eq!(
            attempt.on_reply(1, AttemptReply::Granted(9), 1),
            NextStep::Confirm { token: 9, nodes: nodes(&[0]) }
        );
        assert_eq!(attempt.on_reply(0, AttemptReply::Confirmed(9), 1), NextStep::Won { token: 9 });
    }

    #[test]
    fn a_confirmation_of_a_smaller_token_does_not_count() {
        let mut attempt = attempt(5);
        for (node, value) in [(0, 7), (1, 8)] {
            attempt.on_reply(node, AttemptReply::Granted(value), 1);
        }
        let all_but_two = attempt.on_reply(2, AttemptReply::Granted(9), 1);
        assert_eq!(all_but_two, NextStep::Confirm { token: 9, nodes: nodes(&[0, 1]) });
        let raised = attempt.on_reply(3, AttemptReply::Granted(10), 1);
        assert_eq!(raised, NextStep::Confirm { token: 10, nodes: nodes(&[0, 1, 2]) });
        assert_eq!(attempt.on_reply(0, AttemptReply::Confirmed(9), 1), NextStep::Wait);
        assert_eq!(attempt.on_reply(0, AttemptReply::Confirmed(10), 1), NextStep::Wait);
        assert_eq!(attempt.on_reply(1, AttemptReply::Confirmed(9), 1), NextStep::Wait);
        assert_eq!(attempt.on_reply(1, AttemptReply::Confirmed(10), 1), NextStep::Won { token: 10 });
    }

    #[test]
    fn a_node_votes_once() {
        let mut attempt = attempt(3);
        attempt.on_reply(0, AttemptReply::Granted(7), 1);
        assert_eq!(attempt.on_reply(0, AttemptReply::Granted(7), 1), NextStep::Wait);
        assert_eq!(attempt.on_reply(0, AttemptReply::Granted(9), 1), NextStep::Wait);
        assert_eq!(attempt.on_reply(1, AttemptReply::Granted(7), 1), NextStep::Won { token: 7 });
    }

    #[test]
    fn it_fails_as_soon_as_no_majority_is_left() {
        let mut attempt = attempt(5);
        attempt.on_reply(0, AttemptReply::Denied, 1);
        attempt.on_reply(1, AttemptReply::Silent, 1);
        assert_eq!(attempt.on_reply(2, AttemptReply::Denied, 1), NextStep::Failed);
        assert_eq!(attempt.on_reply(3, AttemptReply::Granted(1), 1), NextStep::Wait, "it fails once");
        assert_eq!(attempt.asked(), NodeSet::all(5));
    }

    #[test]
    fn a_refused_confirmation_takes_the_vote_back() {
        let mut attempt = attempt(3);
        attempt.on_reply(0, AttemptReply::Granted(7), 1);
        attempt.on_reply(1, AttemptReply::Granted(9), 1);
        assert_eq!(attempt.on_reply(0, AttemptReply::Refused(9), 1), NextStep::Wait);
        assert_eq!(
            attempt.on_reply(2, AttemptReply::Granted(8), 1),
            NextStep::Confirm { token: 9, nodes: nodes(&[2]) }
        );
        assert_eq!(attempt.on_reply(2, AttemptReply::Refused(9), 1), NextStep::Failed);
    }

    #[test]
    fn answers_after_the_end_of_the_validity_win_nothing() {
        let mut attempt = attempt(3);
        attempt.on_reply(0, AttemptReply::Granted(7), LATE - 1);
        assert_eq!(attempt.on_reply(1, AttemptReply::Granted(7), LATE), NextStep::Failed);
    }

    #[test]
    fn in_order_only_who_passes_the_gate_goes_on() {
        let (mut attempt, first) = Attempt::in_order(vec![VoteState::Idle; 3], 2, LATE);
        assert_eq!(first, nodes(&[2]));
        assert_eq!(attempt.on_reply(2, AttemptReply::Granted(5), 1), NextStep::Ask(nodes(&[0, 1])));
        assert_eq!(attempt.on_reply(0, AttemptReply::Granted(5), 1), NextStep::Won { token: 5 });
    }

    #[test]
    fn a_denied_gate_leaves_the_others_alone_and_a_silent_one_is_passed() {
        let (mut attempt, _) = Attempt::in_order(vec![VoteState::Idle; 3], 2, LATE);
        assert_eq!(attempt.on_reply(2, AttemptReply::Silent, 1), NextStep::Ask(nodes(&[0])));
        assert_eq!(attempt.on_reply(0, AttemptReply::Denied, 1), NextStep::Failed);
        assert_eq!(attempt.asked(), nodes(&[0, 2]));
    }

    #[test]
    fn a_slow_gate_is_passed_and_its_answer_still_counts() {
        let (mut attempt, _) = Attempt::in_order(vec![VoteState::Idle; 3], 1, LATE);
        assert_eq!(attempt.pass_slow_gate(), NextStep::Ask(nodes(&[2])));
        assert_eq!(
            attempt.on_reply(1, AttemptReply::Granted(5), 1),
            NextStep::Wait,
            "it is not the gate any more"
        );
        assert_eq!(attempt.on_reply(2, AttemptReply::Granted(5), 1), NextStep::Won { token: 5 });
        assert_eq!(attempt.pass_slow_gate(), NextStep::Wait);
        let (mut attempt, _) = Attempt::in_order(vec![VoteState::Idle; 3], 1, LATE);
        for next in [2, 0] {
            assert_eq!(attempt.pass_slow_gate(), NextStep::Ask(nodes(&[next])));
        }
        assert_eq!(attempt.pass_slow_gate(), NextStep::Wait);
        assert_eq!(attempt.on_reply(0, AttemptReply::Denied, 1), NextStep::Wait, "two may still grant it");
        assert_eq!(attempt.on_reply(1, AttemptReply::Denied, 1), NextStep::Failed);
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
        assert_eq!(extension.on_reply(0, Kept::Yes, 1), Extended::Wait);
        assert_eq!(extension.on_reply(0, Kept::Yes, 1), Extended::Wait, "a node counts once");
        assert_eq!(extension.on_reply(1, Kept::Yes, 1), Extended::Yes);
        let mut extension = Extension::new(vec![Kept::Open; 3], LATE);
        extension.on_reply(0, Kept::Yes, 1);
        assert_eq!(extension.on_reply(1, Kept::Yes, LATE), Extended::Failed);
    }

    #[test]
    fn an_extension_is_lost_when_others_have_too_many_nodes_and_only_then() {
        let mut extension = Extension::new(vec![Kept::Open; 5], LATE);
        extension.on_reply(0, Kept::No, 1);
        extension.on_reply(1, Kept::No, 1);
        assert_eq!(extension.on_reply(2, Kept::No, 1), Extended::Lost);
        let mut extension = Extension::new(vec![Kept::Open; 5], LATE);
        extension.on_reply(0, Kept::No, 1);
        extension.on_reply(1, Kept::Silent, 1);
        assert_eq!(extension.on_reply(2, Kept::Silent, 1), Extended::Failed);
    }
}
