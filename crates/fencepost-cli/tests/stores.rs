//! Stores that cannot be used: each says why in its own way, and no password is ever shown.

mod common;

use common::{Store, assert_fails, text};
use fencepost_testkit::redis::Server;

#[test]
fn a_wrong_password_is_64_and_is_not_shown() {
    let server = Server::config().password("open-sesame").start();
    let url = |password: &str| format!("redis://:{password}@{}", server.addr());
    let store = Store::file();
    for words in [&["list"][..], &["-vv", "run", "job", "--", "true"][..], &["--json", "show", "job"][..]] {
        let output = store.fencepost(words).env("FENCEPOST_STORE", url("wr0ng-one")).output().unwrap();
        assert_fails(&output, 64, &["password"]);
        assert!(!text(&output.stderr).contains("wr0ng-one"), "{output:?}");
    }
    let without = format!("redis://{}", server.addr());
    let output = store.fencepost(&["list"]).env("FENCEPOST_STORE", without).output().unwrap();
    assert_fails(&output, 64, &["password"]);
    let mut run = store.fencepost(&["-vv", "run", "job", "--", "true"]);
    let output = run.env("FENCEPOST_STORE", url("open-sesame")).output().unwrap();
    assert!(output.status.success() && !text(&output.stderr).contains("open-sesame"), "{output:?}");
}

#[test]
fn a_url_from_a_file_does_not_reach_the_command() {
    let server = Server::config().password("open-sesame").start();
    let store = Store::file();
    std::fs::write(store.path("url"), format!("redis://:open-sesame@{}\n", server.addr())).unwrap();
    let mut run = store.fencepost(&["--store-file", "url", "run", "job", "--", "env"]);
    let output = run.env_remove("FENCEPOST_STORE").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!text(&output.stdout).contains("open-sesame"), "{output:?}");
}

#[test]
fn nobody_listening_is_69() {
    let mut server = Server::start();
    server.kill();
    let store = Store::on(server);
    for words in [&["list"][..], &["run", "job", "--", "true"][..], &["acquire", "job"][..]] {
        assert_fails(&store.output(words), 69, &["out of reach", "--store"]);
    }
}

#[test]
fn a_replica_is_64() {
    let primary = Server::start();
    let store = Store::on(Server::config().replica_of(&primary).start());
    assert_fails(&store.output(&["run", "job", "--", "true"]), 64, &["replica"]);
}
