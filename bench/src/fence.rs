//! What the check of a token costs: the same write with it and without, in turns.

use std::time::Instant;

use fencepost::FencingToken;
use fencepost::fence::redis::SCRIPT;
use fencepost::fence::{Fence, Redis, postgres as fence_postgres};
use fencepost_testkit::{Folder, postgres, redis};
use tokio_postgres::{Client, NoTls, Statement};

use crate::cycle::{Cycle, TASKS, by_tasks, in_turns, runtime};
use crate::raw::{Bare, command, load};
use crate::rounds::{SLICE, Slice, report_rates, report_times};

const VALUE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

pub(crate) fn run(rounds: usize) {
    in_redis(rounds);
    in_postgres(rounds);
    in_files(rounds);
}

fn token() -> FencingToken {
    FencingToken::new(1_700_000_000_000_000).expect("a token")
}

fn in_redis(rounds: usize) {
    let (server, runtime) = (redis::Server::start(), runtime());
    let ours = std::sync::Arc::new(runtime.block_on(Redis::connect(&server.url())).expect("a server"));
    let mut bare = runtime.block_on(Bare::connect(server.addr()));
    let script = load(server.addr(), SCRIPT);
    let (number, mut plain, mut guarded) = (token().to_string(), Vec::new(), Vec::new());
    command(&mut plain, &["SET", "{fence:bench}:value", VALUE]);
    let head = ["EVALSHA", &script, "1", "{fence:bench}:token", &number, ">="];
    command(&mut guarded, &[&head[..], &["SET", "{fence:bench}:value", VALUE]].concat());
    let many = plain.repeat(TASKS);
    let (mut scripts, mut writes, mut rates) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        scripts.push(in_turns(&runtime, async |with| {
            bare.exchange(if with { &guarded } else { &plain }, 1).await;
        }));
        writes.push(in_turns(&runtime, async |with| match with {
            true => InRedis(ours.clone()).run().await,
            false => bare.exchange(&plain, 1).await,
        }));
        let tasks = (0..TASKS).map(|_| InRedis(ours.clone())).collect();
        let mut raw = Slice::default();
        let started = Instant::now();
        while started.elapsed() < SLICE {
            runtime.block_on(bare.exchange(&many, TASKS));
            raw.times.extend([started.elapsed(); TASKS]);
        }
        raw.took = started.elapsed();
        rates.push((by_tasks(&runtime, tasks), raw));
    }
    report_times("redis: guarded SET / SET, both bare", Some(1.5), &scripts);
    report_times("redis: guarded SET by us / bare SET", None, &writes);
    report_rates("redis, 64 tasks: guarded SET / bare, pipelined", None, &rates);
}

struct InRedis(std::sync::Arc<Redis>);

impl Cycle for InRedis {
    async fn run(&self) {
        let words = ["SET", "{fence:bench}:value", VALUE];
        self.0.run("bench", token(), &words).await.expect("a write");
    }
}

/// Rows to update, in three tables: as they are, with the trigger, and with a fence for the inline form.
struct Rows {
    client: Client,
    plain: Statement,
    triggered: Statement,
    inline: Statement,
}

impl Rows {
    async fn connect(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client.batch_execute(fence_postgres::MIGRATION).await.expect("the migration");
        for table in ["plain", "triggered", "inline"] {
            let sql = format!(
                "CREATE TABLE {table} (id integer PRIMARY KEY, text text, fence bigint NOT NULL DEFAULT 0) \
                 WITH (fillfactor = 50); INSERT INTO {table} SELECT generate_series(1, 1000), 'x'"
            );
            client.batch_execute(&sql).await.expect("a table");
        }
        client.batch_execute("SELECT fencepost_fence.protect('triggered')").await.expect("a trigger");
        let plain = client.prepare("UPDATE plain SET text = $1 WHERE id = 7").await;
        let triggered = client.prepare("UPDATE triggered SET text = $1, fence = $2 WHERE id = 7").await;
        let inline =
            client.prepare("UPDATE inline SET text = $1, fence = $2 WHERE id = 7 AND fence <= $2").await;
        let good = "a statement";
        Self {
            client,
            plain: plain.expect(good),
            triggered: triggered.expect(good),
            inline: inline.expect(good),
        }
    }

    async fn update(&self) {
        assert_eq!(self.client.execute(&self.plain, &[&VALUE]).await.expect("an update"), 1);
    }

    async fn guarded(&self, statement: &Statement) {
        let token = i64::from(token());
        assert_eq!(self.client.execute(statement, &[&VALUE, &token]).await.expect("an update"), 1);
    }

    async fn transaction(&mut self, activates: bool) {
        let transaction = self.client.transaction().await.expect("a transaction");
        if activates {
            fence_postgres::activate(&transaction, "row:7", token()).await.expect("a token");
        }
        transaction.execute(&self.plain, &[&VALUE]).await.expect("an update");
        transaction.commit().await.expect("a commit");
    }

    async fn begun(&mut self) {
        let transaction = fence_postgres::begin(&mut self.client, "row:7", token()).await.expect("a token");
        transaction.execute(&self.plain, &[&VALUE]).await.expect("an update");
        transaction.commit().await.expect("a commit");
    }
}

/// Durable, as data usually is; and without waiting for the disk, which leaves what the check itself costs.
fn in_postgres(rounds: usize) {
    let (server, runtime) = (postgres::Server::config().fsync().start(), runtime());
    let database = server.create_database();
    let mut rows = runtime.block_on(Rows::connect(&server.url(&database)));
    for (setting, what, goal) in [("on", "", Some(1.3)), ("off", ", no disk", None)] {
        let set = format!("SET synchronous_commit = {setting}");
        runtime.block_on(rows.client.batch_execute(&set)).expect("a setting");
        let (mut begun, mut apart) = (vec![], vec![]);
        let (mut triggered, mut inline) = (vec![], vec![]);
        for _ in 0..rounds {
            begun.push(in_turns(&runtime, async |with| match with {
                true => rows.begun().await,
                false => rows.transaction(false).await,
            }));
            apart.push(in_turns(&runtime, async |with| rows.transaction(with).await));
            triggered.push(in_turns(&runtime, async |with| match with {
                true => rows.guarded(&rows.triggered).await,
                false => rows.update().await,
            }));
            inline.push(in_turns(&runtime, async |with| match with {
                true => rows.guarded(&rows.inline).await,
                false => rows.update().await,
            }));
        }
        report_times(&format!("postgres{what}: transaction by begin"), goal, &begun);
        report_times(&format!("postgres{what}: transaction, activate alone"), None, &apart);
        report_times(&format!("postgres{what}: UPDATE with the trigger"), goal, &triggered);
        report_times(&format!("postgres{what}: inline WHERE"), goal, &inline);
    }
}

/// A guarded value beside the same replacement of a file: temporary file, fsync, rename, fsync of the
/// directory.
fn in_files(rounds: usize) {
    let (folder, runtime) = (Folder::new("bench"), runtime());
    let url = format!("file://{}", folder.path().join("values").display());
    let fence = runtime.block_on(Fence::connect(&url)).expect("a folder");
    let active = runtime.block_on(fence.resource("bench").activate(token())).expect("a token");
    let plain = folder.path().join("plain");
    std::fs::create_dir(&plain).expect("a folder");
    let mut pairs = vec![];
    for _ in 0..rounds {
        pairs.push(in_turns(&runtime, async |with| match with {
            true => active.write(VALUE).await.expect("a write"),
            false => replace(&plain).expect("a write"),
        }));
    }
    report_times("file: guarded write / bare replacement", None, &pairs);
}

fn replace(folder: &std::path::Path) -> std::io::Result<()> {
    let (new, name) = (folder.join("new"), folder.join("value"));
    let mut file = std::fs::File::create(&new)?;
    std::io::Write::write_all(&mut file, VALUE.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, &name)?;
    std::fs::File::open(folder)?.sync_all()
}
