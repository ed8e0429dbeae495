//! Who may connect, over what, and what is said if they may not.

use std::error::Error as _;

use fencepost::{Error, Locks};
use fencepost_testkit::{Certificates, Folder, postgres::Server};

use crate::harness::{Database, bounded, calm, take};

const PASSWORD: &str = "correct-horse/battery";

/// All an error says: to people, to developers, and in its sources.
fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(inner) = source {
        text += &format!(" {inner} {inner:?}");
        source = inner.source();
    }
    text
}

async fn works(url: &str) {
    let locks = bounded("connecting ends", Locks::connect(url)).await.unwrap();
    let guard = take(&locks, "a").await;
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    locks.close().await;
}

fn url_of(database: &Database, user: &str, password: &str) -> String {
    let password = password.replace('/', "%2F");
    calm(&format!("postgres://{user}:{password}@{}/{}", database.server.addr(), database.name))
}

/// Makes a user; all tests share the server, so each has one of its own.
fn user(database: &Database) -> String {
    let user = format!("user_{}", database.name);
    database.psql(&format!("CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'"));
    user
}

#[tokio::test]
async fn by_address_and_by_unix_socket_with_either_scheme() {
    let database = Database::new();
    let (port, socket) = (database.server.addr().port(), database.server.socket().display().to_string());
    works(&database.url()).await;
    works(&database.url().replace("postgres://", "postgresql://").replace("127.0.0.1", "localhost")).await;
    works(&format!("postgres://postgres@/{}?host={socket}&port={port}&timeout=20s", database.name)).await;
}

#[tokio::test]
async fn the_first_of_several_hosts_that_takes_writes_is_used() {
    let database = Database::new();
    let addr = database.server.addr();
    works(&calm(&format!("postgres://postgres@127.0.0.1:1,{addr}/{}", database.name))).await;
}

#[tokio::test]
async fn a_missing_right_gives_the_sql_to_run() {
    let database = Database::new();
    let user = user(&database);
    let url = url_of(&database, &user, PASSWORD);
    let refused = async || {
        let error = Locks::connect(&url).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }) && !error.is_transient(), "{error}");
        assert!(!everything(&error).contains("horse"), "{error:?}");
        let text = error.to_string();
        text.split_once("a superuser: ").unwrap_or_else(|| panic!("{text}")).1.to_owned()
    };
    let sql = refused().await;
    assert!(sql.starts_with("CREATE SCHEMA"), "{sql}");
    database.psql(&sql);
    works(&url).await;

    // Where an operator has made the schema, rights on it are enough.
    let database = Database::new();
    let user = self::user(&database);
    let url = url_of(&database, &user, PASSWORD);
    let said = Locks::init(&database.url()).await.unwrap();
    assert_eq!(said, ["schema `fencepost` made"]);
    assert_eq!(Locks::init(&database.url()).await.unwrap(), ["schema `fencepost` is there already"]);
    let refused = async || {
        let error = match Locks::connect(&url).await {
            Ok(locks) => locks.lock("a").try_acquire().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(error, Error::Config { .. }), "{error}");
        let text = error.to_string();
        text.split_once("a superuser: ").unwrap_or_else(|| panic!("{text}")).1.to_owned()
    };
    let sql = refused().await;
    assert!(sql.starts_with("GRANT USAGE"), "{sql}");
    database.psql(&sql);
    works(&url).await;
}

#[tokio::test]
async fn a_missing_right_on_the_sequence_gives_the_sql_to_run() {
    let database = Database::new();
    let user = user(&database);
    database.psql(&format!("CREATE SCHEMA fencepost AUTHORIZATION {user}; CREATE SEQUENCE public.fence"));
    let url = format!("{}&sequence=public.fence", url_of(&database, &user, PASSWORD));
    let locks = Locks::connect(&url).await.unwrap();
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    let text = error.to_string();
    let sql = text.split_once("a superuser: ").unwrap_or_else(|| panic!("{text}")).1;
    assert!(sql.starts_with("GRANT USAGE ON SEQUENCE"), "{sql}");
    database.psql(sql);
    works(&url).await;
}

#[tokio::test]
async fn a_user_whose_default_is_to_read_only_can_do_everything() {
    let database = Database::new();
    let user = user(&database);
    database.psql(&format!(
        "GRANT CREATE ON DATABASE {} TO {user}; ALTER ROLE {user} SET default_transaction_read_only = on; \
         ALTER ROLE {user} SET default_transaction_isolation = 'serializable'",
        database.name
    ));
    let locks = Locks::connect(&url_of(&database, &user, PASSWORD)).await.unwrap();
    let _guard = take(&locks, "a").await;
    assert!(locks.force_release("a", "x").await.unwrap().is_some());
}

#[tokio::test]
async fn a_wrong_password_is_a_configuration_error() {
    let database = Database::new();
    let user = user(&database);
    for password in ["wrong-horse", ""] {
        let error = Locks::connect(&url_of(&database, &user, password)).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }) && !error.is_transient(), "{error:?}");
        assert!(error.to_string().contains("password") && !everything(&error).contains("horse"), "{error:?}");
    }
    let error = Locks::connect(&database.server.url("nope")).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("does not exist"), "{error}");
}

#[tokio::test]
async fn a_schema_of_another_layout_is_refused() {
    let database = Database::new();
    works(&database.url()).await;
    database
        .psql("CREATE OR REPLACE FUNCTION fencepost.version() RETURNS integer LANGUAGE sql AS 'SELECT 99'");
    let error = Locks::connect(&database.url()).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("layout 99"), "{error}");
    assert!(error.to_string().contains("`fencepost init`"), "{error}");
    works(&format!("{}&schema=my \"own\" 'one'", database.url())).await;
}

#[tokio::test]
async fn a_version_that_is_no_number_is_refused() {
    let database = Database::new();
    works(&database.url()).await;
    for body in [
        "RETURNS text LANGUAGE sql AS $$ SELECT 'new' $$",
        "RETURNS SETOF integer LANGUAGE sql AS 'SELECT 2 LIMIT 0'",
    ] {
        database
            .psql(&format!("DROP FUNCTION fencepost.version(); CREATE FUNCTION fencepost.version() {body}"));
        let error = Locks::connect(&database.url()).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("layout"), "{error}");
    }
}

#[tokio::test]
async fn a_schema_of_the_earlier_layout_is_upgraded_by_init_and_by_nothing_else() {
    let database = Database::new();
    database.psql(include_str!("earlier.sql"));
    // A lock that a program of the earlier version holds, and one that it has detached.
    let acquire = |number: u32, owner: &str| {
        format!(
            "SELECT FROM fencepost.acquire(pg_backend_pid(), false, {number}, 'pg:{number}', '{owner}', \
             600000, 'h', 1, '', \
             fencepost.own_session(), 'c', true, NULL, NULL, false, false)"
        )
    };
    let owner = "01890000-0000-7000-8000-000000000001";
    database.psql(&acquire(7, owner));
    let error = Locks::connect(&database.url()).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
    assert!(
        error.to_string().contains("layout 1") && error.to_string().contains("`fencepost init`"),
        "{error}"
    );
    assert_eq!(database.psql("SELECT fencepost.version()"), "1", "nothing was done");
    let user = user(&database);
    database.psql(&format!("GRANT USAGE ON SCHEMA fencepost TO {user}"));
    let error = Locks::init(&url_of(&database, &user, PASSWORD)).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("owner"), "{error}");
    assert_eq!(Locks::init(&database.url()).await.unwrap(), ["schema `fencepost` upgraded"]);
    assert_eq!(Locks::init(&database.url()).await.unwrap(), ["schema `fencepost` is there already"]);
    let locks = database.locks().await;
    assert!(locks.lock("pg:7").try_acquire().await.unwrap().is_none(), "its lease counts");
    // Handles of the earlier version go on.
    let token = locks.show("pg:7").await.unwrap().unwrap().token.unwrap();
    let handle = format!("{token}.{owner}.pg:7").parse().unwrap();
    locks.release(&handle).await.unwrap();
    works(&database.url()).await;
}

#[tokio::test]
async fn the_name_of_a_schema_is_a_name_and_no_code() {
    let database = Database::new();
    database.psql(
        "CREATE TABLE public.loot (who name); \
         CREATE FUNCTION public.pwn(integer) RETURNS integer LANGUAGE sql AS \
         'INSERT INTO public.loot VALUES (current_user); SELECT 1'",
    );
    for schema in [
        r#"@label@" from public.pwn(1) U&"\0027\0040label@" --"#,
        "a\n; SELECT public.pwn(1); --",
        "$$; SELECT public.pwn(1); $$",
        "$fencepost$; SELECT public.pwn(1); $fencepost$",
        r"a\'; SELECT public.pwn(1); --",
        "@schema@",
        "%I %s",
    ] {
        let url = schema.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        works(&format!("{}&schema={url}", database.url())).await;
        let mut client = database.client().await;
        let transaction = client.transaction().await.unwrap();
        let own = fencepost::postgres::Schema::new(schema).unwrap();
        own.lock_in_transaction(&transaction, "a").await.unwrap();
        let made = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
        assert_eq!(transaction.query_one(made, &[&schema]).await.unwrap().get::<_, i64>(0), 1, "{schema}");
    }
    assert_eq!(database.psql("SELECT count(*) FROM public.loot"), "0");
}

#[tokio::test]
async fn a_note_or_a_reason_with_a_nul_is_refused_before_it_is_sent() {
    let database = Database::new();
    let locks = database.locks().await;
    let error = locks.lock("a").note("a\0b").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    let guard = take(&locks, "a").await;
    let error = locks.force_release("a", "a\0b").await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    guard.release().await.unwrap();
}

/// Has a server ask for passwords in clear text.
fn ask_in_the_clear(server: &Server) {
    server.psql(
        "postgres",
        "DO $$ BEGIN EXECUTE format('COPY (VALUES (''local all all trust''), (''host all postgres \
         127.0.0.1/32 trust''), \
         (''host all all 127.0.0.1/32 password'')) TO %L', current_setting('hba_file')); END $$",
    );
    server.psql("postgres", "SELECT pg_reload_conf()");
}

#[tokio::test]
async fn a_password_is_not_sent_in_clear_text_to_whoever_asks() {
    let server = Server::config().start();
    let database = server.create_database();
    server.psql("postgres", &format!("CREATE ROLE ann LOGIN PASSWORD '{PASSWORD}' SUPERUSER"));
    let url = calm(&format!("postgres://ann:{}@{}/{database}", PASSWORD.replace('/', "%2F"), server.addr()));
    works(&url).await;
    ask_in_the_clear(&server);
    for url in [url.clone(), format!("{url}&sslmode=disable"), format!("{url}&sslmode=prefer")] {
        let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(
            error.to_string().contains("clear text") && error.to_string().contains("allow=cleartext"),
            "{error}"
        );
        assert!(!everything(&error).contains("horse"), "{error:?}");
    }
    assert!(!server.log().contains("password authentication failed"), "it was sent nothing");
    works(&format!("{url}&allow=cleartext")).await;
    let locks = Locks::connect(&format!("{url}&allow=cleartext")).await.unwrap();
    assert!(!format!("{locks:?}").contains("horse"), "{locks:?}");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_is_spoken_with_a_server_that_can_and_proves_nothing_unless_it_is_asked_to() {
    let server = Server::config().tls().start();
    let database = server.create_database();
    server.psql("postgres", &format!("CREATE ROLE ann LOGIN PASSWORD '{PASSWORD}' SUPERUSER"));
    let url = calm(&format!("postgres://ann:{}@{}/{database}", PASSWORD.replace('/', "%2F"), server.addr()));
    let ca = server.certificates().ca.display().to_string();
    let encrypted = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                     WHERE a.application_name = 'fencepost'";
    for (more, expected) in [
        ("", "t"),
        ("&sslmode=prefer", "t"),
        ("&sslmode=disable", "f"),
        (&*format!("&sslmode=require&ca={ca}"), "t"),
    ] {
        let locks = Locks::connect(&format!("{url}{more}")).await.unwrap();
        assert_eq!(server.psql(&database, encrypted), expected, "{more}");
        take(&locks, "a").await.release().await.unwrap();
        locks.close().await;
        fencepost_testkit::eventually("it is gone", || server.psql(&database, encrypted).is_empty());
    }
    ask_in_the_clear(&server);
    // Whoever is in between could be the server.
    let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    assert!(error.to_string().contains("clear text"), "{error}");
    works(&format!("{url}&sslmode=verify-full&ca={ca}")).await;
}

#[tokio::test]
async fn schemas_are_apart() {
    let database = Database::new();
    let (one, two) = (database.locks_with("schema=one").await, database.locks_with("schema=two").await);
    let _guards = (take(&one, "a").await, take(&two, "a").await);
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn by_tls_with_a_server_that_somebody_we_trust_has_signed() {
    let server = Server::config().tls().start();
    let database = server.create_database();
    let ca = server.certificates().ca.display().to_string();
    works(&format!("{}&sslmode=verify-full&ca={ca}", calm(&server.url(&database)))).await;
    works(&format!(
        "{}&sslmode=require&ca={ca}",
        calm(&server.url(&database)).replace("127.0.0.1", "localhost")
    ))
    .await;
    let folder = Folder::new("login");
    let strangers = Certificates::make(folder.path());
    let url = format!("{}&sslmode=verify-full&ca={}", calm(&server.url(&database)), strangers.ca.display());
    let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().to_lowercase().contains("certificate"), "{error}");
    // A server without TLS is not talked to in the clear.
    let plain = Database::new();
    let error = Locks::connect(&format!("{}&sslmode=require&ca={ca}", plain.url())).await.unwrap_err();
    assert!(error.to_string().contains("TLS"), "{error}");
}
