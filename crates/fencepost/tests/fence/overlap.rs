//! Holders that overlap, each of which reads, adds one and writes back until it is refused. What was accepted
//! must count.
//!
//! A check and a write that were two steps would let an older holder in between, and one of two additions
//! would be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost::fence::{Fence, postgres::begin};
use fencepost_testkit::Folder;
use tokio::task::JoinSet;

use crate::harness::{Database, bounded, calm, redis, token};

const LANES: usize = 4;
const TOKENS: u64 = 120;
/// And at most, if a busy machine has let nobody overlap by then.
const MOST_TOKENS: u64 = 100 * TOKENS;
/// How often a holder adds if it is not refused.
const TIMES: usize = 4;

/// Hands out tokens, and counts what was accepted and what was refused.
#[derive(Default)]
struct Tally {
    token: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
}

impl Tally {
    fn next(&self) -> Option<u64> {
        let most = if self.refused.load(Ordering::SeqCst) > 0 { TOKENS } else { MOST_TOKENS };
        Some(1 + self.token.fetch_add(1, Ordering::SeqCst)).filter(|token| *token <= most)
    }

    /// Whether it was accepted.
    fn count(&self, said: Result<(), fencepost::fence::Error>) -> bool {
        let accepted = match said {
            Ok(()) => true,
            Err(error) if error.stale().is_some() => false,
            Err(error) => panic!("{error}"),
        };
        let count = if accepted { &self.accepted } else { &self.refused };
        count.fetch_add(1, Ordering::SeqCst);
        accepted
    }
}

fn number(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |bytes| String::from_utf8(bytes).unwrap().parse().unwrap())
}

/// One after the other with new tokens, beside the other lanes.
async fn lane(fence: Fence, tally: Arc<Tally>) {
    let resource = fence.resource("number");
    while let Some(next) = tally.next() {
        let Ok(active) = resource.activate(token(next)).await else { continue };
        for _ in 0..TIMES {
            let said = match active.read().await {
                Ok(value) => active.write((number(value) + 1).to_string()).await,
                Err(error) => Err(error),
            };
            if !tally.count(said) {
                break;
            }
        }
    }
}

async fn finish(mut lanes: JoinSet<()>) {
    while let Some(done) = bounded("the holders end", lanes.join_next()).await {
        done.unwrap();
    }
}

/// Each lane has a connection of its own.
async fn overlap(url: &str) {
    let (tally, mut lanes) = (Arc::<Tally>::default(), JoinSet::new());
    let mut fences = Vec::new();
    for _ in 0..LANES {
        fences.push(Fence::connect(url).await.unwrap());
    }
    // All at once: the first shall not be done when the last has connected.
    for fence in fences {
        lanes.spawn(lane(fence, tally.clone()));
    }
    finish(lanes).await;
    let last =
        Fence::connect(url).await.unwrap().resource("number").activate(token(MOST_TOKENS + 1)).await.unwrap();
    let accepted = tally.accepted.load(Ordering::SeqCst);
    assert_eq!(number(last.read().await.unwrap()), accepted);
    assert!(accepted > 0 && tally.refused.load(Ordering::SeqCst) > 0, "they have overlapped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn additions_in_a_file_are_not_lost() {
    let folder = Folder::new("overlap");
    overlap(&calm(&format!("file://{}", folder.path().display()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn additions_in_redis_are_not_lost() {
    overlap(&format!("{}&prefix=overlap:", calm(&redis().url()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn additions_in_the_schema_of_postgres_are_not_lost() {
    overlap(&Database::new().url()).await;
}

/// Here the same token may come at once from several: transactions come one after the other, whatever they
/// hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn additions_in_transactions_are_not_lost() {
    let database = Database::prepared();
    database.psql("CREATE TABLE account (n bigint NOT NULL); INSERT INTO account VALUES (0)");
    let (tally, mut lanes) = (Arc::<Tally>::default(), JoinSet::new());
    for lane in 0..LANES {
        let (mut client, tally) = (database.client().await, tally.clone());
        lanes.spawn(async move {
            let read = client.prepare("SELECT n FROM account").await.unwrap();
            while let Some(next) = tally.next() {
                for _ in 0..TIMES {
                    // Every second lane stands for a holder that comes late.
                    let shown = token(next.saturating_sub(lane as u64 % 2).max(1));
                    let mut begun = None;
                    let shown = begin(&mut client, "account", shown).await;
                    if !tally.count(shown.map(|transaction| begun = Some(transaction))) {
                        break;
                    }
                    let transaction = begun.unwrap();
                    let n = transaction.query_one(&read, &[]).await.unwrap().get::<_, i64>(0) + 1;
                    transaction.execute("UPDATE account SET n = $1", &[&n]).await.unwrap();
                    transaction.commit().await.unwrap();
                }
            }
        });
    }
    finish(lanes).await;
    let (accepted, refused) = (tally.accepted.load(Ordering::SeqCst), tally.refused.load(Ordering::SeqCst));
    assert_eq!(database.psql("SELECT n FROM account"), accepted.to_string());
    assert!(accepted > 0 && refused > 0, "they have overlapped");
}
