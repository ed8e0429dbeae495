//! What is no cluster, and what is one.

use fencepost::{Error, Locks};
use fencepost_testkit::redis::{Cluster, Server};

use crate::harness::{connect, secs, slot_of, use_once};

#[tokio::test]
async fn each_of_the_two_schemes_names_the_other_where_that_is_meant() {
    let (server, cluster) = (Server::start(), Cluster::start(2, 0));
    let one = Locks::connect(&format!("redis+cluster://{}", server.addr())).await.unwrap_err();
    assert!(matches!(one, Error::Config { .. }) && one.to_string().contains("`redis://`"), "{one:?}");
    let many = Locks::connect(&format!("redis://{}", cluster[0].addr())).await.unwrap_err();
    assert!(
        matches!(many, Error::Config { .. }) && many.to_string().contains("`redis+cluster://`"),
        "{many:?}"
    );
}

#[tokio::test]
async fn one_node_leads_to_all_others_and_dead_ones_are_passed_over() {
    let cluster = Cluster::start(3, 1);
    for node in cluster.iter() {
        // A replica, too.
        let locks = Locks::connect(&cluster.url_at(&node.addr().to_string())).await.unwrap();
        for name in ["a", "b", "c", "d"] {
            locks.lock(name).acquire().await.unwrap().release().await.unwrap();
        }
    }
    let nearly_dead = format!("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,{}", cluster[0].addr());
    Locks::connect(&cluster.url_at(&nearly_dead)).await.unwrap();
    let dead = Locks::connect(&cluster.url_at("127.0.0.1:1,127.0.0.1:2")).await.unwrap_err();
    assert!(matches!(dead, Error::Unavailable { .. }), "{dead:?}");
}

#[tokio::test]
async fn a_wrong_password_is_told_at_once() {
    let cluster = Cluster::start_with(2, 0, |config| config.password("right"));
    let addr = cluster[0].addr();
    let error = Locks::connect(&format!("redis+cluster://:wrong@{addr}")).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(!error.to_string().contains("wrong@"), "{error}");
    let locks = Locks::connect(&cluster.url()).await.unwrap();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

/// Which one is asked first is chance: a dead one does not hide those that are well.
#[tokio::test]
async fn a_cluster_that_has_lost_a_master_can_be_connected_to() {
    for dead in 0..3 {
        let mut cluster = Cluster::start(3, 0);
        cluster[dead].kill();
        let well = (dead + 1) % 3;
        let name = (0..).map(|n| format!("n{n}")).find(|name| cluster.master_of(slot_of(name)) == well);
        let locks = Locks::connect(&cluster.url_at(&cluster[well].addr().to_string())).await.unwrap();
        use_once(&locks, &name.unwrap()).await;
    }
}

#[tokio::test]
async fn what_a_user_lacks_on_a_cluster_is_named() {
    let cluster = Cluster::start(2, 1);
    // Before that version, a user has a command with all that it can do, or not at all.
    if cluster[0].version() < (7, 0) {
        return;
    }
    let granted = ["+@all", "-@dangerous", "+info", "+cluster|slots"];
    let users = [
        ("nomap", "-cluster|slots", "", "+cluster|slots"),
        ("nowait", "-wait", "?replicas=1", "+wait"),
        ("deaf", "-ssubscribe", "", "ssubscribe"),
    ];
    for (user, lacking, parameters, told) in users {
        for node in cluster.iter() {
            let rules = ["ACL", "SETUSER", user, "on", ">pw", "~*", "&*"];
            node.cli(&[&rules[..], &granted, &[lacking]].concat());
        }
        let url = format!("redis+cluster://{user}:pw@{}{parameters}", cluster[0].addr());
        let error = match Locks::connect(&url).await {
            Ok(locks) => locks.lock("a").try_acquire().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(error, Error::Config { .. }), "{user}: {error:?}");
        assert!(error.to_string().contains(told), "{user}: {error}");
        assert!(!error.to_string().contains("pw"), "{user}: {error}");
    }
}

/// A host that the URL names may be a node of another cluster by now. Who has found this one stays with it.
#[tokio::test]
async fn a_seed_that_has_gone_to_another_cluster_leads_nobody_astray() {
    let (cluster, foreign) = (Cluster::start(2, 0), Cluster::start(2, 0));
    let other = connect(&cluster).await;
    let held = other.lock("a").ttl(secs(60)).acquire().await.unwrap();
    foreign[0].pause();
    let seeds = format!("{},{}", foreign[0].addr(), cluster[0].addr());
    let locks = Locks::connect(&cluster.url_at(&seeds)).await;
    foreign[0].resume();
    let locks = locks.unwrap();
    for _ in 0..30 {
        locks.check().await.unwrap();
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none(), "it is held");
    }
    held.release().await.unwrap();
}
