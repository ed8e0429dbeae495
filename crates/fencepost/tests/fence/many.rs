//! A hundred thousand guarded writes at once, with stale ones among them: none of those accepted, none of the
//! others lost.
//!
//! Tokens come in epochs. When an epoch's token was activated, everything older is stale and must be refused,
//! and all writes with that token must be accepted. The last writes of each epoch race with the activation of
//! the next: those may go either way, but what was accepted must count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost::fence::{Redis, postgres::stale_token};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};

use crate::harness::{Database, bounded, calm, redis, token};

const EPOCHS: u64 = 50;
const VALID: u64 = 1400;
const STALE: u64 = 400;
const RACING: u64 = 200;
/// How many are under way on one connection.
const DEPTH: u64 = 25;

/// Something that adds one if its token is good enough.
trait Counter: Send + Sync + 'static {
    fn activate(&self, token: u64) -> impl Future<Output = bool> + Send;
    /// Whether it was accepted.
    fn add(&self, token: u64) -> impl Future<Output = bool> + Send;
}

#[derive(Default)]
struct Tally {
    accepted: AtomicU64,
    refused: AtomicU64,
}

/// Adds `count` times over all counters; each must be accepted or refused as said, if it is said.
fn launch<C: Counter>(
    tasks: &mut JoinSet<()>,
    counters: &[Arc<C>],
    tally: &Arc<Tally>,
    (count, expected): (u64, Option<bool>),
    token: impl Fn(u64) -> u64,
) {
    for lane in 0..count / DEPTH {
        let counter = counters[usize::try_from(lane).unwrap() % counters.len()].clone();
        let (tally, first) = (tally.clone(), lane * DEPTH);
        let tokens: Vec<u64> = (first..first + DEPTH).map(&token).collect();
        tasks.spawn(async move {
            for token in tokens {
                let accepted = counter.add(token).await;
                assert!(expected.is_none_or(|expected| expected == accepted), "token {token}: {accepted}");
                let count = if accepted { &tally.accepted } else { &tally.refused };
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

async fn finish(mut tasks: JoinSet<()>) {
    while let Some(done) = bounded("writes come to an end", tasks.join_next()).await {
        done.unwrap();
    }
}

/// Returns how many were accepted.
async fn storm<C: Counter>(counters: Vec<Arc<C>>) -> u64 {
    let tally = Arc::<Tally>::default();
    let mut racing = JoinSet::new();
    for epoch in 1..=EPOCHS {
        let now = epoch * 100;
        assert!(counters[0].activate(now).await);
        finish(std::mem::take(&mut racing)).await;
        let mut tasks = JoinSet::new();
        launch(&mut tasks, &counters, &tally, (VALID, Some(true)), |_| now);
        launch(&mut tasks, &counters, &tally, (STALE, Some(false)), |number| now - 1 - number % 99);
        finish(tasks).await;
        launch(&mut racing, &counters, &tally, (RACING, None), |_| now);
    }
    finish(racing).await;
    let (accepted, refused) = (tally.accepted.load(Ordering::SeqCst), tally.refused.load(Ordering::SeqCst));
    assert_eq!(accepted + refused, EPOCHS * (VALID + STALE + RACING));
    assert_eq!(accepted + refused, 100_000);
    assert!(accepted >= EPOCHS * VALID && refused >= EPOCHS * STALE);
    accepted
}

struct InRedis(Redis);

impl Counter for InRedis {
    async fn activate(&self, number: u64) -> bool {
        self.0.activate("many", token(number)).await.is_ok()
    }

    async fn add(&self, number: u64) -> bool {
        match self.0.run("many", token(number), &["INCR", "many"]).await {
            Ok(_) => true,
            Err(error) => {
                assert!(error.stale().is_some(), "{error}");
                false
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_on_redis() {
    let mut counters = Vec::new();
    for _ in 0..8 {
        counters.push(Arc::new(InRedis(Redis::connect(&calm(&redis().url())).await.unwrap())));
    }
    let accepted = storm(counters).await;
    assert_eq!(redis().cli(&["GET", "many"]), accepted.to_string());
}

/// A row behind the trigger.
struct InPostgres {
    client: Client,
    add: Statement,
}

impl InPostgres {
    async fn run(&self, number: u64, by: i64) -> bool {
        match self.client.execute(&self.add, &[&i64::try_from(number).unwrap(), &by]).await {
            Ok(rows) => rows == 1,
            Err(error) => {
                assert!(stale_token(&error).is_some(), "{error:?}");
                false
            }
        }
    }
}

impl Counter for InPostgres {
    async fn activate(&self, number: u64) -> bool {
        self.run(number, 0).await
    }

    async fn add(&self, number: u64) -> bool {
        self.run(number, 1).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_on_postgres() {
    let database = Database::prepared();
    database.psql(
        "CREATE TABLE account (id integer PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 20); \
         INSERT INTO account VALUES (1, 0); SELECT fencepost_fence.protect('account')",
    );
    let mut counters = Vec::new();
    for _ in 0..4 {
        let client = database.client().await;
        client.batch_execute("SET synchronous_commit = off").await.unwrap();
        let add = client.prepare("UPDATE account SET n = n + $2, fence = $1 WHERE id = 1").await.unwrap();
        counters.push(Arc::new(InPostgres { client, add }));
    }
    let accepted = storm(counters).await;
    assert_eq!(database.psql("SELECT n FROM account"), accepted.to_string());
}
