//! Never two at once, and tokens in order, while leaders die under a crowd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_testkit::etcd::Cluster;
use fencepost_testkit::history::History;

use crate::stage::{bounded, connect, until};

const WORKERS: u32 = 4;
const KILLS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusion_and_the_order_of_tokens_outlive_dying_leaders() {
    let mut cluster = Cluster::start(3);
    let ttl = Duration::from_secs(5);
    let (history, stop) = (History::new(), Arc::new(AtomicBool::new(false)));
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let locks = connect(&cluster.url()).await;
        let (client, stop) = (history.client(worker), stop.clone());
        workers.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                client.invoke("a");
                // An outage is no failure of this test; what it lets happen would be.
                let Ok(guard) = locks.lock("a").ttl(ttl).wait(Duration::from_secs(10)).acquire().await else {
                    client.gave_up("outage");
                    continue;
                };
                client.acquired(guard.token().get(), guard.valid_until_boottime());
                tokio::time::sleep(Duration::from_millis(2)).await;
                let until = guard.valid_until_boottime();
                if guard.check().is_ok() {
                    client.released(until)
                } else {
                    client.lost("outage", until)
                }
                let _ = guard.release().await;
            }
        }));
    }
    for _ in 0..KILLS {
        let seen = history.acquisitions();
        until("the crowd goes on", async || history.acquisitions() > seen + 20).await;
        let leader = cluster.leader();
        cluster[leader].kill();
        let seen = history.acquisitions();
        until("the crowd goes on without the leader", async || history.acquisitions() > seen + 20).await;
        cluster[leader].restart();
    }
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        bounded("the workers end", worker).await.unwrap();
    }
    history.check();
}
