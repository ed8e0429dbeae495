//! `orders`: what it says is what it claims to show.
#![allow(clippy::unwrap_used)]

mod common;

use common::{example, fail, lines, numbers, succeed};

#[test]
fn every_order_is_paid_for_once_and_busy_workers_say_who_has_it() {
    let out = succeed("orders", &[]);
    for order in 1..=5 {
        let name = format!("order:{order}");
        assert_eq!(lines(&out, &["worker", &name, "is paid;"]).len(), 1, "{name}: {out}");
        assert_eq!(
            lines(&out, &["worker", &name, "nothing to do, it was paid by worker"]).len(),
            2,
            "{name}: {out}"
        );
        assert_eq!(numbers(&out, &format!("  {name}: payments: ")), [1], "{out}");
    }
    let busy = lines(&out, &["is busy: host ", "pid ", "takes the payment)", "put back"]);
    assert!(!busy.is_empty(), "three deliveries of the first order met: {out}");
    assert_eq!(numbers(&out, "Put back to be tried later: "), [busy.len() as u64], "{out}");
    assert!(out.ends_with("Each order was paid for once.\n"), "{out}");
}

#[test]
fn a_missing_server_is_named_with_the_command_that_installs_it() {
    let error = fail(example("orders").env("PATH", "/nonexistent"));
    assert!(error.contains("redis-server") && error.contains("`make deps`"), "{error}");
}

#[test]
fn a_store_of_ones_own_that_is_out_of_reach_is_an_error() {
    let error = fail(example("orders").args(["--store", "redis://127.0.0.1:1"]));
    assert!(error.contains("out of reach"), "{error}");
}
