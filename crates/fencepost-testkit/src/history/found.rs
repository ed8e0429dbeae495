//! Puts what must not be into words, with the holds that show it.

use super::record::Clash;
use super::{Grant, Hold, Moment, Rule, Violation};

/// Where and since when: what every violation needs.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) lock: &'a str,
    pub(super) start: Moment,
}

impl Place<'_> {
    pub(super) fn violation(
        self,
        rule: Rule,
        (from, to): (Moment, Moment),
        story: Vec<String>,
        holds: Vec<Hold>,
    ) -> Violation {
        Violation {
            rule,
            lock: self.lock.to_owned(),
            from,
            to,
            story,
            holds,
            excused: None,
            start: self.start,
        }
    }

    fn told(self, at: Moment) -> String {
        at.from_start(self.start)
    }

    /// A hold in words.
    fn tell(self, hold: &Hold) -> String {
        let (grant, end) = (hold.grant, hold.end());
        let how = if hold.how.is_empty() { "which went on" } else { &hold.how };
        format!(
            "client {} was granted token {} at {} and held it, by what its guard said, until {} ({how} at \
            {})",
            grant.client,
            grant.token,
            self.told(grant.at),
            self.told(end),
            self.told(hold.gone.unwrap_or(hold.seen)),
        )
    }

    /// Two holds at once.
    pub(super) fn overlap(self, one: Hold, other: Hold) -> Option<Violation> {
        let (first, second) = if one.grant.at <= other.grant.at { (one, other) } else { (other, one) };
        let (from, to) = first.overlap(&second)?;
        let both = format!(
            "so both held it for {:.4} s, from {} to {}",
            to.since(from).as_secs_f64(),
            self.told(from),
            self.told(to)
        );
        let story = vec![self.tell(&first), self.tell(&second), both];
        Some(self.violation(Rule::Exclusion, (from, to), story, vec![first, second]))
    }

    /// A token that must not be.
    pub(super) fn clash(self, (rule, earlier): Clash, hold: Hold) -> Violation {
        let grant = hold.grant;
        let tell = |grant: &Grant| {
            format!(
                "client {} asked at {} and was granted token {} at {}",
                grant.client,
                self.told(grant.invoked),
                grant.token,
                self.told(grant.at)
            )
        };
        let last = match rule {
            Rule::UniqueTokens => format!("token {} was handed out twice", grant.token),
            Rule::TokensInTurn => {
                format!("both were valid then, so token {} was held first, and is larger", earlier.token)
            }
            _ => format!(
                "token {} was granted before {} was asked for, and is larger",
                earlier.token, grant.token
            ),
        };
        let story = vec![tell(&earlier), tell(&grant), last];
        let earlier_hold = Hold::new(earlier, None);
        let time = (earlier.at.min(grant.at), grant.at);
        // By its smaller token, the store has granted this one first.
        let holds =
            if rule == Rule::TokensInTurn { vec![hold, earlier_hold] } else { vec![earlier_hold, hold] };
        self.violation(rule, time, story, holds)
    }

    /// A guard that said "held" at `at`, after its own end.
    pub(super) fn late_loss(self, hold: Hold, until: Moment, at: Moment) -> Violation {
        let story = vec![
            self.tell(&hold),
            format!(
                "asked at {}, its guard said that the lock is held, and that it had ended at {}",
                self.told(at),
                self.told(until)
            ),
        ];
        self.violation(Rule::LateLoss, (until, at), story, vec![hold])
    }

    /// A lock that ended before its guard had said.
    pub(super) fn early_loss(self, hold: Hold, why: &str, at: Moment) -> Violation {
        let promised = match hold.promised {
            Some(promised) => format!("its guard had said that it is valid until {}", self.told(promised)),
            None => "its guard had said that it has no end".to_owned(),
        };
        let story =
            vec![self.tell(&hold), promised, format!("and at {} it was gone already: {why}", self.told(at))];
        self.violation(Rule::EarlyLoss, (hold.grant.at, at), story, vec![hold])
    }

    /// A valid holder whose token the register refused.
    pub(super) fn refused(self, hold: Hold, at: Moment) -> Violation {
        let story = vec![
            self.tell(&hold),
            format!("at {} the register had seen a larger token, and refused this one", self.told(at)),
        ];
        self.violation(Rule::RefusedHolder, (at, at), story, vec![hold])
    }

    pub(super) fn lost_update(self, lost: (u32, u64, Moment), hold: Hold, at: Moment) -> Violation {
        let (client, token, when) = lost;
        let story = vec![
            format!("client {client} wrote with token {token} at {}", self.told(when)),
            format!(
                "client {} had read before that, and its write with token {} was accepted at {}",
                hold.grant.client,
                hold.grant.token,
                self.told(at)
            ),
            "so the first write is lost".to_owned(),
        ];
        self.violation(Rule::LostUpdate, (when, at), story, vec![hold])
    }

    /// An answer that came, or a client that went on, later than `limit`.
    pub(super) fn overdue(self, client: u32, invoked: Moment, limit: Moment, at: Moment) -> Violation {
        let story = vec![format!(
            "client {client} asked at {}, had to have an answer by {} at the very latest, and had none \
            before {}",
            self.told(invoked),
            self.told(limit),
            self.told(at)
        )];
        let waited = Hold::new(Grant { client, token: 0, invoked, at }, Some(at));
        self.violation(Rule::Deadline, (limit, at), story, vec![waited])
    }
}
