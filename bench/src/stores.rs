//! Each store measured in the same way, by `fencepost bench` as its users run it.

use std::path::Path;
use std::process::{Command, Stdio};

use fencepost::Locks;
use fencepost_testkit::{Folder, etcd, postgres, redis, zookeeper};
use serde_json::{Value, json};

use crate::cycle::runtime;
use crate::results::{add_row, progress};
use crate::rounds::report_number;
use crate::startup::program;

pub(crate) fn run(rounds: usize) {
    let Some(program) = program() else {
        return println!("the stores are not measured: build the command first (`make build`)");
    };
    let each = format!("{}ms", 100 * rounds);
    let measure = |store: &str, url: &str| measure(&program, (store, url), &each);
    let folder = Folder::new("bench");
    measure("file", &format!("file://{}", folder.path().join("locks").display()));
    measure("Redis", &redis::Server::start().url());
    let nodes = redis::Nodes::start(5);
    runtime().block_on(Locks::init(&nodes.url())).expect("a new deployment");
    measure("Redlock, five nodes", &nodes.url());
    drop(nodes);
    let server = postgres::Server::config().fsync().start();
    measure("PostgreSQL", &server.url(&server.create_database()));
    measure("PostgreSQL, `durable=yes`", &format!("{}?durable=yes", server.url(&server.create_database())));
    drop(server);
    measure("etcd, one member", &etcd::Cluster::config().durable().start(1).url());
    measure("ZooKeeper, one server", &zookeeper::Server::start().url());
}

fn measure(program: &Path, (store, url): (&str, &str), each: &str) {
    progress(store);
    let bench = Command::new(program)
        .args(["--json", "-q", "bench", "--each", each])
        .env("FENCEPOST_STORE", url)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("the command");
    assert!(bench.status.success(), "`fencepost bench` failed on {store}");
    let report: Value = serde_json::from_slice(&bench.stdout).expect("a report");
    let figure =
        |measure: usize, field: &str| report["measures"][measure][field].as_f64().unwrap_or(f64::NAN);
    let detail = format!(
        "{:.0} us, p99 {:.0} us; 64 tasks {:.0}/s; waking {:.0} us; 8 processes {:.0} hand-overs/s",
        figure(0, "p50_us"),
        figure(0, "p99_us"),
        figure(2, "per_second"),
        figure(4, "p50_us"),
        figure(5, "per_second")
    );
    report_number(&format!("{store}: cycle in round trips"), figure(0, "round_trips"), &detail, None);
    add_row(json!({ "store": store, "report": report }));
}
