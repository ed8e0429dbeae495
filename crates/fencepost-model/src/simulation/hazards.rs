//! Broken promises, step by step on nodes and core alone: two that the scripts prevent, because nothing
//! counts on a node that does not vote, and two that only the shell around `quorum.rs` can.

use crate::node::{Ask, Greet, Held, How, Keys, Life, Mode, Node, Verdict, Vote};
use crate::quorum::{Attempt, AttemptReply, NextStep, VoteState};

const NOW: u64 = 1_760_000_000_000_000;
const TTL: u64 = 10_000;
const QUARANTINE: u64 = 30_000;
const LATE: u64 = u64::MAX;

struct Set {
    nodes: Vec<Node>,
    keys: Keys,
}

impl Set {
    fn new(count: usize) -> Self {
        let mut set = Self { nodes: vec![Node::default(); count], keys: Keys::of("order") };
        for node in 0..count {
            let greet = set.greet(node, 1, How::Found);
            assert_eq!(greet, set.node_key(node));
        }
        set
    }

    fn node_key(&self, node: usize) -> String {
        self.key_of(node, 1)
    }

    fn key_of(&self, node: usize, life: u32) -> String {
        format!("{node}{life} {TTL} {QUARANTINE} abcd")
    }

    /// Greets the `life`th process of a node.
    fn greet(&mut self, node: usize, life: u32, how: How) -> String {
        let life = Life { run: format!("{node}{life}") };
        let greet = Greet { max_ttl: TTL, quarantine: QUARANTINE, members: "abcd", how };
        self.nodes[node].greet(NOW, &life, &greet).expect("a node key").node
    }

    fn acquire(&mut self, node: usize, value: &str, proposal: u64) -> AttemptReply {
        let key = self.node_key(node);
        let ask = Ask { value, ttl: TTL, proposal, bound: 5_000_000, node: &key, not_after: LATE };
        answer(self.nodes[node].acquire(NOW, &self.keys, &ask, None).expect("a lock"))
    }

    fn revoke(&mut self, node: usize, victim: &str, value: &str, proposal: u64) -> AttemptReply {
        let key = self.node_key(node);
        let ask = Ask { value, ttl: TTL, proposal, bound: 5_000_000, node: &key, not_after: LATE };
        let message = (String::new(), String::new());
        answer(self.nodes[node].revoke(NOW, &self.keys, victim, &ask, message).expect("a lock").0)
    }

    /// Over a connection to the `life`th process of a node.
    fn confirms(&mut self, node: usize, life: u32, value: &str, token: u64) -> bool {
        let key = self.key_of(node, life);
        let held = Held { keys: &self.keys, value, ttl: TTL, token };
        let verdicts = self.nodes[node].hold(NOW, &key, LATE, Mode::Confirm, &[held]).expect("a lock");
        verdicts.is_ok_and(|verdicts| verdicts[0] == Verdict::Kept)
    }

    fn attaches(&mut self, node: usize, life: u32, owner: &str, token: u64) -> bool {
        let key = self.key_of(node, life);
        let attached = self.nodes[node].attach(NOW, &self.keys, (&key, LATE), (owner, "new"), TTL);
        attached.expect("a lock").is_ok_and(|attached| attached == Ok(token))
    }

    fn release(&mut self, node: usize, value: &str) -> bool {
        self.nodes[node].release(NOW, &self.keys, value, false, None).expect("a lock").0
    }
}

fn answer(vote: Vote) -> AttemptReply {
    match vote {
        Vote::Granted(value) => AttemptReply::Granted(value),
        Vote::Held { .. } => AttemptReply::Denied,
        Vote::Not(_) => AttemptReply::Silent,
    }
}

fn attempt(nodes: usize) -> Attempt<u64> {
    Attempt::at_once(vec![VoteState::Idle; nodes], LATE).0
}

/// Hears one node after the other; the last step.
fn hear(attempt: &mut Attempt<u64>, answers: &[(usize, AttemptReply)]) -> NextStep {
    answers.iter().fold(NextStep::Wait, |_, (node, answer)| attempt.on_reply(*node, *answer, NOW))
}

/// Else the victim's attempt would return the revocation's token.
#[test]
fn a_node_back_from_a_snapshot_confirms_no_old_grant() {
    let mut set = Set::new(3);
    let mut ours = attempt(3);
    let answers = [(0, set.acquire(0, "ours", NOW)), (1, set.acquire(1, "ours", NOW + 1))];
    let NextStep::Confirm { token, .. } = hear(&mut ours, &answers) else { panic!("no second round") };
    let snapshot = set.nodes[0].store.clone();

    let mut revocation = attempt(3);
    let answers = [0, 2].map(|node| (node, set.revoke(node, "ours", "!ours\nwhy", NOW + 1)));
    assert_eq!(hear(&mut revocation, &answers), NextStep::Won { token });

    set.nodes[0].store = snapshot;
    assert_ne!(set.greet(0, 2, How::Meet), set.node_key(0), "it is in quarantine");
    assert!(!set.confirms(0, 1, "ours", token) && !set.confirms(0, 2, "ours", token));
    assert_eq!(hear(&mut ours, &[(0, AttemptReply::Confirmed(token))]), NextStep::Won { token }, "if it did");
}

/// Else a lock that was released could be attached while another has it.
#[test]
fn a_lock_that_a_snapshot_brings_back_cannot_be_attached() {
    let mut set = Set::new(3);
    let owner = "0".repeat(36);
    let mut first = attempt(3);
    let answers = [0, 1].map(|node| (node, set.acquire(node, &owner, NOW)));
    let NextStep::Won { token } = hear(&mut first, &answers) else { panic!("not won") };
    let snapshot = set.nodes[0].store.clone();

    assert!(set.release(0, &owner), "node 1 is out of reach");
    let mut second = attempt(3);
    let answers = [0, 2].map(|node| (node, set.acquire(node, "another", NOW + 1)));
    assert!(matches!(hear(&mut second, &answers), NextStep::Won { .. }));

    set.nodes[0].store = snapshot;
    assert_ne!(set.greet(0, 2, How::Meet), set.node_key(0), "it is in quarantine");
    assert!(set.attaches(1, 1, &owner, token), "node 1 would make it a majority");
    assert!(!set.attaches(0, 1, &owner, token) && !set.attaches(0, 2, &owner, token));
}

/// So a revocation that fails leaves its keys alone: the holder's lease goes on under them.
#[test]
fn a_revocation_that_is_given_back_frees_a_lock_that_is_held() {
    let mut set = Set::new(5);
    let mut first = attempt(5);
    let answers = [0, 1, 2].map(|node| (node, set.acquire(node, "ours", NOW)));
    assert!(matches!(hear(&mut first, &answers), NextStep::Won { .. }));

    let revocation = "!ours\nwhy";
    assert!(
        [0, 1]
            .iter()
            .all(|node| matches!(set.revoke(*node, "ours", revocation, NOW), AttemptReply::Granted(_)))
    );
    assert!([0, 1].iter().all(|node| set.release(*node, revocation)));

    let mut second = attempt(5);
    let answers = [0, 1, 3].map(|node| (node, set.acquire(node, "another", NOW + 3_000_000)));
    assert!(matches!(hear(&mut second, &answers), NextStep::Won { .. }), "and the first is still valid");
}

/// So the value of a revocation has an id of its own, not only a reason.
#[test]
fn two_revocations_with_one_value_get_one_token() {
    let mut set = Set::new(3);
    for node in 0..3 {
        set.acquire(node, "ours", NOW);
    }
    let mut revoke = || {
        let mut revocation = attempt(3);
        let answers = [0, 1].map(|node| (node, set.revoke(node, "ours", "!ours\nwhy", NOW + 1)));
        hear(&mut revocation, &answers)
    };
    let first = revoke();
    assert!(matches!(first, NextStep::Won { .. }));
    assert_eq!(revoke(), first);
}
