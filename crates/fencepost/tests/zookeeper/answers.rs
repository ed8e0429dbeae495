//! Answers that do not come: what was asked for is undone, or kept, as promised.

use fencepost::Error;
use fencepost_testkit::zookeeper::Server;

use crate::harness::{LONG, Part, bounded, contenders, ms, start_waiting, take, until, use_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_before_its_answer_is_undone() {
    for broken in [false, true] {
        let part = Part::new();
        let locks = part.behind_link().await;
        use_once(&locks).await;
        part.link.hold_answers();
        let acquire = start_waiting(&locks);
        until("the server has created it", async || part.contenders().len() == 1).await;
        acquire.abort();
        assert!(acquire.await.unwrap_err().is_cancelled());
        if broken {
            part.link.reset();
        } else {
            part.link.pass();
        }
        part.is_clear().await;
        // Its session lives on: it was not the end of that which removed the node.
        use_once(&locks).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_dropped_while_the_server_is_out_of_reach_releases_later() {
    let part = Part::new();
    let locks = part.behind_link().await;
    let guard = take(&locks).await;
    part.link.cut();
    drop(guard);
    assert!(locks.lock("b").ttl(LONG).try_acquire().await.is_err());
    part.link.pass();
    part.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_was_lost_is_asked_about_again() {
    let part = Part::new();
    let locks = part.behind_link().await;
    let guard = take(&locks).await;
    guard.extend().await.unwrap();
    part.link.hold_answers();
    let release = tokio::spawn(guard.release());
    part.is_clear().await;
    part.link.reset();
    bounded("the release ends", release).await.unwrap().unwrap();
    use_once(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validity_counts_from_the_send() {
    let part = Part::new();
    let locks = part.behind_link().await;
    use_once(&locks).await;
    part.link.delay(ms(150));
    let guard = take(&locks).await;
    // There and back. A slow machine makes it less.
    assert!(guard.valid_for().unwrap() <= LONG - ms(300));
    assert!(guard.extend().await.unwrap().unwrap() <= LONG - ms(300));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_on_a_silent_server_ends_at_the_timeout() {
    let server = Server::start();
    let url = format!("{}?timeout=3s", server.url());
    let locks = fencepost::Locks::connect(&url).await.unwrap();
    let guard = take(&locks).await;
    server.pause();
    let connected = bounded("connecting ends", fencepost::Locks::connect(&url)).await;
    let tried = bounded("the try ends", locks.lock("b").ttl(LONG).try_acquire()).await;
    let shown = bounded("the look ends", locks.show("a")).await;
    let released = bounded("the release ends", guard.release()).await;
    server.resume();
    assert!(matches!(connected, Err(Error::Unavailable { .. })), "{connected:?}");
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    assert!(matches!(shown, Err(Error::Unavailable { .. })), "{shown:?}");
    assert!(matches!(released, Err(Error::Uncertain { .. })), "{released:?}");
    // What the server did when it woke up is undone, and the release goes on behind.
    until("the release is made", async || contenders(&server, "").is_empty()).await;
    let tried = || server.client().children("/fencepost/b").unwrap();
    until("the try is undone", async || tried().is_empty()).await;
}
