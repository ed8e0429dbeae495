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
fn a_database_that_is_not_there_is_64() {
    let server = Server::start();
    let store = Store::at(format!("redis://{}/99", server.addr()));
    assert_fails(&store.output(&["run", "job", "true"]), 64, &["no database 99", "smaller number"]);
}

#[test]
fn a_replica_is_64() {
    let primary = Server::start();
    let store = Store::on(Server::config().replica_of(&primary).start());
    assert_fails(&store.output(&["run", "job", "--", "true"]), 64, &["replica"]);
}

#[test]
fn a_node_that_is_dead_is_told_unless_quiet() {
    let mut nodes = fencepost_testkit::redis::Nodes::start(3);
    let store = Store::at(nodes.url_with("deployment=here"));
    store.succeed(&["init"]);
    nodes[2].kill();
    let output = store.output(&["run", "job", "--", "true"]);
    let stderr = text(&output.stderr);
    assert!(
        output.status.success() && stderr.contains("fencepost: warning: a node cannot be used"),
        "{stderr}"
    );
    let output = store.output(&["--quiet", "run", "job", "--", "true"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_lock_directory_that_others_can_read_is_told_unless_quiet() {
    let store = Store::file();
    let (top, locks) = (store.path("."), store.path("locks"));
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    store.succeed(&["run", "job", "--", "true"]);
    for (above, own, told) in
        [(0o755, 0o755, true), (0o755, 0o710, true), (0o755, 0o700, false), (0o700, 0o755, false)]
    {
        mode(&top, above);
        mode(&locks, own);
        let output = store.output(&["run", "job", "--", "true"]);
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        assert_eq!(
            said.contains("warning") && said.contains("`chmod go-rx /"),
            told,
            "{above:o} {own:o}: {said}"
        );
        assert_eq!(said.is_empty(), !told, "{said}");
        assert!(store.output(&["--quiet", "run", "job", "--", "true"]).stderr.is_empty());
    }
}

#[test]
fn nothing_that_a_server_says_acts_on_a_terminal() {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all("-ERR \x1b[2Jgone\u{202e}\x07 fencepost: all is well\r\n".as_bytes());
    });
    let store = Store::at(format!("redis://{address}"));
    let output = store.output(&["list"]);
    let stderr = text(&output.stderr);
    assert!(!output.status.success() && stderr.contains("gone"), "{stderr}");
    assert!(!stderr.contains(['\x1b', '\x07', '\u{202e}']), "{stderr:?}");
    server.join().unwrap();
}
