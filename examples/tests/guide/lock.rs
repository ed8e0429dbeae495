//! Locks, guards, handles and errors.

use std::sync::Arc;
use std::time::Duration;

use fencepost::rustls::ClientConfig;
use fencepost::{ConnectOptions, Error, FencingToken, GuardSet, Locks, Retry, State};

use crate::Result;

struct Ledger;

impl Ledger {
    async fn write(&self, _order: u32, _fence: u64) -> Result<()> {
        Ok(())
    }
}

async fn build(token: FencingToken) -> Result<FencingToken> {
    Ok(token)
}

async fn transfer(guards: &GuardSet) -> Result<()> {
    guards.check()?;
    Ok(())
}

#[allow(dead_code)]
async fn first(ledger: Ledger, order: u32) -> Result<()> {
    let locks = Locks::connect("redis://127.0.0.1:6379").await?;
    let guard =
        locks.lock("order:42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(5)).acquire().await?;
    ledger.write(order, guard.token().get()).await?; // the ledger refuses a smaller token
    guard.release().await?;
    Ok(())
}

async fn tries(locks: &Locks) -> Result<()> {
    if let Some(guard) = locks.lock("report").try_acquire().await? {
        println!("my turn, token {}", guard.token());
        guard.release().await?;
    }
    Ok(())
}

async fn scopes(locks: &Locks) -> Result<()> {
    let report = locks.lock("report").scope(async |guard| build(guard.token()).await).await?;
    println!("made with {report}");
    let accounts = locks.all(["account:1", "account:2"]);
    accounts.scope(async |guards| transfer(guards).await).await?;
    Ok(())
}

async fn sets(locks: &Locks) -> Result<()> {
    let guards = locks.all(["account:1", "account:2"]).wait(Duration::from_secs(5)).acquire().await?;
    for (name, token) in guards.tokens() {
        println!("{name}: token {token}");
    }
    guards.release().await?;
    Ok(())
}

async fn polls(locks: &Locks) -> Result<()> {
    let ms = Duration::from_millis;
    let retry = Retry::exponential(ms(10), ms(500)).attempts(10).jitter();
    let guard = locks.lock("report").retry(retry).max_hold(Duration::from_secs(3600)).acquire().await?;
    guard.release().await?;
    Ok(())
}

async fn events(locks: &Locks) -> Result<()> {
    let guard = locks.lock("report").acquire().await?;
    let watch = guard.watch(); // for another task; keeps nothing held
    tokio::spawn(async move {
        if let Some(why) = watch.lost().await {
            eprintln!("the lock is lost: {why}");
        }
    });
    match guard.state() {
        State::Held { left, .. } => println!("held, {left:?} left without renewal"),
        State::AtRisk { left, why, .. } => println!("held for {left:?} more: {why}"),
        State::Lost(why) => println!("lost: {why}"),
        _ => {}
    }
    guard.check()?; // ask now and then in long work: an error once it is lost
    Ok(())
}

async fn handles(locks: &Locks) -> Result<()> {
    let handle = locks.lock("deploy").ttl(Duration::from_secs(60)).acquire().await?.detach().await?;
    let text = handle.to_string(); // a key: keep it as you keep a password

    let handle = text.parse()?; // in another process, maybe
    locks.extend(&handle, Duration::from_secs(120)).await?;
    let guard = locks.attach(&handle).await?; // renewed again, with the same token; the handle is used up
    guard.release().await?;
    Ok(())
}

async fn errors(locks: &Locks) -> Result<()> {
    match locks.lock("report").wait(Duration::from_secs(5)).acquire().await {
        Ok(guard) => guard.release().await?,
        Err(Error::Timeout { holder: Some(holder), .. }) => println!("still held by {holder}"),
        Err(error) if error.is_transient() => println!("try again later: {error}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

#[allow(dead_code)]
async fn tls(config: Arc<ClientConfig>) -> Result<()> {
    let options = ConnectOptions::new("rediss://cache.internal").tls_config(config);
    let locks = Locks::connect(options).await?;
    drop(locks);
    Ok(())
}

#[allow(dead_code)]
fn blocking() -> Result<()> {
    let locks = fencepost::blocking::Locks::connect("file:")?;
    let guard = locks.lock("order:42").acquire()?;
    println!("write with token {}", guard.token());
    guard.release()?;
    Ok(())
}

/// A lock that ends with the transaction.
async fn in_a_transaction(client: &mut tokio_postgres::Client) -> Result<FencingToken> {
    let transaction = client.transaction().await?; // READ COMMITTED
    let token = fencepost::postgres::lock_in_transaction(&transaction, "order:42").await?;
    transaction.execute("UPDATE orders SET paid = true WHERE id = 42", &[]).await?;
    transaction.commit().await?; // ends the lock
    Ok(token)
}

#[allow(dead_code)]
fn compares(guard: &fencepost::Guard) {
    use fencepost::EtcdExt;

    let compare = guard.etcd_compare().expect("a lock on etcd");
    // if create_revision(compare.key) == compare.create_revision then put(…)
    drop(compare);
}

#[tokio::test]
async fn what_the_guide_does_with_locks_works() {
    let locks = Locks::connect("memory:").await.unwrap();
    tries(&locks).await.unwrap();
    scopes(&locks).await.unwrap();
    sets(&locks).await.unwrap();
    polls(&locks).await.unwrap();
    events(&locks).await.unwrap();
    handles(&locks).await.unwrap();
    errors(&locks).await.unwrap();
    locks.close().await;
}

#[tokio::test]
async fn what_the_guide_does_in_a_transaction_works() {
    let server = fencepost_testkit::postgres::Server::shared();
    let database = server.create_database();
    server
        .psql(&database, "CREATE TABLE orders (id int, paid boolean); INSERT INTO orders VALUES (42, false)");
    let url = server.url(&database);
    Locks::init(&url).await.unwrap();
    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let earlier = in_a_transaction(&mut client).await.unwrap();
    assert!(in_a_transaction(&mut client).await.unwrap() > earlier);
    assert_eq!(server.psql(&database, "SELECT paid FROM orders"), "t");
    drop(client);
    connection.await.unwrap().unwrap();
}
