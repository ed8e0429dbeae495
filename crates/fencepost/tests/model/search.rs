//! A breadth-first search over every order in which things can happen. It ends with the shortest way to a
//! broken promise, or with the number of states in which none was.

use std::collections::HashSet;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use crate::check;
use crate::rules::{Limits, Rules};
use crate::state::State;
use crate::step::{Next, Step, Steps};

/// A promise, and what a search is asked to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// At most one guard says held, and what it has is at the server. Not promised of a guard whose lock was
    /// seized, or disappeared; nor after a server has forgotten what it granted.
    Exclusion,
    /// Tokens are unique, and larger than those of all guards that existed when the acquisition began. With
    /// clocks: that existed a tick before.
    Order,
    /// No renewal or attachment of a grant is answered with yes when the server has another one, or none, or
    /// was told to revoke it.
    NoRevival,
    /// When everybody has gone and all is answered, nothing is left at the server. Not promised if a link has
    /// ended: then for the term of a lock.
    NothingLeft,
    /// A waiter that looks again is granted the lock within the terms of who is before it.
    NotStranded,
}

/// Something that a search has to come across, or its silence means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    PushBelieved,
    PushNotBelieved,
    PushLeftToItsAnswer,
    PushedToNobody,
    UnreachableSkipped,
    GrantFound,
    UnwantedFreed,
    LateServed,
    Renewed,
    RenewalRefused,
    LostInTime,
    RevocationHeard,
    AskedBeforeItKnew,
    Attached,
    AttachRefused,
    ReadOnly,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sights(u32);

impl Sights {
    pub(crate) fn note(&mut self, sight: Sight) {
        self.0 |= 1 << sight as u32;
    }

    pub(crate) fn has(self, sight: Sight) -> bool {
        self.0 >> sight as u32 & 1 == 1
    }
}

/// How a search ended.
pub(crate) struct Outcome {
    pub(crate) states: usize,
    pub(crate) sights: Sights,
    /// The promise that was broken, and the way there.
    pub(crate) broken: Option<(Promise, Vec<Step>)>,
}

/// Searches everything that `limits` allow.
pub(crate) fn search(rules: &Rules, limits: &Limits, promises: &[Promise]) -> Outcome {
    let start = limits.start();
    let mut seen = HashSet::from([fingerprint(&start)]);
    // The way to a state, as the index of the one before it; the states themselves are kept only while they
    // wait.
    let mut ways: Vec<(usize, Step)> = vec![(0, Step::Begin)];
    let mut waiting = VecDeque::from([(0, start)]);
    let mut sights = Sights::default();
    let mut next = Vec::new();
    while let Some((index, state)) = waiting.pop_front() {
        next.clear();
        Steps { from: &state, rules, limits, sights: &mut sights, next: &mut next }.all();
        for Next { step, state, broken } in &mut next {
            state.forget();
            if limits.ticks == 0 {
                state.count_tokens_anew();
            }
            let broken = broken
                .iter()
                .copied()
                .chain(check::broken(state, rules, limits))
                .find(|one| promises.contains(one));
            if let Some(promise) = broken {
                ways.push((index, *step));
                return Outcome { states: seen.len(), sights, broken: Some((promise, way(&ways))) };
            }
            if seen.insert(fingerprint(state)) {
                ways.push((index, *step));
                waiting.push_back((ways.len() - 1, *state));
            }
        }
    }
    Outcome { states: seen.len(), sights, broken: None }
}

fn way(ways: &[(usize, Step)]) -> Vec<Step> {
    let mut index = ways.len() - 1;
    let mut steps = Vec::new();
    while index != 0 {
        steps.push(ways[index].1);
        index = ways[index].0;
    }
    steps.reverse();
    steps
}

fn fingerprint(state: &State) -> u64 {
    let mut mixer = Mixer(0x9E37_79B9_7F4A_7C15);
    state.hash(&mut mixer);
    mixer.finish()
}

/// The standard hasher is several times slower without optimisation.
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed ^ (mixed >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value.unsigned_abs() as u64);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9FB2_1C65_1E98_DF25);
        self.0 ^= self.0 >> 29;
    }
}
