//! Fencepost, its peers and the raw limit, in turns on the same servers. Each peer has processes of its own,
//! in its own language, that obey the same commands. One that is not there, fails or does not come back is
//! told as such, and the others go on.

mod faults;
mod figures;
mod held;
mod team;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use fencepost::Locks;
use fencepost_testkit::{
    etcd as etcd_kit, postgres as postgres_kit, redis as redis_kit, zookeeper as zookeeper_kit,
};

use self::figures::Table;
use self::team::Raw;
use crate::cycle::runtime;
use crate::raw::{Bare, Scripts, Token};
use crate::redlock::fanout::Fanout;
use crate::rounds::Slice;
use crate::{cycle, etcd, postgres, workers, zookeeper};

/// By store, and those about which only some have something to say.
pub(crate) const PARTS: [crate::Part; 6] = [
    ("peers-redis", redis),
    ("peers-redlock", redlock),
    ("peers-etcd", etcd),
    ("peers-zookeeper", zookeeper),
    ("peers-postgres", postgres),
    ("peers-held", held::run),
];

pub(crate) const OURS: &str = "fencepost";

/// What makes one process of a peer.
struct Peer {
    name: &'static str,
    start: Box<dyn Fn() -> Command>,
}

impl Peer {
    fn ours(url: &str) -> Self {
        let url = url.to_owned();
        Self { name: OURS, start: Box::new(move || workers::locks(&url)) }
    }

    fn rust(name: &'static str, peer: &'static str, addresses: Vec<String>) -> Self {
        let start = move || {
            let mut command = Command::new(environments().join("target/release/fencepost-peers"));
            command.arg(peer).args(&addresses);
            command
        };
        Self { name, start: Box::new(start) }
    }

    fn python(name: &'static str, url: &str) -> Self {
        let url = url.to_owned();
        let start = move || {
            let mut command = Command::new(environments().join("venv/bin/python"));
            command.arg(sources().join("python/worker.py")).args([name, &url]);
            command
        };
        Self { name, start: Box::new(start) }
    }

    fn node(name: &'static str, url: &str) -> Self {
        let url = url.to_owned();
        let start = move || {
            let mut command = Command::new("node");
            command.arg(sources().join("node/worker.mjs")).args([name, &url]);
            command.env("NODE_PACKAGES", environments().join("node"));
            command
        };
        Self { name, start: Box::new(start) }
    }
}

/// Where `bench/peers/install` puts the peers: beside what is built.
fn environments() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.ancestors().nth(2).unwrap_or(Path::new("target")).join("peers")
}

fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn redis(rounds: usize) {
    let (server, bare_runtime) = (redis_kit::Server::start(), runtime());
    let (url, addr) = (server.url(), server.addr());
    let mut socket = bare_runtime.block_on(Bare::connect(addr));
    let scripts = Scripts::trivial(addr);
    let raw = Raw {
        what: "two trivial scripts on one connection",
        cycles: Box::new(move |tasks| Some(cycle::bare(&bare_runtime, &mut socket, &scripts, tasks))),
        token: Some(token(addr)),
    };
    let peers = vec![
        Peer::ours(&url),
        Peer::rust("rslock, one node", "rslock", vec![url.clone()]),
        Peer::python("redis-py", &url),
        Peer::python("python-redis-lock", &url),
        Peer::node("redis-semaphore", &url),
    ];
    let table = Table::measure("redis", peers, raw, rounds);
    table.compare_rates("redis, 64 tasks: rate / rslock on one node", Some(1.1), "rslock, one node", 64);
    table.compare_handovers(
        "redis, 8 processes: hand-overs / python-redis-lock",
        Some(6.0),
        "python-redis-lock",
    );
    table.report();
}

/// Five nodes, and the addresses that peers want, each in its own way.
pub(crate) fn nodes() -> (redis_kit::Nodes, String, Vec<String>) {
    let nodes = redis_kit::Nodes::start(5);
    let url = nodes.url();
    runtime().block_on(Locks::init(&url)).expect("a new deployment");
    let urls = nodes.iter().map(redis_kit::Server::url).collect();
    (nodes, url, urls)
}

fn redlock_peers(url: &str, urls: Vec<String>) -> Vec<Peer> {
    vec![
        Peer::ours(url),
        Peer::rust("rslock", "rslock", urls),
        Peer::python("redlock-py x5", url),
        Peer::python("pottery x5", url),
        Peer::node("redlock 4", url),
        Peer::node("redlock 5 beta", url),
        Peer::node("redis-semaphore x5", url),
    ]
}

fn redlock(rounds: usize) {
    let (nodes, url, urls) = nodes();
    let mut fanout = Fanout::connect(&nodes);
    let raw = Raw {
        what: "the same scripts to five bare sockets",
        cycles: Box::new(move |tasks| (tasks == 1).then(|| fanout.cycles())),
        token: Some(token(nodes[0].addr())),
    };
    let table = Table::measure("redlock", redlock_peers(&url, urls.clone()), raw, rounds);
    table.compare_rates("redlock, one task: rate / rslock", Some(1.3), "rslock", 1);
    table.compare_rates("redlock, 64 tasks: rate / rslock", Some(1.1), "rslock", 64);
    table.report();
    drop(table);
    faults::run(&nodes, redlock_peers(&url, urls), rounds);
}

fn etcd(rounds: usize) {
    let (cluster, bare_runtime) = (etcd_kit::Cluster::config().durable().start(1), runtime());
    let address = cluster[0].addr().to_string();
    let bare = bare_runtime.block_on(etcd::Raw::connect(&address));
    let raw = Raw {
        what: "a put and a delete on one connection",
        cycles: Box::new(move |tasks| (tasks == 1).then(|| bare.slice(&bare_runtime))),
        token: None,
    };
    let peers =
        vec![Peer::ours(&cluster.url()), Peer::rust("etcd-client", "etcd-client", vec![address.clone()])];
    Table::measure("etcd", peers, raw, rounds).report();
}

fn zookeeper(rounds: usize) {
    let server = zookeeper_kit::Server::start();
    let mut bare = zookeeper::Bare::new(&server);
    let address = server.addr().to_string();
    let raw = Raw {
        what: "a create and a delete on one connection",
        cycles: Box::new(move |tasks| (tasks == 1).then(|| bare.slice())),
        token: None,
    };
    let peers = vec![
        Peer::ours(&server.url()),
        Peer::rust("zookeeper-client", "zookeeper-client", vec![address.clone()]),
        Peer::python("kazoo", &format!("zookeeper://{address}")),
    ];
    Table::measure("zookeeper", peers, raw, rounds).report();
}

fn postgres(rounds: usize) {
    let server = postgres_kit::Server::config().fsync().start();
    let url = server.url(&server.create_database());
    let bare_runtime = runtime();
    let bare = bare_runtime.block_on(postgres::Trivial::connect(&url));
    let raw = Raw {
        what: "`SELECT 1` twice on one connection",
        cycles: Box::new(move |tasks| Some(bare.slice(&bare_runtime, tasks))),
        token: None,
    };
    let peers = vec![
        Peer::ours(&url),
        Peer::rust("tokio-postgres", "tokio-postgres", vec![url.clone()]),
        Peer::rust("sqlx", "sqlx", vec![url.clone()]),
    ];
    Table::measure("postgres", peers, raw, rounds).report();
}

/// The raw limit of a hand-over on Redis: one token for each kind of contest.
fn token(addr: SocketAddr) -> Box<dyn Fn() -> Command> {
    for name in team::NAMES {
        Token::connect(addr).push(&format!("raw:{name}"));
    }
    Box::new(move || workers::player("token", &addr.to_string(), 0))
}

/// The times of a slice, if the raw limit has one for so many tasks.
type Cycles = Box<dyn FnMut(usize) -> Option<Slice>>;
