use std::path::{Path, PathBuf};

use super::*;
use crate::redis::{programs, redis_6, valkey};

/// A cluster of that program.
fn started(program: &Path, masters: usize, replicas: usize) -> Cluster {
    Cluster::start_with(masters, replicas, |config| config.program(program))
}

#[test]
fn a_key_has_the_slot_that_the_server_says() {
    let server = Server::config().cluster().start();
    for key in ["", "a", "lock:a", "{a}:queue", "x{a}y", "{}a", "{a", "a}b{c}d", "{{a}}", "ü", "123456789"] {
        assert_eq!(server.cli(&["CLUSTER", "KEYSLOT", key]), slot(key).to_string(), "{key}");
    }
}

#[test]
fn a_cluster_of_each_version_serves_all_slots_and_replicates() {
    for program in programs() {
        let cluster = started(&program, 3, 1);
        assert_eq!((cluster.len(), cluster.masters()), (6, vec![0, 1, 2]));
        assert_eq!([0, 1, 2].map(|master| cluster.replicas_of(master)), [[3], [4], [5]]);
        let mut owners: Vec<_> = (0..20).map(|key| cluster.master_of(slot(&key.to_string()))).collect();
        for (key, owner) in owners.iter().enumerate() {
            assert_eq!(cluster[*owner].cli(&["SET", &key.to_string(), "1"]), "OK");
            let other = cluster[(owner + 1) % 3].call(&["GET", &key.to_string()]);
            assert!(matches!(other, Reply::Error(error) if error.starts_with("MOVED")));
        }
        owners.sort_unstable();
        owners.dedup();
        assert_eq!(owners, [0, 1, 2]);
        assert_eq!(cluster.keys_like("*").len(), 20);
        eventually("replicas have the keys", || {
            (0..3).all(|master| cluster[master].keys() == cluster[master + 3].keys())
        });
    }
}

#[test]
fn a_slot_on_its_way_is_asked_for_at_both_ends_until_it_has_arrived() {
    for program in programs() {
        let cluster = started(&program, 3, 0);
        let at = slot("{a}");
        let (from, to) = (cluster.master_of(at), (cluster.master_of(at) + 1) % 3);
        let says = |node: usize, words: &[&str], what: &str| match cluster[node].call(words) {
            Reply::Error(error) => assert!(error.starts_with(what), "{words:?}: {error}"),
            reply => assert_eq!(reply.lines().join(" "), what, "{words:?}"),
        };
        cluster[from].cli(&["MSET", "{a}1", "one", "{a}2", "two"]);
        let moving = cluster.begin_move(at, to);
        assert_eq!(cluster.move_keys(&moving, 1), 1);
        let left = cluster[from].keys();
        assert_eq!(left.len(), 1);
        says(from, &["GET", "{a}3"], "ASK");
        // Redis 6.2 says so only at the other end.
        let both = ["MGET", "{a}1", "{a}2"];
        says(from, &both, if Some(&program) == redis_6().as_ref() { "ASK" } else { "TRYAGAIN" });
        says(to, &["GET", &left[0]], "MOVED");
        cluster.end_move(moving);
        cluster.settle();
        assert_eq!(cluster.master_of(at), to);
        says(to, &both, "one two");
        says(from, &["GET", "{a}1"], "MOVED");
    }
}

#[test]
fn slots_move_slowly_with_all_their_keys() {
    for program in programs() {
        let cluster = Cluster::start_with(3, 1, |config| config.program(&program).password("hush"));
        let slots = [0, 1, 2].map(|key| slot(&format!("{{{key}}}")));
        for key in 0..30 {
            let key = format!("{{{}}}{key}", key % 3);
            cluster[cluster.master_of(slot(&key))].cli(&["SET", &key, "1"]);
        }
        cluster.reshard(slots, 2, Duration::from_millis(40));
        assert_eq!(slots.map(|slot| cluster.master_of(slot)), [2; 3]);
        assert_eq!(cluster[2].keys().len(), 30);
        eventually("its replica has them", || cluster[5].keys().len() == 30);
    }
}

#[test]
fn slots_move_at_once_where_the_server_can_do_that() {
    let Some(valkey) = valkey() else { return };
    let cluster = started(&valkey, 3, 1);
    let slots = ["a", "b", "c"].map(slot);
    for key in ["a", "b", "c"] {
        cluster[cluster.master_of(slot(key))].cli(&["SET", key, key]);
    }
    cluster.move_at_once(slots, 0);
    assert_eq!(slots.map(|slot| cluster.master_of(slot)), [0; 3]);
    assert_eq!(cluster[0].keys(), ["a", "b", "c"]);
}

#[test]
fn a_replica_takes_over_by_order_and_gives_back() {
    for program in programs() {
        let cluster = started(&program, 3, 1);
        let key = "a";
        let master = cluster.master_of(slot(key));
        cluster[master].cli(&["SET", key, "1"]);
        let next = cluster.failover(master);
        assert_eq!((next, cluster.master_of(slot(key))), (master + 3, master + 3));
        assert_eq!(cluster[next].cli(&["GET", key]), "1");
        assert_eq!(cluster.replicas_of(next), [master]);
        assert_eq!(cluster.failover(next), master);
    }
}

#[test]
fn a_killed_master_is_replaced_and_comes_back_as_a_replica() {
    for program in programs() {
        let mut cluster = started(&program, 3, 1);
        let key = "a";
        let master = cluster.master_of(slot(key));
        cluster[master].cli(&["SET", key, "1"]);
        eventually("the replica has it", || cluster[master + 3].keys() == [key]);
        cluster[master].kill();
        assert_eq!(cluster.promoted(&[master + 3]), master + 3);
        cluster.settle();
        assert_eq!(cluster[master + 3].cli(&["GET", key]), "1");
        cluster[master].restart();
        cluster.settle();
        assert_eq!(cluster.replicas_of(master + 3), [master]);
        assert_eq!(cluster[master].keys(), [key]);
    }
}

#[test]
fn a_master_that_stood_still_is_replaced_and_follows() {
    let cluster = Cluster::start(3, 1);
    cluster[0].pause();
    assert_eq!(cluster.promoted(&[3]), 3);
    cluster[0].resume();
    cluster.settle();
    assert_eq!(cluster.replicas_of(3), [0]);
}

#[test]
fn a_master_without_its_replica_refuses_to_write_where_it_is_told_to() {
    let mut cluster = Cluster::start_with(3, 1, |config| {
        config.line("min-replicas-to-write 1").line("min-replicas-max-lag 2")
    });
    let master = cluster.master_of(slot("a"));
    assert_eq!(cluster[master].cli(&["SET", "a", "1"]), "OK");
    cluster[master + 3].kill();
    eventually("it refuses", || {
        let answer = cluster[master].call(&["SET", "a", "1"]);
        matches!(answer, Reply::Error(error) if error.starts_with("NOREPLICAS"))
    });
    cluster[master + 3].restart();
    cluster.settle();
    assert_eq!(cluster[master].cli(&["SET", "a", "1"]), "OK");
}

#[test]
fn logins_tls_and_other_addresses_are_in_the_url() {
    let cluster = Cluster::start_with(2, 1, |config| config.user("alice", "hush"));
    let addrs: Vec<_> = cluster.iter().map(|node| node.addr().to_string()).collect();
    assert_eq!(cluster.url(), format!("redis+cluster://alice:hush@{}", addrs.join(",")));
    assert_eq!(cluster.url_at("127.0.0.1:1"), "redis+cluster://alice:hush@127.0.0.1:1");

    let cluster = Cluster::start_with(2, 1, Config::tls);
    assert!(cluster.url().starts_with("rediss+cluster://127.0.0.1:") && cluster.url().contains("?ca="));
    assert_eq!(
        cluster.iter().map(|node| node.certificates().ca.clone()).collect::<Vec<PathBuf>>(),
        vec![cluster[0].certificates().ca.clone(); 4]
    );
}
