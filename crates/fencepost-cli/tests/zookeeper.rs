//! The commands on ZooKeeper.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Store, assert_fails};
use fencepost_testkit::zookeeper::{Client, Ensemble, Mode, Server};
use fencepost_testkit::{LIMIT, eventually};
use rustix::process::Signal;

#[test]
fn commands_run_under_a_lock_and_tokens_grow() {
    let server = Server::start();
    let store = Store::at(server.url());
    assert!(store.succeed(&["init"]).contains("needs no init"));
    let token =
        || store.succeed(&["run", "job", "--", "printenv", "FENCEPOST_TOKEN"]).trim().parse::<u64>().unwrap();
    let (first, second) = (token(), token());
    assert!(first < second, "{first} {second}");
    // A lock of its own cannot outlive the command.
    assert_fails(&store.output(&["acquire", "job"]), 64, &["not supported", "fencepost run"]);
    assert_eq!(store.json(&["--json", "list"]), serde_json::json!([]));
    assert_fails(&store.output(&["run", "--ttl", "100ms", "job", "--", "true"]), 64, &["minSessionTimeout"]);
}

#[test]
fn holders_are_listed_and_shown_with_who_waits() {
    let server = Server::start();
    let store = Store::at(server.url());
    let _running = store.hold("job", &["--note", "nightly"]);
    let table = store.succeed(&["list"]);
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("job")), "{table}");
    let _waiting = store.start(&["run", "--note", "next one", "job", "--", "true"]);
    eventually("it waits", || store.succeed(&["show", "job"]).contains("waits"));
    let shown = store.succeed(&["show", "job"]);
    for word in ["owner", "token", "host", "age", "left", "nightly", "next one"] {
        assert!(shown.contains(word), "no {word} in {shown}");
    }
    let holder = &store.json(&["--json", "show", "job"])["holder"];
    assert_eq!(holder["queue"][0]["note"], "next one");
}

#[test]
fn a_victim_of_force_release_ends_with_70() {
    let server = Server::start();
    for now in [&[][..], &["--now"][..]] {
        let store = Store::at(server.url());
        let victim = store.hold("job", &["--ttl", "1m", "--grace", "1s"]);
        let held = store.json(&["--json", "show", "job"])["holder"]["token"].as_u64();
        let words = [&["--json", "force-release", "job", "--reason", "host is gone"], now].concat();
        let released = store.json(&words);
        assert!(released["token"].as_u64() > held, "{released}");
        assert_eq!(released["freed"], !now.is_empty());
        let words: &[&str] =
            if now.is_empty() { &["`job` was lost", "host is gone"] } else { &["`job` was lost"] };
        assert_fails(&victim.end(), 70, words);
        let next = store.succeed(&["run", "job", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
        assert!(next.trim().parse::<u64>().ok() > released["token"].as_u64(), "{next} {released}");
    }
}

#[test]
fn a_session_that_expires_while_the_holder_stands_still_costs_it_the_lock() {
    let server = Server::start();
    expires_while_standing_still(&server);
}

#[test]
fn a_session_that_expires_behind_a_follower_costs_a_holder_that_stands_still_the_lock() {
    let ensemble = Ensemble::start(3);
    expires_while_standing_still(ensemble.follower());
}

fn expires_while_standing_still(server: &Server) {
    let store = Store::at(server.url());
    let holder = store.hold("job", &["--ttl", "4s", "--grace", "1s"]);
    let first = store.json(&["--json", "show", "job"])["holder"]["token"].as_u64();
    holder.signal(Signal::STOP);
    // Only the end of the session can free it.
    let next = store.succeed(&["run", "--wait", "1m", "job", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
    assert!(next.trim().parse::<u64>().ok() > first, "{next}");
    holder.signal(Signal::CONT);
    assert_fails(&holder.end(), 70, &["`job` was lost"]);
}

#[test]
fn a_holder_that_stood_still_for_most_of_its_session_connects_anew_before_it_counts_on_it() {
    // A follower tells the leader of its sessions every half tick: an answer of its own proves little.
    let ensemble = Ensemble::start_with(3, "tickTime=2000");
    let follower = ensemble.follower();
    let store = Store::at(follower.url());
    let holder = store.hold("job", &["--ttl", "40s"]);
    let before = connections(follower, "to=40000,");
    assert_eq!(before.len(), 1, "{before:?}");
    let token = store.json(&["--json", "show", "job"])["holder"]["token"].as_u64();
    // A shorter session, as silent as the holder: when it ends, more than half of the holder's time is over.
    let mut silent = Client::connect_for(follower.addr(), Duration::from_secs(22)).unwrap();
    silent.create("/silent", b"", Mode::Ephemeral).unwrap();
    let mut witness = Client::connect_for(follower.addr(), LIMIT * 2).unwrap();
    witness.watch("/silent").unwrap();
    holder.signal(Signal::STOP);
    assert_eq!(witness.event().unwrap(), "/silent", "the silent session has ended");
    holder.signal(Signal::CONT);
    eventually("the holder's session has another connection", || {
        let now = connections(follower, "to=40000,");
        !now.is_empty() && now.iter().all(|one| !before.contains(one))
    });
    assert_eq!(store.json(&["--json", "show", "job"])["holder"]["token"].as_u64(), token);
}

/// The addresses of those who are connected to a server in a session that has `word` in its description.
fn connections(server: &Server, word: &str) -> Vec<String> {
    let all = server.ask("cons").unwrap();
    let found = all.lines().filter(|line| line.contains(word));
    found.filter_map(|line| Some(line.split_once('[')?.0.trim().to_owned())).collect()
}
