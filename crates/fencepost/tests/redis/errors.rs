//! Errors keep their kind, name the thing, and stay with the lock that they are about.

use fencepost::{Error, Locks, Loss, State};
use fencepost_testkit::redis::Server;

use crate::harness::{connect, ms, secs, until, use_once};

const RIGHTS: [&str; 6] = ["ACL", "SETUSER", "some", "on", ">pw", "+@all"];

/// Lets the user have the keys of locks that begin like this.
fn allow(server: &Server, patterns: &[&str]) {
    let keys: Vec<_> =
        patterns.iter().flat_map(|start| [format!("~lock:{start}*"), format!("~{{lock:{start}*")]).collect();
    let mut words = [&RIGHTS[..], &["&*", "resetkeys"]].concat();
    words.extend(keys.iter().map(String::as_str));
    server.cli(&words);
}

async fn some(server: &Server) -> Locks {
    Locks::connect(&server.url().replace("://", "://some:pw@")).await.unwrap()
}

/// Renewals share calls, and a call with one key that is not allowed is refused as a whole.
#[tokio::test]
async fn a_lock_that_is_not_allowed_any_more_takes_no_other_with_it() {
    let server = Server::start();
    allow(&server, &["a", "b"]);
    let locks = some(&server).await;
    let lock = |name: &str| locks.lock(name).ttl(secs(4)).renew_every(ms(300));
    let mut kept = Vec::new();
    for index in 0..20 {
        kept.push(lock(&format!("a{index}")).acquire().await.unwrap());
    }
    let refused = lock("b").acquire().await.unwrap();
    allow(&server, &["a"]);
    until("the one is lost", async || refused.state().is_lost()).await;
    let before = locks.stats().renewed;
    until("the others are renewed", async || locks.stats().renewed >= before + 60).await;
    assert!(!kept.iter().any(|guard| guard.state().is_lost()));
    let held = || kept.iter().all(|guard| matches!(guard.state(), State::Held { .. }));
    until("the others are held", async || held()).await;
}

#[tokio::test]
async fn a_refusal_of_a_request_for_a_held_lock_stays_one() {
    let server = Server::start();
    allow(&server, &["a"]);
    let locks = some(&server).await;
    let guard = locks.lock("a").ttl(secs(60)).acquire().await.unwrap();
    let handle = locks.lock("a2").ttl(secs(60)).acquire().await.unwrap().detach().await.unwrap();
    allow(&server, &["other"]);
    let refused = |error: Error| {
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains("does not let this user"), "{error}");
    };
    refused(locks.extend(&handle, secs(60)).await.unwrap_err());
    refused(locks.release(&handle).await.unwrap_err());
    refused(locks.attach(&handle).await.unwrap_err());
    refused(guard.release().await.unwrap_err());
}

#[tokio::test]
async fn a_store_out_of_reach_is_said_once() {
    let mut server = Server::start();
    let locks = connect(&server).await;
    let guard = locks.lock("a").ttl(secs(60)).acquire().await.unwrap();
    let handle = locks.lock("b").ttl(secs(60)).acquire().await.unwrap().detach().await.unwrap();
    server.kill();
    let errors = [
        locks.lock("c").try_acquire().await.unwrap_err(),
        locks.extend(&handle, secs(60)).await.unwrap_err(),
        locks.show("a").await.unwrap_err(),
        guard.extend().await.unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_transient(), "{error:?}");
        assert_eq!(error.to_string().matches("out of reach").count(), 1, "{error}");
    }
}

#[tokio::test]
async fn a_user_that_may_not_publish_is_refused_when_it_connects() {
    let server = Server::start();
    server.cli(&["ACL", "SETUSER", "some", "on", ">pw", "+@all", "-publish", "~*", "&*"]);
    let error = Locks::connect(&server.url().replace("://", "://some:pw@")).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("+@pubsub"), "{error}");
}

/// The server gives the lock back and says which key is in the way.
#[tokio::test]
async fn a_queue_of_another_type_does_not_keep_the_lock_from_being_given_back() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = locks.lock("a").ttl(secs(60)).acquire().await.unwrap();
    server.cli(&["SET", "{lock:a}:waiting", "no list"]);
    let error = guard.release().await.unwrap_err();
    assert!(error.to_string().contains("`{lock:a}:waiting` is a string, not a list"), "{error}");
    assert!(server.keys_like("lock:*").is_empty());
}

/// An error of the script names a key, and so whatever its lock is called.
#[tokio::test]
async fn a_name_that_reads_like_a_code_does_not_end_the_connection_of_the_others() {
    let server = Server::start();
    let locks = connect(&server).await;
    use_once(&locks, "a").await;
    until("the keeper has connected, too", async || listeners(&server).len() == 2).await;
    let before = listeners(&server);
    server.cli(&["RPUSH", "{lock:a READONLY b}:fence", "no text"]);
    server.cli(&["SET", "{lock:c: -READONLY d}:fence", "9007199254740991"]);
    for name in ["a READONLY b", "c: -READONLY d"] {
        let error = locks.lock(name).try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Backend { .. }), "{error:?}");
        assert!(error.to_string().contains(":fence"), "{error}");
    }
    assert_eq!(listeners(&server), before, "the connections stay");
}

/// The connections that pushes go to.
fn listeners(server: &Server) -> Vec<String> {
    let clients = server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    clients.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
}

/// Whoever shares the server can write there what no reply may be as long as.
#[tokio::test]
async fn a_foreign_value_of_any_length_takes_no_other_lock_with_it() {
    let server = Server::start();
    let locks = connect(&server).await;
    let lock = |name: &str| locks.lock(name).ttl(secs(10)).renew_every(ms(300));
    let (overwritten, kept) = (lock("a").acquire().await.unwrap(), lock("b").acquire().await.unwrap());
    let long = "return redis.call('SET', KEYS[1], string.rep('x', 9 * 2 ^ 20), 'PX', '60000')";
    server.cli(&["EVAL", long, "1", "lock:a"]);
    until("it is lost", async || overwritten.state().is_lost()).await;
    assert_eq!(overwritten.state(), State::Lost(Loss::Taken));
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    let before = locks.stats().renewed;
    until("the other one is renewed", async || locks.stats().renewed >= before + 3).await;
    kept.release().await.unwrap();
}

/// A server that only looks like one: it was built, or told, to do without.
#[tokio::test]
async fn a_server_without_a_command_that_locks_need_is_refused() {
    for command in ["HELLO", "INFO", "SCRIPT", "EVALSHA", "TIME", "SUBSCRIBE", "PUBLISH", "LPOP"] {
        let server = Server::config().line(format!("rename-command {command} \"\"")).start();
        let attempt = async { Locks::connect(&server.url()).await?.lock("a").try_acquire().await };
        let error = attempt.await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{command}: {error:?}");
        assert!(error.to_string().contains("Fencepost needs Redis 6.2 or newer"), "{command}: {error}");
        assert_eq!(server.keys(), [""; 0], "{command}");
    }
}
