//! Never two at once, and tokens in order, while leaders die under a crowd.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost_testkit::etcd::Cluster;

use crate::stage::{bounded, connect, until};

const WORKERS: usize = 4;
const KILLS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusion_and_the_order_of_tokens_outlive_dying_leaders() {
    let mut cluster = Cluster::start(3);
    let ttl = Duration::from_secs(5);
    // Tokens in the order in which their holders were inside, and who is inside.
    let (history, inside, rounds) =
        (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let stop = Arc::new(AtomicU64::new(0));
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let locks = connect(&cluster.url()).await;
        let (history, inside, rounds, stop) = (history.clone(), inside.clone(), rounds.clone(), stop.clone());
        workers.push(tokio::spawn(async move {
            while stop.load(Ordering::SeqCst) == 0 {
                // An outage is no failure of this test; what it lets happen would be.
                let Ok(guard) = locks.lock("a").ttl(ttl).wait(Duration::from_secs(10)).acquire().await else {
                    continue;
                };
                let token = guard.token().get();
                let before = inside.swap(token, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                let after = inside.swap(0, Ordering::SeqCst);
                // Valid to the end: then nobody else was.
                if guard.check().is_ok() {
                    assert_eq!((before, after), (0, token), "worker {worker} was not alone");
                    history.lock().unwrap().push(token);
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
                let _ = guard.release().await;
            }
        }));
    }
    for _ in 0..KILLS {
        let seen = rounds.load(Ordering::SeqCst);
        until("the crowd goes on", async || rounds.load(Ordering::SeqCst) > seen + 20).await;
        let leader = cluster.leader();
        cluster[leader].kill();
        let seen = rounds.load(Ordering::SeqCst);
        until("the crowd goes on without the leader", async || rounds.load(Ordering::SeqCst) > seen + 20)
            .await;
        cluster[leader].restart();
    }
    stop.store(1, Ordering::SeqCst);
    for worker in workers {
        bounded("the workers end", worker).await.unwrap();
    }
    let history = history.lock().unwrap();
    assert!(history.is_sorted_by(|one, next| one < next), "tokens out of order: {history:?}");
}
