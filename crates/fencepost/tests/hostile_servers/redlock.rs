//! A node of Redlock: beside two honest ones it costs nobody a lock, and three of them grant none.

use std::time::{Duration, Instant};

use fencepost::Locks;
use fencepost_testkit::redis::Nodes;

use crate::fake::{Fake, Serve};
use crate::mode::{Mode, PASSWORD, check_all, panics, turn};
use crate::redis;

/// Two honest nodes, and one that was honest when all three became a deployment.
struct Deployment {
    _nodes: Nodes,
    fake: Fake,
    url: String,
}

impl Deployment {
    async fn start() -> Self {
        let nodes = Nodes::start(3);
        let fake = Fake::in_front_of(nodes[2].addr());
        let url = format!("redlock://{},{},{}", nodes[0].addr(), nodes[1].addr(), fake.addr);
        Locks::init(&url).await.unwrap();
        Self { _nodes: nodes, fake, url }
    }

    /// Connects when the third node does this.
    async fn connect(&self, serve: Serve) -> Locks {
        self.fake.change(serve);
        Locks::connect(&self.url).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_hostile_node_of_three_keeps_nobody_from_a_lock() {
    let _turn = turn().await;
    let deployment = Deployment::start().await;
    for Mode { name, serve, .. } in redis::modes() {
        let locks = deployment.connect(serve).await;
        let guard = locks.lock("a").wait(Duration::from_secs(60)).acquire().await;
        let guard = guard.unwrap_or_else(|error| panic!("{name}: {error}"));
        guard.extend().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        guard.release().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        locks.close().await;
    }
    assert_eq!(panics(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hostile_nodes_grant_nothing_and_end_in_time() {
    let modes = redis::modes().into_iter().filter(Mode::is_short).collect();
    check_all(modes, 3, |fakes, timeout| {
        let node = |fake: &Fake| format!("ann:{PASSWORD}@{}", fake.addr);
        let nodes: Vec<_> = fakes.iter().map(node).collect();
        format!("redlock://{}?timeout={timeout}ms", nodes.join(","))
    })
    .await;
}

/// The shortest lease that is in use, on the two honest nodes, while the third sends an array without end to
/// each who connects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_floods_costs_no_holder_its_lock() {
    let _turn = turn().await;
    let deployment = Deployment::start().await;
    let floods: [(&str, &'static [u8], &'static [u8]); 3] = [
        ("an endless array", b"*67108864\r\n", b":1\r\n"),
        ("arrays that are just short enough", b"", b"*65536\r\n"),
        ("messages without end", b"", b">3\r\n+message\r\n+c\r\n+x\r\n"),
    ];
    for (name, begin, then) in floods {
        let flood = Mode::new(name, redis::endless(begin, then));
        let locks = deployment.connect(flood.serve).await;
        let guard = locks
            .lock("held")
            .ttl(Duration::from_secs(1))
            .wait(Duration::from_secs(30))
            .acquire()
            .await
            .unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            assert!(!guard.state().is_lost(), "{name}: lost after {:?}", start.elapsed());
            let other =
                locks.lock("other").ttl(Duration::from_secs(5)).wait(Duration::from_secs(30)).acquire().await;
            other.unwrap().release().await.unwrap();
        }
        guard.release().await.unwrap();
        locks.close().await;
    }
}
