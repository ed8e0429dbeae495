use std::fs;

use super::*;

#[test]
fn a_server_answers_stops_and_goes_on() {
    let server = Server::start();
    assert_eq!(server.cli(&["SET", "a", "1"]), "OK");
    assert_eq!(server.cli(&["GET", "a"]), "1");
    assert_eq!(server.keys(), ["a"]);
    server.pause();
    assert!(!server.ping());
    server.resume();
    assert_eq!(server.cli(&["INCR", "a"]), "2");
}

#[test]
fn a_server_restarts_empty_or_with_an_old_snapshot() {
    let mut server = Server::start();
    server.cli(&["SET", "a", "old"]);
    let snapshot = server.snapshot();
    server.cli(&["SET", "a", "new"]);
    let addr = server.addr();
    server.restart_from(&snapshot);
    assert_eq!(server.cli(&["GET", "a"]), "old");
    server.restart_empty();
    assert_eq!(server.keys(), [""; 0]);
    assert_eq!(server.addr(), addr);
}

#[test]
fn logins_replicas_policies_and_tls_are_configured() {
    let primary = Server::config().password("hush").start();
    assert_eq!(primary.cli(&["CONFIG", "GET", "requirepass"]), "requirepass\nhush");
    let user = Server::config().user("alice", "hush").start();
    assert_eq!(user.cli(&["ACL", "WHOAMI"]), "alice");
    let replica = Server::config().replica_of(&primary).start();
    assert!(replica.cli(&["INFO", "replication"]).contains("role:slave"));
    let evicting = Server::config().maxmemory_policy("allkeys-lru").start();
    assert!(evicting.cli(&["CONFIG", "GET", "maxmemory-policy"]).contains("allkeys-lru"));
    let tls = Server::config().tls_with_client_certificate().start();
    assert!(tls.certificates().client_key.is_file());
    assert!(tls.url().starts_with("rediss://127.0.0.1:") && tls.url().contains("&cert="));
}

#[test]
fn nothing_is_left_when_a_server_is_dropped() {
    let server = Server::start();
    let (pid, folder) = (server.pid(), server.folder().to_owned());
    drop(server);
    assert!(!folder.exists());
    let stat = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    assert_ne!(stat.trim(), "redis-server");
}

#[test]
#[should_panic(expected = "no-such-option")]
fn a_server_that_does_not_start_says_why() {
    let _ = Server::config().line("no-such-option yes").start();
}
