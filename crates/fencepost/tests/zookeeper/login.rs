//! A login makes nodes private; who has another one, or none, is told so without a password being shown.

use fencepost::{Error, Locks};

use crate::stage::{Part, take, use_once};

const PASSWORD: &str = "correct-horse-battery";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_made_with_a_login_are_private() {
    let part = Part::new();
    let url = |login: &str| format!("zookeeper://{login}{}{}", part.server.addr(), part.chroot);
    let locks = Locks::connect(&url(&format!("alice:{PASSWORD}@"))).await.unwrap();
    let guard = take(&locks).await;
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    for login in ["", "alice:wrong-horse-battery@", "bob:correct-horse-battery@"] {
        let other = Locks::connect(&url(login)).await.unwrap();
        for error in [other.lock("a").try_acquire().await.unwrap_err(), other.show("a").await.unwrap_err()] {
            assert!(matches!(error, Error::Config { .. }) && !error.is_transient(), "{error:?}");
            let text = format!("{error} {error:?} {other:?}");
            assert!(text.contains("user:password") && !text.contains("horse"), "{text}");
        }
    }
    let shown = format!("{locks:?} {guard:?} {:?}", locks.capabilities());
    assert!(!shown.contains(PASSWORD), "{shown}");
    guard.release().await.unwrap();
    use_once(&Locks::connect(&url(&format!("alice:{PASSWORD}@"))).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_holds_on_the_next_connection_too() {
    let part = Part::new();
    let url = format!("zookeeper://alice:{PASSWORD}@{}{}", part.link.addr(), part.chroot);
    let locks = Locks::connect(&url).await.unwrap();
    let guard = take(&locks).await;
    part.link.reset();
    guard.release().await.unwrap();
    use_once(&locks).await;
}
