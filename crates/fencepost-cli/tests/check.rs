//! `check`: whether the store grants locks now.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Store, assert_fails};
use fencepost_testkit::local::Local;

macro_rules! on {
    ($($store:ident $name:literal),+ $(,)?) => { $(
        #[test]
        fn $store() {
            grants_and_gives_back($name);
        }
    )+ };
}

fencepost_testkit::for_each_store!(on);

fn grants_and_gives_back(local: &str) {
    let local = Local::start(local.parse().unwrap(), Duration::from_secs(60));
    let store = Store::at(local.url().to_owned());
    store.succeed(&["init"]);
    let first = store.json(&["--json", "check"]);
    let second = store.json(&["--json", "check"]);
    assert!(first["token"].as_u64().unwrap() < second["token"].as_u64().unwrap(), "{first} {second}");
    assert!(store.succeed(&["check", "mine"]).contains("grants locks: token "));
    assert_eq!(store.succeed(&["list", "--count"]), "0\n");
}

#[test]
fn a_store_that_takes_no_writes_fails() {
    let store = Store::redis();
    store.succeed(&["check"]);
    let server = store.server.as_ref().unwrap();
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_fails(&store.output(&["check"]), 69, &["NOREPLICAS"]);
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    store.succeed(&["check"]);
}

#[test]
fn a_store_out_of_reach_fails() {
    let store = Store::at("redis://127.0.0.1:1".to_owned());
    assert_fails(&store.output(&["check"]), 69, &["out of reach"]);
}
