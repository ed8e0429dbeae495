//! Numbers that somebody reads, adds one to and writes back, behind each kind of check.

use std::sync::Mutex;

use async_trait::async_trait;
use fencepost::FencingToken;
use fencepost::fence::{
    Fence, Fenced, Redis, Resource, StaleToken, postgres as fence_postgres, redis::Reply,
};
use tokio::sync::Mutex as AsyncMutex;
use tokio_postgres::Client;

use crate::harness::{Database, fresh, places, redis, token};

/// A number that starts at nothing. Reading needs no token: that is the worst case.
#[async_trait]
pub(crate) trait Subject: Send + Sync {
    /// Whether the token was accepted.
    async fn activate(&self, token: FencingToken) -> bool;
    async fn read(&self) -> u64;
    /// Whether it was written.
    async fn write(&self, token: FencingToken, number: u64) -> bool;
}

/// Makes a new subject.
#[async_trait]
pub(crate) trait Kind: Send + Sync {
    fn name(&self) -> String;
    async fn subject(&self) -> Box<dyn Subject>;
}

pub(crate) async fn kinds() -> Vec<Box<dyn Kind>> {
    let mut kinds: Vec<Box<dyn Kind>> = Vec::new();
    for place in places().await {
        kinds.push(Box::new(Values { place }));
    }
    kinds.push(Box::new(InMemory));
    kinds.push(Box::new(Commands));
    kinds.push(Box::new(crate::http::Service));
    kinds.push(Box::new(Tables { database: Database::prepared(), trigger: false }));
    kinds.push(Box::new(Tables { database: Database::prepared(), trigger: true }));
    kinds
}

/// Turns a refusal into `false`, and everything else into a panic.
fn accepted(said: Result<(), fencepost::fence::Error>) -> bool {
    match said {
        Ok(()) => true,
        Err(error) if error.stale().is_some() => false,
        Err(error) => panic!("{error}"),
    }
}

struct Values {
    place: crate::harness::Place,
}

#[async_trait]
impl Kind for Values {
    fn name(&self) -> String {
        format!("values in {}", self.place.kind)
    }

    async fn subject(&self) -> Box<dyn Subject> {
        let resource = self.place.fence.resource(fresh("number"));
        Box::new(Value { resource, seen: Mutex::new(None), _fence: self.place.fence.clone() })
    }
}

struct Value {
    resource: Resource,
    /// The largest token that was accepted. To show it once more changes nothing, so it reads like nobody.
    seen: Mutex<Option<FencingToken>>,
    _fence: Fence,
}

impl Value {
    fn see(&self, token: FencingToken) {
        let mut seen = self.seen.lock().unwrap();
        *seen = (*seen).max(Some(token));
    }
}

#[async_trait]
impl Subject for Value {
    async fn activate(&self, token: FencingToken) -> bool {
        let accepted = accepted(self.resource.activate(token).await.map(drop));
        if accepted {
            self.see(token);
        }
        accepted
    }

    async fn read(&self) -> u64 {
        let seen = *self.seen.lock().unwrap();
        let Some(seen) = seen else { return 0 };
        let value = self.resource.activate(seen).await.unwrap().read().await.unwrap();
        value.map_or(0, |bytes| String::from_utf8(bytes).unwrap().parse().unwrap())
    }

    async fn write(&self, token: FencingToken, number: u64) -> bool {
        let Ok(active) = self.resource.activate(token).await else { return false };
        let accepted = accepted(active.write(number.to_string()).await);
        if accepted {
            self.see(token);
        }
        accepted
    }
}

struct InMemory;

#[async_trait]
impl Kind for InMemory {
    fn name(&self) -> String {
        "a value in this process".to_owned()
    }

    async fn subject(&self) -> Box<dyn Subject> {
        Box::new((Fenced::new("number", 0u64), Mutex::new(0u64)))
    }
}

/// The second number is a copy to read without a token.
#[async_trait]
impl Subject for (Fenced<u64>, Mutex<u64>) {
    async fn activate(&self, token: FencingToken) -> bool {
        self.0.activate(token).is_ok()
    }

    async fn read(&self) -> u64 {
        *self.1.lock().unwrap()
    }

    async fn write(&self, token: FencingToken, number: u64) -> bool {
        let write = |value: &mut u64| {
            *value = number;
            *self.1.lock().unwrap() = number;
        };
        let said: Result<(), StaleToken> = self.0.activate(token).and_then(|entry| entry.write(write));
        said.is_ok()
    }
}

struct Commands;

#[async_trait]
impl Kind for Commands {
    fn name(&self) -> String {
        "commands in redis".to_owned()
    }

    async fn subject(&self) -> Box<dyn Subject> {
        let server = Redis::connect(&crate::harness::calm(&redis().url())).await.unwrap();
        Box::new((server, fresh("command")))
    }
}

#[async_trait]
impl Subject for (Redis, String) {
    async fn activate(&self, token: FencingToken) -> bool {
        accepted(self.0.activate(&self.1, token).await)
    }

    async fn read(&self) -> u64 {
        let words = ["GET", self.1.as_str()];
        // By a guard that nobody uses: a plain read.
        match self.0.run("reader", token(1), &words).await.unwrap() {
            Reply::Nil => 0,
            reply => reply.as_str().unwrap().parse().unwrap(),
        }
    }

    async fn write(&self, token: FencingToken, number: u64) -> bool {
        let words = ["SET", &self.1, &number.to_string()];
        accepted(self.0.run(&self.1, token, &words).await.map(drop))
    }
}

/// Rows of a table: behind `activate` in a transaction, or behind the trigger.
struct Tables {
    database: Database,
    trigger: bool,
}

#[async_trait]
impl Kind for Tables {
    fn name(&self) -> String {
        format!("a table in postgres, {}", if self.trigger { "with the trigger" } else { "by transactions" })
    }

    async fn subject(&self) -> Box<dyn Subject> {
        let client = self.database.client().await;
        client
            .batch_execute("CREATE TABLE IF NOT EXISTS account (id text PRIMARY KEY, number bigint NOT NULL)")
            .await
            .unwrap();
        let id = fresh("row");
        client.execute("INSERT INTO account (id, number) VALUES ($1, 0)", &[&id]).await.unwrap();
        if self.trigger {
            client.batch_execute("SELECT fencepost_fence.protect('account')").await.unwrap();
            return Box::new(Guarded { client, id });
        }
        Box::new(Transacted { client: AsyncMutex::new(client), id })
    }
}

async fn number(client: &Client, id: &str) -> u64 {
    let row = client.query_one("SELECT number FROM account WHERE id = $1", &[&id]).await.unwrap();
    u64::try_from(row.get::<_, i64>(0)).unwrap()
}

struct Transacted {
    client: AsyncMutex<Client>,
    id: String,
}

#[async_trait]
impl Subject for Transacted {
    async fn activate(&self, token: FencingToken) -> bool {
        let mut client = self.client.lock().await;
        let transaction = client.transaction().await.unwrap();
        let accepted = accepted(fence_postgres::activate(&transaction, &self.id, token).await);
        if accepted {
            transaction.commit().await.unwrap();
        }
        accepted
    }

    async fn read(&self) -> u64 {
        number(&*self.client.lock().await, &self.id).await
    }

    async fn write(&self, token: FencingToken, number: u64) -> bool {
        let mut client = self.client.lock().await;
        let transaction = client.transaction().await.unwrap();
        if !accepted(fence_postgres::activate(&transaction, &self.id, token).await) {
            return false;
        }
        let number = i64::try_from(number).unwrap();
        let sql = "UPDATE account SET number = $2 WHERE id = $1";
        assert_eq!(transaction.execute(sql, &[&self.id, &number]).await.unwrap(), 1);
        transaction.commit().await.unwrap();
        true
    }
}

struct Guarded {
    client: Client,
    id: String,
}

impl Guarded {
    async fn update(&self, sql: &str, token: FencingToken, number: u64) -> bool {
        let (token, number) = (i64::try_from(token.get()).unwrap(), i64::try_from(number).unwrap());
        match self.client.execute(sql, &[&self.id, &token, &number]).await {
            Ok(rows) => rows == 1,
            Err(error) => {
                assert!(fence_postgres::stale_token(&error).is_some(), "{error:?}");
                false
            }
        }
    }
}

#[async_trait]
impl Subject for Guarded {
    async fn activate(&self, token: FencingToken) -> bool {
        let sql = "UPDATE account SET fence = $2 WHERE id = $1 AND $3::bigint IS NOT NULL";
        self.update(sql, token, 0).await
    }

    async fn read(&self) -> u64 {
        number(&self.client, &self.id).await
    }

    async fn write(&self, token: FencingToken, number: u64) -> bool {
        let sql = "UPDATE account SET number = $3, fence = $2 WHERE id = $1";
        self.update(sql, token, number).await
    }
}
