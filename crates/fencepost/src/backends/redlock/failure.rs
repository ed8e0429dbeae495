//! What an attempt that failed ran into, and what that means.

use std::time::Duration;

use super::contest::{Standing, standing};
use super::quorum::majority;
use super::revocation;
use crate::Verdict;
use crate::backends::redis::driver::resp::Value;
use crate::backends::redis::record::Record;

/// A node's answer that its key is somebody else's.
#[derive(Clone, Debug)]
pub(super) struct Denial {
    pub(super) value: String,
    pub(super) ttl: i64,
    pub(super) counter: u64,
}

impl Denial {
    /// What a node said of the holder. A key of another type is a foreign client's, of whom nothing is known.
    pub(super) fn read(reply: &Value) -> Self {
        let Some([_, value, ttl, counter, _]) = reply.as_list() else {
            return Self { value: String::new(), ttl: -1, counter: 0 };
        };
        let value = match value {
            Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        };
        let counter = counter.as_int().and_then(|counter| u64::try_from(counter).ok()).unwrap_or(0);
        Self { value, ttl: ttl.as_int().unwrap_or(-1), counter }
    }
}

/// What an attempt that failed ran into.
pub(super) struct Failure {
    pub(super) denials: Vec<Denial>,
    pub(super) granted: usize,
    /// The node that is asked first denied, and no other was asked.
    pub(super) gated: bool,
    /// How many nodes were asked and could not vote.
    pub(super) silent: usize,
    /// How many were asked and had no time to answer, because others had decided. They might have voted.
    pub(super) open: usize,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) round_trip: Duration,
}

impl Failure {
    /// Who was in the way, if it was other contenders; `None` if too few nodes could vote.
    pub(super) fn standing(&self) -> Option<Standing> {
        let n = self.verdicts.len();
        if n - self.silent < majority(n) {
            return None;
        }
        let left = |ttl: i64| u64::try_from(ttl).ok().map(Duration::from_millis);
        let denials: Vec<_> =
            self.denials.iter().map(|denial| (revocation::victim(&denial.value), left(denial.ttl))).collect();
        Some(standing(n, self.granted, &denials, self.gated))
    }

    /// Whether a client of other make is in the way.
    pub(super) fn is_beside_foreigners(&self) -> bool {
        self.denials.iter().any(|denial| Record::parse(&denial.value).is_none())
    }

    /// Whether too few nodes could vote if those that had no time to answer cannot.
    pub(super) fn may_be_outage(&self) -> bool {
        let n = self.verdicts.len();
        n - self.silent - self.open < majority(n)
    }

    /// The holder's value and ttl: of whoever has the most nodes.
    pub(super) fn holder(&self) -> Option<&Denial> {
        let victim = |denial: &Denial| revocation::victim(&denial.value).to_owned();
        let count = |value: &str| self.denials.iter().filter(|denial| victim(denial) == value).count();
        self.denials.iter().max_by_key(|denial| count(&victim(denial)))
    }
}
