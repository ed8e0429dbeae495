//! `run`, when things go wrong: the command's process group never outlives the lock.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Running, Store, assert_fails, code, is_alive, state, text};
use fencepost_testkit::eventually;
use rustix::process::{Pid, Signal, kill_process};

/// A command with a child in the background; both ignore TERM, and say who they and their guardian are.
const STUBBORN: &str = "trap '' TERM; sh -c 'echo $$ > grandchild; while :; do sleep 0.01; done' & \
    echo $PPID > guardian; echo $$ > child; wait";

/// Writes the token, and `overlap` if the stubborn command still runs.
const SUCCESSOR: &str = "for pid in $(cat child grandchild); do \
    case $(cut -d ' ' -f 3 /proc/$pid/stat 2>/dev/null) in ''|Z|X) ;; *) touch overlap ;; esac; done; \
    echo $FENCEPOST_TOKEN > successor";

#[test]
fn killing_the_wrapper_ends_the_group_before_the_next_one_starts_on_files() {
    let store = Store::file();
    let holder = store.start(&["run", "--ttl", "1h", "--grace", "200ms", "job", "--", "sh", "-c", STUBBORN]);
    let group = [store.pid("child"), store.pid("grandchild"), store.pid("guardian")];
    let next = store.start(&["run", "job", "--", "sh", "-c", SUCCESSOR]);
    holder.signal(Signal::KILL);
    holder.end();
    assert_eq!(code(&next.end()), 0);
    store.line("successor");
    assert!(!store.path("overlap").exists(), "the lock was free before the command had ended");
    assert!(!group.into_iter().any(is_alive));
}

#[test]
fn killing_the_wrapper_frees_the_lock_when_its_lease_ends_on_redis() {
    let store = Store::redis();
    let holder = store.start(&["run", "--ttl", "8s", "job", "--", "sh", "-c", STUBBORN]);
    let group = [store.pid("child"), store.pid("grandchild")];
    holder.signal(Signal::KILL);
    holder.end();
    assert_eq!(code(&store.output(&["run", "job", "--", "sh", "-c", SUCCESSOR])), 0);
    assert!(!store.path("overlap").exists(), "the command outlived its lease");
    assert!(!group.into_iter().any(is_alive));
}

#[test]
fn a_wrapper_that_stalls_past_its_lease_loses_the_command_first_and_exits_70() {
    let store = Store::redis();
    let holder = store.start(&["run", "--ttl", "8s", "job", "--", "sh", "-c", STUBBORN]);
    let group = [store.pid("child"), store.pid("grandchild")];
    holder.signal(Signal::STOP);
    assert_eq!(code(&store.output(&["run", "job", "--", "sh", "-c", SUCCESSOR])), 0);
    assert!(!store.path("overlap").exists(), "the command outlived its lease");
    assert!(!group.into_iter().any(is_alive));
    holder.signal(Signal::CONT);
    assert_fails(&holder.end(), 70, &["lock `job` was lost", "stood still", "the command was ended"]);
}

#[test]
fn a_store_that_stops_answering_ends_the_command_within_the_lease() {
    let store = Store::redis();
    let holder = store.start(&["run", "--ttl", "4s", "job", "--", "sh", "-c", STUBBORN]);
    let group = [store.pid("child"), store.pid("grandchild")];
    store.server.as_ref().unwrap().pause();
    let output = holder.end();
    store.server.as_ref().unwrap().resume();
    assert_fails(&output, 70, &["lock `job` was", "the command was ended"]);
    assert!(!group.into_iter().any(is_alive));
    // What was told before, as people write durations.
    let said = text(&output.stderr);
    let left: Vec<_> = said.split("left=").skip(1).filter_map(|rest| rest.split([',', ')']).next()).collect();
    let short = |left: &&str| {
        let number = left.strip_suffix("ms").or(left.strip_suffix('s'));
        number.is_some_and(|number| number.len() <= 3 && number.parse::<f32>().is_ok())
    };
    assert!(!left.is_empty() && left.iter().all(short), "{said}");
}

#[test]
fn killing_the_guardian_ends_the_command() {
    for store in [Store::file(), Store::redis()] {
        let holder = store.start(&["run", "job", "--", "sh", "-c", STUBBORN]);
        let group = [store.pid("child"), store.pid("grandchild")];
        kill_process(store.pid("guardian"), Signal::KILL).unwrap();
        assert_fails(&holder.end(), 70, &["the guardian of lock `job` was killed"]);
        assert!(!group.into_iter().any(is_alive));
        store.succeed(&["run", "--try", "job", "--", "true"]);
    }
}

/// Ends what a test that fails would leave behind.
struct Ended([rustix::process::Pid; 2]);

impl Drop for Ended {
    fn drop(&mut self) {
        for pid in self.0 {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[test]
fn killing_wrapper_and_guardian_at_once_ends_the_group_before_the_next_one_starts_on_files() {
    let store = Store::file();
    let holder = store.start(&["run", "--ttl", "1h", "job", "--", "sh", "-c", STUBBORN]);
    let group = [store.pid("child"), store.pid("grandchild")];
    let _end = Ended(group);
    let next = store.start(&["run", "job", "--", "sh", "-c", SUCCESSOR]);
    kill_process(store.pid("guardian"), Signal::STOP).unwrap();
    holder.signal(Signal::KILL);
    kill_process(store.pid("guardian"), Signal::KILL).unwrap();
    // Not for the end of its output: whatever is left of the command has that, too.
    drop(holder);
    assert_eq!(code(&next.end()), 0);
    store.line("successor");
    assert!(!store.path("overlap").exists(), "the lock was free before the command had ended");
    assert!(!group.into_iter().any(is_alive));
}

#[test]
fn killing_all_that_is_called_as_the_wrapper_ends_the_group() {
    let store = Store::redis();
    let name = format!("job-{}", std::process::id());
    let holder = store.start(&["run", "--ttl", "1h", &name, "--", "sh", "-c", STUBBORN]);
    let group = [store.pid("child"), store.pid("grandchild")];
    let _end = Ended(group);
    // Most of `pkill -9 -f "fencepost run"`.
    let called = || -> Vec<Pid> {
        let of = |entry: std::fs::DirEntry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let called = std::fs::read(entry.path().join("cmdline")).ok()?;
            let called = String::from_utf8_lossy(&called).replace('\0', " ");
            called.contains(&format!("fencepost run --ttl 1h {name}")).then_some(pid)
        };
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
    };
    // The third process takes its own name when it first runs.
    eventually("the wrapper and the guardian alone are called so", || called().len() == 2);
    for pid in called() {
        kill_process(pid, Signal::KILL).unwrap();
    }
    // Not for the end of its output: whatever is left of the command has that, too.
    drop(holder);
    eventually("the group is gone", || !group.into_iter().any(is_alive));
}

/// A `run` that has a lock of two seconds for longer than that, while its guardian stands still and has
/// started nothing.
fn held_for_too_long(store: &Store) -> (Running, Pid) {
    let handle = store.succeed(&["acquire", "--ttl", "1h", "job"]);
    let run = store.start(&["run", "--ttl", "2s", "job", "--", "sh", "-c", "echo $FENCEPOST_TOKEN > ran"]);
    let queue = || store.server.as_ref().unwrap().cli(&["LLEN", "{lock:job}:waiting"]);
    eventually("it waits", || queue() == "1");
    let pid = run.pid().as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let guardian = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    kill_process(guardian, Signal::STOP).unwrap();
    eventually("its guardian stands still", || state(guardian) == Some('T'));
    store.succeed(&["release", handle.trim()]);
    eventually("it has the lock for longer than the first lease", || {
        store.json(&["--json", "show", "job"])["holder"]["age_ms"].as_u64() > Some(2_500)
    });
    (run, guardian)
}

#[test]
fn a_command_that_was_not_started_in_time_is_started_on_the_next_lease() {
    let store = Store::redis();
    let (run, guardian) = held_for_too_long(&store);
    let first = store.json(&["--json", "show", "job"])["holder"]["token"].as_u64().unwrap();
    kill_process(guardian, Signal::CONT).unwrap();
    let output = run.end();
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(store.line("ran").parse::<u64>().unwrap() > first);
}

#[test]
fn a_signal_that_came_before_the_command_was_started_ends_the_waiting() {
    let store = Store::redis();
    let (run, guardian) = held_for_too_long(&store);
    run.signal(Signal::TERM);
    eventually("it has heard of it", || {
        let pid = run.pid().as_raw_nonzero();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().all(|line| !line.starts_with("ShdPnd:") || line.ends_with("0000000000000000"))
    });
    // Taken from the kernel, not yet from the pipe that its handler writes to: that is read in the same turn
    // as the next renewal.
    let age = || store.json(&["--json", "show", "job"])["holder"]["age_ms"].as_u64();
    let heard = age();
    eventually("it has looked around since", || age() > heard.map(|age| age + 1_000));
    kill_process(guardian, Signal::CONT).unwrap();
    assert_eq!(code(&run.end()), 143);
    assert!(!store.path("ran").exists());
    store.succeed(&["run", "--try", "job", "--", "true"]);
}

#[test]
fn a_command_that_outstays_its_time_is_ended() {
    for store in [Store::file(), Store::redis()] {
        let words = ["run", "--max-hold", "4s", "--grace", "1s", "job", "--", "sh", "-c", STUBBORN];
        assert_fails(&store.output(&words), 70, &["lock `job`", "--max-hold of 4s", "the command was ended"]);
        assert!(!is_alive(store.pid("child")));
        store.succeed(&["run", "--wait", "10s", "job", "--", "true"]);
    }
}

/// By renewals: the grace is longer than the lease.
#[test]
fn a_command_that_outstayed_its_time_has_its_grace_under_the_lock() {
    for store in [Store::file(), Store::redis()] {
        let us = env!("CARGO_BIN_EXE_fencepost");
        let script =
            format!("trap 'sleep 3; {us} show job > then; exit 0' TERM; while :; do sleep 0.01; done");
        let words = ["run", "--ttl", "1s", "--max-hold", "1s", "--grace", "30s", "job", "sh", "-c", &script];
        let output = store.output(&words);
        assert_fails(&output, 70, &["--max-hold of 1s"]);
        let (token, then) = (store.line("then"), std::fs::read_to_string(store.path("then")).unwrap());
        assert!(token.starts_with("name     job"), "{then}");
        assert!(then.contains("token"), "{then}");
    }
}

#[test]
fn a_time_of_nothing_is_refused() {
    let store = Store::file();
    assert_fails(&store.output(&["run", "--max-hold", "0s", "job", "true"]), 64, &["longer than zero"]);
}

#[test]
fn term_comes_before_kill() {
    let store = Store::file();
    let script = "trap 'echo asked > asked; exit' TERM; echo $$ > child; while :; do sleep 0.01; done";
    let holder = store.start(&["run", "--grace", "1h", "job", "--", "sh", "-c", script]);
    let child = store.pid("child");
    holder.signal(Signal::KILL);
    holder.end();
    store.line("asked");
    eventually("the command is gone", || !is_alive(child));
    store.succeed(&["run", "job", "--", "true"]);
}

#[test]
fn what_the_command_leaves_in_the_background_goes_on_without_the_lock() {
    let store = Store::file();
    let script = "sh -c 'echo $$ > left; until [ -e stop ]; do sleep 0.01; done' >/dev/null 2>&1 & \
        until [ -e left ]; do sleep 0.01; done";
    store.succeed(&["run", "job", "--", "sh", "-c", script]);
    store.succeed(&["run", "--try", "job", "--", "true"]);
    let left = store.pid("left");
    assert!(is_alive(left));
    std::fs::write(store.path("stop"), "").unwrap();
    eventually("it has ended by itself", || !is_alive(left));
}
