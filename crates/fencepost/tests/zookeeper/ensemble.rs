//! Three servers, of which one is lost.

use std::time::Duration;

use fencepost::{Locks, Loss, State};
use fencepost_testkit::zookeeper::Ensemble;

use crate::harness::{bounded, contenders, ms, patient, start_waiting, take, until, use_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_survives_the_end_of_the_leader() {
    let mut ensemble = Ensemble::start(3);
    let locks = Locks::connect(&ensemble.url()).await.unwrap();
    let guard = patient(&locks, "a").renew_every(ms(100)).acquire().await.unwrap();
    let leader = ensemble.leader();
    ensemble.get_mut(leader).kill();
    ensemble.leader();
    let before = locks.stats().renewed;
    until("it is renewed by the others", async || locks.stats().renewed > before + 2).await;
    assert!(matches!(guard.state(), State::Held { .. }), "{:?}", guard.state());
    let rival = Locks::connect(&ensemble.url()).await.unwrap();
    assert!(rival.lock("a").ttl(Duration::from_secs(60)).try_acquire().await.unwrap().is_none());
    let token = guard.token().get();
    guard.release().await.unwrap();
    assert!(use_once(&rival).await > token, "tokens grow across an election");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_the_end_of_the_leader() {
    let mut ensemble = Ensemble::start(3);
    let locks = Locks::connect(&ensemble.url()).await.unwrap();
    let far = Locks::connect(&ensemble.url()).await.unwrap();
    let held = take(&locks).await;
    let waiter = start_waiting(&far);
    let leader = ensemble.leader();
    until("it stands in line", async || contenders(ensemble.get(leader), "").len() == 2).await;
    ensemble.get_mut(leader).kill();
    let next = ensemble.leader();
    assert_eq!(contenders(ensemble.get(next), "").len(), 2, "the line is as it was");
    let token = held.token();
    held.release().await.unwrap();
    let guard = bounded("it gets the lock", waiter).await.unwrap().unwrap();
    assert!(guard.token() > token);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_the_others_confirms_nothing() {
    let ensemble = Ensemble::start(3);
    let leader = ensemble.leader();
    let alone = (leader + 1) % 3;
    // Past the others, so that nothing else can answer.
    let locks = Locks::connect(&ensemble.get(alone).url()).await.unwrap();
    let guard = locks.lock("a").ttl(Duration::from_secs(5)).acquire().await.unwrap();
    for (index, server) in ensemble.iter().enumerate() {
        if index != alone {
            server.pause();
        }
    }
    let why = bounded("it is lost", guard.lost()).await;
    let mode = ensemble.get(alone).mode();
    ensemble.iter().for_each(fencepost_testkit::zookeeper::Server::resume);
    assert_eq!(why, Loss::Unreachable);
    // It still took itself for one of three, and would have answered pings.
    assert_eq!(mode.as_deref(), Some("follower"));
}
