//! What the core never asks for in this order, unless two of its tasks meet: on a real server.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Server;

use crate::backend::{Backend, Grant, Renewal, Request};
use crate::url::StoreUrl;
use crate::{Loss, Name};

const TTL: Duration = Duration::from_secs(3600);

fn request() -> Request {
    Request::new(Name::new("a").unwrap(), TTL, "".into(), Arc::default())
}

async fn connect(url: &str) -> Arc<dyn Backend> {
    super::connect(StoreUrl::parse(url).unwrap()).await.unwrap()
}

async fn until(mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(fencepost_testkit::LIMIT, wait).await.unwrap();
}

/// One that has its turn in a row, and who comes behind it.
async fn row(store: &Arc<dyn Backend>, server: &Server) -> (Grant, [tokio::task::JoinHandle<Grant>; 2]) {
    let before = store.acquire(&request()).await.unwrap();
    let wait = || {
        let store = store.clone();
        tokio::spawn(async move { store.acquire(&request()).await.unwrap() })
    };
    let (first, behind) = (wait(), [wait(), wait()]);
    until(|| server.cli(&["LLEN", "{lock:a}:queue"]) == "1").await;
    before.hold.release().await.unwrap();
    (first.await.unwrap(), behind)
}

#[tokio::test]
async fn s18_who_has_given_a_lock_back_cannot_detach_it() {
    let server = Server::start();
    let store = connect(&server.url()).await;
    let (first, [second, _third]) = row(&store, &server).await;
    // As when `max_hold` ends in the very moment in which the caller detaches.
    assert!(first.hold.release().await.unwrap());
    let second = second.await.unwrap();
    let value = server.cli(&["GET", "lock:a"]);
    assert_eq!(first.hold.detach(TTL).await.unwrap(), Renewal::Lost(Loss::Taken));
    assert_eq!(server.cli(&["GET", "lock:a"]), value, "it is another one's");
    assert!(matches!(second.hold.renew(TTL).await, Ok(Renewal::Renewed { .. })));
}

#[tokio::test]
async fn s18_a_release_that_comes_again_lets_nobody_else_in() {
    let server = Server::start();
    let store = connect(&server.url()).await;
    let (first, [second, third]) = row(&store, &server).await;
    assert!(first.hold.release().await.unwrap());
    let second = second.await.unwrap();
    assert!(first.hold.release().await.unwrap());
    assert!(matches!(second.hold.renew(TTL).await, Ok(Renewal::Renewed { .. })));
    assert!(!third.is_finished(), "two hold it");
    second.hold.release().await.unwrap();
    assert!(third.await.unwrap().token > second.token);
}

#[tokio::test]
async fn what_is_detached_is_not_given_back_behind_it() {
    let server = Server::start();
    let store = connect(&server.url()).await;
    let (first, _behind) = row(&store, &server).await;
    assert!(matches!(first.hold.detach(TTL).await, Ok(Renewal::Renewed { .. })));
    assert!(first.hold.release().await.unwrap());
    assert!(server.cli(&["GET", "lock:a"]).starts_with(&first.owner.to_string()));
}

/// The server may have gone from the old identity to that of the row, while this is under way, and never goes back.
#[tokio::test]
async fn s20_a_lock_that_may_have_gone_to_a_row_is_given_back_under_its_old_identity_first() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let store = connect(&format!("{}?timeout=300ms", server.url_at(proxy.addr()))).await;
    let held = store.acquire(&request()).await.unwrap();
    let requests = [request(), request()];
    let mut waiters = requests.each_ref().map(|request| store.acquire(request));
    for waiter in &mut waiters {
        std::future::poll_fn(|context| {
            assert!(waiter.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    }
    until(|| server.cli(&["LLEN", "{lock:a}:queue"]) == "1").await;
    // The hand-over is stuck in the network, and another connection is open.
    proxy.strand();
    held.hold.release().await.unwrap_err();
    store.show(&requests[0].name).await.unwrap();
    proxy.hold_answers();
    let before = server.evalsha_calls();
    let release = tokio::spawn(async move { held.hold.release().await });
    until(|| server.evalsha_calls() > before).await;
    // It arrives before the answer to the first request that gives back.
    proxy.pass();
    release.await.unwrap().unwrap();
    let [first, second] = waiters;
    let wait = tokio::time::timeout(fencepost_testkit::LIMIT, first);
    wait.await.expect("it is nobody's").unwrap().hold.release().await.unwrap();
    drop(second);
}
