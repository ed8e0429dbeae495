//! `stale-writer`: what it says is what it claims to show.
#![allow(clippy::unwrap_used)]

mod common;

use common::{example, fail, lines, numbers, succeed};

/// What it prints about each kind of resource.
fn parts(out: &str) -> Vec<&str> {
    out.split("\n\n").skip(1).collect()
}

#[test]
fn the_unchecked_file_loses_an_update_and_no_other_resource_does() {
    let out = succeed("stale-writer", &[]);
    let parts = parts(&out);
    let titles: Vec<_> = parts.iter().filter_map(|part| part.lines().next()).collect();
    assert_eq!(titles.len(), 6, "{out}");
    for (part, title) in parts.iter().zip(titles) {
        assert_eq!(lines(part, &["first", "asks its guard at last, which knew"]).len(), 1, "{part}");
        if title == "A file that checks nothing" {
            assert_eq!(numbers(part, "In the end "), [110], "{part}");
            continue;
        }
        let (older, newer) = (numbers(part, "has the lock with token "), numbers(part, "has it with token "));
        let refusal =
            format!("token {} is refused at resource `account`, which has seen {};", older[0], newer[0]);
        assert!(older < newer && lines(part, &["first", &refusal]).len() == 1, "{part}");
        assert_eq!(numbers(part, "In the end "), [150], "{part}");
    }
}

#[test]
fn one_kind_can_be_chosen_and_memory_needs_no_server() {
    let output =
        example("stale-writer").args(["--resource", "memory"]).env("PATH", "/nonexistent").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let out = common::text(&output.stdout);
    assert_eq!(parts(&out).len(), 1, "{out}");
    assert_eq!(numbers(&out, "In the end "), [150], "{out}");
}

#[test]
fn a_store_without_leases_is_refused() {
    let error = fail(example("stale-writer").args(["--store", "file:"]));
    assert!(error.contains("store with leases"), "{error}");
}
