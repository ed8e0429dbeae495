//! What `docs/guide/fencing.md` tells people of other languages to copy does what it says.

use fencepost_testkit::redis::Reply;

use crate::harness::{Database, fresh, redis};

const PAGE: &str = include_str!("../../../../docs/guide/fencing.md");

/// The blocks of one language, in order.
fn blocks(language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    PAGE.split(begin.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn the_sql_runs_as_it_stands() {
    let database = Database::prepared();
    database.psql(
        "CREATE TABLE account (id integer PRIMARY KEY, balance bigint); INSERT INTO account VALUES (7, 100)",
    );
    let blocks = blocks("sql");
    assert_eq!(blocks.len(), 4);
    let answers: Vec<_> = blocks.into_iter().map(|block| database.psql(block)).collect();
    assert_eq!(answers[1].lines().last(), Some("105"), "one string, all its answers: {}", answers[1]);
    assert_eq!(database.psql("SELECT balance, fence FROM account"), "105|42");
    let inline = "UPDATE account SET balance = 105, fence = 42 WHERE id = 7 AND fence <= 42";
    assert!(PAGE.contains(inline));
    database.psql(inline);
    database.psql("UPDATE account SET fence = 43 WHERE id = 7");
    assert!(database.refused("UPDATE account SET balance = 105, fence = 42 WHERE id = 7").contains("FP010"));
}

#[test]
fn the_script_for_one_hash_refuses_what_is_stale() {
    let [script] = blocks("lua")[..] else { panic!("one script") };
    let key = fresh("hash");
    let write = |token: &str, value: &str| redis().call(&["EVAL", script, "1", &key, token, value]);
    assert_eq!(write("7", "a"), Reply::Number(2));
    assert_eq!(write("10", "b"), Reply::Number(0));
    assert_eq!(write("10", "c"), Reply::Number(0));
    assert_eq!(write("9", "late"), Reply::Error("STALE 10".to_owned()));
    assert_eq!(redis().cli(&["HGET", &key, "value"]), "c");
}
