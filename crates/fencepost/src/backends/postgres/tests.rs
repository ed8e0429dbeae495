//! What happens to a lock when somebody else uses our own session: row 38 of docs/scenarios.md, and more.

use std::sync::Arc;
use std::time::Duration;

use fencepost_testkit::{LIMIT, postgres::Server};

use super::Store;
use super::client::Client;
use super::config::Config;
use super::keys::Key;
use super::session::AdvisoryQuota;
use crate::backend::{Backend as _, Request, TryOutcome};
use crate::url::StoreUrl;
use crate::{Error, Guard, Locks, Loss, Name, State};

const LONG: Duration = Duration::from_secs(600);

async fn client(database: &str) -> (Arc<Client>, Locks) {
    let url = StoreUrl::parse(&format!("{}?timeout=20s", Server::shared().url(database))).unwrap();
    let client = Client::new(Config::from_url(url).unwrap()).unwrap();
    let locks = Locks::assemble(Arc::new(Store(client.clone())), None).unwrap();
    (client, locks)
}

async fn is_lost(guard: &Guard) -> Loss {
    tokio::time::timeout(LIMIT, guard.lost()).await.expect("it is noticed")
}

/// Runs SQL on the session that has the locks, and expects both of two locks to be lost: one that is
/// renewed often, and one whose renewal is minutes away.
async fn ends_all_locks(sql: &str) {
    let server = Server::shared();
    let database = server.create_database();
    let (client, locks) = client(&database).await;
    let often = locks.lock("often").ttl(LONG).renew_every(Duration::from_millis(50)).acquire().await.unwrap();
    let seldom = locks.lock("seldom").ttl(LONG).acquire().await.unwrap();
    assert!(matches!(seldom.state(), State::Held { .. }));
    let before = client.session().await.unwrap();
    before.client().batch_execute(sql).await.unwrap();
    assert_eq!(is_lost(&often).await, Loss::SessionEnded);
    assert_eq!(is_lost(&seldom).await, Loss::SessionEnded);
    // The leases outlive the session: nobody else gets in until they are given back.
    let (_other, rival) = self::client(&database).await;
    assert!(rival.lock("seldom").try_acquire().await.unwrap().is_none());
    let token = seldom.token();
    drop((often, seldom));
    let next = rival.lock("seldom").wait(LIMIT).acquire().await.unwrap();
    assert!(next.token() > token);
    locks.lock("often").wait(LIMIT).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn s38_unlocking_everything_is_noticed() {
    ends_all_locks("SELECT pg_advisory_unlock_all()").await;
}

#[tokio::test]
async fn s38_a_reset_session_is_noticed() {
    ends_all_locks("DISCARD ALL").await;
}

#[tokio::test]
async fn a_name_has_the_same_key_here_and_in_sql() {
    let server = Server::shared();
    let database = server.create_database();
    let (client, _locks) = client(&database).await;
    let session = client.session().await.unwrap();
    for name in [
        "a",
        "ä/ö",
        "pg:12345",
        "pg:-1",
        "pg:1,42",
        "pg:-1,-42",
        "pg:x",
        "pg:1,",
        "pg:9223372036854775808",
        "pg:+1",
    ] {
        let sql = client.config.sql("SELECT two_part, key FROM @schema@.key_of($1)");
        let row = session.client().query_one(&sql, &[&name]).await.unwrap();
        let key = Key::of(&client.config.schema, name);
        assert_eq!((row.get::<_, bool>(0), row.get::<_, i64>(1)), (key.two_part, key.number), "{name}");
    }
}

#[tokio::test]
async fn a_session_ends_with_its_store() {
    let server = Server::shared();
    let database = server.create_database();
    let (client, locks) = client(&database).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'");
    let counted = async |what: &'static str, number: &'static str| {
        let count = count.clone();
        let wait = move || fencepost_testkit::eventually(what, || server.psql("postgres", &count) == number);
        tokio::task::spawn_blocking(wait).await.unwrap();
    };
    // Those that made the schema end by themselves.
    counted("two connections are left", "2").await;
    drop((client, locks));
    counted("no connection is left", "0").await;
}

#[tokio::test]
async fn renewals_and_releases_that_fail_say_of_what_kind() {
    let server = Server::shared();
    let database = server.create_database();
    let (client, _locks) = client(&database).await;
    let mut holds = Vec::new();
    for name in ["a", "b"] {
        let request = Request::new(Name::new(name).unwrap(), LONG, "".into(), Arc::default());
        match Store(client.clone()).try_acquire(&request).await.unwrap() {
            TryOutcome::Granted(grant) => holds.push(grant.hold),
            TryOutcome::Busy(_) => panic!("nobody else is here"),
        }
    }
    server.psql(&database, "ALTER TABLE fencepost.locks RENAME TO elsewhere");
    let (one, two) = tokio::join!(holds[0].renew(LONG), holds[1].renew(LONG));
    for error in [one.unwrap_err(), two.unwrap_err(), holds[0].release().await.unwrap_err()] {
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains("fencepost.locks"), "{error}");
    }
    server.psql(&database, "ALTER TABLE fencepost.elsewhere RENAME TO locks");
    assert!(holds[0].release().await.unwrap() && holds[1].release().await.unwrap());
}

#[test]
fn a_client_takes_a_quarter_of_the_table_and_nothing_of_one_that_is_half_full() {
    let quota = Arc::new(AdvisoryQuota::new(20));
    let slots: Vec<_> = (0..7).map_while(|_| quota.take(false)).collect();
    assert_eq!(slots.len(), 5);
    assert!(quota.take(true).is_none());
    drop(slots);
    quota.saw(11);
    assert!(quota.take(false).is_none());
    assert!(quota.take(true).is_some(), "what other code has to see");
    quota.saw(10);
    assert!(quota.take(false).is_some());
}
