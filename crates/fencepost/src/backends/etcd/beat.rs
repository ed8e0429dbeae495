//! Which keep-alive counts. A leader that stood still and was replaced may answer one before it learns of that, while its
//! successor counts the lease from its own election. So a keep-alive is worth nothing without a transaction beside it,
//! which a majority has to confirm.

use super::proto::Header;
use crate::runtime::clock::Moment;

/// When a request was sent, and the raft term of the member that answered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) sent: Moment,
    term: u64,
}

impl Stamp {
    pub(super) fn new(sent: Moment, header: Option<&Header>) -> Self {
        Self { sent, term: header.map_or(0, |header| header.raft_term) }
    }
}

/// Since when a lease has all of its time, by a keep-alive and a transaction that were both answered; `None` if they do
/// not prove it. `SAFETY.md` says why they do.
///
/// No leader of a later term than the transaction's was elected before that was sent, and such a one gives every lease
/// all of its time anew. An earlier leader did not answer the keep-alive: its member knew the term before it passed the
/// request on.
pub(super) fn proven(keep_alive: Stamp, txn: Stamp) -> Option<Moment> {
    (keep_alive.term >= txn.term).then(|| keep_alive.sent.min(txn.sent))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::runtime::clock::Clock;

    fn stamp(sent: Moment, raft_term: u64) -> Stamp {
        Stamp::new(sent, Some(&Header { raft_term, ..Header::default() }))
    }

    #[test]
    fn a_keep_alive_answered_by_a_leader_that_was_replaced_does_not_count() {
        let sent = Clock::system().now();
        assert_eq!(proven(stamp(sent, 2), stamp(sent, 3)), None);
        let again = sent.plus(Duration::from_secs(1));
        assert_eq!(proven(stamp(again, 3), stamp(sent, 3)), Some(sent));
    }

    #[test]
    fn a_keep_alive_counts_from_the_earlier_of_both_requests() {
        let sent = Clock::system().now();
        let later = sent.plus(Duration::from_secs(1));
        assert_eq!(proven(stamp(sent, 2), stamp(later, 2)), Some(sent));
        assert_eq!(proven(stamp(later, 2), stamp(sent, 2)), Some(sent));
        // A leader elected after the transaction was sent has given the lease all of its time, too.
        assert_eq!(proven(stamp(later, 3), stamp(sent, 2)), Some(sent));
    }
}
