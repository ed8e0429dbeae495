//! What happens to a lock when somebody uses our own session behind our back: row 38 of docs/scenarios.md, and more.

use std::sync::Arc;
use std::time::Duration;

use fencepost_testkit::{LIMIT, postgres::Server};

use super::Store;
use super::config::Config;
use super::hub::Hub;
use super::key::Key;
use super::session::{Alarm, Room};
use crate::backend::{Backend as _, Request, TryOutcome};
use crate::runtime::clock::{Clock, Moment};
use crate::url::StoreUrl;
use crate::{Error, Guard, Locks, Loss, Name, State};

const LONG: Duration = Duration::from_secs(600);

async fn hub(database: &str) -> (Arc<Hub>, Locks) {
    let url = StoreUrl::parse(&format!("{}?timeout=20s", Server::shared().url(database))).unwrap();
    let hub = Hub::new(Config::from_url(url).unwrap()).unwrap();
    let locks = Locks::assemble(Arc::new(Store(hub.clone())), None).unwrap();
    (hub, locks)
}

async fn is_lost(guard: &Guard) -> Loss {
    tokio::time::timeout(LIMIT, guard.lost()).await.expect("it is noticed")
}

/// Runs SQL on the session that has the locks, and expects both of two locks to be lost: one that is renewed often, and
/// one whose renewal is minutes away.
async fn ends_all_locks(sql: &str) {
    let server = Server::shared();
    let database = server.create_database();
    let (hub, locks) = hub(&database).await;
    let often = locks.lock("often").ttl(LONG).renew_every(Duration::from_millis(50)).acquire().await.unwrap();
    let seldom = locks.lock("seldom").ttl(LONG).acquire().await.unwrap();
    assert!(matches!(seldom.state(), State::Held { .. }));
    let before = hub.session().await.unwrap();
    before.wire.client.batch_execute(sql).await.unwrap();
    assert_eq!(is_lost(&often).await, Loss::SessionEnded);
    assert_eq!(is_lost(&seldom).await, Loss::SessionEnded);
    // The leases outlive the session: nobody else gets in until they are given back.
    let (_other, rival) = self::hub(&database).await;
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
async fn s38_what_happens_after_an_idle_time_is_noticed_as_soon() {
    let database = Server::shared().create_database();
    let (hub, locks) = hub(&database).await;
    let session = hub.session().await.unwrap();
    // In a round, too, it is not set: it rests if it stays like that.
    tokio::time::timeout(LIMIT, async {
        let mut unset = 0;
        while unset < 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            unset = if session.alarm.is_set() { 0 } else { unset + 1 };
        }
    })
    .await
    .expect("the warden rests");
    let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    session.wire.client.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    assert_eq!(is_lost(&guard).await, Loss::SessionEnded);
}

#[tokio::test]
async fn an_alarm_that_is_set_while_nobody_waits_for_it_rings() {
    let (clock, alarm) = (Clock::system(), Alarm::default());
    let rings =
        async |moment| tokio::time::timeout(LIMIT, alarm.rings(&clock, moment)).await.expect("it rings");
    for _ in 0..2 {
        alarm.set(clock.now());
        rings(Moment::NEVER).await;
    }
    alarm.set(Moment::NEVER);
    rings(clock.now()).await;
}

#[tokio::test]
async fn a_name_has_the_same_key_here_and_in_sql() {
    let server = Server::shared();
    let database = server.create_database();
    let (hub, _locks) = hub(&database).await;
    let session = hub.session().await.unwrap();
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
        let sql = hub.config.sql("SELECT two_part, key FROM @schema@.key_of($1)");
        let row = session.wire.client.query_one(&sql, &[&name]).await.unwrap();
        let key = Key::of(&hub.config.schema, name);
        assert_eq!((row.get::<_, bool>(0), row.get::<_, i64>(1)), (key.two_part, key.number), "{name}");
    }
}

#[tokio::test]
async fn a_session_ends_with_its_store() {
    let server = Server::shared();
    let database = server.create_database();
    let (hub, locks) = hub(&database).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'");
    let counted = async |what: &'static str, number: &'static str| {
        let count = count.clone();
        let wait = move || fencepost_testkit::eventually(what, || server.psql("postgres", &count) == number);
        tokio::task::spawn_blocking(wait).await.unwrap();
    };
    // Those that made the schema end by themselves.
    counted("two connections are left", "2").await;
    drop((hub, locks));
    counted("no connection is left", "0").await;
}

#[tokio::test]
async fn renewals_and_releases_that_fail_say_of_what_kind() {
    let server = Server::shared();
    let database = server.create_database();
    let (hub, _locks) = hub(&database).await;
    let mut holds = Vec::new();
    for name in ["a", "b"] {
        let request = Request::new(Name::new(name).unwrap(), LONG, "".into(), Arc::default());
        match Store(hub.clone()).try_acquire(&request).await.unwrap() {
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
    let room = Arc::new(Room::new(20));
    let slots: Vec<_> = (0..7).map_while(|_| room.take(false)).collect();
    assert_eq!(slots.len(), 5);
    assert!(room.take(true).is_none());
    drop(slots);
    room.saw(11);
    assert!(room.take(false).is_none());
    assert!(room.take(true).is_some(), "what other code has to see");
    room.saw(10);
    assert!(room.take(false).is_some());
}
