//! The trigger on a table that is already there, against clients that know nothing of Fencepost.

use fencepost::fence::{StaleToken, postgres::stale_token};

use crate::harness::{Database, token};

/// A table as somebody has it, with a row that token 42 has written.
pub(crate) fn protected() -> Database {
    let database = Database::prepared();
    database.psql(
        "CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL, note jsonb); \
         INSERT INTO account VALUES (7, 100, '{\"a\": 1}'), (8, 200, NULL); \
         SELECT fencepost_fence.protect('account', 'fence', 'id'); \
         UPDATE account SET balance = 101, fence = 42 WHERE id = 7",
    );
    database
}

pub(crate) fn row(database: &Database) -> String {
    database.psql("SELECT balance, fence FROM account WHERE id = 7")
}

#[test]
fn a_stale_update_typed_into_psql_is_refused() {
    let database = protected();
    let text = database.refused("UPDATE account SET balance = 0, fence = 41 WHERE id = 7");
    for part in [
        "FP010: token 41 is refused at resource \"account:7\", which has seen 42",
        r#""presented" : 41, "highest" : 42"#,
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(row(&database), "101|42");
    database.psql("UPDATE account SET balance = 102, fence = 42 WHERE id = 7");
    assert_eq!(row(&database), "102|42", "a holder comes as often as it likes");
    database.psql("UPDATE account SET balance = 103, fence = 43 WHERE id = 7");
    assert!(database.refused("UPDATE account SET balance = 0, fence = 42 WHERE id = 7").contains("FP010"));
    assert_eq!(database.psql("SELECT note FROM account WHERE id = 7"), "{\"a\": 1}");
}

#[test]
fn an_update_that_does_not_mention_the_fence_presents_no_token() {
    let database = protected();
    for sql in [
        "UPDATE account SET balance = 0 WHERE id = 7",
        "UPDATE account SET balance = 0",
        "DELETE FROM account WHERE id = 7",
        "INSERT INTO account VALUES (7, 0) ON CONFLICT (id) DO UPDATE SET balance = 0",
    ] {
        let text = database.refused(sql);
        assert!(text.contains("FP011") && text.contains("SET LOCAL fencepost_fence.token"), "{sql}: {text}");
    }
    assert_eq!(row(&database), "101|42");
}

#[test]
fn a_transaction_can_present_its_token_once_for_all_its_statements() {
    let database = protected();
    let as_holder =
        |token: &str, sql: &str| format!("BEGIN; SET LOCAL fencepost_fence.token = '{token}'; {sql}; COMMIT");
    let text = database.refused(&as_holder("41", "UPDATE account SET balance = 0"));
    assert!(text.contains("FP010"), "{text}");
    assert!(database.refused(&as_holder("41", "DELETE FROM account WHERE id = 7")).contains("FP010"));
    assert!(database.refused(&as_holder("0", "UPDATE account SET balance = 0")).contains("22023"));
    assert!(database.refused(&as_holder("x", "UPDATE account SET balance = 0")).contains("22P02"));
    assert_eq!(row(&database), "101|42");
    database.psql(&as_holder("43", "UPDATE account SET balance = balance + 1"));
    assert_eq!(row(&database), "102|43", "the token is stored");
    assert!(
        database.refused("UPDATE account SET balance = 0").contains("FP011"),
        "it ended with the transaction"
    );
    database.psql(&as_holder("44", "DELETE FROM account WHERE id = 7"));
    assert_eq!(row(&database), "");
}

#[test]
fn what_is_no_token_is_refused() {
    let database = protected();
    for value in ["NULL", "0", "-42", "9007199254740992"] {
        let text = database.refused(&format!("UPDATE account SET fence = {value} WHERE id = 7"));
        assert!(text.contains("22023"), "{value}: {text}");
    }
    assert!(database.refused("INSERT INTO account VALUES (9, 0, NULL, -5)").contains("23514"));
    assert_eq!(row(&database), "101|42");
}

#[test]
fn new_rows_have_seen_what_they_are_given_or_nothing() {
    let database = protected();
    database.psql(
        "INSERT INTO account (id, balance) VALUES (9, 0); INSERT INTO account VALUES (10, 0, NULL, 50)",
    );
    database.psql("UPDATE account SET balance = 1, fence = 1 WHERE id = 9");
    assert!(database.refused("UPDATE account SET balance = 1, fence = 49 WHERE id = 10").contains("FP010"));
    let upsert = |token: u32| {
        format!(
            "INSERT INTO account VALUES (7, 500, NULL, {token}) \
             ON CONFLICT (id) DO UPDATE SET balance = EXCLUDED.balance, fence = EXCLUDED.fence"
        )
    };
    assert!(database.refused(&upsert(41)).contains("FP010"));
    database.psql(&upsert(43));
    assert_eq!(row(&database), "500|43");
}

#[test]
fn the_inline_form_needs_no_trigger_and_goes_with_it() {
    let inline = |token: u32| {
        format!(
            "WITH done AS (UPDATE account SET balance = {token}, fence = {token} WHERE id = 7 AND fence <= \
             {token} RETURNING 1) \
             SELECT count(*) FROM done"
        )
    };
    let plain = Database::new();
    plain.psql(
        "CREATE TABLE account (id integer PRIMARY KEY, balance bigint, fence bigint NOT NULL DEFAULT 0)",
    );
    plain.psql("INSERT INTO account VALUES (7, 0)");
    for database in [plain, protected()] {
        for (token, rows) in [(50, "1"), (49, "0"), (50, "1"), (51, "1")] {
            assert_eq!(database.psql(&inline(token)), rows);
        }
        assert_eq!(row(&database), "51|51");
    }
}

#[test]
fn any_column_will_do_and_protecting_twice_changes_nothing() {
    let database = Database::prepared();
    database.psql(
        "CREATE TABLE \"Odd Table\" (\"The Key\" text, \"last token\" bigint NOT NULL DEFAULT 0); \
         INSERT INTO \"Odd Table\" VALUES ('x')",
    );
    for _ in 0..2 {
        database.psql("SELECT fencepost_fence.protect('\"Odd Table\"', 'last token', 'The Key')");
    }
    database.psql("UPDATE \"Odd Table\" SET \"last token\" = 5");
    let text = database.refused("UPDATE \"Odd Table\" SET \"last token\" = 4");
    assert!(text.contains("Odd Table:x"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_in_rust_gets_the_refusal_back() {
    let database = protected();
    let client = database.client().await;
    let sql = "UPDATE account SET balance = 0, fence = 41 WHERE id = 7";
    let error = client.execute(sql, &[]).await.unwrap_err();
    assert_eq!(stale_token(&error), Some(StaleToken::new("account:7", token(41), token(42))));
    let other = client.execute("UPDATE account SET balance = 0", &[]).await.unwrap_err();
    assert_eq!(stale_token(&other), None);
}
