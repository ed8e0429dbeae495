//! Promise 7: each kind of trouble has an error of its own, that names the holder and never a password.

use std::error::Error as _;
use std::time::Duration;

use fencepost::{Error, Locks, Wait};
use fencepost_testkit::etcd;
use fencepost_testkit::redis::{self, Server};

use crate::stage::{IN_VAIN, Stage, bounded, patient, take};

on_every_store!(
    busy_names_the_holder,
    timeout_names_the_holder,
    bad_names_and_options_are_refused_before_anything_is_done,
);
on_redis!(a_killed_server_is_out_of_reach, a_server_that_became_a_replica_is_a_configuration_error,);

const PASSWORD: &str = "correct-horse-battery";

/// All an error says: to people, to developers, and in its sources.
fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(inner) = source {
        text += &format!(" {inner} {inner:?}");
        source = inner.source();
    }
    text
}

fn describes_us(error: &Error, note: &str) {
    let holder = error.holder().expect("the holder is named");
    assert_eq!(holder.pid, Some(std::process::id()));
    assert_eq!(holder.note.as_deref(), Some(note));
    assert!(holder.age().is_some() && holder.owner.is_some());
    let host = holder.host.as_deref().unwrap();
    let message = error.to_string();
    for part in ["`a`", host, &std::process::id().to_string(), note, "held for"] {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

async fn busy_names_the_holder(stage: Stage) {
    let (locks, rival) = (stage.locks().await, stage.locks().await);
    let _held = patient(&locks, "a").note("nightly report").acquire().await.unwrap();
    let error = rival.lock("a").wait(Wait::No).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }) && error.is_transient(), "{error}");
    describes_us(&error, "nightly report");
    assert_eq!(rival.stats().busy, 1);
}

async fn timeout_names_the_holder(stage: Stage) {
    let (locks, rival) = (stage.locks().await, stage.locks().await);
    let _held = patient(&locks, "a").note("nightly report").acquire().await.unwrap();
    let error = rival.lock("a").wait(IN_VAIN).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }) && error.is_transient(), "{error}");
    describes_us(&error, "nightly report");
}

async fn bad_names_and_options_are_refused_before_anything_is_done(stage: Stage) {
    let locks = stage.locks().await;
    let second = Duration::from_secs(1);
    let refused = [
        locks.lock(""),
        locks.lock("a\0b"),
        locks.lock("x".repeat(513)),
        locks.lock("a").ttl(Duration::ZERO),
        locks.lock("a").ttl(Duration::MAX),
        locks.lock("a").ttl(second).renew_every(second),
        locks.lock("a").max_hold(Duration::ZERO),
        locks.lock("a").note("x".repeat(1025)),
    ];
    for lock in refused {
        let error = lock.acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && !error.is_transient(), "{error}");
        assert!(matches!(lock.try_acquire().await, Err(Error::Invalid { .. })));
    }
    assert!(matches!(locks.show("").await, Err(Error::Invalid { .. })));
    assert!(matches!(locks.force_release("", "x").await, Err(Error::Invalid { .. })));
    let none: [&str; 0] = [];
    assert!(matches!(locks.all(none).acquire().await, Err(Error::Invalid { .. })));
    stage.is_clear().await;
}

#[tokio::test]
async fn a_bad_url_is_invalid_and_says_what_would_be_right() {
    for (url, word) in [
        ("", "scheme"),
        ("localhost", "scheme"),
        ("mongodb://localhost", "known are"),
        ("redis://localhost:port", "host"),
        ("redis://localhost?tll=5s", "`ttl`"),
        ("redis://localhost?ttl=5", "duration"),
        ("redis://localhost?ttl=1ms", "ttl"),
        ("memory:?x=1", "`ttl`"),
        ("file:?x=1", "`ttl`"),
    ] {
        let error = Locks::connect(url).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{url}: {error}");
        assert!(error.to_string().contains(word), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_a_configuration_error() {
    let server = Server::config().password(PASSWORD).start();
    let right = server.url();
    let none = format!("redis://{}", server.addr());
    let wrong = right.replace(PASSWORD, "wrong-horse-battery");
    for url in [none, wrong] {
        let error = Locks::connect(&url).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }) && !error.is_transient(), "{error}");
        assert!(error.to_string().contains("password"), "{error}");
        assert!(!everything(&error).contains("horse"), "{error:?}");
    }
    Locks::connect(&right).await.unwrap();
}

#[tokio::test]
async fn a_password_is_in_no_message() {
    let server = Server::config().user("alice", PASSWORD).start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let guard = take(&locks, "a").await;
    let shown = format!(
        "{locks:?} {:?} {guard:?} {:?} {:?}",
        locks.capabilities(),
        locks.lock("a"),
        locks.show("a").await.unwrap()
    );
    assert!(!shown.contains(PASSWORD), "{shown}");
    drop(server);
    let error = locks.lock("b").try_acquire().await.unwrap_err();
    assert!(!everything(&error).contains(PASSWORD), "{error:?}");
    for url in [
        format!("redis://alice:{PASSWORD}@127.0.0.1:1"),
        format!("redis://alice:{PASSWORD}@127.0.0.1:x"),
        format!("redis://alice:{PASSWORD}@127.0.0.1?nope=1"),
        format!("redis://alice:{PASSWORD}@127.0.0.1/not-a-number"),
        format!("nope://alice:{PASSWORD}@127.0.0.1"),
        format!("alice:{PASSWORD}@127.0.0.1"),
    ] {
        let error = Locks::connect(&url).await.unwrap_err();
        assert!(!everything(&error).contains(PASSWORD), "{error:?}");
    }
}

/// The stores that know users, each with the URL of one who may log in by [`PASSWORD`].
struct Guarded {
    urls: Vec<String>,
    _servers: (Server, redis::Fleet, etcd::Cluster, Vec<Stage>),
}

impl Guarded {
    async fn start() -> Self {
        let one = Server::config().user("alice", PASSWORD).start();
        let fleet = redis::Fleet::start_with(3, |config| config.user("alice", PASSWORD));
        let cluster = etcd::Cluster::config().password(PASSWORD).start(1);
        let (zookeeper, postgres) = (Stage::zookeeper(), Stage::postgres());
        let Stage::Zookeeper(part) = &zookeeper else { panic!("a stage of ZooKeeper") };
        let Stage::Postgres(database) = &postgres else { panic!("a stage of PostgreSQL") };
        let role = format!("alice_{}", database.psql("SELECT current_database()"));
        database.psql(&format!("CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{PASSWORD}'"));
        let (before, behind) = ("//postgres@", format!("//{role}:{PASSWORD}@"));
        let sql = database.url();
        assert!(sql.contains(before), "{sql}");
        let urls = vec![
            one.url(),
            fleet.url(),
            cluster.url(),
            part.url().replace("//", &format!("//alice:{PASSWORD}@")),
            sql.replace(before, &behind),
        ];
        assert!(urls.iter().all(|url| url.contains(PASSWORD)), "{urls:?}");
        assert_eq!(Locks::init(&urls[1]).await.unwrap().len(), 3);
        Self { urls, _servers: (one, fleet, cluster, vec![zookeeper, postgres]) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_store_shows_its_password_to_a_developer_or_in_an_error() {
    let guarded = Guarded::start().await;
    for url in &guarded.urls {
        let locks = bounded("connecting ends", Locks::connect(url)).await.unwrap();
        let (lock, set) = (locks.lock("a"), locks.all(["b", "c"]));
        let (one, both) = (lock.acquire().await.unwrap(), set.acquire().await.unwrap());
        let shown = format!("{locks:?} {lock:?} {set:?} {one:?} {both:?} {:?}", locks.capabilities());
        let pretty = format!("{locks:#?} {lock:#?} {set:#?} {one:#?} {both:#?}");
        assert!(!shown.contains("horse") && !pretty.contains("horse"), "{shown} {pretty}");
        one.release().await.unwrap();
        both.release().await.unwrap();
        // A login that is refused, a server that is not there, and a URL that makes no sense.
        let wrong = url.replace(PASSWORD, "wrong-horse-battery");
        let (login, rest) = url.split_once('@').unwrap();
        let database = rest.split_once('/').map_or(String::new(), |(_, path)| format!("/{path}"));
        let one = url.starts_with("redis:");
        let hosts = if one { "127.0.0.1:1" } else { "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3" };
        let absent = format!("{login}@{hosts}{database}");
        let senseless = format!("{url}{}nope=1", if url.contains('?') { '&' } else { '?' });
        for url in [wrong, absent, senseless] {
            let outcome = match bounded("connecting ends", Locks::connect(&url)).await {
                Ok(locks) => bounded("the try ends", locks.lock("a").try_acquire()).await.map(drop),
                Err(error) => Err(error),
            };
            // ZooKeeper lets everybody log in, and looks at the login when a node is used.
            if let Err(error) = outcome {
                assert!(!everything(&error).contains("horse"), "{error:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_refused_connection_is_unavailable() {
    let server = Server::start();
    let url = server.url();
    drop(server);
    let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && error.is_transient(), "{error}");
    let Error::Unavailable { source, .. } = &error else { unreachable!() };
    assert!(source.to_string().contains("refused") || source.source().is_some(), "{source}");
}

#[tokio::test]
async fn a_replica_is_refused_with_the_alternative() {
    let primary = Server::start();
    let replica = Server::config().replica_of(&primary).start();
    let error = Locks::connect(&replica.url()).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
}

#[tokio::test]
async fn an_evicting_server_is_refused_with_the_alternative() {
    for policy in ["allkeys-lru", "volatile-ttl", "allkeys-random"] {
        let server = Server::config().maxmemory_policy(policy).start();
        let error = Locks::connect(&server.url()).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error}");
        assert!(error.to_string().contains(policy) && error.to_string().contains("noeviction"), "{error}");
    }
    let server = Server::config().maxmemory_policy("noeviction").start();
    Locks::connect(&server.url()).await.unwrap();
}

async fn a_killed_server_is_out_of_reach(mut stage: Stage) {
    let locks = stage.locks().await;
    stage.server_mut().kill();
    let error = bounded("the try ends", locks.lock("a").try_acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(bounded("show ends", locks.show("a")).await.is_err());
    stage.server_mut().restart();
    take(&locks, "a").await.release().await.unwrap();
}

async fn a_server_that_became_a_replica_is_a_configuration_error(stage: Stage) {
    let locks = stage.locks().await;
    let primary = Server::start();
    stage.server().cli(&["REPLICAOF", "127.0.0.1", &primary.addr().port().to_string()]);
    let error = bounded("the try ends", locks.lock("a").try_acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
}
