//! `init`: who may declare nodes to be new, and how a deployment is changed.

use fencepost::{Error, Locks};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Nodes;

use crate::harness::{
    CALM, LONG, NODE, QUICK, clock, connect, connect_to_all, declared, ms, ready, take, until, use_once,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_deployment_votes_at_once_and_says_so_the_second_time() {
    let nodes = Nodes::start(3);
    let url = nodes.url_with(CALM);
    let said = Locks::init(&url).await.unwrap();
    assert!(said.len() == 3 && said.iter().all(|line| line.ends_with(" votes")), "{said:?}");
    let guard = connect(&nodes, CALM).await.lock("a").ttl(LONG).try_acquire().await.unwrap().unwrap();
    for reconfigure in [false, true] {
        let said =
            if reconfigure { Locks::reconfigure(&url).await } else { Locks::init(&url).await }.unwrap();
        assert!(
            said.len() == 3 && said.iter().all(|line| line.ends_with(" is a member already")),
            "{said:?}"
        );
    }
    guard.extend().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_wait_out_their_quarantine_can_be_declared_new() {
    let nodes = Nodes::start(3);
    let locks = connect(&nodes, CALM).await;
    locks.lock("a").ttl(LONG).try_acquire().await.unwrap_err();
    Locks::init(&nodes.url_with(CALM)).await.unwrap();
    use_once(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_in_use_is_not_declared_new() {
    let mut nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let guard = take(&locks).await;
    nodes[1].restart_empty();
    guard.extend().await.unwrap();
    let error = Locks::init(&nodes.url_with(CALM)).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("votes by itself"), "{error}");
    until("it waits out its quarantine", async || {
        guard.extend().await.unwrap();
        nodes[1].cli(&["EXISTS", NODE]) == "1"
    })
    .await;
    assert!(ready(&nodes[1]).is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_were_all_restarted_are_not_declared_new() {
    let mut nodes = declared(3, CALM).await;
    let guard = take(&connect_to_all(&nodes, CALM).await).await;
    for node in 0..3 {
        let data = nodes[node].snapshot();
        nodes[node].restart_from(&data);
    }
    // Before anybody has met them again, and after.
    for _ in 0..2 {
        let error = Locks::init(&nodes.url_with(CALM)).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains("votes by itself"), "{error}");
        let _ = guard.extend().await;
        until("they wait out their quarantine", async || {
            let _ = guard.extend().await;
            nodes.iter().all(|node| ready(node).is_some())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_waited_out_whatever_is_asked_meanwhile() {
    let nodes = declared(3, CALM).await;
    let url = nodes.url_with("max_ttl=30m");
    Locks::reconfigure(&url).await.unwrap();
    let error = Locks::init(&url).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("votes by itself"), "{error}");
    let said = Locks::reconfigure(&url).await.unwrap();
    assert!(said.iter().all(|line| line.contains("is a member already")), "{said:?}");
    assert!(nodes.iter().all(|node| ready(node).is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_must_be_there() {
    let mut nodes = Nodes::start(3);
    nodes[2].kill();
    let error = Locks::init(&nodes.url_with(CALM)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains(&nodes[2].addr().to_string()), "{error}");
    assert!(nodes[0].keys().is_empty(), "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_parameters_need_reconfigure_and_wait_for_the_larger_quarantine() {
    let nodes = declared(3, "max_ttl=1s&quarantine=4s").await;
    let old = connect_to_all(&nodes, "max_ttl=1s&quarantine=4s").await;
    let before = {
        let guard = old.lock("a").ttl(ms(1000)).acquire().await.unwrap();
        guard.token()
    };
    let url = nodes.url_with("max_ttl=500ms&quarantine=2s");
    let error = Locks::init(&url).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("--reconfigure"), "{error}");
    let started = clock(&nodes[0]);
    let said = Locks::reconfigure(&url).await.unwrap();
    assert!(said.iter().all(|line| line.contains(" votes in ")), "{said:?}");
    // The locks of the old one may last for as long as it allowed.
    assert!(ready(&nodes[0]).unwrap() >= started + 4_000_000);
    let error = old.lock("a").ttl(ms(1000)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("max_ttl 500ms"), "{error}");
    let new = Locks::connect(&url).await.unwrap();
    let error = new.lock("a").ttl(ms(500)).try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("deployment was changed"), "{error}");
    assert!(new.lock("a").ttl(ms(500)).acquire().await.unwrap().token() > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_nodes_is_replaced() {
    let nodes = Nodes::start(4);
    let url = |members: [usize; 3]| {
        let addrs = members.map(|node| nodes[node].addr().to_string());
        format!("redlock://{}?{QUICK}", addrs.join(","))
    };
    let (before, after) = (url([0, 1, 2]), url([0, 1, 3]));
    Locks::init(&before).await.unwrap();
    let old = Locks::connect(&before).await.unwrap();
    let token = old.lock("a").ttl(ms(1000)).acquire().await.unwrap().token();
    Locks::reconfigure(&after).await.unwrap();
    let error = old.lock("a").ttl(ms(1000)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    let new = Locks::connect(&after).await.unwrap();
    let guard = new.lock("a").ttl(ms(1000)).acquire().await.unwrap();
    assert!(guard.token() > token);
    old.lock("a").ttl(ms(1000)).try_acquire().await.unwrap_err();
    guard.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_of_the_nodes_is_not_replaced_at_once() {
    let nodes = Nodes::start(5);
    let url = |members: [usize; 3]| {
        let addrs = members.map(|node| nodes[node].addr().to_string());
        format!("redlock://{}?{CALM}", addrs.join(","))
    };
    Locks::init(&url([0, 1, 2])).await.unwrap();
    let guard = take(&Locks::connect(&url([0, 1, 2])).await.unwrap()).await;
    let error = Locks::reconfigure(&url([2, 3, 4])).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("at most 1 at a time"), "{error}");
    let error = Locks::init(&url([0, 3, 4])).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    guard.extend().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_server_twice_is_no_deployment() {
    let nodes = Nodes::start(2);
    let alias = Proxy::start(nodes[1].addr());
    let url = format!("redlock://{},{},{}", nodes[0].addr(), nodes[1].addr(), alias.addr());
    let error = Locks::init(&url).await.unwrap_err();
    assert!(error.to_string().contains("same server"), "{error}");
    assert!(nodes[1].keys().is_empty(), "nothing was written");
}
