//! All commands on PostgreSQL.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::PermissionsExt as _;

use common::{Store, assert_fails, code};
use fencepost_testkit::postgres::Server;

fn store() -> (Store, String) {
    let server = Server::shared();
    let database = server.create_database();
    (Store::at(server.url(&database)), database)
}

#[test]
fn init_makes_the_schema_once() {
    let (store, _) = store();
    assert_eq!(store.succeed(&["init"]).trim(), "schema `fencepost` made");
    assert_eq!(store.succeed(&["init"]).trim(), "schema `fencepost` is there already");
    assert_fails(&store.output(&["init", "--reconfigure"]), 64, &["reconfiguring"]);
    store.succeed(&["run", "job", "--", "true"]);
}

#[test]
fn a_password_is_found_where_psql_finds_it() {
    let server = Server::shared();
    let database = server.create_database();
    Store::at(server.url(&database)).succeed(&["init"]);
    let user = format!("user_{database}");
    server.psql(&database, &format!("CREATE ROLE {user} LOGIN SUPERUSER PASSWORD 'a:b'"));
    let addr = server.addr();
    let store = Store::at(format!("postgres://{user}@{addr}/{database}"));
    let check = |variable: &str, value: &str| {
        let mut command = store.fencepost(&["check"]);
        command.env_remove("PGPASSWORD").env("HOME", store.path("")).env(variable, value);
        command.output().unwrap()
    };
    assert_fails(&check("PGPASSFILE", "/nowhere"), 64, &["password"]);
    assert_eq!(code(&check("PGPASSWORD", "a:b")), 0);
    let file = store.path(".pgpass");
    std::fs::write(&file, format!("*:*:*:{user}:a\\:b\n")).unwrap();
    for (mode, expected) in [(0o600, 0), (0o644, 64)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        for (variable, value) in [("PGPASSFILE", file.to_str().unwrap()), ("PGPASSFILE", "")] {
            let output = check(variable, value);
            assert_eq!(code(&output), expected, "{mode:o} {value}: {output:?}");
        }
    }
    assert_fails(&check("PGPASSFILE", ""), 64, &["chmod 600"]);
    // What is no file has no password, and is not waited for.
    for other in ["/dev/null", "/dev/zero", "/dev"] {
        assert_fails(&check("PGPASSFILE", other), 64, &["asks for a password"]);
    }
}

#[test]
fn list_and_show_say_who_holds_what() {
    let (store, _) = store();
    let _running = store.hold("job:1", &["--note", "nightly"]);
    assert!(store.succeed(&["list", "job:"]).contains("nightly"));
    let shown = store.json(&["--json", "show", "job:1"]);
    assert_eq!(shown["holder"]["note"], "nightly");
    assert_fails(&store.output(&["show", "job:2"]), 1, &[]);
    assert_fails(&store.output(&["run", "--try", "job:1", "--", "true"]), 75, &["nightly"]);
}

#[test]
fn a_victim_of_force_release_ends_with_70() {
    for now in [&[][..], &["--now"][..]] {
        let (store, _) = store();
        let victim = store.hold("job", &["--ttl", "1m", "--grace", "1s"]);
        let held = store.json(&["--json", "show", "job"])["holder"]["token"].as_u64();
        let words = [&["--json", "force-release", "job", "--reason", "host is gone"], now].concat();
        let released = store.json(&words);
        assert!(released["token"].as_u64() > held, "{released}");
        assert_eq!(released["freed"], !now.is_empty());
        assert_fails(&victim.end(), 70, &["`job` was lost", "force-released", "host is gone"]);
        let next = store.succeed(&["run", "job", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
        assert!(next.trim().parse::<u64>().ok() > released["token"].as_u64(), "{next} {released}");
    }
}

#[test]
fn a_detached_lock_is_extended_and_released_by_its_handle() {
    let (store, _) = store();
    let handle = store.succeed(&["acquire", "--ttl", "1h", "job"]);
    assert_fails(&store.output(&["run", "--try", "job", "--", "true"]), 75, &["job"]);
    store.succeed(&["extend", handle.trim()]);
    store.succeed(&["release", handle.trim()]);
    store.succeed(&["run", "--try", "job", "--", "true"]);
}

#[test]
fn a_key_excludes_pg_advisory_lock() {
    let (store, database) = store();
    for (key, sql, name) in
        [("12345", "12345", "pg:12345"), ("1,42", "1, 42", "pg:1,42"), ("-5", "-5", "pg:-5")]
    {
        let attempt = format!("SELECT pg_try_advisory_lock({sql})");
        let psql = |sql: &str| Server::shared().psql(&database, sql);
        let script = "echo $FENCEPOST_NAME; until [ -e stop ]; do sleep 0.01; done";
        assert_eq!(psql(&attempt), "t");
        let running =
            store.start(&["run", "--pg-key", key, "--", "sh", "-c", &format!("touch held; {script}")]);
        fencepost_testkit::eventually("it is held", || store.path("held").exists());
        assert_eq!(psql(&attempt), "f");
        assert_eq!(store.json(&["--json", "show", "--pg-key", key])["name"], name);
        std::fs::write(store.path("stop"), "").unwrap();
        let output = running.end();
        assert_eq!(common::text(&output.stdout).trim(), name);
        for file in ["held", "stop"] {
            std::fs::remove_file(store.path(file)).unwrap();
        }
    }
    assert_fails(&store.output(&["run", "--pg-key", "five", "--", "true"]), 64, &["`five`", "1,42"]);
    assert_fails(&Store::file().output(&["run", "--pg-key", "5", "--", "true"]), 64, &["PostgreSQL"]);
}
