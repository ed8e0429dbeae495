//! Every form of a Redis URL leads to a lock: password, user, TLS, client certificate, unix socket, database.

use super::{bounded, take};
use fencepost::{Error, Locks};
use fencepost_testkit::{Certificates, Folder, redis::Server};

async fn works(url: &str) {
    let locks = bounded("connecting ends", Locks::connect(url)).await.unwrap();
    let guard = take(&locks, "a").await;
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    locks.close().await;
}

#[tokio::test]
async fn by_address_and_by_unix_socket() {
    let server = Server::start();
    works(&server.url()).await;
    works(&server.unix_url()).await;
    works(&format!("redis://localhost:{}", server.addr().port())).await;
}

#[tokio::test]
async fn with_a_password_and_as_a_user() {
    let server = Server::config().password("s3cret/with:odd%40").start();
    let login = ":s3cret%2Fwith%3Aodd%2540@";
    works(&format!("redis://{login}{}", server.addr())).await;
    let server = Server::config().user("alice", "hush").start();
    works(&server.url()).await;
    works(&server.unix_url()).await;
}

#[tokio::test]
async fn databases_are_apart() {
    let server = Server::start();
    let one = Locks::connect(&format!("{}/1", server.url())).await.unwrap();
    let two = Locks::connect(&format!("{}/2", server.url())).await.unwrap();
    let _guards = (take(&one, "a").await, take(&two, "a").await);
}

#[tokio::test]
async fn one_lock_over_the_port_and_the_socket() {
    let server = Server::start();
    let port = Locks::connect(&server.url()).await.unwrap();
    let socket = Locks::connect(&server.unix_url()).await.unwrap();
    let _guard = take(&port, "a").await;
    assert!(socket.lock("a").try_acquire().await.unwrap().is_none());
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn by_tls_with_and_without_a_client_certificate() {
    let server = Server::config().tls().start();
    works(&server.url()).await;
    works(&server.url().replace("127.0.0.1", "localhost")).await;
    let server = Server::config().tls_with_client_certificate().password("hush").start();
    works(&server.url()).await;
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_that_nobody_we_trust_has_signed_is_refused() {
    let server = Server::config().tls().start();
    let folder = Folder::new("connecting");
    let strangers = Certificates::make(folder.path());
    let url = format!("rediss://{}?ca={}", server.addr(), strangers.ca.display());
    let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
}
