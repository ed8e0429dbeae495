//! ZooKeeper: a cycle beside a bare create and delete, and waking a waiter beside a bare watch.

use std::net::SocketAddr;

use fencepost::Locks;
use fencepost_measure::{Turn, now};
use fencepost_testkit::zookeeper::{Client, Mode, Server};

use crate::cycle::{TASKS, by_tasks, names, one_by_one, runtime};
use crate::results::progress;
use crate::rounds::{Slice, report_rates, report_times, slice};
use crate::wake::{HOLD, TURNS};
use crate::{wake, workers};

/// About as long as what a contender's node says.
const DATA: [u8; 80] = [b'x'; 80];

/// A bare client that creates and deletes a node.
pub(crate) struct Bare(Client);

impl Bare {
    pub(crate) fn new(server: &Server) -> Self {
        let mut client = server.client();
        client.create("/raw", b"", Mode::Persistent).expect("a folder");
        Self(client)
    }

    pub(crate) fn slice(&mut self) -> Slice {
        slice(|| {
            let stem = "/raw/_c_00000000-0000-0000-0000-000000000000-lock-";
            let path = self.0.create(stem, &DATA, Mode::EphemeralSequential).expect("a node");
            assert!(self.0.delete(&path).expect("an answer"));
        })
    }
}

pub(crate) fn run(rounds: usize) {
    let server = Server::start();
    let runtime = runtime();
    let locks = runtime.block_on(Locks::connect(&server.url())).expect("a store");
    let lock = locks.lock("bench:one");
    let mut raw = Bare::new(&server);
    // The server compiles its own code as it goes.
    let _ = (one_by_one(&runtime, &lock), raw.slice(), one_by_one(&runtime, &lock), raw.slice());
    let (mut one, mut many) = (vec![], vec![]);
    progress("zookeeper, cycles");
    for _ in 0..rounds {
        one.push((one_by_one(&runtime, &lock), raw.slice()));
        many.push((by_tasks(&runtime, names(&locks, TASKS)), raw.slice()));
    }
    report_times("zookeeper, one task: cycle / create + delete", Some(1.5), &one);
    report_rates(&format!("zookeeper, {TASKS} tasks: rate / one bare client"), None, &many);
    let addr = server.addr().to_string();
    wake::report("zookeeper, waking another process / watch", Some(3.0), (&server.url(), rounds), |_| {
        workers::pair("zookeeper watch", &addr)
    });
}

/// One of two processes that wake each other by deleting a node that the other watches.
pub(crate) fn pass_to_and_fro(addr: SocketAddr, begins: bool) -> Vec<Turn> {
    let (mine, other) = if begins { ("/baton-0", "/baton-1") } else { ("/baton-1", "/baton-0") };
    let mut client = Client::connect(addr).expect("a session");
    client.create(mine, b"", Mode::Ephemeral).expect("a node");
    client.watch(mine).expect("a watch");
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        let asked = now();
        if turn > 0 || !begins {
            client.event().expect("the turn");
        }
        let acquired = now();
        if client.watch(mine).expect("an answer").is_none() {
            client.create(mine, b"", Mode::Ephemeral).expect("a node");
            client.watch(mine).expect("a watch");
        }
        std::thread::sleep(HOLD);
        turns.push(Turn { token: 0, asked, acquired, released: now() });
        // At the start the other may not be there yet, and at the end not any more.
        while (begins || turn + 1 < TURNS) && !client.delete(other).expect("an answer") {}
    }
    turns
}
