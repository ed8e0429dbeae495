//! ZooKeeper: sessions that end, answers that are lost, numbers that come to their end.

use std::time::Duration;

use fencepost::{Error, Locks};
use fencepost_testkit::LIMIT;
use fencepost_testkit::zookeeper::{Ensemble, Mode, Server};

use crate::crowd::Crowd;

use crate::zoo::{LONG, Part, bounded, contenders, start_waiting, take, until, use_once};

/// A ttl to wait the end of, which a busy machine keeps up with.
const TTL: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s46_the_old_guard_is_lost_before_the_next_holder_gets_the_lock() {
    let part = Part::new();
    let (locks, rival) = (part.behind_link().await, part.locks().await);
    for _ in 0..3 {
        let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
        part.link.stall();
        let next = take(&rival).await;
        assert!(guard.state().is_lost(), "{:?} while another has it", guard.state());
        assert!(next.token() > guard.token());
        part.link.pass();
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s46_a_rebuilt_session_does_not_take_an_old_node_for_its_own() {
    let part = Part::new();
    let (locks, rival) = (part.behind_link().await, part.locks().await);
    let old = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    part.link.stall();
    bounded("the old one is lost", old.lost()).await;
    part.link.pass();
    // The server may still have the old node: the new one stands behind it.
    let new = bounded("the lock comes again", locks.lock("a").ttl(TTL).acquire()).await.unwrap();
    assert!(old.state().is_lost() && new.owner() != old.owner() && new.token() > old.token());
    assert!(matches!(old.release().await, Err(Error::Lost { .. })));
    new.check().unwrap();
    assert_eq!(rival.show("a").await.unwrap().unwrap().owner, Some(new.owner()));
    new.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s46_what_a_follower_says_without_its_leader_keeps_no_lock() {
    let ensemble = Ensemble::start(3);
    let follower = ensemble.follower();
    let rival = Locks::connect(&ensemble.url()).await.unwrap();
    // Past the others, so that nothing else can answer.
    let locks = Locks::connect(&follower.url()).await.unwrap();
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    let others = || ensemble.iter().filter(|server| server.pid() != follower.pid());
    others().for_each(Server::pause);
    bounded("it is lost", guard.lost()).await;
    // It answers what it can answer alone for as long as it takes itself for one of three.
    let mode = follower.mode();
    others().for_each(Server::resume);
    assert_eq!(mode.as_deref(), Some("follower"), "lost only when no server was left");
    let mut next = None;
    until("the next one gets it", async || {
        next = rival.lock("a").ttl(TTL).try_acquire().await.ok().flatten();
        next.is_some()
    })
    .await;
    assert!(next.unwrap().token() > guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s47_a_node_whose_answer_was_lost_is_found_by_its_owner_and_removed() {
    let part = Part::new();
    use_once(&part.locks().await).await;
    let locks = part.behind_link().await;
    // Its session is open, so that only the answer to the create is held back.
    use_once(&locks).await;
    part.link.hold_answers();
    let acquire = start_waiting(&locks);
    until("the server has created it", async || part.contenders().len() == 1).await;
    let lost = part.contenders();
    part.link.reset();
    // The same attempt goes on under another identity.
    let guard = bounded("it is acquired in the end", acquire).await.unwrap().unwrap();
    until("the first node is gone", async || !part.contenders().contains(&lost[0])).await;
    assert_eq!(part.contenders().len(), 1);
    guard.release().await.unwrap();
    part.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s48_a_folder_whose_counter_is_near_its_end_grants_nothing_more() {
    const LAST: i32 = i32::MAX - (1 << 20) - 1;
    let mut server = Server::start();
    for folder in ["/fencepost", "/fencepost/a"] {
        server.client().create(folder, b"", Mode::Persistent).unwrap();
    }
    for (counter, granted) in [(LAST, 1), (i32::MAX - 2, 0), (i32::MAX, 0)] {
        server.set_counter("/fencepost/a", counter);
        let mut guards = Vec::new();
        for _ in 0..6 {
            let locks = Locks::connect(&server.url()).await.unwrap();
            match locks.lock("a").ttl(LONG).try_acquire().await {
                Ok(guard) => guards.extend(guard),
                Err(Error::Config { message, .. }) => {
                    assert!(message.contains("`/fencepost/a`"), "{message}")
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(guards.len(), granted, "at {counter}");
        for guard in guards {
            guard.release().await.unwrap();
        }
        until("nothing is left", async || contenders(&server, "").is_empty()).await;
    }
    // As the message says.
    assert!(server.client().delete("/fencepost/a").unwrap());
    use_once(&Locks::connect(&server.url()).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s48_tokens_grow_when_the_folder_was_collected() {
    let part = Part::new();
    let locks = part.locks().await;
    let mut last = 0;
    for _ in 0..10 {
        let token = use_once(&locks).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        // As the server does when a folder has been empty for a while; the numbers of nodes begin at zero
        // again.
        let mut client = part.server.client();
        assert!(client.delete(&format!("{}/fencepost/a", part.chroot)).unwrap());
        assert!(client.delete(&format!("{}/fencepost", part.chroot)).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s46_exclusion_and_the_order_of_tokens_outlive_leaders_that_come_and_go() {
    let mut ensemble = Ensemble::start(3);
    let mut crowd = Crowd::new(TTL, LIMIT);
    for _ in 0..6 {
        crowd.join(&ensemble.url()).await;
    }
    for _ in 0..2 {
        crowd.goes_on(6).await;
        let leader = ensemble.leader();
        ensemble.get_mut(leader).kill();
        ensemble.leader();
        crowd.goes_on(6).await;
        ensemble.get_mut(leader).restart();
    }
    crowd.end().await;
}
