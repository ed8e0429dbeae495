//! When and how to try again after an attempt that others were in the way of. Pure, like `quorum.rs`.
//!
//! Contenders that retry in step can split the votes for ever. So a contender that meets a split pauses for a
//! random time that grows. After the second split it asks one node first, on which all agree: the contender
//! that gets that node goes on, the others step back.

use std::time::Duration;

use super::quorum::majority;

/// The longest pause of a waiter. No message comes when a lease ends.
const RECHECK: Duration = Duration::from_millis(600);
/// Bounds of the first pause after a split, and the bound of all further ones.
const SPLIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));
const SPLIT_MOST: Duration = Duration::from_millis(250);
/// So many splits in a row are left to chance.
const CHANCES: u32 = 2;

/// How an attempt asks the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskOrder {
    AtOnce,
    InOrder,
}

/// What was in the way of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Somebody has a majority, or so much of one that nobody else can have it. `free_in`: when enough of the
    /// keys that denied us have expired, if they are not renewed.
    Held { free_in: Option<Duration> },
    /// Somebody has the node that is asked first. The others were not asked.
    FirstNode { free_in: Option<Duration> },
    /// Nobody has a majority.
    Split,
}

/// What was in the way of an attempt that `granted` nodes of `n` voted for. `denials`: the holder and the
/// time left on each node that denied. `gated`: it asked in order, and got no further than the first nodes.
pub(crate) fn obstacle<H: PartialEq>(
    n: usize,
    granted: usize,
    denials: &[(H, Option<Duration>)],
    gated: bool,
) -> Obstacle {
    if let (true, Some((_, free_in))) = (gated, denials.last()) {
        return Obstacle::FirstNode { free_in: *free_in };
    }
    let most = denials.iter().map(|(holder, _)| denials.iter().filter(|(other, _)| other == holder).count());
    if most.max().unwrap_or(0) < majority(n) {
        return Obstacle::Split;
    }
    let mut ends: Vec<Duration> = denials.iter().filter_map(|(_, left)| *left).collect();
    ends.sort_unstable();
    let missing = majority(n).saturating_sub(granted).max(1);
    Obstacle::Held { free_in: ends.get(missing - 1).copied() }
}

/// The pauses between the attempts of one caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AttemptBackoff {
    splits: u32,
}

impl AttemptBackoff {
    /// How to ask next.
    pub(crate) fn order(&self) -> AskOrder {
        if self.splits < CHANCES { AskOrder::AtOnce } else { AskOrder::InOrder }
    }

    /// How long to pause at most, unless a push comes. `chance` is random, between 0 and 1; `round_trip` is
    /// the time that a node took to reply.
    pub(crate) fn pause(&mut self, obstacle: Obstacle, round_trip: Duration, chance: f64) -> Duration {
        match obstacle {
            Obstacle::Held { free_in } | Obstacle::FirstNode { free_in } => {
                // The holder of the first node may have no other: only all nodes can tell.
                self.splits = if matches!(obstacle, Obstacle::Held { .. }) { 0 } else { CHANCES - 1 };
                let recheck = RECHECK.mul_f64(0.5 + chance / 2.0);
                // A key lives to the end of its last millisecond.
                free_in.map_or(recheck, |left| recheck.min(left + Duration::from_millis(1)))
            }
            Obstacle::Split => {
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
        assert_eq!(obstacle(5, 2, &held, false), Obstacle::Held { free_in: Some(10 * MS) });
        assert_eq!(obstacle(5, 0, &held, false), Obstacle::Held { free_in: Some(30 * MS) });
        assert_eq!(
            obstacle(5, 2, &[("a", None), ("a", None), ("a", None)], false),
            Obstacle::Held { free_in: None }
        );
        assert_eq!(obstacle(5, 2, &[("a", None), ("a", None), ("b", None)], false), Obstacle::Split);
        assert_eq!(obstacle(5, 0, &[("a", Some(MS))], true), Obstacle::FirstNode { free_in: Some(MS) });
        assert_eq!(obstacle::<&str>(5, 0, &[], true), Obstacle::Split);
    }

    #[test]
    fn splits_are_left_to_chance_twice_and_then_asked_in_order() {
        let mut backoff = AttemptBackoff::default();
        for _ in 0..CHANCES {
            assert_eq!(backoff.order(), AskOrder::AtOnce);
            backoff.pause(Obstacle::Split, MS, 0.5);
        }
        assert_eq!(backoff.order(), AskOrder::InOrder);
        let gated = backoff.pause(Obstacle::FirstNode { free_in: Some(5 * MS) }, MS, 0.5);
        assert_eq!((gated, backoff.order()), (6 * MS, AskOrder::AtOnce));
        backoff.pause(Obstacle::Split, MS, 0.5);
        assert_eq!(backoff.order(), AskOrder::InOrder);
        backoff.pause(Obstacle::Held { free_in: None }, MS, 0.5);
        assert_eq!(backoff.order(), AskOrder::AtOnce);
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let mut backoff = AttemptBackoff::default();
        let pauses: Vec<_> = (0..12).map(|_| backoff.pause(Obstacle::Split, 2 * MS, 1.0)).collect();
        assert_eq!(pauses[..3], [4 * MS, 8 * MS, 16 * MS]);
        assert_eq!(pauses[11], SPLIT_MOST);
        let soon = Obstacle::Held { free_in: Some(5 * MS) };
        assert_eq!(backoff.pause(soon, MS, 0.0), 6 * MS);
        assert_eq!(backoff.pause(Obstacle::Held { free_in: None }, MS, 0.0), RECHECK / 2);
    }
}
