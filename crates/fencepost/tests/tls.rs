//! TLS by a configuration of the caller's own, on every store that has TLS.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use fencepost::fence::{Fence, Redis};
use fencepost::rustls::crypto::ring;
use fencepost::rustls::pki_types::pem::PemObject as _;
use fencepost::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use fencepost::rustls::{ClientConfig, RootCertStore};
use fencepost::{ConnectOptions, Error, FencingToken, Locks, blocking};
use fencepost_testkit::{Certificates, LIMIT, etcd, postgres, redis};

/// Trusts these authorities, and shows the client's certificate of the first.
fn trusting(authorities: &[&Certificates]) -> Arc<ClientConfig> {
    let certificate = |file| CertificateDer::from_pem_file(file).unwrap();
    let mut roots = RootCertStore::empty();
    authorities.iter().for_each(|files| roots.add(certificate(&files.ca)).unwrap());
    let key = PrivateKeyDer::from_pem_file(&authorities[0].client_key).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate(&authorities[0].client)], key);
    Arc::new(config.unwrap())
}

async fn works(options: ConnectOptions) {
    let locks = Locks::connect(options).await.unwrap();
    let guard = locks.lock("a").wait(LIMIT).acquire().await.unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    locks.close().await;
}

/// The authorities of this machine know nothing of the server's.
async fn is_not_trusted(url: &str) {
    let error = Locks::connect(url).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
}

async fn is_invalid(options: ConnectOptions, hint: &str) {
    let error = Locks::connect(options).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(hint), "{error}");
}

#[tokio::test]
async fn redis_takes_it_for_locks_and_for_fences() {
    let server = redis::Server::config().tls_with_client_certificate().start();
    let (url, config) = (format!("rediss://{}", server.addr()), trusting(&[server.certificates()]));
    let options = ConnectOptions::new(&url).tls_config(config);
    is_not_trusted(&url).await;
    works(options.clone()).await;
    let token = FencingToken::new(7).unwrap();
    Fence::connect(options.clone()).await.unwrap().resource("a").activate(token).await.unwrap();
    Redis::connect(options.clone()).await.unwrap().activate("b", token).await.unwrap();
    let check = || blocking::Locks::connect(options)?.check();
    tokio::task::spawn_blocking(check).await.unwrap().unwrap();
}

#[tokio::test]
async fn redlock_takes_it_for_the_nodes_that_have_tls() {
    let [one, two] = [(); 2].map(|()| redis::Server::config().tls().start());
    let plain = redis::Server::start();
    let config = trusting(&[one.certificates(), two.certificates()]);
    let url = format!("redlock:rediss://{},rediss://{},redis://{}", one.addr(), two.addr(), plain.addr());
    let options = ConnectOptions::new(url).tls_config(config.clone());
    assert_eq!(Locks::init(options.clone()).await.unwrap().len(), 3);
    works(options).await;
    let nowhere = format!("redlock:redis://{0},redis://{0},redis://{0}", plain.addr());
    is_invalid(ConnectOptions::new(nowhere).tls_config(config), "does not ask for TLS").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_takes_it_and_says_what_it_speaks() {
    let cluster = etcd::Cluster::config().tls_with_client_certificate().start(1);
    let (url, config) = (format!("etcds://{}", cluster[0].addr()), trusting(&[cluster.certificates()]));
    is_not_trusted(&url).await;
    works(ConnectOptions::new(&url).tls_config(config)).await;
}

#[tokio::test]
async fn postgres_takes_it_for_locks_and_for_fences() {
    let server = postgres::Server::config().tls().start();
    let plain = format!("{}?timeout=20s", server.url(&server.create_database()));
    let (url, config) = (format!("{plain}&sslmode=verify-full"), trusting(&[server.certificates()]));
    let options = ConnectOptions::new(&url).tls_config(config.clone());
    is_not_trusted(&url).await;
    works(options.clone()).await;
    let fence = Fence::connect(options).await.unwrap();
    fence.resource("a").activate(FencingToken::new(7).unwrap()).await.unwrap();
    // A server that may be anybody is not what somebody means who brings authorities.
    is_invalid(ConnectOptions::new(plain).tls_config(config), "sslmode=verify-full").await;
}

#[tokio::test]
async fn what_it_cannot_mean_is_refused_and_no_password_is_shown() {
    let folder = fencepost_testkit::Folder::new("tls");
    let config = trusting(&[&Certificates::make(folder.path())]);
    let with = |url: &str| ConnectOptions::new(url).tls_config(config.clone());
    let names = ["memory:", "file:x", "redis://:s3cret@h", "redis+unix:///s", "etcd://h", "zookeeper://h"];
    for url in names {
        is_invalid(with(url), "does not ask for TLS").await;
        assert!(!format!("{:?}", with(url)).contains("s3cret"));
    }
    is_invalid(with("rediss://h?ca=/ca.pem"), "leave them out").await;
    is_invalid(with("etcds://h?cert=/a&key=/b"), "leave them out").await;
    assert_eq!(format!("{:?}", with("rediss://u:s3cret@h/2")), "ConnectOptions(\"rediss://u@h/2\")");
}
