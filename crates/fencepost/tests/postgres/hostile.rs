//! Others who may create functions and operators in this database, and in schemas that are on
//! everybody's search_path.

use fencepost::{Error, ForceRelease, Locks};

use crate::harness::{Database, LONG, take};

/// Functions and operators that fit what is said in SQL better than those of the system, and where:
/// schemas of the default search_path. Each notes who ran it.
const TRAPS: &[(&str, &str, &str)] = &[
    ("format", "text, integer, numeric", "text"),
    ("format", "text, integer, bigint", "text"),
    ("format", "text, integer, text", "text"),
    ("hashtextextended", "text, integer", "bigint"),
    ("starts_with", "name, text", "boolean"),
    ("nullif", "name, text", "text"),
    ("split_part", "name, text, integer", "text"),
    ("nextval", "text", "bigint"),
    ("starts_with", "text, name", "boolean"),
];
const OPERATORS: &[(&str, &str, &str, &str)] = &[
    ("*", "bigint", "interval", "interval"),
    ("*", "numeric", "integer", "numeric"),
    ("||", "text", "integer", "text"),
    ("||", "integer", "text", "text"),
    ("||", "text", "bigint", "text"),
    ("||", "text", "numeric", "text"),
    ("||", "text", "name", "text"),
    ("=", "name", "varchar", "boolean"),
    ("<", "bigint", "numeric", "boolean"),
    ("<>", "integer", "numeric", "boolean"),
    ("-", "numeric", "integer", "numeric"),
];

/// A database in which anybody may create in `public`, a stranger who has filled it with traps, and a
/// schema with the name of the superuser as well.
struct Trapped {
    database: Database,
    stranger: String,
}

impl Trapped {
    fn new() -> Self {
        let database = Database::new();
        let stranger = format!("stranger_{}", database.name);
        database.psql(&format!(
            "CREATE ROLE {stranger} LOGIN PASSWORD 'x'; GRANT CREATE ON SCHEMA public TO PUBLIC; \
             CREATE SCHEMA postgres AUTHORIZATION {stranger}; GRANT USAGE ON SCHEMA postgres TO PUBLIC; \
             CREATE TABLE public.loot (who name, what text); GRANT ALL ON public.loot TO PUBLIC"
        ));
        let mut sql = format!("SET ROLE {stranger};");
        for schema in ["public", "postgres"] {
            let mut trap = |name: &str, arguments: &str, result: &str| {
                sql += &format!(
                    "CREATE FUNCTION {schema}.\"{name}\"({arguments}) RETURNS {result} LANGUAGE plpgsql AS \
                     $$ BEGIN \
                     INSERT INTO public.loot VALUES (current_user, '{name}({arguments})'); RETURN NULL; \
                     END $$;"
                );
            };
            for (name, arguments, result) in TRAPS {
                trap(name, arguments, result);
            }
            for (number, (_, left, right, result)) in OPERATORS.iter().enumerate() {
                trap(&format!("trap_{number}"), &format!("{left}, {right}"), result);
            }
            for (number, (name, left, right, _)) in OPERATORS.iter().enumerate() {
                sql += &format!(
                    "CREATE OPERATOR {schema}.{name} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = \
                     {schema}.trap_{number});"
                );
            }
        }
        database.psql(&sql);
        let trapped = Self { database, stranger };
        // They work: this is what an unsuspecting superuser would do.
        trapped
            .database
            .psql("SELECT format('%s %s', 1, 1.5), 5::bigint * interval '1 second', 'a'::text || 1");
        assert_eq!(trapped.loot(), "3", "the traps are set");
        trapped.database.psql("DELETE FROM public.loot");
        trapped
    }

    fn loot(&self) -> String {
        self.database.psql("SELECT count(*) FROM public.loot")
    }

    fn is_clean(&self, what: &str) {
        let loot = self.database.psql("SELECT string_agg(DISTINCT what, '; ') FROM public.loot");
        assert_eq!(loot, "", "{what} ran them");
    }

    fn stranger_url(&self) -> String {
        format!(
            "postgres://{}:x@{}/{}?timeout=20s",
            self.stranger,
            self.database.server.addr(),
            self.database.name
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_is_planted_on_the_search_path_is_run() {
    let trapped = Trapped::new();
    let url = trapped.database.url();
    assert_eq!(Locks::init(&url).await.unwrap(), ["schema `fencepost` made"]);
    trapped.is_clean("init");
    let (locks, rival) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    trapped.is_clean("connect");
    let guard = take(&locks, "a").await;
    guard.extend().await.unwrap();
    assert!(rival.lock("a").try_acquire().await.unwrap().is_none());
    trapped.is_clean("acquire and renew");
    assert_eq!(rival.list("").await.unwrap().holders.len(), 1);
    assert!(rival.show("a").await.unwrap().is_some());
    trapped.is_clean("list and show");
    let waits = tokio::spawn({
        let lock = rival.lock("a").ttl(LONG);
        async move { lock.acquire().await.unwrap() }
    });
    let waiting = "SELECT count(*) FROM fencepost.waiters";
    crate::harness::until("it waits", async || trapped.database.psql(waiting) == "1").await;
    guard.release().await.unwrap();
    let next = waits.await.unwrap();
    trapped.is_clean("release and hand over");
    let handle = next.detach().await.unwrap();
    locks.extend(&handle, LONG).await.unwrap();
    let attached = locks.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    trapped.is_clean("detach, extend and attach");
    locks.force_release("a", "x").await.unwrap().unwrap();
    drop(attached);
    let held = take(&locks, "b").await;
    rival.force_release("b", ForceRelease::now("x")).await.unwrap().unwrap();
    drop(held);
    trapped.is_clean("force-release");
    // Of anybody's session, under its own search_path.
    let psql = |sql: &str| trapped.database.psql(sql);
    psql(
        "BEGIN; SELECT fencepost.lock_in_transaction('c'), fencepost.try_lock_in_transaction('pg:1,42'); \
         COMMIT",
    );
    psql("SELECT fencepost.collect(), fencepost.backends_with(false, 1), fencepost.own_session()");
    trapped.is_clean("lock_in_transaction");
    psql("CREATE SEQUENCE public.fence");
    let numbered = Locks::connect(&format!("{url}&sequence=public.fence")).await.unwrap();
    take(&numbered, "d").await.release().await.unwrap();
    trapped.is_clean("a sequence");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_the_session_itself_are_not_taken_for_others() {
    let database = Database::new();
    database.locks().await.close().await;
    let client = database.client().await;
    client
        .batch_execute(
            "CREATE TEMP TABLE locks (LIKE fencepost.locks); CREATE TEMP TABLE pg_settings \
                        (name text, setting text)",
        )
        .await
        .unwrap();
    let sql = "BEGIN; SELECT fencepost.lock_in_transaction('a')";
    client.batch_execute(sql).await.unwrap();
    let rival = database.locks().await;
    assert!(rival.lock("a").try_acquire().await.unwrap().is_none());
}

async fn refused(url: &str, role: &str) -> String {
    let mut text = String::new();
    for error in [Locks::connect(url).await.unwrap_err(), Locks::init(url).await.unwrap_err()] {
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        text = error.to_string();
        assert!(text.contains(role), "{text}");
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_of_somebody_who_need_not_be_trusted_is_not_used() {
    let trapped = Trapped::new();
    let (database, stranger) = (&trapped.database, &trapped.stranger);
    database.psql(&format!("GRANT CREATE ON DATABASE {} TO {stranger}", database.name));
    // The stranger makes the schema, as who may make one does, and waits for others to use it.
    let own = Locks::connect(&trapped.stranger_url()).await.unwrap();
    take(&own, "a").await.release().await.unwrap();
    database.psql(&format!(
        "SET ROLE {stranger}; CREATE OR REPLACE FUNCTION fencepost.version() RETURNS integer LANGUAGE \
         plpgsql AS $$ BEGIN \
         INSERT INTO public.loot VALUES (current_user, 'version'); RETURN 2; END $$"
    ));
    let url = database.url();
    let text = refused(&url, stranger).await;
    assert!(text.contains("owns it") && !text.contains("GRANT"), "{text}");
    trapped.is_clean("a superuser");
    let peer = format!("peer_{}", database.name);
    database
        .psql(&format!("CREATE ROLE {peer} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA fencepost TO {peer}"));
    let peer_url = trapped.stranger_url().replace(&format!("{stranger}:"), &format!("{peer}:"));
    refused(&peer_url, stranger).await;
    trapped.is_clean("another user");

    // Whoever owns the database is trusted, but not by superusers; and so is a role that one was made a
    // member of.
    database.psql(&format!("ALTER DATABASE {} OWNER TO {stranger}", database.name));
    refused(&url, stranger).await;
    trapped.is_clean("a superuser");
    database.psql(&format!(
        "SET ROLE {stranger}; CREATE OR REPLACE FUNCTION fencepost.version() RETURNS integer LANGUAGE sql \
         AS 'SELECT 2'; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fencepost TO {peer}"
    ));
    take(&Locks::connect(&peer_url).await.unwrap(), "a").await.release().await.unwrap();
    database.psql(&format!("GRANT {stranger} TO postgres"));
    take(&Locks::connect(&url).await.unwrap(), "a").await.release().await.unwrap();
    database.psql(&format!("REVOKE {stranger} FROM postgres"));
    refused(&url, stranger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_in_which_a_stranger_has_a_say_is_not_used() {
    let trapped = Trapped::new();
    let (database, stranger, url) = (&trapped.database, &trapped.stranger, trapped.database.url());
    take(&database.locks().await, "a").await.release().await.unwrap();
    let grants = format!(
        "GRANT USAGE ON SCHEMA fencepost TO {stranger}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fencepost TO {stranger}"
    );
    database.psql(&grants);
    take(&database.locks().await, "a").await.release().await.unwrap();
    take(&Locks::connect(&trapped.stranger_url()).await.unwrap(), "a").await.release().await.unwrap();
    // A function of theirs in the schema would be run instead of ours, if its arguments fit better.
    database.psql(&format!("GRANT CREATE ON SCHEMA fencepost TO {stranger}"));
    let text = refused(&url, stranger).await;
    let fix = text.split_once("; ").unwrap().1;
    assert_eq!(fix, format!("REVOKE CREATE ON SCHEMA fencepost FROM {stranger}"));
    database.psql(&format!(
        "SET ROLE {stranger}; CREATE FUNCTION fencepost.backends_with(text, text) RETURNS text LANGUAGE \
         sql AS 'SELECT 1::text'"
    ));
    database.psql(fix);
    assert!(refused(&url, stranger).await.contains("owns a function"));
    database.psql("DROP FUNCTION fencepost.backends_with(text, text)");
    take(&database.locks().await, "a").await.release().await.unwrap();
    // A trigger of theirs runs as whoever writes, and stays when they may make no more.
    let grant = format!("GRANT TRIGGER ON fencepost.locks TO {stranger}");
    let revoke =
        format!("REVOKE TRIGGER, REFERENCES ON ALL TABLES IN SCHEMA fencepost FROM {stranger} CASCADE");
    database.psql(&format!(
        "{grant}; SET ROLE {stranger}; CREATE FUNCTION public.spy() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN \
         INSERT INTO public.loot VALUES (current_user, 'spy'); RETURN NEW; END $$; \
         CREATE TRIGGER spy BEFORE INSERT OR UPDATE ON fencepost.locks FOR EACH ROW EXECUTE FUNCTION \
         public.spy(); \
         RESET ROLE; {revoke}"
    ));
    assert!(refused(&url, stranger).await.contains("trigger"));
    trapped.is_clean("a superuser");
}

/// A stranger has some right on the tables. What they plant by it is seen also when the right is gone.
async fn is_refused_with_and_after(right: &str, plants: &str, says: &str) {
    let trapped = Trapped::new();
    let (database, stranger, url) = (&trapped.database, &trapped.stranger, trapped.database.url());
    take(&database.locks().await, "a").await.release().await.unwrap();
    database.psql(&format!("GRANT USAGE ON SCHEMA fencepost TO {stranger}; GRANT {right} TO {stranger}"));
    let text = refused(&url, stranger).await;
    let fix = text.split_once("; ").unwrap().1;
    assert_eq!(
        fix,
        format!("REVOKE TRIGGER, REFERENCES ON ALL TABLES IN SCHEMA fencepost FROM {stranger} CASCADE")
    );
    database.psql(&format!("SET ROLE {stranger}; {plants}"));
    database.psql(fix);
    assert!(refused(&url, says).await.contains("drop that"));
    trapped.is_clean("a superuser");
}

/// It runs for whoever writes, before the trigger's own function, which may be anybody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_condition_of_a_trigger_is_not_run() {
    is_refused_with_and_after(
        "TRIGGER ON fencepost.waiters",
        "CREATE FUNCTION public.spy() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO public.loot VALUES (current_user, 'spy'); RETURN false; END $$; \
         CREATE TRIGGER spy BEFORE INSERT OR UPDATE ON fencepost.waiters FOR EACH ROW WHEN (public.spy()) \
         EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "somebody has put a trigger with a condition",
    )
    .await;
}

/// What is deleted here is deleted there, and triggers of that table run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_refers_to_ours_is_not_deleted_from() {
    let plants = "CREATE TABLE public.child (two_part boolean, key bigint, \
                  FOREIGN KEY (two_part, key) REFERENCES fencepost.locks ON DELETE CASCADE)";
    let says = "owns a table that refers to one in it";
    is_refused_with_and_after("REFERENCES ON fencepost.locks", plants, says).await;
    is_refused_with_and_after("REFERENCES (two_part, key) ON fencepost.locks", plants, says).await;
}

/// Whoever may administer a role can make anybody a member of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_membership_that_a_stranger_has_granted_is_no_trust() {
    let trapped = Trapped::new();
    let (database, stranger, url) = (&trapped.database, &trapped.stranger, trapped.database.url());
    let team = format!("team_{}", database.name);
    database.psql(&format!(
        "CREATE ROLE {team}; GRANT {team} TO {stranger} WITH ADMIN OPTION; \
         GRANT CREATE ON DATABASE {} TO {team}; \
         SET ROLE {team}; CREATE SCHEMA fencepost; \
         CREATE FUNCTION fencepost.version() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO public.loot VALUES (current_user, 'version'); RETURN 2; END $$; \
         SET SESSION AUTHORIZATION {stranger}; GRANT {team} TO postgres",
        database.name
    ));
    refused(&url, &team).await;
    trapped.is_clean("a superuser");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_privileges_give_nobody_more_than_locks_need() {
    let trapped = Trapped::new();
    let (database, stranger) = (&trapped.database, &trapped.stranger);
    database.psql(&format!("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {stranger}, PUBLIC"));
    assert_eq!(Locks::init(&database.url()).await.unwrap(), ["schema `fencepost` made"]);
    database.psql(&format!("GRANT USAGE ON SCHEMA fencepost TO {stranger}"));
    take(&database.locks().await, "a").await.release().await.unwrap();
    take(&Locks::connect(&trapped.stranger_url()).await.unwrap(), "a").await.release().await.unwrap();
}

/// Types that are no words of SQL are looked up by the search_path as well, and a database may have one
/// in which the system's come last. What a type checks runs as whoever uses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_that_is_planted_on_the_search_path_is_not_used() {
    let trapped = Trapped::new();
    let (database, stranger, url) = (&trapped.database, &trapped.stranger, trapped.database.url());
    let mut sql = format!(
        "SET ROLE {stranger}; CREATE FUNCTION public.spy(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO public.loot VALUES (current_user, $1); RETURN true; END $$; \
         CREATE TYPE public.found AS (rank integer, does text, name text, role oid, is_trusted boolean);"
    );
    sql += "CREATE DOMAIN public.record AS public.found CHECK (public.spy('record'));";
    for name in ["name", "oid", "regclass", "timestamptz", "void", "int4", "bool", "text"] {
        sql += &format!("CREATE DOMAIN public.{name} AS pg_catalog.text CHECK (public.spy('{name}'));");
    }
    database.psql(&sql);
    database.psql(&format!("ALTER DATABASE {} SET search_path = public, pg_catalog", database.name));
    database.psql("CREATE SCHEMA fencepost");
    for _ in 0..2 {
        Locks::init(&url).await.unwrap();
        trapped.is_clean("init");
    }
    take(&database.locks().await, "a").await.release().await.unwrap();
    trapped.is_clean("a lock");
}
