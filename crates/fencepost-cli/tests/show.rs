//! `show`: who holds one lock, and who waits for it.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Store, code, text};
use fencepost_testkit::{eventually, local::Local};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn a_holder_is_shown_with_all_that_is_known() {
    for store in [Store::file(), Store::redis()] {
        let running = store.hold("job", &["--note", "nightly"]);
        let shown = store.succeed(&["show", "job"]);
        for word in ["owner", "token", "host", "age", "left", "nightly"] {
            assert!(shown.contains(word), "no {word} in {shown}");
        }
        assert!(shown.contains(&format!("pid      {}\n", running.pid().as_raw_nonzero())), "{shown}");
        let holder = &store.json(&["--json", "show", "job"])["holder"];
        assert_eq!((&holder["name"], &holder["note"]), (&"job".into(), &"nightly".into()));
    }
}

#[test]
fn a_free_lock_is_free() {
    for store in [Store::file(), Store::redis()] {
        let output = store.output(&["show", "job"]);
        assert_eq!((code(&output), &*text(&output.stdout)), (1, "lock `job` is free\n"));
        assert_eq!(
            store.json(&["--json", "show", "job"]),
            serde_json::json!({ "name": "job", "holder": null })
        );
    }
}

macro_rules! on {
    ($($store:ident $name:literal),+ $(,)?) => { $(
        #[test]
        fn $store() {
            waiting_processes_are_shown_in_order_of_arrival_until_they_end($name);
        }
    )+ };
}

fencepost_testkit::for_each_store!(on);

fn waiting_processes_are_shown_in_order_of_arrival_until_they_end(local: &str) {
    let started = Local::start(local.parse().unwrap(), Duration::from_secs(60));
    let store = Store::at(started.url().to_owned());
    store.succeed(&["init"]);
    let _running = store.hold("job", &["--ttl", "60s"]);
    let notes = ["first", "second", "third"];
    let mut waiting = Vec::new();
    for (place, note) in notes.into_iter().enumerate() {
        waiting.push(store.start(&["run", "job", "--ttl", "60s", "--note", note, "--", "true"]));
        waits(&store, &notes[..=place]);
    }
    let shown = store.succeed(&["show", "job"]);
    let lines: Vec<_> = shown.lines().filter_map(|line| line.strip_prefix("waits    ")).collect();
    let holder = &store.json(&["--json", "show", "job"])["holder"];
    for (place, (waiter, note)) in waiting.iter().zip(notes).enumerate() {
        let (pid, listed) = (waiter.pid().as_raw_nonzero(), &holder["queue"][place]);
        assert_eq!((&listed["host"], &listed["pid"]), (&holder["host"], &pid.get().into()));
        assert!(listed["since_unix_ms"].is_u64() && listed["age_ms"].is_u64(), "{listed}");
        let host = holder["host"].as_str().unwrap();
        let start = format!("{}. {host}, pid {pid}, for ", place + 1);
        assert!(lines[place].starts_with(&start), "{shown}");
        assert!(lines[place].ends_with(&format!(", note `{note}`")), "{shown}");
    }

    waiting[1].signal(Signal::TERM);
    waits(&store, &["first", "third"]);
    waiting[0].signal(Signal::KILL);
    // There a waiter that was killed keeps its place until its session ends.
    if !["etcd1", "zookeeper1"].contains(&local) {
        waits(&store, &["third"]);
    }
}

/// Waits until the waiters are those with such notes, in this order.
fn waits(store: &Store, notes: &[&str]) {
    eventually(&format!("{notes:?} are shown"), || {
        let queue = store.json(&["--json", "show", "job"])["holder"]["queue"].take();
        let note = |waiter: &Value| waiter["note"].as_str().unwrap_or_default().to_owned();
        queue.as_array().is_some_and(|queue| queue.iter().map(note).eq(notes.iter().copied()))
    });
}
