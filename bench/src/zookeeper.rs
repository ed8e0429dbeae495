//! ZooKeeper: a cycle beside a bare create and delete, and waking a waiter beside a bare watch.

use std::net::SocketAddr;

use fencepost::Locks;
use fencepost_testkit::zookeeper::{Client, Mode, Server};

use crate::cycle::{TASKS, by_tasks, names, one_by_one, runtime};
use crate::rounds::{report_rates, report_times, slice};
use crate::wake::{TURNS, gaps, hold, note, now};

/// About as long as what a contender's node says.
const DATA: [u8; 80] = [b'x'; 80];

pub(crate) fn run(rounds: usize) {
    let server = Server::start();
    let runtime = runtime();
    let locks = runtime.block_on(Locks::connect(&server.url())).expect("a store");
    let lock = locks.lock("bench:one");
    let mut client = server.client();
    client.create("/raw", b"", Mode::Persistent).expect("a folder");
    let mut raw = || {
        let stem = "/raw/_c_00000000-0000-0000-0000-000000000000-lock-";
        let path = client.create(stem, &DATA, Mode::EphemeralSequential).expect("a node");
        assert!(client.delete(&path).expect("an answer"));
    };
    // The server compiles its own code as it goes.
    let _ = (one_by_one(&runtime, &lock), slice(&mut raw), one_by_one(&runtime, &lock), slice(&mut raw));
    let (mut one, mut many) = (vec![], vec![]);
    for _ in 0..rounds {
        one.push((one_by_one(&runtime, &lock), slice(&mut raw)));
        many.push((by_tasks(&runtime, names(&locks)), slice(&mut raw)));
    }
    report_times("zookeeper, one task: cycle / create + delete", Some(1.8), &one);
    report_rates(&format!("zookeeper, {TASKS} tasks: rate / one bare client"), None, &many);
    let addr = server.addr().to_string();
    let pairs: Vec<_> = (0..rounds.div_ceil(2))
        .map(|_| (gaps("locks", &server.url()), gaps("zookeeper watch", &addr)))
        .collect();
    report_times("zookeeper, waking another process / watch", Some(3.0), &pairs);
}

/// One of two processes that wake each other by deleting a node that the other watches.
pub(crate) fn pass_to_and_fro(addr: SocketAddr, begins: bool) {
    let (mine, other) = if begins { ("/baton-0", "/baton-1") } else { ("/baton-1", "/baton-0") };
    let mut client = Client::connect(addr).expect("a session");
    client.create(mine, b"", Mode::Ephemeral).expect("a node");
    client.watch(mine).expect("a watch");
    for turn in 0..TURNS {
        if turn > 0 || !begins {
            client.event().expect("the turn");
        }
        let acquired = now();
        if client.watch(mine).expect("an answer").is_none() {
            client.create(mine, b"", Mode::Ephemeral).expect("a node");
            client.watch(mine).expect("a watch");
        }
        hold();
        let released = now();
        note(acquired, released);
        // At the start the other may not be there yet, and at the end not any more.
        while (begins || turn + 1 < TURNS) && !client.delete(other).expect("an answer") {}
    }
}
