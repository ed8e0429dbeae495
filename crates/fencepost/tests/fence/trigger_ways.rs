//! Ways past the trigger that are shut, those that `docs/guide/fencing.md` lists as open, and rows that it
//! must not damage.

use fencepost::fence::{StaleToken, postgres::stale_token};

use crate::harness::{Database, token};
use crate::trigger::{protected, row};

/// One action sets the fence, the other, for row 7, does not. PostgreSQL takes the column for set in both.
const MERGE: &str = "MERGE INTO account USING (VALUES (7), (8)) AS s (id) ON account.id = s.id \
                     WHEN MATCHED AND s.id = 7 THEN UPDATE SET balance = 0 \
                     WHEN MATCHED THEN UPDATE SET balance = 1, fence = 60";

fn as_holder(token: u64, sql: &str) -> String {
    format!("BEGIN; SET LOCAL fencepost_fence.token = '{token}'; {sql}; COMMIT")
}

#[test]
fn a_merge_whose_transaction_presents_its_token_is_held_back() {
    let database = protected();
    assert!(database.refused(&as_holder(41, MERGE)).contains("FP010"));
    assert_eq!(row(&database), "101|42");
    database.psql(&as_holder(60, MERGE));
    assert_eq!(row(&database), "0|60", "its token is stored where the action does not say it");
}

/// `docs/guide/fencing.md` lists it.
#[test]
fn a_merge_without_a_token_for_all_its_actions_is_not_held_back() {
    let database = protected();
    database.psql(MERGE);
    assert_eq!(row(&database), "0|42");
}

#[test]
fn of_two_tokens_neither_may_be_stale_and_the_larger_is_stored() {
    let database = protected();
    for (transaction, statement) in [(41, 43), (43, 41)] {
        let sql = format!("UPDATE account SET balance = 0, fence = {statement} WHERE id = 7");
        let text = database.refused(&as_holder(transaction, &sql));
        assert!(text.contains("FP010: token 41 "), "{text}");
    }
    database.psql(&as_holder(44, "UPDATE account SET balance = 1, fence = 43 WHERE id = 7"));
    assert_eq!(row(&database), "1|44");
}

#[test]
fn a_table_that_others_inherit_from_is_not_protected_by_halves() {
    let database = Database::prepared();
    database.psql("CREATE TABLE parent (id integer); CREATE TABLE child () INHERITS (parent)");
    let text = database.refused("SELECT fencepost_fence.protect('parent')");
    assert!(text.contains("0A000") && text.contains("inherit"), "{text}");
    assert_eq!(
        database.psql(
            "SELECT count(*) FROM pg_attribute WHERE attrelid = 'parent'::regclass AND attname = 'fence'"
        ),
        "0",
        "nothing was changed"
    );
    database.psql("SELECT fencepost_fence.protect('child'); INSERT INTO child VALUES (1, 42)");
    assert!(database.refused("UPDATE parent SET id = 2").contains("FP011"));
}

#[test]
fn a_column_that_was_renamed_or_dropped_lets_nobody_in() {
    let database = protected();
    database.psql("ALTER TABLE account RENAME COLUMN fence TO fence2");
    for sql in [
        "UPDATE account SET balance = 0 WHERE id = 7",
        "UPDATE account SET balance = 0, fence2 = 1 WHERE id = 7",
        "DELETE FROM account WHERE id = 7",
    ] {
        assert!(database.refused(&as_holder(1, sql)).contains("42703"), "{sql}");
    }
    assert!(database.refused("SELECT fencepost_fence.protect('account')").contains("fence2"));
    database.psql("SELECT fencepost_fence.protect('account', 'fence2')");
    assert!(database.refused(&as_holder(41, "UPDATE account SET balance = 0")).contains("FP010"));
    database.psql("ALTER TABLE account DROP COLUMN fence2 CASCADE");
    assert!(database.refused(&as_holder(50, "UPDATE account SET balance = 0")).contains("42703"));
}

#[test]
fn a_second_column_is_refused() {
    let database = protected();
    let text = database.refused("SELECT fencepost_fence.protect('account', 'other')");
    assert!(text.contains("55000") && text.contains("column fence already"), "{text}");
    database.psql("SELECT fencepost_fence.protect('account', 'fence', 'balance')");
    assert!(database.refused("UPDATE account SET fence = 41 WHERE id = 7").contains("account:101"));
}

#[test]
fn a_role_that_may_not_use_the_schema_is_checked_like_everybody() {
    let database = protected();
    let role = format!("teller_{}", database.name);
    database.psql(&format!("CREATE ROLE {role}; GRANT SELECT, UPDATE, DELETE ON account TO {role}"));
    let as_role = |sql: &str| format!("SET ROLE {role}; {sql}");
    for (sql, code) in [
        ("UPDATE account SET balance = 0, fence = 41 WHERE id = 7".to_owned(), "FP010"),
        ("UPDATE account SET balance = 0, fence = 0 WHERE id = 7".to_owned(), "22023"),
        ("UPDATE account SET balance = 0 WHERE id = 7".to_owned(), "FP011"),
        (as_holder(41, "DELETE FROM account WHERE id = 7"), "FP010"),
    ] {
        let text = database.refused(&as_role(&sql));
        assert!(text.contains(code), "{sql}: {text}");
    }
    database.psql(&as_role("UPDATE account SET balance = 102, fence = 42 WHERE id = 7"));
    assert_eq!(row(&database), "102|42");
    database.psql(&as_role(&as_holder(43, "UPDATE account SET balance = 103 WHERE id = 7")));
    assert_eq!(row(&database), "103|43");
}

#[test]
fn a_row_that_moves_to_another_partition_needs_a_token_for_both_halves() {
    let database = Database::prepared();
    database.psql(
        "CREATE TABLE part (id integer, year integer) PARTITION BY LIST (year); \
         CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1); CREATE TABLE part_2 PARTITION OF part FOR \
         VALUES IN (2); \
         SELECT fencepost_fence.protect('part'); INSERT INTO part VALUES (7, 1, 42)",
    );
    assert!(database.refused("UPDATE part SET fence = 41").contains("FP010"));
    assert!(database.refused("UPDATE part SET year = 2, fence = 43").contains("FP011"), "the DELETE in it");
    assert!(database.refused(&as_holder(41, "UPDATE part SET year = 2")).contains("FP010"));
    database.psql(&as_holder(43, "UPDATE part SET year = 2"));
    assert_eq!(database.psql("SELECT id, year, fence FROM part_2"), "7|2|43");
}

#[test]
fn rows_that_have_no_place_in_jsonb_are_kept_as_they_are() {
    let database = Database::prepared();
    database.psql(
        "CREATE TABLE odd (id integer, j json, n numeric, t timestamptz, b bytea, f float8[]); \
         INSERT INTO odd VALUES (7, '{\"a\":  \"\\u0000\"}', 1.10, 'infinity', '\\x00ff', '{NaN,1e-300}'); \
         SELECT fencepost_fence.protect('odd')",
    );
    let all = "SELECT id, j, n, t, b, f FROM odd";
    let before = database.psql(all);
    database.psql("UPDATE odd SET fence = 42");
    database.psql(&as_holder(43, "UPDATE odd SET id = id"));
    assert_eq!(database.psql(all), before);
    assert!(database.refused("UPDATE odd SET fence = 42").contains("odd:7"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_cannot_be_given_more_than_a_token() {
    let database = protected();
    assert!(database.refused("INSERT INTO account VALUES (9, 0, NULL, 9007199254740992)").contains("23514"));
    // As an older `protect` has left it.
    database.psql(
        "ALTER TABLE account DROP CONSTRAINT fencepost_fence, ADD CONSTRAINT fencepost_fence CHECK (fence \
         >= 0); \
         INSERT INTO account VALUES (9, 0, NULL, 9007199254740993)",
    );
    let client = database.client().await;
    let error = client.execute("UPDATE account SET fence = 5 WHERE id = 9", &[]).await.unwrap_err();
    assert_eq!(stale_token(&error), Some(StaleToken::new("account:9", token(5), token((1 << 53) - 1))));
    assert!(database.refused("SELECT fencepost_fence.protect('account')").contains("23514"));
    database.psql("TRUNCATE account; SELECT fencepost_fence.protect('account')");
    assert!(database.refused("INSERT INTO account VALUES (9, 0, NULL, 9007199254740992)").contains("23514"));
}
