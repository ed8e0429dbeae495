//! A cluster of three masters beside one Redis, neither with replicas.

use std::time::Instant;

use fencepost::Locks;
use fencepost_testkit::redis::cluster::slot;
use fencepost_testkit::redis::{Cluster, Server};
use tokio::runtime::Runtime;

use crate::cycle::{Cycle as _, TASKS, by_tasks, in_turns, names, runtime};
use crate::raw::{Bare, Scripts};
use crate::results::progress;
use crate::rounds::{SLICE, Slice, report_rates, report_times};

pub(crate) fn run(rounds: usize) {
    let (server, cluster) = (Server::start(), Cluster::start(3, 0));
    let runtime = runtime();
    let connect = |url: &str| runtime.block_on(Locks::connect(url)).expect("a store");
    let (one, three) = (connect(&server.url()), connect(&format!("{}?allow=failover", cluster.url())));
    progress("cluster, one task");
    let (here, there) = (one.lock("bench:one"), three.lock("bench:one"));
    let mut single = Vec::new();
    for _ in 0..rounds {
        single.push(in_turns(&runtime, async |ours| if ours { there.run().await } else { here.run().await }));
    }
    report_times("cluster, one task: cycle / one Redis", Some(1.15), &single);
    progress("cluster, 64 tasks");
    let mut masters = Masters::connect(&runtime, &cluster);
    let (mut many, mut bare, mut limit) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        let tasks = |locks: &Locks| by_tasks(&runtime, names(locks, TASKS));
        many.push((tasks(&three), tasks(&one)));
        bare.push((tasks(&three), masters.cycles(&runtime)));
        limit.push((masters.cycles(&runtime), tasks(&one)));
    }
    report_rates("cluster, 64 tasks, three masters: rate / one Redis", Some(0.9), &many);
    report_rates("cluster, 64 tasks: rate / our script bare, a call a lock", None, &bare);
    report_rates("the limit: our script bare on three masters / one Redis", None, &limit);
}

/// Bare sockets to the masters, each with the commands of its share of the names.
struct Masters(Vec<Master>);

struct Master {
    socket: Bare,
    acquires: Vec<u8>,
    releases: Vec<u8>,
    /// How many lines answer them.
    lines: [usize; 2],
}

impl Masters {
    fn connect(runtime: &Runtime, cluster: &Cluster) -> Self {
        let of = |master: usize| {
            let is_there = |name: &String| cluster.master_of(slot(&format!("lock:{name}"))) == master;
            let names: Vec<_> = (0..TASKS).map(|index| format!("raw:{index}")).filter(is_there).collect();
            let scripts = Scripts::ours(cluster[master].addr());
            let (acquires, releases) = scripts.commands(&names);
            let lines = [scripts.granted_lines() * names.len(), names.len()];
            let socket = runtime.block_on(Bare::connect(cluster[master].addr()));
            Master { socket, acquires, releases, lines }
        };
        Self(cluster.masters().into_iter().map(of).collect())
    }

    fn cycles(&mut self, runtime: &Runtime) -> Slice {
        runtime.block_on(async {
            let mut out = Slice::default();
            let started = Instant::now();
            while started.elapsed() < SLICE {
                let before = Instant::now();
                for master in &mut self.0 {
                    master.socket.send(&master.acquires).await;
                }
                // Each is given its next work as soon as it is ready, so that none stands idle.
                for master in &mut self.0 {
                    master.socket.hear(master.lines[0]).await;
                    master.socket.send(&master.releases).await;
                }
                for master in &mut self.0 {
                    master.socket.hear(master.lines[1]).await;
                }
                out.times.extend(std::iter::repeat_n(before.elapsed(), TASKS));
            }
            out.took = started.elapsed();
            out
        })
    }
}
