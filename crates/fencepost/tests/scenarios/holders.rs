//! Holders that stand still: as processes that are stopped, or on a thread that is kept busy.

use std::time::Duration;

use fencepost::SupervisorExt as _;
use fencepost::fence::postgres::MIGRATION;
use fencepost::{Guard, Locks, State};
use fencepost_testkit::etcd::Cluster;
use fencepost_testkit::redis::{Nodes, Server};
use fencepost_testkit::zookeeper::{self, Ensemble};
use fencepost_testkit::{Folder, LIMIT, Proxy};

use crate::children::client;
use crate::database::Database;
use crate::redis_nodes::{
    CALM, LONG, boottime, bounded, connect_to_all, declared, holds, is_clear, ms, until,
};
use crate::register::{Register, serve};

/// A lease that ends while its holder is stopped.
const TTL: &str = "1500";

/// Clients with and without links of their own belong to one deployment if its name says so.
const NAMED: &str = "max_ttl=20m&deployment=test";

/// A resource that is a file.
async fn is_stopped_past_its_lease(url: &str, through: &str, links: &[Proxy]) {
    let folder = Folder::new("holders");
    is_refused_by(&format!("file://{}", folder.path().display()), url, through, links).await;
}

/// Stops a holder, which reaches the store at `url` over `links` as `through` says, until another one has the
/// lock, and lets it go on. Both write to the resource at `register`.
async fn is_refused_by(register: &str, url: &str, through: &str, links: &[Proxy]) {
    let mut holder = client(through);
    let first: u64 = holder.ask(&format!("acquire {TTL}")).parse().unwrap();
    assert_eq!(holder.ask(&format!("activate {register}")), "fine");
    assert_eq!(holder.ask("write first"), "fine");
    let rival = Locks::connect(url).await.unwrap();
    assert!(rival.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    holder.pause();
    links.iter().for_each(Proxy::stall);
    // Only the end of the lease can free it.
    let next = rival.lock("a").ttl(Duration::from_secs(10)).wait(LIMIT).acquire().await.unwrap();
    assert!(next.token().get() > first);
    let account = Register::activate(register, next.token()).await.unwrap();
    account.write("second").await.unwrap();
    holder.resume();
    // It learns nothing from the store.
    let state = holder.ask("state");
    assert!(state.starts_with("lost"), "it cannot have heard of it: {state}");
    links.iter().for_each(Proxy::pass);
    assert_eq!(holder.ask("write third"), "stale");
    assert_ne!(holder.ask("extend"), "fine");
    assert_ne!(holder.ask("release"), "fine");
    assert_eq!(account.read().await.unwrap(), "second");
    next.check().unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s08_a_holder_stopped_past_its_lease_knows_and_is_refused_on_redis() {
    let server = Server::start();
    let link = Proxy::start(server.addr());
    is_refused_by(&server.url(), &server.url(), &server.url_at(link.addr()), &[link]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s08_a_holder_stopped_past_its_lease_knows_and_is_refused_by_an_http_service() {
    let server = Server::start();
    let link = Proxy::start(server.addr());
    is_refused_by(&serve().await, &server.url(), &server.url_at(link.addr()), &[link]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s08_a_holder_stopped_past_its_lease_knows_and_is_refused_on_redlock() {
    let nodes = declared(3, NAMED).await;
    let links = nodes.proxies();
    is_stopped_past_its_lease(&nodes.url_with(NAMED), &nodes.url_through(&links, NAMED), &links).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s08_a_holder_stopped_past_its_lease_knows_and_is_refused_on_postgres() {
    let database = Database::new();
    let link = Proxy::start(database.server.addr());
    database.psql(MIGRATION);
    is_refused_by(&database.url(), &database.url(), &database.url_over(link.addr()), &[link]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s08_a_holder_stopped_past_its_lease_knows_and_is_refused_on_etcd() {
    let cluster = Cluster::start(1);
    let link = Proxy::start(cluster[0].addr());
    is_stopped_past_its_lease(&cluster.url(), &cluster.url_at(&link.addr().to_string()), &[link]).await;
}

async fn is_stopped_behind(server: &zookeeper::Server) {
    let link = Proxy::start(server.addr());
    is_stopped_past_its_lease(&server.url(), &format!("zookeeper://{}", link.addr()), &[link]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s46_a_session_expires_while_its_holder_is_stopped() {
    is_stopped_behind(&zookeeper::Server::start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s46_a_session_expires_behind_a_follower_while_its_holder_is_stopped() {
    let ensemble = Ensemble::start(3);
    is_stopped_behind(ensemble.follower()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s09_a_client_stopped_between_the_answers_and_its_return_holds_nothing() {
    let nodes = Nodes::start(3);
    let links = nodes.proxies();
    let url = nodes.url_through(&links, &format!("{CALM}&timeout=1m"));
    Locks::init(&url).await.unwrap();
    let mut late = client(&url);
    // Its connections are all there behind this: answers are held back that it asks for, not greetings.
    assert!(late.ask("acquire 600000").parse::<u64>().is_ok());
    until("it is granted everywhere", async || nodes.iter().all(|node| holds(node, "a"))).await;
    assert_eq!(late.ask("release"), "fine");
    is_clear(&nodes).await;
    links.iter().for_each(Proxy::hold_answers);
    late.tell(&format!("try {TTL}"));
    until("all nodes have granted it", async || nodes.iter().all(|node| holds(node, "a"))).await;
    late.pause();
    // Now the answers wait in its own sockets.
    links.iter().for_each(Proxy::pass);
    let rival = Locks::connect(&url).await.unwrap();
    let next = rival.lock("a").ttl(LONG).wait(LIMIT).acquire().await.unwrap();
    late.resume();
    let said = late.answer();
    assert!(said.parse::<u64>().is_err(), "it was told that it has the lock: {said}");
    next.extend().await.unwrap();
    next.release().await.unwrap();
}

/// Waits without letting anything else on this thread run until the time is over that a guard has now.
fn block_past_its_time(guard: &Guard) {
    let end = guard.valid_until_boottime().unwrap();
    while boottime() <= end {
        std::thread::sleep(ms(5));
    }
}

/// One thread, which the caller blocks.
#[tokio::test]
async fn s35_a_blocked_executor_does_not_starve_renewal() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let guard = locks.lock("a").ttl(ms(4000)).acquire().await.unwrap();
    block_past_its_time(&guard);
    assert!(!guard.state().is_lost(), "{:?}", guard.state());
    guard.release().await.unwrap();
}

/// One thread, which the caller blocks, and servers that do not answer the keeper.
#[tokio::test]
async fn s35_a_guard_that_cannot_be_renewed_is_lost_although_nothing_runs() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let guard = locks.lock("a").ttl(ms(1500)).acquire().await.unwrap();
    nodes.iter().for_each(Server::pause);
    // A renewal that came before it was stopped puts the end off.
    while !guard.valid_for().unwrap().is_zero() {
        block_past_its_time(&guard);
    }
    assert!(matches!(guard.state(), State::Lost(_)), "{:?}", guard.state());
    assert!(guard.check().is_err());
    bounded("it is told", guard.lost()).await;
    nodes.iter().for_each(Server::resume);
}
