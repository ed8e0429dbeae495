//! The commands on ZooKeeper.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Store, assert_fails};
use fencepost_testkit::eventually;
use fencepost_testkit::zookeeper::Server;
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
        let victim = store.hold("job", &["--ttl", "3s", "--grace", "1s"]);
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
    let store = Store::at(server.url());
    let holder = store.hold("job", &["--ttl", "1s", "--grace", "1s"]);
    let first = store.json(&["--json", "show", "job"])["holder"]["token"].as_u64();
    holder.signal(Signal::STOP);
    // Only the end of the session can free it.
    let next = store.succeed(&["run", "--wait", "1m", "job", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
    assert!(next.trim().parse::<u64>().ok() > first, "{next}");
    holder.signal(Signal::CONT);
    assert_fails(&holder.end(), 70, &["`job` was lost"]);
}
