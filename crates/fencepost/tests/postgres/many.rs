//! Many locks and many waiters on few connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost_testkit::LIMIT;

use crate::harness::{Database, LONG, Room, bounded, take, until};

const WAITERS: usize = 1_000;

fn connections(database: &Database) -> usize {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND application_name = 'fencepost'",
        database.name
    );
    database.server.psql("postgres", &sql).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_use_at_most_four_connections() {
    let database = Database::new();
    let locks = database.locks().await;
    let names: Vec<_> = (0..20).map(|number| format!("name {number}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(take(&locks, name).await);
    }
    let served = Arc::new(AtomicUsize::new(0));
    let rooms: Vec<_> = names.iter().map(|_| Room::default()).collect();
    let waiters: Vec<_> = (0..WAITERS)
        .map(|number| {
            let lock = locks.lock(&*names[number % names.len()]).ttl(LONG).wait(LIMIT);
            let (served, room) = (served.clone(), rooms[number % rooms.len()].clone());
            tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                room.enter();
                served.fetch_add(1, Ordering::Relaxed);
                room.leave();
                guard.release().await.unwrap();
            })
        })
        .collect();
    until("all wait", async || locks.stats().waiting_now == WAITERS as u64).await;
    let mut most = connections(&database);
    for guard in held {
        guard.release().await.unwrap();
    }
    until("all are served", async || {
        most = most.max(connections(&database));
        served.load(Ordering::Relaxed) == WAITERS
    })
    .await;
    for waiter in waiters {
        bounded("it ends", waiter).await.unwrap();
    }
    assert!(most <= 4, "{most} connections");
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_locks_of_a_client_are_renewed_in_one_statement() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut guards = Vec::new();
    for number in 0..60 {
        let lock =
            locks.lock(format!("name {number}")).ttl(LONG).renew_every(std::time::Duration::from_millis(400));
        guards.push(lock.acquire().await.unwrap());
    }
    until("each was renewed twice", async || locks.stats().renewed >= 120).await;
    assert_eq!(locks.stats().lost, Default::default());
    // Two locks that were renewed by one statement have the same end.
    let most =
        database.psql("SELECT max(n) FROM (SELECT count(*) AS n FROM fencepost.locks GROUP BY xmin) AS x");
    assert!(most.parse::<u32>().unwrap() > 1, "{most}");
}
