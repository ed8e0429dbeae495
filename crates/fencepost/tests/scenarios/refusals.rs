//! Nodes that are not fit, or belong elsewhere: one of five is done without and named, a majority is an error
//! of configuration that says what to change.

use fencepost::{Error, Locks};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::{Nodes, Server};

use crate::redis_nodes::{
    CALM, LONG, connect, connect_to_all, declare, declared, holds, is_clear, take, use_once,
};

/// Shows that one node in such a state is done without.
async fn one_is_done_without(locks: &Locks, why: &str) {
    use_once(locks).await;
    let guard = take(locks).await;
    let nodes = locks.show("a").await.unwrap().unwrap().nodes;
    let trouble = nodes[0].problem.as_deref().unwrap_or_default();
    assert!(trouble.contains("not usable") && trouble.contains(why), "{trouble}");
    assert!(!nodes[0].holds && nodes[1..].iter().filter(|node| node.holds).count() >= 3, "{nodes:?}");
    guard.release().await.unwrap();
}

fn is_config(error: &Error, words: &[&str]) {
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    for word in words {
        assert!(error.to_string().contains(word), "no `{word}` in: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s26_a_wrong_password_for_one_node_is_done_without_and_for_a_majority_named() {
    let nodes = Nodes::start_with(5, |config| config.password("right"));
    declare(&nodes, CALM).await;
    let wrong = |count| nodes.url_with(CALM).replacen(":right@", ":wrong@", count);
    one_is_done_without(&Locks::connect(&wrong(1)).await.unwrap(), "refused the user or password").await;
    let error = Locks::connect(&wrong(3)).await.unwrap_err();
    is_config(&error, &["refused the user or password", &nodes[2].addr().to_string()]);
    assert!(!error.to_string().contains(":wrong@"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s27_a_replica_cannot_be_a_node() {
    let primary = Server::start();
    let mut first = true;
    let nodes =
        Nodes::start_with(
            3,
            |config| {
                if std::mem::take(&mut first) { config.replica_of(&primary) } else { config }
            },
        );
    let error = Locks::init(&nodes.url_with(CALM)).await.unwrap_err();
    is_config(&error, &["replica", &nodes[0].addr().to_string()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s27_a_node_that_became_a_replica_is_done_without_and_a_majority_named() {
    let (primary, nodes) = (Server::start(), declared(5, CALM).await);
    let demote = |node: usize| {
        nodes[node].cli(&["REPLICAOF", "127.0.0.1", &primary.addr().port().to_string()]);
    };
    let before = connect(&nodes, CALM).await;
    use_once(&before).await;
    demote(0);
    one_is_done_without(&connect(&nodes, CALM).await, "replica").await;
    use_once(&before).await;
    demote(1);
    demote(2);
    is_config(&Locks::connect(&nodes.url_with(CALM)).await.unwrap_err(), &["replica"]);
    is_config(&before.lock("a").ttl(LONG).acquire().await.unwrap_err(), &["replica"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s23_a_node_that_evicts_keys_is_done_without_and_a_majority_named() {
    let nodes = declared(5, CALM).await;
    let evict = |node: usize| {
        nodes[node].cli(&["CONFIG", "SET", "maxmemory", "64mb", "maxmemory-policy", "allkeys-lru"]);
    };
    evict(0);
    one_is_done_without(&connect(&nodes, CALM).await, "noeviction").await;
    evict(1);
    evict(2);
    let url = nodes.url_with(CALM);
    is_config(&Locks::connect(&url).await.unwrap_err(), &["noeviction", &nodes[2].addr().to_string()]);
    is_config(&Locks::init(&url).await.unwrap_err(), &["noeviction"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s31_the_same_server_under_two_names_is_refused() {
    let nodes = Nodes::start(2);
    let alias = Proxy::start(nodes[0].addr());
    let url = format!("redlock://{},{},{}?{CALM}", nodes[0].addr(), nodes[1].addr(), alias.addr());
    // Two servers are a majority, and with their answers connecting would be over.
    nodes[1].pause();
    for error in [Locks::connect(&url).await.unwrap_err(), Locks::init(&url).await.unwrap_err()] {
        is_config(&error, &["same server", &alias.addr().to_string(), &nodes[0].addr().to_string()]);
    }
    let url = format!("redlock://{0},{0},{1}", nodes[0].addr(), nodes[1].addr());
    let error = Locks::connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("twice"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s31_a_server_that_became_another_node_has_one_vote() {
    let nodes = Nodes::start(3);
    let links = nodes.proxies();
    let url = nodes.url_through(&links, CALM);
    Locks::init(&url).await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    use_once(&locks).await;
    // The name of node 2 now means node 1, and node 0 is gone: two names, one server.
    links[2].redirect(nodes[1].addr());
    links[2].reset();
    links[0].cut();
    for _ in 0..20 {
        let error = locks.lock("a").ttl(LONG).try_acquire().await;
        assert!(matches!(error, Err(Error::Unavailable { .. } | Error::Config { .. })), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s31_another_deployment_on_the_same_nodes_is_refused() {
    let nodes = declared(5, CALM).await;
    let guard = take(&connect_to_all(&nodes, CALM).await).await;
    let three: Vec<_> = nodes.iter().take(3).map(|node| node.addr().to_string()).collect();
    let others = [
        format!("redlock://{}?{CALM}", three.join(",")),
        nodes.url_with("max_ttl=30m"),
        nodes.url_with("max_ttl=20m&quarantine=1h"),
        nodes.url_with("max_ttl=20m&deployment=other"),
    ];
    for url in others {
        let error = Locks::connect(&url).await.unwrap_err();
        is_config(&error, &["init --reconfigure", "another deployment"]);
    }
    assert!(nodes.iter().all(|node| !holds(node, "b")));
    guard.extend().await.unwrap();
}

/// What docs/stores/redlock.md says that a user needs.
fn rights() -> Vec<&'static str> {
    let docs = include_str!("../../../../docs/stores/redlock.md");
    let rights = docs.split('`').find(|text| text.starts_with("+@scripting")).unwrap();
    rights.split(' ').collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s26_a_user_with_the_rights_in_the_documents_can_do_everything() {
    let nodes = Nodes::start(3);
    let allow = |rights: &[&str]| {
        let user = ["ACL", "SETUSER", "app", "reset", "on", ">pw", "~lock:*", "~{*", "&*"];
        for node in nodes.iter() {
            assert_eq!(node.cli(&[&user, rights].concat()), "OK");
        }
    };
    allow(&rights());
    let url = nodes.url_with(CALM).replace("redlock://", "redlock://app:pw@");
    Locks::init(&url).await.unwrap();
    let (locks, others) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let guard = take(&locks).await;
    crate::redis_nodes::until("all nodes have it", async || {
        guard.extend().await.unwrap();
        nodes.iter().all(|node| holds(node, "a"))
    })
    .await;
    let waiter = tokio::spawn(async move { take(&others).await });
    crate::redis_nodes::until("it waits", async || !nodes[0].keys_like("*:waiters").is_empty()).await;
    guard.extend().await.unwrap();
    assert_eq!(locks.list("").await.unwrap().holders.len(), 1);
    guard.release().await.unwrap();
    let handle = waiter.await.unwrap().detach().await.unwrap();
    let _attached = locks.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    locks.force_release("a", fencepost::ForceRelease::now("host is being drained")).await.unwrap().unwrap();
    drop(locks);
    for missing in ["time", "info", "eval", "evalsha"] {
        allow(&[&rights()[..], &[&format!("-{missing}")]].concat());
        let error = match Locks::connect(&url).await {
            Ok(locks) => locks.lock("a").ttl(LONG).try_acquire().await.unwrap_err(),
            Err(error) => error,
        };
        is_config(&error, &["+time", "`lock:*`", missing]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s25_forgotten_scripts_are_loaded_again_unnoticed() {
    let nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let forget = || nodes.iter().for_each(|node| drop(node.cli(&["SCRIPT", "FLUSH"])));
    for _ in 0..20 {
        forget();
        let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
        forget();
        guard.extend().await.unwrap();
        forget();
        guard.release().await.unwrap();
    }
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s26_a_server_whose_certificate_has_expired_is_a_configuration_error() {
    let server = Server::config().tls_expired().start();
    let error = Locks::connect(&server.url()).await.unwrap_err();
    is_config(&error, &["certificate"]);
}
