//! What is refused before any node is asked, and what makes no difference.

use fencepost::{Error, Locks};

use crate::harness::{CALM, LONG, connect, declared, take, use_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_the_nodes_and_another_timeout_are_the_same_deployment() {
    let nodes = declared(3, CALM).await;
    let mut addrs: Vec<_> = nodes.iter().map(|node| node.addr().to_string()).collect();
    addrs.reverse();
    let url = format!("redlock://{}?{CALM}&timeout=500ms", addrs.join(","));
    use_once(&Locks::connect(&url).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_refused_before_anything_is_asked() {
    let nodes = declared(3, CALM).await;
    let two = format!("redlock://{},{}", nodes[0].addr(), nodes[1].addr());
    let error = Locks::connect(&two).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("redis://"), "{error}");
    let locks = connect(&nodes, CALM).await;
    let before = nodes[0].evalsha_calls();
    let lock = locks.lock("a").ttl(LONG * 3);
    for error in [lock.acquire().await.unwrap_err(), lock.try_acquire().await.unwrap_err()] {
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains("max_ttl of 20m"), "{error}");
    }
    assert_eq!(nodes[0].evalsha_calls(), before);
    let guard = take(&locks).await;
    let error = guard.extend_to(LONG * 3).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    guard.extend().await.unwrap();
}
