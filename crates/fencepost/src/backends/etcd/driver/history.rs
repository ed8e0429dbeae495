//! Whether all answers are of one history of one cluster. A cluster that was restored from an old snapshot
//! gives its revisions a second time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::proto::Header;

/// What the answers so far say.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The largest revision that a transaction was answered with.
    revision: AtomicI64,
    /// Which cluster it was; zero before the first answer.
    cluster: AtomicU64,
    /// Why it is another history now. That lasts: revisions that grow past the old ones make nothing better.
    broken: OnceLock<String>,
}

impl History {
    /// To be asked before a request is sent, for [`check`](Self::check).
    pub(crate) fn revision(&self) -> i64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// Takes an answer to a request that was sent when the revision was `before`. Says why its history is
    /// another one than ours, if it ever was.
    pub(crate) fn check(&self, header: &Header, before: i64, store: &str) -> Result<(), &str> {
        let (id, revision) = (header.cluster_id, header.revision);
        let known = self.cluster.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed);
        let known = known.unwrap_or_else(|known| known);
        let why = if known != 0 && known != id {
            format!(
                "the answers are of two clusters, {known:x} and {id:x}: either it was restored from a \
                 snapshot, and its revisions may repeat, or the URL names members of both; name those of \
                 one, make sure that nobody relies on old revisions, and connect anew"
            )
        } else if revision < before {
            format!(
                "the cluster went back from revision {before} to {revision}: it was restored from an old \
                 snapshot, and its revisions would repeat; restore it with `--bump-revision` and \
                 `--mark-compacted`, or make sure that nobody relies on old ones and connect anew"
            )
        } else {
            String::new()
        };
        if !why.is_empty() && self.broken.set(why.clone()).is_ok() {
            tracing::warn!(store, why, "this is not the cluster that answered us before");
        }
        self.revision.fetch_max(revision, Ordering::Relaxed);
        self.broken.get().map_or(Ok(()), |why| Err(why))
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cluster_id: u64, revision: i64) -> Header {
        Header { cluster_id, revision, ..Header::default() }
    }

    #[test]
    fn a_history_that_went_back_is_refused_for_good() {
        let history = History::default();
        assert!(history.check(&header(1, 7), history.revision(), "").is_ok());
        // An answer to a request from before the last one may come late.
        assert!(history.check(&header(1, 6), 5, "").is_ok() && history.revision() == 7);
        assert!(history.check(&header(1, 6), 7, "").unwrap_err().contains("--bump-revision"));
        assert!(history.check(&header(1, 9), 7, "").is_err() && history.is_broken());
    }

    #[test]
    fn another_cluster_is_refused_however_large_its_revision_is() {
        let history = History::default();
        assert!(history.check(&header(1, 7), 0, "").is_ok());
        assert!(history.check(&header(2, 9), 7, "").unwrap_err().contains("two clusters"));
    }
}
