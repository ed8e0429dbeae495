//! What came of a contest. Only what goes to another contender counts: who takes back what it has just given
//! back shows nothing.

use std::time::Duration;

use crate::times::Times;
use crate::turns::Turn;

/// What came of a contest.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    /// To another contender, a second.
    pub handovers: f64,
    /// From the call of release to the return of another one's acquire; from the call of that one, if nobody
    /// was waiting.
    pub gaps: Times,
    /// From the call of acquire to its return, of all turns.
    pub waits: Times,
    /// The most turns of one contender by the least.
    pub unfairness: f64,
    /// The share of turns that who had just released the lock took.
    pub taken_back: f64,
    /// How often somebody had the lock before the one before had released it, or with no larger number.
    pub overlaps: usize,
}

impl Crowd {
    /// From the turns of each contender. What comes after the span is left out: by then fewer and fewer
    /// contend.
    pub fn new(contenders: &[Vec<Turn>], lasts: Duration) -> Self {
        let began = contenders.iter().flatten().map(|turn| turn.asked).min().unwrap_or(0);
        let end = began.saturating_add(u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX));
        let within = |turns: &Vec<Turn>| turns.iter().filter(|turn| turn.acquired <= end).count();
        let counts: Vec<_> = contenders.iter().map(within).collect();
        let mut turns: Vec<_> = (contenders.iter().enumerate())
            .flat_map(|(one, turns)| turns.iter().map(move |turn| (*turn, one)))
            .filter(|(turn, _)| turn.acquired <= end)
            .collect();
        turns.sort_unstable_by_key(|(turn, _)| turn.acquired);
        let pairs = || turns.windows(2).map(|pair| (pair[0], pair[1]));
        let handed: Vec<_> =
            pairs().filter(|((_, before), (_, after))| before != after).map(|(a, b)| (a.0, b.0)).collect();
        let gap = |(before, after): &(Turn, Turn)| {
            Duration::from_nanos(after.acquired.saturating_sub(before.released.max(after.asked)))
        };
        let overlap = |before: Turn, after: Turn| {
            after.acquired < before.released || after.token > 0 && after.token <= before.token
        };
        let (most, least) =
            (counts.iter().copied().max().unwrap_or(0), counts.iter().copied().min().unwrap_or(0));
        let wait = |turn: &Turn| Duration::from_nanos(turn.acquired.saturating_sub(turn.asked));
        Self {
            handovers: handed.len() as f64 / lasts.as_secs_f64().max(f64::MIN_POSITIVE),
            gaps: Times::new(handed.iter().map(gap).collect(), lasts),
            waits: Times::new(turns.iter().map(|(turn, _)| wait(turn)).collect(), lasts),
            unfairness: most as f64 / least.max(1) as f64,
            taken_back: 1.0 - handed.len() as f64 / turns.len().saturating_sub(1).max(1) as f64,
            overlaps: pairs().filter(|((before, _), (after, _))| overlap(*before, *after)).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn turn(token: u64, asked: u64, acquired: u64, released: u64) -> Turn {
        Turn { token, asked, acquired, released }
    }

    #[test]
    fn only_what_goes_to_another_one_counts() {
        let first = vec![turn(1, 0, 0, 10), turn(2, 11, 11, 20), turn(4, 22, 50, 60)];
        let second = vec![turn(3, 1, 25, 40)];
        let crowd = Crowd::new(&[first, second], Duration::from_secs(1));
        assert_eq!(crowd.gaps.percentile(0), Some(Duration::from_nanos(5)));
        assert_eq!(crowd.gaps.percentile(100), Some(Duration::from_nanos(10)));
        assert_eq!(crowd.waits.percentile(100), Some(Duration::from_nanos(28)));
        assert!((crowd.handovers - 2.0).abs() < 1e-9);
        assert!((crowd.unfairness - 3.0).abs() < 1e-9);
        assert!((crowd.taken_back - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(crowd.overlaps, 0);
    }

    #[test]
    fn a_lock_that_nobody_wanted_is_not_late() {
        let crowd = Crowd::new(&[vec![turn(1, 0, 0, 10)], vec![turn(2, 15, 17, 30)]], Duration::from_secs(1));
        assert_eq!(crowd.gaps.percentile(50), Some(Duration::from_nanos(2)));
        assert!((crowd.handovers - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_comes_after_the_end_is_left_out() {
        let crowd =
            Crowd::new(&[vec![turn(1, 0, 0, 10)], vec![turn(2, 5, 90, 95)]], Duration::from_nanos(50));
        assert_eq!(crowd.waits.count(), 1);
        assert!(crowd.handovers.abs() < 1e-9);
    }

    #[test]
    fn two_at_once_and_a_number_that_does_not_grow_are_seen() {
        let at_once = Crowd::new(&[vec![turn(0, 0, 0, 10)], vec![turn(0, 0, 5, 30)]], Duration::from_secs(1));
        assert_eq!(at_once.overlaps, 1);
        let same = Crowd::new(&[vec![turn(7, 0, 0, 10)], vec![turn(7, 0, 15, 30)]], Duration::from_secs(1));
        assert_eq!(same.overlaps, 1);
    }
}
