//! `oversell`: what it says is what it claims to show.
#![allow(clippy::unwrap_used)]

mod common;

use common::{example, fail, lines, numbers, succeed};

#[test]
fn without_a_lock_every_buyer_gets_one_of_ten_and_with_it_exactly_ten_do() {
    let out = succeed("oversell", &[]);
    assert_eq!(numbers(&out, "  Sold "), [300, 10], "{out}");
    assert_eq!(numbers(&out, "the shelf says that "), [9, 0], "{out}");
    assert_eq!(lines(&out, &["shop", "75 buyers looked, and each saw 10 left"]).len(), 4, "{out}");

    let mut tokens = numbers(&out, "got one with token ");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 10, "every buyer had a token of their own: {out}");
}

#[test]
fn another_store_than_postgres_is_refused_before_anything_is_started() {
    let error = fail(example("oversell").args(["--store", "redis://127.0.0.1"]));
    assert!(error.contains("--store postgres://"), "{error}");
}

#[test]
fn a_database_of_ones_own_keeps_nothing_but_fencepost_s_own_schemas() {
    let server = fencepost_testkit::postgres::Server::shared();
    let database = server.create_database();
    let url = format!("{}?ttl=5s", server.url(&database));
    let output = example("oversell").env("FENCEPOST_STORE", url).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let schemas = r"SELECT nspname FROM pg_namespace WHERE nspname LIKE 'fencepost%' ORDER BY 1";
    assert_eq!(server.psql(&database, schemas), "fencepost\nfencepost_fence");
    assert_eq!(server.psql(&database, "SELECT count(*) FROM fencepost_fence.guards"), "0");
}
