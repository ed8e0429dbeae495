//! Tests wait for conditions, never for time.

use std::time::Duration;

use fencepost_testkit::LIMIT;

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    bounded(what, wait).await;
}

/// Turns a hang into a message.
pub(crate) async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(out) => out,
        Err(_) => panic!("waited {LIMIT:?} in vain: {what}"),
    }
}
