//! The commands on an etcd cluster.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Store, assert_fails};
use fencepost_testkit::etcd::Cluster;

#[test]
fn init_is_not_needed_and_run_gives_growing_tokens() {
    let cluster = Cluster::start(1);
    let store = Store::at(cluster.url());
    assert!(store.succeed(&["init"]).contains("needs no init"));
    let token =
        || store.succeed(&["run", "job", "--", "printenv", "FENCEPOST_TOKEN"]).trim().parse::<u64>().unwrap();
    let (first, second) = (token(), token());
    assert!(first < second, "{first} {second}");
    assert_eq!(cluster.keys(""), [""; 0]);
    assert_eq!(cluster.leases(), [""; 0], "each command has revoked its lease");
}

#[test]
fn list_and_show_say_who_holds_what() {
    let cluster = Cluster::start(1);
    let store = Store::at(cluster.url());
    store.succeed(&["acquire", "--ttl", "1h", "--note", "two\nlines", "order/1"]);
    let _running = store.hold("report", &["--note", "nightly"]);
    let table = store.succeed(&["list"]);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[1].starts_with("order/1") && lines[1].contains(r"two\nlines"), "{table}");
    assert!(lines[2].starts_with("report") && lines[2].ends_with("nightly"), "{table}");
    let holder = &store.json(&["--json", "show", "order/1"])["holder"];
    assert!(holder["token"].is_u64() && holder["expires_in_ms"].as_u64() > Some(3_000_000), "{holder}");
}

#[test]
fn a_handle_can_be_extended_and_released_by_other_processes() {
    let cluster = Cluster::start(1);
    let store = Store::at(cluster.url());
    let handle = store.succeed(&["acquire", "--ttl", "1h", "job"]);
    assert_fails(&store.output(&["run", "--try", "job", "--", "true"]), 75, &["busy"]);
    store.succeed(&["extend", handle.trim(), "--ttl", "2h"]);
    store.succeed(&["release", handle.trim()]);
    store.succeed(&["run", "--try", "job", "--", "true"]);
    assert_eq!(cluster.keys(""), [""; 0]);
}

#[test]
fn force_release_ends_the_victim_with_the_operators_reason() {
    let cluster = Cluster::start(1);
    for now in [&[][..], &["--now"][..]] {
        let store = Store::at(cluster.url());
        let victim = store.hold("job", &["--ttl", "1m", "--grace", "1s"]);
        let held = store.json(&["--json", "show", "job"])["holder"]["token"].as_u64();
        let words = [&["--json", "force-release", "job", "--reason", "host is gone"], now].concat();
        let released = store.json(&words);
        assert!(released["token"].as_u64() > held, "{released}");
        assert_eq!(released["freed"], !now.is_empty());
        assert_fails(&victim.end(), 70, &["`job` was lost", "force-released", "host is gone"]);
        let next = store.succeed(&["run", "job", "--", "printenv", "FENCEPOST_TOKEN"]);
        assert!(next.trim().parse::<u64>().ok() > released["token"].as_u64(), "{next} {released}");
    }
}
