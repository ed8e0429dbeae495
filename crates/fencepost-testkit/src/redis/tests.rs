use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::UNIX_EPOCH;

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

/// Whether the server's clock is the true time plus this many seconds, exactly.
fn shows(server: &Server, offset: i64) -> bool {
    let now = || i64::try_from(UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap() + offset * 1_000_000;
    let before = now();
    let time = server.cli(&["TIME"]);
    let after = now();
    let (seconds, micros) = time.split_once('\n').unwrap();
    let time = seconds.parse::<i64>().unwrap() * 1_000_000 + micros.parse::<i64>().unwrap();
    (before..=after).contains(&time)
}

#[test]
fn a_clock_leaps_forward_and_back() {
    let server = Server::config().movable_clock().start();
    assert!(shows(&server, 0));
    for offset in [3_600, -3_600, 86_400 * 365, -1, 0] {
        server.set_clock(offset);
        assert!(shows(&server, offset), "{offset} s");
    }
}

#[test]
fn a_key_expires_when_the_clock_leaps_past_its_end() {
    let server = Server::config().movable_clock().start();
    server.cli(&["SET", "a", "1", "PX", "7200000"]);
    server.set_clock(3_600);
    assert_eq!(server.cli(&["EXISTS", "a"]), "1");
    server.set_clock(7_201);
    assert_eq!(server.cli(&["EXISTS", "a"]), "0");
}

#[test]
fn a_key_lives_longer_when_the_clock_leaps_back() {
    let server = Server::config().movable_clock().start();
    server.cli(&["SET", "a", "1", "PX", "3600000"]);
    server.set_clock(-7_200);
    let Reply::Number(left) = server.call(&["PTTL", "a"]) else { panic!("no time left") };
    assert!(left > 7_200_000, "{left} ms");
}

#[test]
fn timers_go_on_when_the_clock_leaps_back() {
    let server = Server::config().movable_clock().start();
    // Forward first: a monotonic clock below zero would be one far ahead, and its timers would go on, too.
    for offset in [3_600, 0] {
        server.set_clock(offset);
        server.cli(&["SET", "a", "1", "PX", "1"]);
        // Nobody asks for the key: only the server's own timer can remove it.
        eventually("the key is collected", || server.cli(&["DBSIZE"]) == "0");
    }
}

#[test]
fn a_moved_clock_stays_across_restarts_and_saves() {
    let mut server = Server::config().movable_clock().start();
    server.set_clock(3_600);
    server.cli(&["SET", "a", "1", "PX", "3600000"]);
    let snapshot = server.snapshot();
    server.restart();
    assert!(shows(&server, 3_600));
    assert_eq!(server.cli(&["EXISTS", "a"]), "1");

    server.set_clock(7_201);
    server.restart_from(&snapshot);
    assert!(shows(&server, 7_201));
    assert_eq!(server.cli(&["EXISTS", "a"]), "0");

    server.set_clock(-3_600);
    server.restart_empty();
    assert!(shows(&server, -3_600));
    let saved = || server.cli(&["LASTSAVE"]).parse::<i64>().unwrap();
    let earlier = saved();
    server.set_clock(3_600);
    server.cli(&["BGSAVE"]);
    eventually("the server has saved", || saved() >= earlier + 7_200);
    assert_eq!(server.info("persistence", "rdb_last_bgsave_status").unwrap(), "ok");
}

#[test]
fn one_clock_moves_and_the_others_do_not() {
    let nodes = Nodes::start_with(3, Config::movable_clock);
    nodes[1].set_clock(60);
    assert!(shows(&nodes[0], 0) && shows(&nodes[1], 60) && shows(&nodes[2], 0));
}

#[test]
#[should_panic(expected = "a server with a movable clock")]
fn the_clock_of_an_ordinary_server_cannot_be_moved() {
    Server::start().set_clock(1);
}

#[test]
fn nodes_are_independent_servers_with_one_url() {
    let mut nodes = Nodes::start(5);
    assert_eq!((nodes.len(), nodes.is_empty()), (5, false));
    let addrs: Vec<_> = nodes.iter().map(|server| server.addr().to_string()).collect();
    assert_eq!(nodes.url(), format!("redlock://{}", addrs.join(",")));
    assert_eq!(nodes.url_with("max_ttl=2s"), format!("redlock://{}?max_ttl=2s", addrs.join(",")));

    nodes[0].cli(&["SET", "a", "1"]);
    assert_eq!(nodes[0].keys(), ["a"]);
    assert!(nodes.iter().skip(1).all(|server| server.keys().is_empty()));
    nodes[4].kill();
    assert!(!nodes[4].ping() && nodes[3].ping());
}

#[test]
fn every_node_may_have_its_own_login() {
    let mut number = 0;
    let nodes = Nodes::start_with(3, |config| {
        number += 1;
        match number {
            1 => config,
            2 => config.password("hush"),
            _ => config.user("alice", "hush"),
        }
    });
    let [first, second, third] = [0, 1, 2].map(|index| nodes[index].addr());
    assert_eq!(nodes.url(), format!("redlock://{first},:hush@{second},alice:hush@{third}"));
    assert_eq!(nodes[2].cli(&["ACL", "WHOAMI"]), "alice");
}

#[test]
fn nodes_are_reached_through_one_proxy_each() {
    let nodes = Nodes::start_with(2, |config| config.password("hush"));
    let proxies = nodes.proxies();
    let [first, second] = [0, 1].map(|index| proxies[index].addr());
    assert_eq!(nodes.url_through(&proxies, ""), format!("redlock://:hush@{first},:hush@{second}"));
    assert!(nodes.url_through(&proxies, "ttl=2s").ends_with("?ttl=2s"));

    for (proxy, server) in proxies.iter().zip(nodes.iter()) {
        let mut stream = TcpStream::connect(proxy.addr()).unwrap();
        stream.write_all(b"AUTH hush\r\nINFO server\r\nQUIT\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(&server.run_id()), "{answer}");
    }
}

#[test]
#[should_panic(expected = "no-such-option")]
fn nodes_that_do_not_start_say_why() {
    let _ = Nodes::start_with(2, |config| config.line("no-such-option yes"));
}

#[test]
fn scripts_are_counted_and_every_run_has_its_own_id() {
    let mut server = Server::start();
    assert_eq!(server.evalsha_calls(), 0);
    let hash = server.cli(&["SCRIPT", "LOAD", "return 7"]);
    for _ in 0..3 {
        assert_eq!(server.cli(&["EVALSHA", &hash, "0"]), "7");
    }
    assert_eq!(server.evalsha_calls(), 3);

    let id = server.run_id();
    assert_eq!((id.len(), server.run_id()), (40, id.clone()));
    server.restart();
    assert_ne!(server.run_id(), id);
    assert_eq!(server.evalsha_calls(), 0);
}
