//! PostgreSQL: the same statements, prepared, on one connection; and a bare notification.

use std::future::poll_fn;
use std::time::Instant;

use fencepost::Locks;
use fencepost_measure::{Turn, now};
use fencepost_testkit::postgres::Server;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use crate::cycle::{TASKS, by_tasks, names, one_by_one, runtime};
use crate::results::progress;
use crate::rounds::{SLICE, Slice, report_rates, report_times};
use crate::wake::{HOLD, TURNS};
use crate::{wake, workers};

pub(crate) fn run(rounds: usize) {
    let server = Server::config().fsync().start();
    for (what, parameter) in [("default", ""), ("durable", "?durable=yes")] {
        let database = server.create_database();
        let url = format!("{}{parameter}", server.url(&database));
        cycles(&url, &server.url(&database), what, rounds);
        let raw = server.url(&database);
        let what = format!("postgres, {what}: waking another / bare NOTIFY");
        wake::report(&what, Some(3.0), (&url, rounds), |_| workers::pair("notify", &raw));
    }
}

fn cycles(url: &str, bare_url: &str, what: &str, rounds: usize) {
    let runtime = runtime();
    let locks = runtime.block_on(Locks::connect(url)).expect("a store");
    let bare = runtime.block_on(Bare::connect(bare_url, what == "durable"));
    let lock = locks.lock("bench:one");
    let (mut one, mut many) = (vec![], vec![]);
    progress(&format!("postgres, {what}, cycles"));
    for _ in 0..rounds {
        one.push((one_by_one(&runtime, &lock), bare.slice(&runtime, 1)));
        many.push((by_tasks(&runtime, names(&locks, TASKS)), bare.slice(&runtime, TASKS)));
    }
    report_times(&format!("postgres, {what}, one task: cycle / bare"), Some(1.5), &one);
    report_rates(&format!("postgres, {what}, 64 tasks: rate / pipelined"), None, &many);
}

async fn connect(url: &str) -> (Client, mpsc::UnboundedReceiver<usize>) {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    let (told, news) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = told.send(notification.payload().parse().expect("a number"));
            }
        }
    });
    (client, news)
}

/// One connection with the two statements of a cycle.
struct Bare {
    client: Client,
    acquire: Statement,
    release: Statement,
}

impl Bare {
    async fn connect(url: &str, durable: bool) -> Self {
        let (client, _) = connect(url).await;
        if !durable {
            client.batch_execute("SET synchronous_commit = off").await.expect("a setting");
        }
        let acquire = "SELECT * FROM fencepost.acquire(pg_backend_pid(), false, $1, 'bare', 'bare', 30000, \
        'host', 1, '', 'session', 'channel', \
                       true, NULL, NULL, false, false, true)";
        let release =
            "SELECT * FROM fencepost.release(pg_backend_pid(), false, $1, 'bare', true, false, NULL)";
        let acquire = client.prepare(acquire).await.expect("a statement");
        let release = client.prepare(release).await.expect("a statement");
        Self { client, acquire, release }
    }

    async fn cycle(&self, key: i64) {
        let row = self.client.query_one(&self.acquire, &[&key]).await.expect("an answer");
        assert!(row.get::<_, Option<i64>>(0).is_some(), "nobody else has it");
        self.client.query_one(&self.release, &[&key]).await.expect("an answer");
    }

    fn slice(&self, runtime: &Runtime, tasks: usize) -> Slice {
        pipelined(runtime, tasks, |key| self.cycle(i64::try_from(key).expect("a small number")))
    }
}

/// One connection with no more than two questions for a cycle.
pub(crate) struct Trivial {
    client: Client,
    one: Statement,
}

impl Trivial {
    pub(crate) async fn connect(url: &str) -> Self {
        let (client, _) = connect(url).await;
        let one = client.prepare("SELECT 1").await.expect("a statement");
        Self { client, one }
    }

    async fn cycle(&self) {
        for _ in 0..2 {
            self.client.query_one(&self.one, &[]).await.expect("an answer");
        }
    }

    pub(crate) fn slice(&self, runtime: &Runtime, tasks: usize) -> Slice {
        pipelined(runtime, tasks, |_| self.cycle())
    }
}

/// Cycles of so many at once on one connection, for one slice.
fn pipelined<F: Future<Output = ()>>(runtime: &Runtime, tasks: usize, cycle: impl Fn(usize) -> F) -> Slice {
    runtime.block_on(async {
        let mut out = Slice::default();
        let started = Instant::now();
        while started.elapsed() < SLICE {
            let before = Instant::now();
            join((0..tasks).map(|task| Box::pin(cycle(task))).collect()).await;
            out.times.extend(std::iter::repeat_n(before.elapsed(), tasks));
        }
        out.took = started.elapsed();
        out
    })
}

/// Drives all futures to their end.
async fn join<F: Future<Output = ()> + Unpin>(mut futures: Vec<F>) {
    poll_fn(|context| {
        futures.retain_mut(|future| std::pin::Pin::new(future).poll(context).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// One of two processes that tell each other numbers in turns.
pub(crate) fn pass_to_and_fro(url: &str, begins: bool) -> Vec<Turn> {
    let (mine, other) = if begins { ("bench_0", "bench_1") } else { ("bench_1", "bench_0") };
    runtime().block_on(async {
        let (client, mut news) = connect(url).await;
        client.batch_execute(&format!("LISTEN {mine}")).await.expect("listening");
        let tell = async |number: usize| {
            let notify = format!("NOTIFY {other}, '{number}'");
            client.batch_execute(&notify).await.expect("a notification");
        };
        let (mut next, mut turns, mut asked) = (usize::from(begins), Vec::new(), now());
        if begins {
            // Again until the other one listens.
            while news.is_empty() {
                tell(0).await;
                tokio::time::sleep(HOLD * 10).await;
            }
        }
        while next < TURNS * 2 {
            if news.recv().await != Some(next) {
                continue;
            }
            let acquired = now();
            tokio::time::sleep(HOLD).await;
            turns.push(Turn { token: 0, asked, acquired, released: now() });
            tell(next + 1).await;
            asked = now();
            next += 2;
        }
        turns
    })
}
