//! Protected tables over the years: other owners, other columns, a restored backup, and databases that an
//! earlier `fence.sql` was run in.

use std::process::{Command, Stdio};

use crate::harness::Database;
use crate::trigger::{protected, row};

const EARLIER: &str = include_str!("earlier.sql");
const EARLIER_FUNCTIONS: &str = "SELECT count(*) FROM pg_proc WHERE pronamespace = \
'fencepost_fence'::regnamespace \
                                 AND proname IN ('mark', 'guard', 'check_token')";

/// Which functions the triggers of a table call.
fn functions(database: &Database, table: &str) -> String {
    let sql = format!(
        "SELECT string_agg(proname, ' ' ORDER BY tgname) FROM pg_trigger JOIN pg_proc ON pg_proc.oid = \
         tgfoid \
         WHERE tgrelid = '{table}'::regclass"
    );
    database.psql(&sql)
}

/// A role of this database that may use the schema, and its own schema for tables.
fn member(database: &Database) -> String {
    let role = format!("member_{}", database.name);
    database.psql(&format!(
        "CREATE ROLE {role}; CREATE SCHEMA AUTHORIZATION {role}; GRANT USAGE ON SCHEMA fencepost_fence TO \
         {role}"
    ));
    role
}

#[test]
fn who_owns_a_table_can_protect_it_by_any_column_and_make_nothing_else_in_the_schema() {
    let database = Database::prepared();
    let role = member(&database);
    let as_role = |sql: &str| format!("SET ROLE {role}; {sql}");
    database.psql(&as_role(
        "CREATE TABLE one (id integer); CREATE TABLE two (id integer); INSERT INTO one VALUES (7); INSERT \
         INTO two VALUES (7); \
         SELECT fencepost_fence.protect('one'), fencepost_fence.protect('two', 'seen'); \
         UPDATE one SET fence = 42; UPDATE two SET seen = 42",
    ));
    assert_eq!(functions(&database, &format!("{role}.two")), "mark_seen guard_seen");
    for sql in ["UPDATE one SET fence = 41", "UPDATE two SET seen = 41"] {
        assert!(database.refused(&as_role(sql)).contains("FP010"), "{sql}");
    }
    for sql in [
        "CREATE FUNCTION fencepost_fence.own() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE OR REPLACE FUNCTION fencepost_fence.guard_seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN \
         RETURN NEW; END'",
        "DROP FUNCTION fencepost_fence.guard_seen()",
        "SELECT fencepost_fence.protect('pg_catalog.pg_class')",
    ] {
        assert!(database.refused(&as_role(sql)).contains("42501"), "{sql}");
    }
}

#[test]
fn the_name_of_a_column_is_a_name_and_no_code() {
    let database = Database::prepared();
    database.psql("CREATE TABLE odd (id integer); INSERT INTO odd VALUES (7)");
    let column = r#"we"ird '$body$ %I \ $make$; --"#;
    let quoted = format!("\"{}\"", column.replace('"', "\"\""));
    database
        .psql(&format!("SELECT fencepost_fence.protect('odd', '{}', 'none')", column.replace('\'', "''")));
    database.psql(&format!("UPDATE odd SET {quoted} = 42"));
    assert!(database.refused(&format!("UPDATE odd SET {quoted} = 41")).contains("resource \"odd\""));
    let text = database.refused("UPDATE odd SET id = 8");
    assert!(text.contains("FP011") && text.contains(&quoted), "{text}");

    let long = "x".repeat(58);
    assert!(database.refused(&format!("SELECT fencepost_fence.protect('odd', '{long}')")).contains("55000"));
    database.psql("CREATE TABLE other (id integer)");
    let text = database.refused(&format!("SELECT fencepost_fence.protect('other', '{long}')"));
    assert!(text.contains("42622") && text.contains("57 bytes"), "{text}");
    assert_eq!(
        database.psql(
            "SELECT count(*) FROM pg_attribute WHERE attrelid = 'other'::regclass AND attname LIKE 'xx%'"
        ),
        "0",
        "nothing was changed"
    );
    database.psql(&format!("SELECT fencepost_fence.protect('other', '{}')", &long[1..]));
}

/// Operators and types of theirs, in front of those of the system.
#[test]
fn writers_cannot_replace_what_the_trigger_compares_with() {
    let database = protected();
    database.psql(
        "CREATE SCHEMA mine; \
         CREATE FUNCTION mine.yes(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'; \
         CREATE OPERATOR mine.>= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = mine.yes); \
         CREATE FUNCTION mine.no(bigint, integer) RETURNS boolean LANGUAGE sql AS 'SELECT false'; \
         CREATE OPERATOR mine.< (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = mine.no)",
    );
    let by_mine = |sql: &str| format!("SET search_path = mine, public, pg_catalog; {sql}");
    for (sql, code) in [
        ("UPDATE account SET balance = 0, fence = 41 WHERE id = 7", "FP010"),
        ("UPDATE account SET balance = 0, fence = -1 WHERE id = 7", "22023"),
        ("UPDATE account SET balance = 0 WHERE id = 7", "FP011"),
    ] {
        assert!(database.refused(&by_mine(sql)).contains(code), "{sql}");
    }
    assert_eq!(row(&database), "101|42");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_can_change_under_a_session_that_has_written_to_it() {
    let database = protected();
    let client = database.client().await;
    let mut name = "account";
    let changes = [
        "ALTER TABLE account ADD COLUMN more text DEFAULT 'x'",
        "ALTER TABLE account DROP COLUMN note",
        "ALTER TABLE account RENAME COLUMN balance TO amount; ALTER TABLE account RENAME COLUMN amount TO \
         balance",
        "ALTER TABLE account ALTER COLUMN balance TYPE numeric",
        "ALTER TABLE account RENAME TO renamed",
        "DROP TABLE renamed CASCADE; CREATE TABLE renamed (fence bigint NOT NULL, balance integer, id \
         integer); \
         INSERT INTO renamed VALUES (42, 0, 7); SELECT fencepost_fence.protect('renamed')",
    ];
    for change in changes {
        client.execute(&format!("UPDATE {name} SET balance = 1, fence = 42"), &[]).await.unwrap();
        database.psql(change);
        if change.contains("renamed") {
            name = "renamed";
        }
        let error =
            client.execute(&format!("UPDATE {name} SET balance = 2, fence = 41"), &[]).await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("FP010"), "{change}: {error:?}");
        let error = client.execute(&format!("UPDATE {name} SET balance = 2"), &[]).await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("FP011"), "{change}: {error:?}");
    }
    assert!(database.refused("DELETE FROM renamed").contains("renamed:7"));
}

#[test]
fn a_restored_backup_is_protected() {
    let database = protected();
    database.psql(
        "CREATE TABLE other (id integer, seen bigint NOT NULL DEFAULT 0); INSERT INTO other VALUES (1, 42); \
         SELECT fencepost_fence.protect('other', 'seen'); SELECT fencepost_fence.activate('a', 42)",
    );
    let restored = Database::new();
    let mut dump = Command::new("pg_dump")
        .arg(database.server.url(&database.name))
        .stdout(Stdio::piped())
        .spawn()
        .expect("pg_dump starts; run `make deps`");
    let restore = restored
        .server
        .psql_command(&restored.name)
        .arg("-1")
        .stdin(dump.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(dump.wait().unwrap().success());
    assert!(restore.status.success(), "{}", String::from_utf8_lossy(&restore.stderr));
    restored.install();
    restored.psql("SELECT fencepost_fence.protect('other', 'seen')");
    for sql in [
        "UPDATE account SET fence = 41 WHERE id = 7",
        "UPDATE other SET seen = 41",
        "SELECT fencepost_fence.activate('a', 41)",
    ] {
        assert!(restored.refused(sql).contains("FP010"), "{sql}");
    }
    restored.psql("UPDATE account SET fence = 42 WHERE id = 7; UPDATE other SET seen = 42");
}

/// An earlier `fence.sql`, and tables that it has protected.
fn of_earlier_days() -> Database {
    let database = Database::new();
    database.psql(EARLIER);
    database.psql(
        "CREATE TABLE account (id integer, \"der Schlüssel\" text); INSERT INTO account VALUES (1, 'seven'); \
         CREATE TABLE \"Odd Table\" (id integer, \"last token\" bigint NOT NULL DEFAULT 0); \
         INSERT INTO \"Odd Table\" VALUES (7, 42); \
         CREATE TABLE part (id integer, year integer) PARTITION BY LIST (year); \
         CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1); \
         SELECT fencepost_fence.protect('account', 'fence', 'der Schlüssel'), \
             fencepost_fence.protect('\"Odd Table\"', 'last token'), fencepost_fence.protect('part'); \
         UPDATE account SET fence = 42; INSERT INTO part VALUES (7, 1, 42); SELECT \
         fencepost_fence.activate('a', 42)",
    );
    assert_eq!(functions(&database, "part_1"), "mark guard");
    database
}

#[test]
fn the_migration_keeps_what_an_earlier_one_has_protected() {
    let database = of_earlier_days();
    database.install();
    database.install();
    assert_eq!(functions(&database, "account"), "mark_fence guard_fence");
    assert_eq!(functions(&database, "part_1"), "mark_fence guard_fence");
    assert_eq!(functions(&database, "\"Odd Table\""), "mark_last token guard_last token");
    for (sql, resource) in [
        ("UPDATE account SET fence = 41", "account:seven"),
        ("UPDATE \"Odd Table\" SET \"last token\" = 41", "Odd Table:7"),
        ("UPDATE part SET fence = 41", "part_1:7"),
        ("SELECT fencepost_fence.activate('a', 41)", "\"a\""),
    ] {
        let text = database.refused(sql);
        assert!(text.contains("FP010") && text.contains(resource), "{text}");
    }
    database.psql("UPDATE account SET fence = 43; UPDATE part SET fence = 43");
    assert_eq!(database.psql(EARLIER_FUNCTIONS), "0");
}

#[test]
fn the_migration_leaves_a_table_that_it_cannot_protect_anew_protected_as_it_was() {
    let database = of_earlier_days();
    database.psql("CREATE TABLE child () INHERITS (account)");
    database.install();
    assert_eq!(functions(&database, "account"), "mark guard");
    assert_eq!(functions(&database, "part_1"), "mark_fence guard_fence");
    assert!(database.refused("UPDATE account SET fence = 41").contains("FP010"));
    database.psql("UPDATE account SET fence = 43");
    database.psql("DROP TABLE child; SELECT fencepost_fence.protect('account', 'fence', 'der Schlüssel')");
    assert_eq!(functions(&database, "account"), "mark_fence guard_fence");
    assert!(database.refused("UPDATE account SET fence = 42").contains("account:seven"));
    database.install();
    assert_eq!(database.psql(EARLIER_FUNCTIONS), "0");
}

/// Who owns the schema runs the migration; the table is somebody else's.
#[test]
fn the_migration_leaves_tables_of_others_protected_as_they_were() {
    let database = of_earlier_days();
    let role = member(&database);
    database.psql(&format!("ALTER TABLE account OWNER TO {role}"));
    let owner = format!("owner_{}", database.name);
    database.psql(&format!(
        "CREATE ROLE {owner} LOGIN; GRANT CREATE ON DATABASE {} TO {owner}; ALTER SCHEMA fencepost_fence \
         OWNER TO {owner}; \
         ALTER TABLE fencepost_fence.guards OWNER TO {owner}; \
         DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = \
         'fencepost_fence'::regnamespace \
         LOOP EXECUTE format('ALTER FUNCTION %s OWNER TO {owner}', f); END LOOP; END $$",
        database.name
    ));
    let mut psql = database.server.psql_command(&database.name);
    let again = psql.args(["-U", &owner, "-c", fencepost::fence::postgres::MIGRATION]).output().unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(functions(&database, "account"), "mark guard");
    assert!(database.refused("UPDATE account SET fence = 41").contains("FP010"));
    database.psql("UPDATE account SET fence = 43");
    database.psql(&format!("SET ROLE {role}; SELECT fencepost_fence.protect('public.account')"));
    assert_eq!(functions(&database, "account"), "mark_fence guard_fence");
    assert!(database.refused("UPDATE account SET fence = 42").contains("FP010"));
}
