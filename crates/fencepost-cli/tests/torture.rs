//! `fencepost torture`: a short mix of faults on every store, and that it tells when something is wrong.
#![cfg(feature = "torture")]
#![allow(clippy::unwrap_used)]

mod common;

use std::process::Stdio;

use common::{Store, assert_fails, code, is_alive, state, text};
use fencepost_testkit::redis::Server;
use fencepost_testkit::{Proxy, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const CUTS: [&str; 5] = ["reset links", "cut links", "stuck links", "lost answers", "slow links"];

/// What a longer attack may still show.
const MISSING: [&str; 4] = [
    "was seen to have an effect",
    "were never granted a lock",
    "went from one client to another",
    "paused past its lease",
];

/// Runs a short attack that must find nothing, and in which each of these faults must be seen to have its
/// effect; a longer one if nothing but that is missing, as on a busy machine. Returns its figures. `cut` is
/// any of its manners, `server` any that a server can be dealt.
fn survives(words: &[&str], minutes: f64, bite: &[&str], seen: impl Fn(&Value) -> bool) -> Value {
    let mut figures = Value::Null;
    for longer in [1.0, 2.0, 4.0] {
        figures = attack(words, minutes * longer);
        assert!(figures["violations"].as_object().unwrap().values().all(|count| *count == 0), "{figures:#}");
        let missing = |doubt: &Value| MISSING.iter().any(|words| doubt.as_str().unwrap().contains(words));
        assert!(figures["doubts"].as_array().unwrap().iter().all(missing), "{figures:#}");
        let bit = |fault: &&str| count(&figures["faults"], fault) > 0;
        if figures["outcome"] == "clean" && bite.iter().all(bit) && seen(&figures) {
            assert!(figures["acquisitions"].as_u64() > Some(0), "{figures:#}");
            return figures;
        }
    }
    panic!("not all of it was seen, however long it took: {figures:#}");
}

fn attack(words: &[&str], minutes: f64) -> Value {
    let store = Store::file();
    let page = store.path("report.html");
    let fixed = ["--json", "torture", "--ttl", "1s", "--report", page.to_str().unwrap(), "--minutes"];
    let mut command = store.fencepost(&[&fixed[..], &[&minutes.to_string()], words].concat());
    let output = command.env_remove("FENCEPOST_STORE").output().unwrap();
    let figures: Value = serde_json::from_str(&text(&output.stdout)).unwrap_or_else(|_| panic!("{output:?}"));
    if figures["outcome"] == "clean" {
        assert_eq!(code(&output), 0, "{figures:#}");
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains("No violation in") && page.ends_with("</html>\n"), "{page}");
    }
    figures
}

/// How often a kind of fault stands in a table of kinds and numbers.
fn count(table: &Value, fault: &str) -> u64 {
    let is = |kind: &str| match fault {
        "cut" => CUTS.contains(&kind),
        "server" => kind.starts_with("server-"),
        fault => kind == fault,
    };
    let table = table.as_object().unwrap();
    table.iter().filter(|(kind, _)| is(kind)).map(|(_, count)| count.as_u64().unwrap()).sum()
}

#[test]
fn s50_files_survive() {
    let figures = survives(&["--local", "file"], 0.08, &["pause", "kill"], |_| true);
    assert_eq!(figures["unguarded_lost_updates"], 0, "a stopped holder keeps its lock: {figures:#}");
}

#[test]
fn s50_redis_survives() {
    let faults = ["pause", "kill", "cut", "server-pause"];
    survives(&["--local", "redis", "--faults", &faults.join(",")], 0.1, &faults, |_| true);
}

#[test]
fn s08_data_without_a_guard_does_not_survive_pauses() {
    survives(&["--local", "redis", "--faults", "pause"], 0.2, &["pause"], |figures| {
        figures["unguarded_lost_updates"].as_u64() > Some(0)
            && figures["guarded_refusals"].as_u64() > Some(0)
            && count(&figures["losses"], "paused") > 0
    });
}

#[test]
fn holders_whose_links_are_cut_lose_their_locks_in_time() {
    survives(&["--local", "redis", "--faults", "cut"], 0.15, &["cut"], |figures| {
        count(&figures["losses_by_fault"], "cut") > 0
    });
}

#[test]
fn s50_redlock_survives_with_its_servers() {
    survives(&["--local", "redlock5"], 0.12, &["pause", "kill", "cut", "server"], |_| true);
}

#[test]
fn s50_a_redis_cluster_survives_with_its_servers() {
    let faults = "pause,kill,server-kill,server-failover,server-reshard";
    let figures = survives(&["--local", "redis-cluster", "--faults", faults], 0.3, &["server"], |_| true);
    assert!(figures["longest_outage_ms"].as_u64() > Some(0), "{figures:#}");
}

#[test]
fn s50_postgres_survives_with_its_server() {
    survives(&["--local", "postgres"], 0.1, &["pause", "kill", "cut", "server"], |_| true);
}

#[test]
fn s50_etcd_survives_with_its_servers() {
    survives(&["--local", "etcd3"], 0.1, &["pause", "kill", "cut", "server"], |_| true);
}

#[test]
fn s50_zookeeper_survives_with_its_server() {
    survives(&["--local", "zookeeper1"], 0.1, &["pause", "kill", "cut", "server"], |_| true);
}

#[test]
fn a_run_in_which_nothing_happened_is_no_pass() {
    // Enough for the command itself, and for nobody else.
    let store = Store::on(Server::config().line("maxclients 2").start());
    let output = store.output(&["--json", "torture", "--minutes", "0.04", "--ttl", "1s", "--faults", "none"]);
    let figures: Value = serde_json::from_str(&text(&output.stdout)).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!((code(&output), &figures["outcome"]), (2, &Value::from("inconclusive")), "{figures:#}");
    assert!(figures["doubts"].to_string().contains("no lock was ever granted"), "{figures:#}");
    assert!(figures["errors"]["no connection"].is_string(), "{figures:#}");
}

#[test]
fn a_store_that_goes_away_for_good_is_no_pass() {
    let mut store = Store::redis();
    let words =
        ["torture", "--minutes", "0.05", "--ttl", "1s", "--faults", "none", "--report", "report.html"];
    let running = store.start(&words);
    let server = store.server.as_mut().unwrap();
    eventually("clients take locks", || !server.keys_like("lock:torture:*:[0-9]").is_empty());
    server.kill();
    let output = running.end();
    assert_eq!(code(&output), 2, "{output:?}");
    let told = text(&output.stdout);
    assert!(
        told.contains("Inconclusive: ") && told.contains("what is left in the store is not known"),
        "{told}"
    );
    let page = std::fs::read_to_string(store.path("report.html")).unwrap();
    assert!(page.contains("class=\"verdict doubt\""), "{page}");
}

#[test]
fn a_client_that_crashes_ends_the_run_with_what_was_seen() {
    let store = Store::redis();
    let server = store.server.as_ref().unwrap();
    let words = ["torture", "--minutes", "60", "--ttl", "1s", "--faults", "none", "--report", "report.html"];
    let running = store.start(&words);
    eventually("clients take locks", || !server.keys_like("lock:torture:*:[0-9]").is_empty());
    kill_process(children(running.pid())[0], Signal::KILL).unwrap();
    let output = running.end();
    assert_fails(&output, 71, &["running a client"]);
    assert!(text(&output.stdout).contains("Inconclusive: "), "{output:?}");
    let page = std::fs::read_to_string(store.path("report.html")).unwrap();
    assert!(page.ends_with("</html>\n"), "{page}");
}

/// Deletes the locks of a run for as long as it lasts; returns how many.
fn sabotage(server: &Server, pid: Pid) -> u64 {
    let mut deleted = 0;
    while is_alive(pid) {
        for key in server.keys_like("lock:torture:*:[0-9]") {
            deleted += server.cli(&["DEL", &key]).parse::<u64>().unwrap();
        }
    }
    deleted
}

#[test]
fn a_violation_is_told_by_the_exit_code_also_if_nobody_reads() {
    let store = Store::redis();
    let mut command =
        store.fencepost(&["torture", "--minutes", "0.06", "--faults", "none", "--clients", "6"]);
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(running.stdout.take());
    let pid = Pid::from_child(&running);
    let status = std::thread::scope(|scope| {
        scope.spawn(|| assert!(sabotage(store.server.as_ref().unwrap(), pid) > 0, "nothing was sabotaged"));
        running.wait().unwrap()
    });
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_lock_that_is_deleted_under_its_holder_is_found_and_other_keys_are_not_touched() {
    let store = Store::redis();
    let server = store.server.as_ref().unwrap();
    server.cli(&["SET", "lock:other", "mine"]);
    let words =
        ["torture", "--minutes", "0.1", "--faults", "none", "--clients", "6", "--report", "report.html"];
    let running = store.start(&words);
    let pid = running.pid();
    let saboteur = std::thread::scope(|scope| {
        let saboteur = scope.spawn(|| sabotage(server, pid));
        let output = running.end();
        assert_eq!(code(&output), 1, "{output:?}");
        let told = text(&output.stdout);
        assert!(told.contains("exclusion on `torture:") && told.contains("so both held it for"), "{told}");
        saboteur.join().unwrap()
    });
    assert!(saboteur > 0, "nothing was sabotaged");
    let page = std::fs::read_to_string(store.path("report.html")).unwrap();
    assert!(
        page.contains("<h2>Violations</h2>") && page.contains("class=\"mark\""),
        "the violation is drawn"
    );
    assert_eq!(server.cli(&["GET", "lock:other"]), "mine");
}

#[test]
fn an_interrupt_ends_it_early_with_what_was_seen() {
    let store = Store::redis();
    let server = store.server.as_ref().unwrap();
    let running = store.start(&["torture", "--minutes", "60", "--ttl", "1s"]);
    // Before clients start, a lock of another name shows whether the store can be used at all.
    eventually("clients take locks", || !server.keys_like("lock:torture:*:[0-9]").is_empty());
    let workers = children(running.pid());
    running.signal(Signal::INT);
    let output = running.end();
    // It may have been too early to say anything, which it says then.
    let told = if code(&output) == 2 { "Inconclusive: " } else { "No violation in" };
    assert!(code(&output) != 1 && text(&output.stdout).contains(told), "{output:?}");
    assert!(!workers.is_empty() && !workers.into_iter().any(is_alive), "clients have ended");
    assert_eq!(server.keys_like("lock:torture:*"), [""; 0]);
}

#[test]
fn clients_end_with_their_parent_even_if_they_stand_still() {
    let store = Store::redis();
    let server = store.server.as_ref().unwrap();
    let running = store.start(&["torture", "--minutes", "60", "--ttl", "1s", "--faults", "none"]);
    // Before clients start, a lock of another name shows whether the store can be used at all.
    eventually("clients take locks", || !server.keys_like("lock:torture:*:[0-9]").is_empty());
    let workers = children(running.pid());
    kill_process(workers[0], Signal::STOP).unwrap();
    // The kernel wakes it for its parent's end only if all its threads had stopped.
    eventually("one stands still", || threads(workers[0]).all(|thread| state(thread) == Some('T')));
    running.signal(Signal::KILL);
    running.end();
    eventually("clients end", || !workers.iter().copied().any(is_alive));
    eventually("locks end", || server.keys_like("lock:torture:*").is_empty());
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_starts() {
    let store = Store::file();
    for (words, told) in [
        (&["--store", "memory:"][..], "within one process"),
        (&["--faults", "earthquake"], "server-pause"),
        (&["--faults", "server-kill"], "add `--local`"),
        (&["--faults", "cut"], "no network links"),
        (&["--local", "etcd3", "--faults", "server-empty"], "promises nothing"),
        (&["--local", "redis", "--faults", "server-failover"], "promises nothing"),
        (&["--local", "redis-cluster", "--faults", "cut"], "tell clients where the others are"),
        (&["--local", "mongodb"], "redlock5"),
        (&["--local", "file", "--store", "file:"], "cannot be used with"),
        (&["--minutes", "0"], "such as `2`"),
        (&["--clients", "0"], "1..=200"),
        (&["--ttl", "1ms"], "take a longer one"),
    ] {
        assert_fails(&store.output(&[&["torture"], words].concat()), 64, &[told]);
    }
    assert_fails(&store.output(&["torture", "--report", "no/such/folder"]), 71, &["creating the report"]);
    let nobody = Proxy::start(([127, 0, 0, 1], 1).into());
    let url = format!("redis://:hush@{}?timeout=1s", nobody.addr());
    std::fs::write(store.path("older.html"), "of last week").unwrap();
    let output = store.output(&["torture", "--store", &url, "--report", "older.html"]);
    assert_fails(&output, 69, &["127.0.0.1"]);
    assert_eq!(std::fs::read_to_string(store.path("older.html")).unwrap(), "of last week");
    assert!(!text(&output.stderr).contains("hush"), "{output:?}");
}

fn threads(process: Pid) -> impl Iterator<Item = Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).unwrap();
    tasks.map(|task| Pid::from_raw(task.unwrap().file_name().to_str().unwrap().parse().unwrap()).unwrap())
}

fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero();
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).unwrap();
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("children"))
    };
    let pids = tasks.filter_map(|task| of(task).ok()).collect::<Vec<_>>().join(" ");
    pids.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
}
