//! Force-release: the operator's token lies between the victim's and that of everybody who comes after.

use fencepost::{Error, Loss};
use fencepost_testkit::Proxy;
use fencepost_testkit::etcd::Cluster;

use crate::harness::{bounded, connect, ms, patient, take, until, waiter};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_waited_before_a_force_release_get_larger_tokens_than_the_operator() {
    for now in [false, true] {
        let cluster = Cluster::start(1);
        let (locks, one, two) =
            (connect(&cluster.url()).await, connect(&cluster.url()).await, connect(&cluster.url()).await);
        let victim = take(&locks, "a").await;
        let waiters = [waiter(patient(&one, "a"), &one).await, waiter(patient(&two, "a"), &two).await];
        until("they are in the queue", async || cluster.keys("a/").len() == 3).await;
        let revoked = match now {
            true => locks.force_release("a", fencepost::ForceRelease::now("enough")).await,
            false => locks.force_release("a", "enough").await,
        };
        let revoked = revoked.unwrap().unwrap();
        assert!(revoked.token > victim.token());
        let why = bounded("the victim learns it", victim.lost()).await;
        assert_eq!(why, Loss::force_released("enough"));
        drop(victim);
        let mut tokens = Vec::new();
        let mut tasks = tokio::task::JoinSet::new();
        for waits in waiters {
            tasks.spawn(async move {
                let guard = waits.await.unwrap().unwrap();
                let token = guard.token();
                guard.release().await.unwrap();
                token
            });
        }
        while let Some(token) = bounded("both get their turn", tasks.join_next()).await {
            tokens.push(token.unwrap());
        }
        assert!(tokens.iter().all(|token| *token > revoked.token), "{tokens:?} after {}", revoked.token);
        assert_ne!(tokens[0], tokens[1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_victim_that_does_not_let_go_loses_the_lock_with_its_ttl() {
    let cluster = Cluster::start(1);
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let four = std::time::Duration::from_secs(4);
    let stubborn = locks.lock("a").ttl(four).acquire().await.unwrap();
    // Keeps the lease alive that both are on.
    let other = locks.lock("b").ttl(four).acquire().await.unwrap();
    rival.force_release("a", "enough").await.unwrap().unwrap();
    let next = take(&rival, "a").await;
    assert!(stubborn.state().is_lost());
    assert!(matches!(stubborn.extend().await, Err(Error::Lost { .. })));
    other.check().unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_whose_answer_is_lost_does_not_hit_the_next_holder() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let operator = connect(&format!("{}?timeout=20s", cluster.url_at(&proxy.addr().to_string()))).await;
    let victim = take(&locks, "a").await;
    let token = victim.token();
    let waits = waiter(patient(&rival, "a"), &rival).await;
    until("it is in the queue", async || cluster.keys("a/").len() == 2).await;
    // Slow enough to see that it has looked, before it acts.
    proxy.delay(ms(1_000));
    let looks = cluster[0].requests("LeaseTimeToLive");
    let release =
        tokio::spawn(
            async move { operator.force_release("a", fencepost::ForceRelease::now("enough")).await },
        );
    until("it has looked", async || cluster[0].requests("LeaseTimeToLive") > looks).await;
    proxy.hold_answers();
    bounded("the victim learns it", victim.lost()).await;
    drop(victim);
    let next = bounded("the next one gets the lock", waits).await.unwrap().unwrap();
    proxy.reset();
    let revoked = bounded("the operator is told", release).await.unwrap().unwrap().unwrap();
    assert_eq!(revoked.holder.token, Some(token));
    assert!(token < revoked.token && revoked.token < next.token(), "{revoked:?}");
    assert_eq!(rival.show("a").await.unwrap().unwrap().revoked, None);
    next.extend().await.unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_takes_nothing_from_whoever_came_after_the_one_it_found() {
    for waits in [true, false] {
        let cluster = Cluster::start(1);
        let proxy = Proxy::start(cluster[0].addr());
        let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
        let operator = connect(&format!("{}?timeout=20s", cluster.url_at(&proxy.addr().to_string()))).await;
        let victim = take(&locks, "a").await;
        // Slow enough to see that it has looked, before it acts.
        proxy.delay(ms(1_000));
        let looks = cluster[0].requests("LeaseTimeToLive");
        let release =
            tokio::spawn(
                async move { operator.force_release("a", fencepost::ForceRelease::now("stuck")).await },
            );
        until("it has looked", async || cluster[0].requests("LeaseTimeToLive") > looks).await;
        victim.release().await.unwrap();
        let next = if waits { Some(take(&rival, "a").await) } else { None };
        let outcome = bounded("the operator is told", release).await.unwrap();
        match next {
            None => assert_eq!(outcome.unwrap(), None),
            Some(next) => {
                let error = outcome.unwrap_err();
                assert!(matches!(error, Error::Changed { .. }), "{error}");
                assert_eq!(error.holder().and_then(|holder| holder.token), Some(next.token()));
                next.extend().await.unwrap();
                assert_eq!(rival.show("a").await.unwrap().unwrap().revoked, None);
                next.release().await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_a_full_cluster_can_still_be_freed_at_once() {
    let cluster = Cluster::config().quota(16 << 20).start(1);
    let (locks, operator) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let handle = take(&locks, "b").await.detach().await.unwrap();
    let victim = take(&locks, "a").await;
    let megabyte = "x".repeat(1 << 20);
    until("it is full", async || {
        cluster.etcdctl_with(&["put", "junk"], &megabyte);
        cluster.etcdctl(&["alarm", "list"]).contains("NOSPACE")
    })
    .await;
    for error in [
        locks.lock("c").try_acquire().await.map(drop).unwrap_err(),
        operator.force_release("a", "stuck").await.map(drop).unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Config { message, .. } if message.contains("quota")), "{error}");
    }
    victim.extend().await.unwrap();
    let how = fencepost::ForceRelease::now("stuck");
    let revoked = operator.force_release("a", how).await.unwrap().unwrap();
    assert!(revoked.freed && revoked.token > victim.token());
    assert_eq!(bounded("the victim learns it", victim.lost()).await, Loss::Taken);
    // Nor does a handle need space.
    operator.extend(&handle, crate::harness::LONG).await.unwrap();
    operator.release(&handle).await.unwrap();
    assert_eq!(operator.list("").await.unwrap().holders, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_as_large_as_a_cluster_takes_hide_no_others_from_a_list() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let held = take(&locks, "a").await;
    let granted = cluster.etcdctl(&["lease", "grant", "600"]);
    let lease = granted.split(' ').nth(1).unwrap();
    let large = "x".repeat(1_500_000);
    for number in 0..14 {
        let words = ["put", "--lease", lease, &format!("large{number:02}/{lease}")];
        assert_eq!(cluster.etcdctl_with(&words, &large), "OK");
    }
    let listed = locks.list("").await.unwrap().holders;
    assert_eq!(listed.len(), 15);
    assert_eq!((listed[0].owner, listed[1].owner), (Some(held.owner()), None));
}
