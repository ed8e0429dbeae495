//! What the core never asks for in this order, unless two of its tasks meet: on a real server.

use std::sync::Arc;
use std::time::Duration;

use fencepost_testkit::redis::Server;

use crate::backend::{Backend, Renewal, Request};
use crate::url::StoreUrl;
use crate::{Loss, Name};

const TTL: Duration = Duration::from_secs(3600);

fn request() -> Request {
    Request::new(Name::new("a").unwrap(), TTL, "".into(), Arc::default())
}

async fn connect(server: &Server) -> Arc<dyn Backend> {
    super::connect(StoreUrl::parse(&server.url()).unwrap()).await.unwrap()
}

/// As when `max_hold` ends in the very moment in which the caller detaches.
#[tokio::test]
async fn s18_what_was_detached_is_not_given_back_after_it() {
    let server = Server::start();
    let store = connect(&server).await;
    let held = store.acquire(&request()).await.unwrap();
    assert!(matches!(held.hold.detach(TTL).await, Ok(Renewal::Renewed { .. })));
    assert!(held.hold.release().await.unwrap());
    let owner = held.identity.owner().to_string();
    assert!(server.cli(&["GET", "lock:a"]).starts_with(&owner), "it is the handle's");
}

#[tokio::test]
async fn who_has_given_a_lock_back_cannot_detach_it_and_a_release_that_comes_again_touches_nothing() {
    let server = Server::start();
    let store = connect(&server).await;
    let first = store.acquire(&request()).await.unwrap();
    assert!(first.hold.release().await.unwrap());
    let second = store.acquire(&request()).await.unwrap();
    let value = server.cli(&["GET", "lock:a"]);
    assert_eq!(first.hold.detach(TTL).await.unwrap(), Renewal::Lost(Loss::Taken));
    assert!(first.hold.release().await.unwrap());
    assert_eq!(first.hold.renew(TTL).await.unwrap(), Renewal::Lost(Loss::Taken));
    assert_eq!(server.cli(&["GET", "lock:a"]), value, "it is another one's");
    assert!(matches!(second.hold.renew(TTL).await, Ok(Renewal::Renewed { .. })));
}
