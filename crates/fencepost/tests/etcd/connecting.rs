//! Users, passwords and certificates.

use fencepost::{Error, Locks};
use fencepost_testkit::Folder;
use fencepost_testkit::etcd::Cluster;

use crate::harness::{bounded, connect, patient, take, waiter};

async fn works(url: &str) {
    let locks = connect(url).await;
    let guard = take(&locks, "a").await;
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_logs_in_and_again_when_the_token_is_not_good_any_more() {
    let cluster = Cluster::config().password("correct-horse").start(1);
    works(&cluster.url()).await;
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let held = take(&locks, "a").await;
    let waits = waiter(patient(&rival, "a"), &rival).await;
    cluster.etcdctl(&["auth", "disable"]);
    assert!(cluster.command(&["auth", "enable"]).output().unwrap().status.success());
    held.extend().await.unwrap();
    held.release().await.unwrap();
    bounded("the waiter gets the lock", waits).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_a_configuration_error_and_is_not_shown() {
    let cluster = Cluster::config().password("correct-horse").start(1);
    let address = cluster[0].addr();
    for url in [
        format!("etcd://{address}"),
        format!("etcd://root:wrong-horse@{address}"),
        format!("etcd://nobody:wrong-horse@{address}"),
    ] {
        let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains("password"), "{error}");
        assert!(!format!("{error} {error:?}").contains("horse"), "{error:?}");
    }
}

/// A cluster with a user `app` who may use what starts like that.
fn with_a_user_for(prefix: &str) -> Cluster {
    let cluster = Cluster::config().password("correct-horse").start(1);
    for words in [
        &["user", "add", "app:secret"][..],
        &["role", "add", "locks"],
        &["role", "grant-permission", "--prefix=true", "locks", "readwrite", prefix],
        &["user", "grant-role", "app", "locks"],
    ] {
        assert_ne!(cluster.etcdctl(words), "", "{words:?}");
    }
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_rights_to_a_name_is_told_so() {
    let cluster = with_a_user_for("app/");
    let locks = connect(&format!("etcd://app:secret@{}", cluster[0].addr())).await;
    take(&locks, "app/a").await.release().await.unwrap();
    let error = locks.lock("other").try_acquire().await.unwrap_err();
    assert!(
        matches!(&error, Error::Config { message, .. } if message.contains("grant-permission")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_is_refused_or_not_answered_says_so_once() {
    let cluster = with_a_user_for("app/");
    let locks = connect(&format!("etcd://app:secret@{}?timeout=6s", cluster[0].addr())).await;
    let guard = patient(&locks, "app/a").without_renewal().acquire().await.unwrap();
    let words = ["role", "revoke-permission", "--prefix=true", "locks", "app/"];
    assert_ne!(cluster.etcdctl(&words), "", "{words:?}");
    let refused = guard.extend().await.unwrap_err().to_string();
    assert!(refused.contains("grant-permission") && !refused.contains("out of reach"), "{refused}");
    cluster[0].pause();
    let silent = guard.extend().await.unwrap_err().to_string();
    cluster[0].resume();
    assert_eq!(silent.matches("out of reach").count(), 1, "{silent}");
    drop(guard);
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_tls_with_and_without_a_client_certificate() {
    let cluster = Cluster::config().tls().start(1);
    works(&cluster.url()).await;
    works(&cluster.url().replace("127.0.0.1", "localhost")).await;
    let cluster = Cluster::config().tls_with_client_certificate().start(1);
    works(&cluster.url()).await;
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_nobody_we_trust_has_signed_is_refused() {
    let cluster = Cluster::config().tls().start(1);
    let folder = Folder::new("connecting");
    let strangers = fencepost_testkit::Certificates::make(folder.path());
    let url = format!("etcds://{}?ca={}", cluster[0].addr(), strangers.ca.display());
    let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    // Trying again does not make a certificate good.
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    let message = error.to_string();
    assert!(message.contains("certificate") && message.contains("`ca`"), "{message}");
    let missing = format!("etcds://{}?ca=/nowhere", cluster[0].addr());
    assert!(matches!(Locks::connect(&missing).await, Err(Error::Config { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_out_of_reach() {
    let cluster = Cluster::start(1);
    let url = cluster.url();
    drop(cluster);
    let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}
