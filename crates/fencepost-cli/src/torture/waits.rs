//! How long clients waited, beside what was broken meanwhile.

use std::time::Duration;

use fencepost_testkit::history::{Fault, Moment, Target};

/// How long a wait may go on when all is well again, on top of the lease of a holder that is broken.
const SOON: Duration = Duration::from_secs(5);

/// What waits were like.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    /// The longest part of a wait in which nothing was broken that explains it: no server, nor its client.
    pub(crate) unexplained: Duration,
    /// What is to be said of the wait with that part.
    pub(crate) story: String,
    /// How many of these parts were longer than they may be.
    pub(crate) too_long: usize,
}

impl Waits {
    /// Hears of a wait that is over, with or without the lock.
    pub(crate) fn add(
        &mut self,
        client: u32,
        (from, to): (Moment, Moment),
        start: Moment,
        ttl: Duration,
        faults: &[Fault],
    ) {
        let explains = |fault: &&Fault| match fault.target {
            Target::Server(_) => true,
            Target::Client(other) => other == client,
        };
        let spans = faults.iter().filter(explains).map(|fault| (fault.from, fault.to.unwrap_or(to)));
        let explained = covered(spans.collect(), from, to);
        let unexplained = to.since(from).saturating_sub(explained);
        self.too_long += usize::from(unexplained > SOON + ttl);
        if unexplained > self.unexplained {
            self.unexplained = unexplained;
            self.story = format!(
                "client {client} waited from {:.1} s to {:.1} s, {:.1} s of which nothing was broken that \
                 explains it",
                from.since(start).as_secs_f64(),
                to.since(start).as_secs_f64(),
                unexplained.as_secs_f64()
            );
        }
    }
}

/// How much of a time lies within these spans.
pub(crate) fn covered(mut spans: Vec<(Moment, Moment)>, from: Moment, to: Moment) -> Duration {
    spans.sort_unstable();
    let (mut sum, mut upto) = (Duration::ZERO, from);
    for (first, last) in spans {
        sum += last.min(to).since(first.max(upto));
        upto = upto.max(last.min(to));
    }
    sum
}

/// How long the longest fault of a server lasted that had its effect: until all servers were well again.
pub(crate) fn longest_outage(faults: &[Fault]) -> Duration {
    let of_servers =
        faults.iter().filter(|fault| matches!(fault.target, Target::Server(_)) && fault.struck.is_some());
    of_servers.filter_map(|fault| Some(fault.to?.since(fault.from))).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(0).plus(Duration::from_secs(seconds))
    }

    fn fault(target: Target, from: u64, to: Option<u64>) -> Fault {
        let (from, to) = (at(from), to.map(at));
        Fault { kind: "any".to_owned(), target, from, struck: Some(from), to, excuse: None }
    }

    #[test]
    fn what_is_broken_explains_a_wait_once_and_not_a_moment_longer() {
        let server = || Target::Server("one".to_owned());
        let ttl = Duration::from_secs(2);
        let unexplained = |faults: &[Fault]| {
            let mut waits = Waits::default();
            waits.add(1, (at(10), at(30)), at(0), ttl, faults);
            (waits.unexplained.as_secs(), waits.too_long)
        };
        assert_eq!(unexplained(&[]), (20, 1));
        assert_eq!(unexplained(&[fault(server(), 0, Some(10)), fault(server(), 30, None)]), (20, 1));
        assert_eq!(unexplained(&[fault(server(), 0, Some(22)), fault(server(), 15, Some(24))]), (6, 0));
        assert_eq!(unexplained(&[fault(server(), 11, None)]), (1, 0));
        assert_eq!(unexplained(&[fault(Target::Client(1), 5, Some(40))]), (0, 0));
        assert_eq!(unexplained(&[fault(Target::Client(2), 5, Some(40))]), (20, 1));
        assert_eq!(longest_outage(&[fault(server(), 3, Some(8)), fault(server(), 9, None)]).as_secs(), 5);
    }
}
