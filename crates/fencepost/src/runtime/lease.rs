//! The arithmetic of validity. Pure: no clock is read and nothing is sent here.
//!
//! A lease counts from the moment its request was *sent*, and ends `drift` before the store's own timer can,
//! so that the holder knows first.

use std::time::Duration;

use crate::runtime::clock::Moment;

/// How much earlier than the store the holder's lease ends: 1 % of the ttl for clock rates, and 2 ms for
/// granularity.
pub(crate) fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// The end of the validity that an answer grants for `term`, to a request sent at `sent`.
pub(crate) fn valid_until(sent: Moment, term: Duration) -> Moment {
    sent.plus(term.saturating_sub(drift(term)))
}

/// The validity of one held lock.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    /// What the caller asked for, and what each renewal asks for again.
    ttl: Duration,
    /// When the last answered request was sent.
    sent: Moment,
    /// End of validity as the holder counts it; `None` if the store sets no end.
    until: Option<Moment>,
    /// The store's timer ends no earlier than this.
    store_end: Moment,
    /// No validity beyond this (`max_hold`).
    cap: Option<Moment>,
}

impl Lease {
    /// A lease granted for `term` by an answer to a request sent at `sent`; `term` is `None` where holding
    /// has no end.
    pub(crate) fn new(sent: Moment, ttl: Duration, term: Option<Duration>, cap: Option<Moment>) -> Self {
        let mut lease = Self { ttl, sent, until: None, store_end: sent, cap };
        match term {
            Some(term) => lease.set(sent, term),
            None => lease.until = cap,
        }
        lease
    }

    fn set(&mut self, sent: Moment, term: Duration) {
        let end = valid_until(sent, term);
        let end = self.cap.map_or(end, |cap| end.min(cap));
        self.sent = self.sent.max(sent);
        self.until = Some(self.until.map_or(end, |until| until.max(end)));
        self.store_end = self.store_end.max(sent.plus(term));
    }

    /// Takes over an answered renewal. `false`, and no change, if the old validity had already ended: what
    /// was lost stays lost, even if the store says otherwise.
    pub(crate) fn renewed(&mut self, sent: Moment, term: Option<Duration>, now: Moment) -> bool {
        if self.is_over(now) {
            return false;
        }
        match term {
            Some(term) => self.set(sent, term),
            None => self.sent = self.sent.max(sent),
        }
        true
    }

    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// Time left; `None` if there is no end.
    pub(crate) fn left(&self, now: Moment) -> Option<Duration> {
        self.until.map(|until| until.since(now))
    }

    pub(crate) fn until(&self) -> Option<Moment> {
        self.until
    }

    /// Whether validity ends at `max_hold`, so that no renewal can lengthen it.
    pub(crate) fn at_cap(&self) -> bool {
        self.cap.is_some() && self.until == self.cap
    }

    /// What to ask of the store so that an extension by `ttl` from `now` never shortens what it has granted
    /// already, nor runs past `max_hold` by more than the drift.
    pub(crate) fn term_to_ask(&self, ttl: Duration, now: Moment) -> Duration {
        let wanted = match self.cap {
            Some(cap) => ttl.min(cap.since(now).saturating_add(drift(ttl))),
            None => ttl,
        };
        wanted.max(self.store_end.since(now)).max(Duration::from_millis(1))
    }

    /// Whether the lease ended so long ago that a process that runs would have noticed.
    pub(crate) fn ended_long_ago(&self, now: Moment) -> bool {
        let late = self.until.map_or(Duration::ZERO, |until| now.since(until));
        late > (self.ttl / 10).max(Duration::from_millis(100))
    }

    /// How long to wait after a failed renewal before the next: several fit into what is left.
    pub(crate) fn pause_after_failure(&self, now: Moment) -> Duration {
        let left = self.left(now).unwrap_or(self.ttl);
        (left / 8).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    /// When the next renewal should be sent.
    pub(crate) fn renew_at(&self, every: Duration) -> Moment {
        self.sent.plus(every)
    }

    /// From when on the lock counts as at risk if nothing is heard: a quarter into what is left after a
    /// renewal was due, or the last third of a lease that is not renewed.
    pub(crate) fn risk_at(&self, renewed_every: Option<Duration>) -> Option<Moment> {
        let until = self.until?;
        let whole = until.since(self.sent);
        let safe = match renewed_every {
            Some(every) if !self.at_cap() => {
                let every = every.min(whole);
                every + (whole - every) / 4
            }
            _ => whole - whole.min(self.ttl) / 3,
        };
        Some(self.sent.plus(safe))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ZERO: Moment = Moment::NEVER;

    fn at(milliseconds: u64) -> Moment {
        Moment::at(Duration::from_millis(milliseconds))
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn validity_counts_from_the_send_and_ends_before_the_store_does() {
        let lease = Lease::new(at(1000), ms(10_000), Some(ms(10_000)), None);
        assert!(!lease.is_over(at(1000)));
        assert_eq!(lease.left(at(1000)), Some(ms(9_898)));
        assert!(lease.is_over(at(10_898)));
        assert!(at(10_898) < at(1000).plus(ms(10_000)));
        assert_ne!(lease.until(), Some(ZERO));
    }

    #[test]
    fn a_renewal_answered_after_the_end_revives_nothing() {
        let mut lease = Lease::new(at(0), ms(1_000), Some(ms(1_000)), None);
        assert!(!lease.renewed(at(500), Some(ms(1_000)), at(990)));
        assert!(lease.is_over(at(990)));
        let mut lease = Lease::new(at(0), ms(1_000), Some(ms(1_000)), None);
        assert!(lease.renewed(at(500), Some(ms(1_000)), at(700)));
        assert_eq!(lease.left(at(700)), Some(ms(788)));
    }

    #[test]
    fn max_hold_ends_validity_and_a_lease_without_end() {
        let mut lease = Lease::new(at(0), ms(1_000), Some(ms(1_000)), Some(at(1_200)));
        assert!(lease.renewed(at(500), Some(lease.term_to_ask(ms(1_000), at(500))), at(501)));
        assert!(lease.at_cap());
        assert!(lease.is_over(at(1_200)));
        let lease = Lease::new(at(0), ms(1_000), None, Some(at(1_200)));
        assert!(!lease.is_over(at(1_199)) && lease.is_over(at(1_200)));
        assert_eq!(Lease::new(at(0), ms(1_000), None, None).left(at(1 << 40)), None);
    }

    #[test]
    fn a_longer_extension_is_never_cut_by_the_next_renewal() {
        let mut lease = Lease::new(at(0), ms(1_000), Some(ms(1_000)), None);
        assert!(lease.renewed(at(100), Some(ms(60_000)), at(110)));
        assert_eq!(lease.term_to_ask(ms(1_000), at(400)), ms(59_700));
    }

    proptest! {
        #[test]
        fn the_holder_never_believes_longer_than_the_store(
            ttl in 10u64..100_000,
            renewals in proptest::collection::vec((0u64..5_000, 0u64..2_000), 0..20),
            max_hold in proptest::option::of(1u64..200_000),
        ) {
            let mut now = 1_000u64;
            let mut lease = Lease::new(at(now), ms(ttl), Some(ms(ttl)), max_hold.map(|hold| at(now + hold)));
            let mut store_end = now + ttl;
            for (pause, round_trip) in renewals {
                now += pause;
                if lease.is_over(at(now)) { break }
                let term = lease.term_to_ask(ms(ttl), at(now));
                // The store sets its timer when the request arrives, at or after the send.
                store_end = now + u64::try_from(term.as_millis()).unwrap();
                let sent = now;
                now += round_trip;
                if !lease.renewed(at(sent), Some(term), at(now)) { break }
            }
            prop_assert!(lease.until().unwrap() < at(store_end));
            if let Some(hold) = max_hold {
                prop_assert!(lease.until().unwrap() <= at(1_000 + hold));
            }
        }

        #[test]
        fn risk_comes_after_the_renewal_is_due_and_before_the_end(ttl in 10u64..1_000_000) {
            let lease = Lease::new(at(0), ms(ttl), Some(ms(ttl)), None);
            let every = ms(ttl) / 3;
            let (risk, end) = (lease.risk_at(Some(every)).unwrap(), lease.until().unwrap());
            prop_assert!(lease.renew_at(every) <= risk && risk <= end);
            prop_assert!(lease.risk_at(None).unwrap() <= end);
        }
    }
}
