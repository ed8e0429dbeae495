//! When and how to try again after an attempt that others were in the way of. Pure, like `quorum.rs`.
//!
//! Contenders that retry in step can split the votes for ever. So who meets a split backs off by a random time that
//! grows, and after a second one asks the nodes in an order that all agree on: whoever gets the first node goes
//! on, everybody else steps back.

use std::time::Duration;

use super::quorum::majority;

/// The longest sleep of a waiter between two tries. Expiry wakes nobody.
const RECHECK: Duration = Duration::from_millis(600);
/// The same while clients of other make are in the way, which wake nobody either, and poll: at first, and at least. Whoever
/// asks less often than they do hardly ever meets a lock that is free.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(20));
/// So many tries in vain make it as short as that.
const PASSED_OVER: u32 = 16;
/// Bounds of the first pause after a split, and the bound of all further ones.
const SPLIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));
const SPLIT_MOST: Duration = Duration::from_millis(250);
/// So many splits in a row are left to chance.
const CHANCES: u32 = 2;

/// How an attempt asks the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    AtOnce,
    InOrder,
}

/// Who was in the way of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Somebody has a majority, or had it in part and there is none without that part. `free_in`: when enough of
    /// what denied us has expired, if it is not renewed.
    Held { free_in: Option<Duration> },
    /// Somebody has the node that is asked first; what of the others is not known.
    Gated { free_in: Option<Duration> },
    /// Nobody has a majority.
    Split,
}

/// Judges the denials of an attempt that `granted` nodes of `n` voted for: who holds each, and for how long. `gated`: it
/// asked in order, and got no further than the nodes that are asked first.
pub(crate) fn standing<H: PartialEq>(
    n: usize,
    granted: usize,
    denials: &[(H, Option<Duration>)],
    gated: bool,
) -> Standing {
    if let (true, Some((_, free_in))) = (gated, denials.last()) {
        return Standing::Gated { free_in: *free_in };
    }
    let most = denials.iter().map(|(holder, _)| denials.iter().filter(|(other, _)| other == holder).count());
    if most.max().unwrap_or(0) < majority(n) {
        return Standing::Split;
    }
    let mut ends: Vec<Duration> = denials.iter().filter_map(|(_, left)| *left).collect();
    ends.sort_unstable();
    let missing = majority(n).saturating_sub(granted).max(1);
    Standing::Held { free_in: ends.get(missing - 1).copied() }
}

/// The tries of one caller for one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Contest {
    splits: u32,
    /// How often clients of other make were in the way.
    passed_over: u32,
}

impl Contest {
    /// How to ask next.
    pub(crate) fn manner(&self) -> Manner {
        if self.splits < CHANCES { Manner::AtOnce } else { Manner::InOrder }
    }

    /// How long to pause at most while clients of other make are in the way.
    pub(crate) fn poll(&mut self, chance: f64) -> Duration {
        let done = f64::from(self.passed_over.min(PASSED_OVER)) / f64::from(PASSED_OVER);
        self.passed_over += 1;
        let most = POLL.0 - (POLL.0 - POLL.1).mul_f64(done);
        most.mul_f64(0.5 + chance / 2.0)
    }

    /// How long to pause at most, unless a hint comes. `chance` is random, between 0 and 1; `round_trip` is what a node
    /// took to answer.
    pub(crate) fn pause(&mut self, standing: Standing, round_trip: Duration, chance: f64) -> Duration {
        match standing {
            Standing::Held { .. } => self.splits = 0,
            // Who has the first node may have no other: whether somebody holds the lock only all of them can tell.
            Standing::Gated { .. } => self.splits = CHANCES - 1,
            Standing::Split => {}
        }
        match standing {
            Standing::Held { free_in } | Standing::Gated { free_in } => {
                let recheck = RECHECK.mul_f64(0.5 + chance / 2.0);
                // A key lives to the end of its last millisecond.
                free_in.map_or(recheck, |left| recheck.min(left + Duration::from_millis(1)))
            }
            Standing::Split => {
                let base = (2 * round_trip).clamp(SPLIT.0, SPLIT.1);
                let most = (base * (1 << self.splits.min(8))).min(SPLIT_MOST);
                self.splits += 1;
                most.mul_f64(chance)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_holder_is_who_has_a_majority() {
        let held = [("a", Some(30 * MS)), ("a", Some(10 * MS)), ("a", Some(20 * MS))];
        assert_eq!(standing(5, 2, &held, false), Standing::Held { free_in: Some(10 * MS) });
        assert_eq!(standing(5, 0, &held, false), Standing::Held { free_in: Some(30 * MS) });
        assert_eq!(
            standing(5, 2, &[("a", None), ("a", None), ("a", None)], false),
            Standing::Held { free_in: None }
        );
        assert_eq!(standing(5, 2, &[("a", None), ("a", None), ("b", None)], false), Standing::Split);
        assert_eq!(standing(5, 0, &[("a", Some(MS))], true), Standing::Gated { free_in: Some(MS) });
        assert_eq!(standing::<&str>(5, 0, &[], true), Standing::Split);
    }

    #[test]
    fn splits_are_left_to_chance_twice_and_then_asked_in_order() {
        let mut contest = Contest::default();
        for _ in 0..CHANCES {
            assert_eq!(contest.manner(), Manner::AtOnce);
            contest.pause(Standing::Split, MS, 0.5);
        }
        assert_eq!(contest.manner(), Manner::InOrder);
        let gated = contest.pause(Standing::Gated { free_in: Some(5 * MS) }, MS, 0.5);
        assert_eq!((gated, contest.manner()), (6 * MS, Manner::AtOnce));
        contest.pause(Standing::Split, MS, 0.5);
        assert_eq!(contest.manner(), Manner::InOrder);
        contest.pause(Standing::Held { free_in: None }, MS, 0.5);
        assert_eq!(contest.manner(), Manner::AtOnce);
    }

    #[test]
    fn the_longer_pollers_are_in_the_way_the_more_often_it_asks() {
        let mut contest = Contest::default();
        let polls: Vec<_> = (0..40).map(|_| contest.poll(1.0)).collect();
        assert!(polls.windows(2).all(|pair| pair[0] >= pair[1]), "{polls:?}");
        assert_eq!((polls[0], polls[39], contest.poll(0.0)), (POLL.0, POLL.1, POLL.1 / 2));
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let mut contest = Contest::default();
        let pauses: Vec<_> = (0..12).map(|_| contest.pause(Standing::Split, 2 * MS, 1.0)).collect();
        assert_eq!(pauses[..3], [4 * MS, 8 * MS, 16 * MS]);
        assert_eq!(pauses[11], SPLIT_MOST);
        let soon = Standing::Held { free_in: Some(5 * MS) };
        assert_eq!(contest.pause(soon, MS, 0.0), 6 * MS);
        assert_eq!(contest.pause(Standing::Held { free_in: None }, MS, 0.0), RECHECK / 2);
    }
}
