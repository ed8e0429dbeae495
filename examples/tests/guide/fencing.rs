//! Resources that check the token.

use fencepost::fence::http::{FenceLayer, present, refusal};
use fencepost::fence::{self, Fence};
use fencepost::{Guard, Locks};
use http::{Request, Response};

use crate::Result;

#[allow(dead_code)]
async fn connects(guard: &Guard) -> Result<()> {
    let fence = Fence::connect("redis://127.0.0.1:6379").await?; // or file:, postgres:, memory:
    let account = fence.resource("account:7").activate(guard.token()).await?; // before the first read
    let balance = account.read().await?;
    account.write(deposit(balance)).await?; // Error::Stale if a later holder was here

    fence.resource("mail:7").write_once(guard.token(), "sent").await?; // each token once
    Ok(())
}

fn deposit(balance: Option<Vec<u8>>) -> Vec<u8> {
    vec![balance.map_or(0, |balance| balance[0]) + 1]
}

async fn begins(client: &mut tokio_postgres::Client, guard: &Guard) -> Result<()> {
    let transaction = fence::postgres::begin(client, "account:7", guard.token()).await?; // Stale: too late
    let row = transaction.query_one("SELECT balance FROM account WHERE id = 7", &[]).await?;
    let balance: i64 = row.get(0);
    transaction.execute("UPDATE account SET balance = $1 WHERE id = 7", &[&(balance + 5)]).await?;
    transaction.commit().await?;
    Ok(())
}

async fn activates(client: &mut tokio_postgres::Client, guard: &Guard) -> Result<()> {
    let level = tokio_postgres::IsolationLevel::RepeatableRead;
    let transaction = client.build_transaction().isolation_level(level).start().await?;
    fence::postgres::activate(&transaction, "account:7", guard.token()).await?; // before the first read
    let row = transaction.query_one("SELECT balance FROM account WHERE id = 7", &[]).await?;
    let balance: i64 = row.get(0);
    transaction.execute("UPDATE account SET balance = $1 WHERE id = 7", &[&(balance + 5)]).await?;
    transaction.commit().await?;
    Ok(())
}

fn account_of(path: &str) -> String {
    path.trim_matches('/').to_owned()
}

/// The layer, and what a client does.
async fn over_http(fence: Fence, guard: &Guard) -> Result<()> {
    let router = axum::Router::new().route("/account", axum::routing::get(async || "105"));
    // The service: a tower layer in front of any router.
    let layer = FenceLayer::new(fence, |request| account_of(request.uri.path())).reads_without_token();
    let mut service = tower::Layer::layer(&layer, router);

    // The client: the token goes with each request, and a refusal is a StaleToken.
    let mut request = Request::get("/account").body(axum::body::Body::empty())?;
    present(request.headers_mut(), guard.token());
    let response: Response<_> = tower::Service::call(&mut service, request).await?;
    if let Some(stale) = refusal(&response, "account:7", guard.token()) {
        return Err(stale.into());
    }
    Ok(())
}

#[tokio::test]
async fn what_the_guide_does_with_postgres_works() {
    let server = fencepost_testkit::postgres::Server::shared();
    let database = server.create_database();
    server.psql(
        &database,
        "CREATE TABLE account (id int PRIMARY KEY, balance bigint); INSERT INTO account VALUES (7, 100)",
    );
    let url = server.url(&database);
    drop(Fence::connect(&url).await.unwrap());
    let locks = Locks::connect("memory:").await.unwrap();
    let guard = locks.lock("account:7").acquire().await.unwrap();
    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    begins(&mut client, &guard).await.unwrap();
    activates(&mut client, &guard).await.unwrap();
    assert_eq!(server.psql(&database, "SELECT balance FROM account"), "110");
    drop(client);
    connection.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_the_guide_does_over_http_works() {
    let fence = Fence::connect("memory:").await.unwrap();
    let locks = Locks::connect("memory:").await.unwrap();
    let earlier = locks.lock("account:7").acquire().await.unwrap();
    over_http(fence.clone(), &earlier).await.unwrap();
    let detached = earlier.detach().await.unwrap();
    locks.force_release("account:7", fencepost::ForceRelease::now("moved on")).await.unwrap();
    let later = locks.lock("account:7").acquire().await.unwrap();
    assert!(later.token() > detached.token());
    over_http(fence, &later).await.unwrap();
}
