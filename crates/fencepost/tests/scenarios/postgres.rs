//! PostgreSQL: sessions that are killed, reset or cut off, a pooler in between, a server that crashes, two
//! names with one key.

use fencepost::{Error, Locks, Loss, State};
use fencepost_testkit::Proxy;
use fencepost_testkit::postgres::{Bouncer, Config, Pooling, Server};

use crate::database::{Database, LONG, Room, bounded, calm, ms, patient, take, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s37_a_killed_backend_loses_its_locks_at_once_and_nobody_gets_them_before_the_lease_ends() {
    let database = Database::new();
    let (locks, rival, third) = (database.locks().await, database.locks().await, database.locks().await);
    let room = Room::default();
    let mut last = None;
    for _ in 0..4 {
        let guard = locks.lock("a").ttl(ms(5_000)).acquire().await.unwrap();
        assert!(Some(guard.token()) > last);
        room.enter();
        let waiter = tokio::spawn({
            let (lock, room) = (patient(&rival, "a"), room.clone());
            async move {
                let guard = lock.acquire().await.unwrap();
                room.enter();
                guard
            }
        });
        until("it waits", async || rival.stats().waiting_now == 1).await;
        database.terminate_holder("a");
        assert_eq!(bounded("the guard learns it", guard.lost()).await, Loss::SessionEnded);
        // The advisory lock is free, the lease is not: a holder that has not learnt it yet is still alone.
        until("the advisory lock is gone", async || database.advisory_locks() == "0").await;
        assert!(third.lock("a").try_acquire().await.unwrap().is_none());
        assert!(!waiter.is_finished());
        assert_eq!(database.rows(), "1");
        room.leave();
        let next = bounded("the next one gets it", waiter).await.unwrap();
        assert!(next.token() > guard.token());
        last = Some(next.token());
        assert!(matches!(guard.release().await, Err(Error::Lost { why: Loss::SessionEnded, .. })));
        next.check().unwrap();
        room.leave();
        next.release().await.unwrap();
    }
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s37_without_a_delay_a_killed_backend_frees_its_locks() {
    let database = Database::new();
    let locks = database.locks_with("lock_delay=0").await;
    let rival = database.locks().await;
    let guard = take(&locks, "a").await;
    assert!(rival.lock("a").try_acquire().await.unwrap().is_none());
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none(), "the same session is no exception");
    database.terminate_holder("a");
    // Long before the lease ends.
    let next = take(&rival, "a").await;
    assert!(next.token() > guard.token());
    assert_eq!(bounded("the guard learns it", guard.lost()).await, Loss::SessionEnded);
    drop(guard);
    next.extend().await.unwrap();
    next.release().await.unwrap();
    assert_eq!(rival.show("a").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s40_a_holder_that_cannot_be_reached_is_lost_before_the_next_one_gets_the_lock() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let locks = fencepost::Locks::connect(&database.url_over(proxy.addr())).await.unwrap();
    let rival = database.locks().await;
    // Whoever renews is told by its own store as well, which asks for nothing behind the end; who does not
    // has its clock alone.
    for renew in [true, false] {
        // Longer than the time after its end in which nobody ends the session.
        let lock = locks.lock("a").ttl(ms(3000)).wait(LONG);
        let lock = if renew { lock } else { lock.without_renewal() };
        let guard = lock.acquire().await.unwrap();
        let other = locks.lock("b").ttl(LONG).wait(LONG).acquire().await.unwrap();
        proxy.stall();
        // Its session keeps the advisory lock until somebody who waits ends it.
        let next = take(&rival, "a").await;
        assert!(guard.state().is_lost(), "{:?} while another has it", guard.state());
        assert!(matches!(other.state(), State::Held { .. } | State::AtRisk { .. }), "{:?}", other.state());
        assert!(rival.lock("b").try_acquire().await.unwrap().is_none(), "its lease has not ended");
        proxy.reset();
        assert_eq!(bounded("it learns that its session is gone", other.lost()).await, Loss::SessionEnded);
        next.release().await.unwrap();
        drop((guard, other));
    }
    database.is_clear().await;
}

#[tokio::test]
async fn s39_a_transaction_pool_is_refused_and_the_fix_is_named() {
    let database = Database::new();
    for pooling in [Pooling::Transaction, Pooling::Statement] {
        let bouncer = Bouncer::start(database.server, pooling);
        for _ in 0..3 {
            let connected = Locks::connect(&database.url_over(bouncer.addr())).await;
            assert!(matches!(connected, Err(Error::Config { .. })), "{pooling:?}: {connected:?}");
            let text = connected.unwrap_err().to_string();
            assert!(text.contains("session mode") && text.contains("lock_in_transaction"), "{text}");
        }
    }
}

#[tokio::test]
async fn s39_a_busy_transaction_pool_is_refused_too() {
    let database = Database::new();
    let bouncer = Bouncer::start(database.server, Pooling::Transaction);
    let mut others = Vec::new();
    for _ in 0..3 {
        let (client, connection) =
            tokio_postgres::connect(&database.driver_url_over(bouncer.addr()), tokio_postgres::NoTls)
                .await
                .unwrap();
        tokio::spawn(connection);
        client.simple_query("SELECT 1").await.unwrap();
        others.push(client);
    }
    others[0].simple_query("BEGIN").await.unwrap();
    let error = Locks::connect(&database.url_over(bouncer.addr())).await.unwrap_err();
    assert!(error.to_string().contains("session mode"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_a_crash_ends_sessions_and_keeps_what_was_durable() {
    let mut server = Server::config().fsync().start();
    let database = server.create_database();
    let url = format!("{}&durable=yes", calm(&server.url(&database)));
    let locks = Locks::connect(&url).await.unwrap();
    let mut last = None;
    for _ in 0..3 {
        let guard = take(&locks, "a").await;
        assert!(Some(guard.token()) > last);
        server.kill();
        assert_eq!(bounded("the guard learns it", guard.lost()).await, Loss::SessionEnded);
        let error = bounded("the try ends", locks.lock("b").try_acquire()).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        server.restart();
        // Its last grant was on disk before it was told.
        let rival = Locks::connect(&url).await.unwrap();
        assert!(rival.lock("a").try_acquire().await.unwrap().is_none());
        let holder = rival.show("a").await.unwrap().unwrap();
        assert_eq!((holder.owner, holder.token), (Some(guard.owner()), Some(guard.token())));
        last = Some(guard.token());
        drop(guard);
    }
    take(&locks, "a").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_a_crash_may_lose_a_grant_that_was_not_durable_and_still_no_token_repeats() {
    let mut server = Server::start();
    let database = server.create_database();
    let url = calm(&server.url(&database));
    let mut last = None;
    for _ in 0..3 {
        let locks = Locks::connect(&url).await.unwrap();
        for _ in 0..20 {
            let guard = bounded("it is acquired", take(&locks, "a")).await;
            assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
            last = Some(guard.token());
            guard.release().await.unwrap();
        }
        server.restart();
        // A crash may also lose releases.
        server.psql(&database, "UPDATE fencepost.locks SET ends = clock_timestamp()");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_a_crash_takes_no_number_of_a_sequence_back() {
    // It logs a number ahead of 32 others, and not before somebody waits for the log.
    let mut server = Server::config().fsync().line("wal_writer_delay = 10s").start();
    let database = server.create_database();
    server.psql(&database, "CREATE SEQUENCE public.fence");
    let url = format!("{}&sequence=public.fence", calm(&server.url(&database)));
    let mut last = None;
    for _ in 0..3 {
        let locks = Locks::connect(&url).await.unwrap();
        let mut guards = Vec::new();
        // The server dies with the first number after those.
        for number in 0..34 {
            // Locks of their own, whose rows are as young as the numbers. None is given back, which would
            // write to the log, too.
            let guard = bounded("it is acquired", take(&locks, &format!("{last:?} {number}"))).await;
            assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
            last = Some(guard.token());
            guards.push(guard);
        }
        server.restart();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s42_two_names_with_one_key_are_an_error_and_no_deadlock() {
    let database = Database::new();
    let (locks, rival) = (database.locks().await, database.locks().await);
    let guard = take(&locks, "a").await;
    // No two names are known to have one key. This row stands for another name that has it.
    database.psql("UPDATE fencepost.locks SET name = 'the other'");
    for locks in [&locks, &rival] {
        let error = locks.lock("a").try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains("`a`") && error.to_string().contains("`the other`"), "{error}");
    }
    guard.release().await.unwrap();
    take(&rival, "a").await.release().await.unwrap();
}

/// A server and its standby, with the link from one to the other, and an address that leads to the server.
struct Pair {
    server: Server,
    standby: Server,
    link: Proxy,
    address: Proxy,
    database: String,
}

impl Pair {
    fn start(config: Config) -> Self {
        let server = config.replicated().start();
        let database = server.create_database();
        let link = Proxy::start(server.addr());
        let standby = Server::start_standby(link.addr());
        let address = Proxy::start(server.addr());
        Self { server, standby, link, address, database }
    }

    /// Ends the server, and puts the standby into its place.
    fn fail_over(&mut self) {
        self.link.cut();
        self.server.kill();
        self.standby.promote();
        self.address.redirect(self.standby.addr());
        self.address.reset();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_tokens_grow_over_a_failover_to_a_standby_that_was_behind() {
    let mut pair = tokio::task::block_in_place(|| Pair::start(Server::config()));
    let url = calm(&pair.server.url_at(pair.address.addr(), &pair.database));
    let locks = Locks::connect(&url).await.unwrap();
    let mut tokens = vec![take(&locks, "a").await.token()];
    until("the standby has that row", async || {
        pair.standby.psql(&pair.database, "SELECT count(*) FROM pg_tables WHERE tablename = 'locks'") == "1"
            && pair.standby.psql(&pair.database, "SELECT count(*) FROM fencepost.locks") == "1"
    })
    .await;
    // It hears nothing of what follows.
    pair.link.stall();
    for _ in 0..20 {
        tokens.push(take(&locks, "a").await.token());
    }
    let old = take(&locks, "a").await;
    tokens.push(old.token());
    tokio::task::block_in_place(|| pair.fail_over());
    assert_eq!(bounded("the guard learns it", old.lost()).await, Loss::SessionEnded);
    // Exclusion is broken, as SAFETY.md says: the standby has not heard of this lease. Or it has an older
    // one.
    pair.standby.psql(&pair.database, "UPDATE fencepost.locks SET ends = clock_timestamp()");
    let rival = Locks::connect(&url).await.unwrap();
    tokens.push(take(&rival, "a").await.token());
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_a_standby_that_the_server_waits_for_has_every_durable_lease() {
    let mut pair = tokio::task::block_in_place(|| Pair::start(Server::config()));
    pair.server.psql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    pair.server.psql("postgres", "SELECT pg_reload_conf()");
    until("the server waits for it", async || {
        pair.server.psql("postgres", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
            == "1"
    })
    .await;
    let url = format!("{}&durable=yes", calm(&pair.server.url_at(pair.address.addr(), &pair.database)));
    let locks = Locks::connect(&url).await.unwrap();
    let old = take(&locks, "a").await;
    tokio::task::block_in_place(|| pair.fail_over());
    assert_eq!(bounded("the guard learns it", old.lost()).await, Loss::SessionEnded);
    let rival = Locks::connect(&url).await.unwrap();
    assert!(rival.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none(), "its lease is here, too");
    let holder = rival.show("a").await.unwrap().unwrap();
    assert_eq!((holder.owner, holder.token), (Some(old.owner()), Some(old.token())));
    let before = old.token();
    drop(old);
    assert!(take(&rival, "a").await.token() > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s38_a_database_that_ends_idle_sessions_does_not_end_ours() {
    let database = Database::new();
    for setting in ["idle_session_timeout", "idle_in_transaction_session_timeout", "statement_timeout"] {
        database.psql(&format!("ALTER DATABASE {} SET {setting} = '300ms'", database.name));
    }
    let (locks, rival) = (database.locks().await, database.locks().await);
    let guard = take(&locks, "a").await;
    let other = database.client().await;
    until("another idle session was ended", async || other.is_closed()).await;
    assert!(matches!(guard.state(), State::Held { .. }), "{:?}", guard.state());
    guard.extend().await.unwrap();
    assert!(rival.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}
