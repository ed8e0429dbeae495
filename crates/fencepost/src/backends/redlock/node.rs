//! One node, as this process sees it: how to reach it, which run of the server it is, what its clock shows.

use std::sync::Mutex;
use std::time::Duration;

use super::config::Config;
use crate::backends::redis::config::Config as NodeConfig;
use crate::backends::redis::driver::connector::Connector;
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;
use crate::{Result, Verdict, format_duration};

/// A node's clock that differs by more than this from what it should show has leapt.
const LEAP: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Node {
    pub(super) index: usize,
    pub(super) connector: Connector,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Which run of the server replied to the last greeting.
    run: Option<String>,
    /// Another node that is the same server.
    duplicate_of: Option<String>,
    /// The last reading of the clock in microseconds, and between which moments it was taken.
    reading: Option<(u64, Moment, Moment)>,
    /// The reading that bounds the clock best: at this moment it showed no more than that.
    bound: Option<(u64, Moment)>,
    /// The clock has leapt. Its leases may end early, so its votes do not count until then.
    distrusted_until: Option<Moment>,
}

impl Known {
    /// The latest that the clock can show now, by the best reading.
    fn latest(&self, now: Moment) -> Option<u64> {
        self.bound.map(|(reading, sent)| reading + micros(now.since(sent)))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Node {
    pub(super) fn new(index: usize, config: NodeConfig) -> Result<Self> {
        Ok(Self { index, connector: Connector::new(config)?, known: Mutex::default() })
    }

    pub(super) fn label(&self) -> &str {
        &self.connector.config.label
    }

    /// The latest that the node's clock can show now, in microseconds; zero if it was never read.
    pub(super) fn time(&self, now: Moment) -> u64 {
        lock(&self.known).latest(now).unwrap_or(0)
    }

    /// By the latest that the node's clock can show now: when `deadline` is on that clock.
    pub(super) fn at_most(&self, deadline: Moment, now: Moment) -> String {
        self.time(now).saturating_add(micros(deadline.since(now))).to_string()
    }

    /// The same by the earliest that it can show, for what must not happen after `deadline`.
    pub(super) fn at_least(&self, deadline: Moment, now: Moment) -> String {
        let reading = lock(&self.known).reading;
        let time = reading.map_or(0, |(reading, _, replied)| reading + micros(now.since(replied)));
        time.saturating_add(micros(deadline.since(now))).to_string()
    }

    /// Takes in a reading of the node's clock that came with the reply to a request.
    pub(super) fn read_clock(&self, reading: u64, sent: Moment, now: Moment, config: &Config) {
        let mut known = lock(&self.known);
        if let Some((before, asked, replied)) = known.reading {
            let passed = Duration::from_micros(reading.abs_diff(before));
            let (least, most) = (sent.since(replied), now.since(asked));
            let back = reading < before;
            // A reply that is read late, because its runtime was busy, may be older than the one before.
            let older = replied.since(sent);
            if back && passed > older + older / 100 + LEAP
                || !back && (passed > most + most / 100 + LEAP || passed + least / 100 + LEAP < least)
            {
                tracing::warn!(
                    node = self.label(), passed = %format_duration(passed), backwards = back,
                    expected = %format_duration(most),
                    "the clock of this node has leapt: leases there may end early or late, so its votes do \
                     not count for the length of a quarantine; see that its clock is slewed, not stepped"
                );
                known.distrusted_until = Some(now.plus(config.quarantine));
                known.bound = None;
            }
        }
        known.reading = Some((reading, sent, now));
        // A slow reply says little: it was read at any time since the request was sent.
        let best = known
            .latest(now)
            .is_none_or(|latest| latest < reading || latest > reading + micros(now.since(sent)));
        if best {
            known.bound = Some((reading, sent));
        }
    }

    /// Why the node's votes do not count, whatever it replies.
    pub(super) fn objection(&self, now: Moment) -> Option<Verdict> {
        if let Some(refused) = self.duplicate() {
            return Some(refused);
        }
        let left = lock(&self.known).distrusted_until?.since(now);
        (!left.is_zero()).then(|| Verdict::Quarantined { left, why: "its clock has leapt".to_owned() })
    }

    /// What is wrong if the same server is in the list under an earlier name, too.
    pub(super) fn duplicate(&self) -> Option<Verdict> {
        let other = lock(&self.known).duplicate_of.clone()?;
        let why = format!(
            "it is the same server as {other}; every node must be a server of its own, best on a machine of \
             its own"
        );
        Some(Verdict::Refused { why })
    }

    pub(super) fn run(&self) -> Option<String> {
        lock(&self.known).run.clone()
    }

    pub(super) fn set_run(&self, run: &str) {
        lock(&self.known).run = Some(run.to_owned());
    }

    pub(super) fn set_duplicate(&self, of: Option<&Self>) {
        lock(&self.known).duplicate_of = of.map(|node| node.label().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StoreUrl;

    fn node() -> (Node, Config) {
        let config = Config::from_url(StoreUrl::parse("redlock://a,b,c").unwrap()).unwrap();
        (Node::new(0, config.nodes[0].clone()).unwrap(), config)
    }

    fn at(milliseconds: u64) -> Moment {
        Moment::at(Duration::from_millis(milliseconds))
    }

    /// What a clock shows that was at 1000 s in the beginning.
    fn shows(milliseconds: u64) -> u64 {
        1_000_000_000 + 1000 * milliseconds
    }

    #[test]
    fn a_slow_answer_does_not_loosen_the_bound_of_a_clock() {
        let (node, config) = node();
        node.read_clock(shows(1), at(0), at(2), &config);
        assert_eq!(node.time(at(100)), shows(101));
        node.read_clock(shows(5000), at(100), at(5001), &config);
        assert_eq!(node.time(at(6000)), shows(6001));
        // It goes a little faster than ours, and slower.
        node.read_clock(shows(7100), at(7000), at(7002), &config);
        assert_eq!(node.time(at(7002)), shows(7102));
        node.read_clock(shows(8000), at(8000), at(8001), &config);
        assert_eq!(node.time(at(8001)), shows(8001));
        assert_eq!(node.objection(at(8001)), None);
    }

    #[test]
    fn a_clock_that_leaps_is_noticed_both_ways() {
        for leapt in [shows(3_602_000), shows(2000) - 360_000_000] {
            let (node, config) = node();
            node.read_clock(shows(1), at(0), at(2), &config);
            node.read_clock(leapt, at(2000), at(2001), &config);
            assert!(matches!(node.objection(at(2001)), Some(Verdict::Quarantined { .. })));
            assert_eq!(node.time(at(2001)), leapt + 1000);
            assert_eq!(node.objection(at(2001).plus(config.quarantine)), None);
        }
    }

    #[test]
    fn an_answer_that_was_left_unread_for_a_while_is_no_leap() {
        let (node, config) = node();
        node.read_clock(shows(1), at(0), at(2), &config);
        node.read_clock(shows(9000), at(8999), at(9001), &config);
        node.read_clock(shows(1001), at(1000), at(9002), &config);
        assert_eq!(node.objection(at(9002)), None);
        assert_eq!(node.time(at(9002)), shows(9003));
        node.read_clock(shows(9100), at(9099), at(9101), &config);
        assert_eq!(node.objection(at(9101)), None);
    }
}
