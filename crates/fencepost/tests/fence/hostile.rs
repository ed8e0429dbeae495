//! Others who may create functions and operators in this database, while somebody installs and protects.

use fencepost::fence::Fence;

use crate::harness::{Database, token, until};

/// A database in which anybody may create in `public`, and a role that has filled it with functions and
/// operators which fit what `fence.sql` says better than those of the system.
fn trapped() -> (Database, String) {
    let database = Database::new();
    let stranger = format!("stranger_{}", database.name);
    database.psql(&format!(
        "CREATE ROLE {stranger}; GRANT CREATE ON SCHEMA public TO PUBLIC; \
         GRANT CREATE ON DATABASE {} TO {stranger}; \
         CREATE TABLE public.loot (who name, what text); GRANT ALL ON public.loot TO PUBLIC",
        database.name
    ));
    let mut sql = format!("SET ROLE {stranger};");
    for (name, arguments, result) in [
        ("starts_with", "name, text", "boolean"),
        ("substr", "name, integer", "text"),
        ("format", "text, regclass, name", "text"),
        ("format", "text, name", "text"),
        ("format", "text, regclass", "text"),
        ("format", "text, text", "text"),
        ("format", "text, name, regclass, text", "text"),
        ("format", "text, regclass, text, name", "text"),
        ("hashtextextended", "text, integer", "bigint"),
        ("trap", "text, name", "text"),
        ("likes", "text, name", "boolean"),
    ] {
        sql += &format!(
            "CREATE FUNCTION public.{name}({arguments}) RETURNS {result} LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO public.loot VALUES (current_user, '{name}({arguments})'); RETURN NULL; END $$;"
        );
    }
    sql += "CREATE OPERATOR public.|| (LEFTARG = text, RIGHTARG = name, FUNCTION = public.trap);";
    database.psql(&sql);
    database.psql("SELECT format('%s', 'pg_class'::regclass, 'x'::name), 'a'::text || 'b'::name");
    assert_eq!(database.psql("SELECT count(*) FROM public.loot"), "2", "the traps are set");
    database.psql("DELETE FROM public.loot");
    (database, stranger)
}

fn is_clean(database: &Database, what: &str) {
    let loot = database.psql("SELECT string_agg(DISTINCT what, '; ') FROM public.loot");
    assert_eq!(loot, "", "{what} ran them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_is_planted_on_the_search_path_is_run() {
    let (database, _) = trapped();
    database.install();
    database.install();
    is_clean(&database, "fence.sql");
    database.psql(
        "CREATE TABLE account (id integer PRIMARY KEY, balance integer); INSERT INTO account VALUES (7, \
         100); \
         SELECT fencepost_fence.protect('account'), fencepost_fence.protect('account')",
    );
    is_clean(&database, "protect");
    database.psql("UPDATE account SET balance = 1, fence = 42; SELECT fencepost_fence.activate('a', 42)");
    assert!(database.refused("UPDATE account SET balance = 2, fence = 41").contains("FP010"));
    assert!(database.refused("SELECT fencepost_fence.activate('a', 41)").contains("FP010"));
    is_clean(&database, "writing");
    let (database, _) = trapped();
    let fence = Fence::connect(&database.url()).await.unwrap();
    fence.resource("a").activate(token(7)).await.unwrap();
    is_clean(&database, "connect");
}

#[test]
fn an_earlier_migration_is_replaced_and_nothing_planted_is_run() {
    let (database, _) = trapped();
    database.psql("REVOKE USAGE ON SCHEMA public FROM PUBLIC");
    database.psql(&format!("SET search_path = pg_catalog; {}", include_str!("earlier.sql")));
    database.psql(
        "CREATE TABLE public.account (id integer); SET search_path = pg_catalog; \
         SELECT fencepost_fence.protect('public.account')",
    );
    database.psql("DELETE FROM public.loot");
    database.install();
    is_clean(&database, "fence.sql");
    assert!(database.psql("SELECT prosrc FROM pg_proc WHERE proname = 'protect'").contains("present_column"));
}

#[test]
fn the_search_path_of_whoever_installs_stays() {
    let database = Database::new();
    let sql = format!(
        "SET search_path = public, pg_catalog; BEGIN; {} SHOW search_path; COMMIT; SHOW search_path",
        fencepost::fence::postgres::MIGRATION
    );
    assert_eq!(database.psql(&sql), "public, pg_catalog\npublic, pg_catalog");
    let shown = database.psql(&format!("{} SHOW search_path", fencepost::fence::postgres::MIGRATION));
    assert_eq!(shown, "\"$user\", public");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_of_somebody_who_need_not_be_trusted_is_not_used() {
    let (database, stranger) = trapped();
    database.psql(&format!(
        "SET ROLE {stranger}; CREATE SCHEMA fencepost_fence; \
         CREATE FUNCTION fencepost_fence.version() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO public.loot VALUES (current_user, 'version'); RETURN 1; END $$"
    ));
    let text = database.refused(fencepost::fence::postgres::MIGRATION);
    assert!(text.contains("FP020") && text.contains(&stranger), "{text}");
    let error = Fence::connect(&database.url()).await.unwrap_err();
    assert!(error.to_string().contains(&stranger), "{error}");
    is_clean(&database, "it");
    assert_eq!(
        database.psql(
            "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost_fence'::regnamespace \
             AND proowner = 'postgres'::regrole"
        ),
        "0",
        "nothing was made"
    );
}

/// The constraint on the column would run the cast.
#[test]
fn a_column_of_a_type_of_somebody_elses_is_refused() {
    let (database, stranger) = trapped();
    database.install();
    database.psql(&format!(
        "SET ROLE {stranger}; CREATE TYPE public.odd AS (n bigint); \
         CREATE FUNCTION public.number(public.odd) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO public.loot VALUES (current_user, 'number'); RETURN 1; END $$; \
         CREATE CAST (public.odd AS bigint) WITH FUNCTION public.number(public.odd) AS IMPLICIT; \
         CREATE TABLE public.account (id integer, fence public.odd); \
         INSERT INTO public.account VALUES (1, ROW(1)::public.odd)"
    ));
    let text = database.refused("SELECT fencepost_fence.protect('public.account')");
    assert!(text.contains("42804") && text.contains("bigint"), "{text}");
    is_clean(&database, "protect");
}

/// Its owner changes the column while `protect` waits for the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_changes_its_type_meanwhile_is_refused() {
    let (database, stranger) = trapped();
    database.install();
    database.psql(&format!(
        "SET ROLE {stranger}; CREATE TYPE public.odd AS ENUM ('a'); \
         CREATE FUNCTION public.number(public.odd) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO public.loot VALUES (current_user, 'number'); RETURN 1; END $$; \
         CREATE CAST (public.odd AS bigint) WITH FUNCTION public.number(public.odd) AS IMPLICIT; \
         CREATE TABLE public.account (id integer); INSERT INTO public.account VALUES (1)"
    ));
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        let (owner, victim) = (database.client().await, database.client().await);
        victim.batch_execute(&format!("BEGIN ISOLATION LEVEL {isolation}; SELECT 1")).await.unwrap();
        owner
            .batch_execute(
                "BEGIN; ALTER TABLE public.account ADD COLUMN fence public.odd NOT NULL DEFAULT 'a'",
            )
            .await
            .unwrap();
        let protects = tokio::spawn(async move {
            victim.batch_execute("SELECT fencepost_fence.protect('public.account')").await.unwrap_err()
        });
        until("it waits, or is refused", async || {
            let waiting = database.psql(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'public.account'::regclass \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            );
            protects.is_finished() || waiting != "0"
        })
        .await;
        owner.batch_execute("COMMIT").await.unwrap();
        let code = if isolation == "READ COMMITTED" { "42804" } else { "FP002" };
        assert_eq!(protects.await.unwrap().code().unwrap().code(), code);
        owner.batch_execute("ALTER TABLE public.account DROP COLUMN fence").await.unwrap();
        is_clean(&database, "protect");
    }
}

/// In SQL, a column that is not there may be a function of the row.
#[test]
fn a_function_is_not_taken_for_the_key() {
    let (database, stranger) = trapped();
    database.install();
    database.psql(
        "CREATE TABLE public.account (number integer, balance integer); \
         SELECT fencepost_fence.protect('account'); INSERT INTO account VALUES (7, 100, 50)",
    );
    database.psql(&format!(
        "SET ROLE {stranger}; \
         CREATE FUNCTION public.id(public.account) RETURNS text LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO public.loot VALUES (current_user, 'id'); RETURN 1; END $$"
    ));
    database.psql(
        "DO $$ BEGIN UPDATE account SET balance = 1, fence = 4; \
         EXCEPTION WHEN SQLSTATE 'FP010' THEN NULL; END $$",
    );
    is_clean(&database, "the trigger");
    assert!(database.refused("UPDATE account SET balance = 1, fence = 4").contains("resource \"account\""));
}

/// Whoever runs `fence.sql` again has not asked for a change of that table.
#[test]
fn a_superuser_leaves_the_tables_of_strangers_alone() {
    let (database, stranger) = trapped();
    database.psql(&format!("SET search_path = pg_catalog; {}", include_str!("earlier.sql")));
    database.psql(&format!(
        "GRANT USAGE ON SCHEMA fencepost_fence TO {stranger}; \
         CREATE TABLE public.own (id integer); SET search_path = pg_catalog; \
         SELECT fencepost_fence.protect('public.own'); \
         SET ROLE {stranger}; CREATE TABLE public.theirs (id integer); \
         SELECT fencepost_fence.protect('public.theirs')"
    ));
    database.install();
    let guards = "SELECT tgrelid::regclass, proname FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid \
                  WHERE tgname = 'fencepost_2_guard' ORDER BY tgrelid::regclass::text";
    assert_eq!(database.psql(guards), "own|guard_fence\ntheirs|guard");
    database.psql("SELECT fencepost_fence.protect('public.theirs')");
    database.install();
    assert_eq!(database.psql(guards), "own|guard_fence\ntheirs|guard_fence");
}

#[test]
fn default_privileges_give_nobody_a_right_to_change_tokens() {
    let (database, stranger) = trapped();
    database.psql(&format!("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {stranger}, PUBLIC"));
    database.install();
    let rights = "SELECT string_agg(DISTINCT a.privilege_type, ' ') FROM pg_class c, aclexplode(c.relacl) a \
                  WHERE c.oid = 'fencepost_fence.guards'::regclass AND a.grantee <> c.relowner";
    assert_eq!(database.psql(rights), "SELECT");
    database.install();
}

/// Types that are no words of SQL are looked up by the search_path as well, and a database may have one in
/// which the system's come last. What a type checks runs as whoever uses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_that_is_planted_on_the_search_path_is_not_used() {
    let (database, stranger) = trapped();
    let mut sql = format!(
        "SET ROLE {stranger}; CREATE FUNCTION public.spy(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO public.loot VALUES (current_user, $1); RETURN true; END $$; \
         CREATE TYPE public.found AS (rank integer, does text, name text, role oid, is_trusted boolean);"
    );
    sql += "CREATE DOMAIN public.record AS public.found CHECK (public.spy('record'));";
    for name in ["bytea", "name", "oid", "regclass", "trigger", "void", "int4", "int8", "bool", "text"] {
        sql += &format!("CREATE DOMAIN public.{name} AS pg_catalog.text CHECK (public.spy('{name}'));");
    }
    database.psql(&sql);
    database.psql(&format!("ALTER DATABASE {} SET search_path = public, pg_catalog", database.name));
    database.install();
    database.install();
    is_clean(&database, "fence.sql");
    let planted = "SET search_path = pg_catalog; SELECT count(*) FROM pg_depend d \
                   JOIN pg_type t ON t.oid = d.refobjid AND t.typnamespace = 'public'::regnamespace \
                   WHERE d.refclassid = 'pg_type'::regclass AND t.typtype = 'd' AND (d.objid, d.classid) IN \
                   ( \
                   SELECT oid, tableoid FROM pg_proc WHERE pronamespace = 'fencepost_fence'::regnamespace \
                   UNION SELECT 'fencepost_fence.guards'::regclass, 'pg_class'::regclass)";
    assert_eq!(database.psql(planted), "0");
    let fence = Fence::connect(&database.url()).await.unwrap();
    fence.resource("a").activate(token(7)).await.unwrap();
    is_clean(&database, "connect");
}

/// A server, or somebody who may write functions there, may repeat what it was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_error_has_the_password_in_it() {
    let database = Database::prepared();
    let (role, password) = (format!("ann_{}", database.name), "hunter2-and-more");
    database.psql(&format!(
        "CREATE ROLE {role} LOGIN PASSWORD '{password}'; GRANT USAGE ON SCHEMA fencepost_fence TO {role}; \
         CREATE OR REPLACE FUNCTION fencepost_fence.activate(a_resource text, a_token bigint) RETURNS bytea \
         LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION '{password} is the password' USING ERRCODE = a_resource; END $$"
    ));
    let url = format!(
        "postgres://{role}:{password}@{}/{}?timeout=20s&allow=cleartext",
        database.server.addr(),
        database.name
    );
    let fence = Fence::connect(&url).await.unwrap();
    for code in ["XX000", "40001", "55P03", "3F000", "42501", "22023"] {
        let error = fence.resource(code).activate(token(7)).await.unwrap_err();
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(!text.contains(password) && text.contains("(hidden) is the password"), "{text}");
        }
    }
}
