//! One Redis that Sentinel finds: another server is master, or the same one without its data.

use std::time::Duration;

use fencepost::{Guard, Locks};
use fencepost_testkit::redis::{Sentinel, Sentinels, Server};

use crate::redis_nodes::until;

async fn start(replicas: usize, parameters: &'static str) -> Sentinels {
    let start = move || {
        let all = Sentinels::start_with(replicas, Duration::from_secs(60), |config| config);
        all.with_parameters(parameters)
    };
    let all = tokio::task::spawn_blocking(start).await.unwrap();
    // Else an old master would stop by itself.
    all.iter().for_each(|server| drop(server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"])));
    Locks::init(&all.url()).await.unwrap();
    all
}

async fn take(locks: &Locks, ttl: Duration) -> Guard {
    locks.lock("a").ttl(ttl).without_renewal().try_acquire().await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s51_a_master_that_has_lost_its_locks_gives_them_to_nobody_while_they_may_be_held() {
    let mut all = start(0, "max_ttl=4s").await;
    let locks = Locks::connect(&all.url()).await.unwrap();
    let guard = take(&locks, Duration::from_secs(4)).await;
    all[0].restart_empty();
    let rival = Locks::connect(&all.url()).await.unwrap();
    let next = rival.lock("a").acquire().await.unwrap();
    assert!(guard.state().is_lost(), "two hold it");
    assert!(next.token() > guard.token());
}

/// Lets two servers change their places while the sentinels see nothing: links stay open.
async fn change_places(master: &Server, replica: &Server) {
    let addr = replica.addr();
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    master.cli(&["REPLICAOF", &addr.ip().to_string(), &addr.port().to_string()]);
    let follows = || master.cli(&["INFO", "replication"]).contains("master_link_status:up");
    until("it follows", async || follows()).await;
}

/// Nobody has met the new master, so its reign key and an idle link both still tell of the old reign, when
/// the old master is master again. What it granted last is forgotten by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s52_a_link_that_is_left_open_through_a_failback_gets_nothing() {
    let all = start(1, "max_ttl=60s").await;
    let (idle, late) = (Locks::connect(&all.url()).await.unwrap(), Locks::connect(&all.url()).await.unwrap());
    for locks in [&idle, &late] {
        take(locks, Duration::from_secs(60)).await.release().await.unwrap();
    }
    let links = || -> Vec<String> {
        let clients = all[0].cli(&["CLIENT", "LIST"]);
        let ours = clients.lines().filter(|line| line.contains(" name=fencepost "));
        ours.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    let open = links();
    all.sentinels().iter().for_each(Sentinel::pause);
    // The last grant of the old reign, which the new master does not hear of.
    all[1].cli(&["REPLICAOF", "NO", "ONE"]);
    let guard = take(&late, Duration::from_secs(60)).await;
    change_places(&all[0], &all[1]).await;
    assert!(all[0].keys_like("lock:a").is_empty());
    change_places(&all[1], &all[0]).await;
    assert!(open.iter().all(|link| links().contains(link)), "links stay open");
    all.sentinels().iter().for_each(Sentinel::resume);
    let tried = idle.lock("a").try_acquire().await;
    let held = tried.as_ref().is_ok_and(Option::is_some);
    assert!(!held, "two hold it");
    assert!(tried.unwrap_err().to_string().contains("in quarantine after a failover"));
    guard.check().unwrap();
}
