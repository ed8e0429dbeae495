//! `run`: the command's view of it, exclusion, and what the exit code says.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{Store, assert_fails, code, is_alive, state, text};
use fencepost_testkit::eventually;
use rustix::process::{Pid, Signal};

#[test]
fn the_exit_code_is_the_commands_own() {
    let store = Store::file();
    for (script, expected) in [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        let output = store.output(&["run", "job", "--", "sh", "-c", script]);
        assert_eq!(code(&output), expected, "{script}: {output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_command_that_cannot_run_ends_as_in_a_shell() {
    let store = Store::file();
    assert_fails(&store.output(&["run", "job", "--", "no-such-command"]), 127, &["`no-such-command`"]);
    assert_fails(&store.output(&["run", "one", "two", "--", "true"]), 127, &["`two`", "`--also NAME`"]);
    assert_fails(&store.output(&["run", "job", "--", "/etc/passwd"]), 126, &["`/etc/passwd`"]);
    assert_eq!(store.succeed(&["list"]), "", "nothing stays locked");
}

#[test]
fn the_command_sees_name_owner_and_a_token_that_grows() {
    let store = Store::file();
    let script = r#"echo "$FENCEPOST_NAME"; echo "$FENCEPOST_TOKEN"; echo "$FENCEPOST_OWNER""#;
    let mut last = 0;
    for _ in 0..3 {
        let out = store.succeed(&["run", "a name: ü", "--", "sh", "-c", script]);
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(lines[0], "a name: ü");
        let token = lines[1].parse::<u64>().unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
        assert_eq!(lines[2].len(), 36, "{out}");
    }
}

#[test]
fn a_command_needs_no_dashes_and_keeps_its_own() {
    let store = Store::file();
    assert_eq!(store.succeed(&["run", "job", "echo", "-n", "--", "--try"]), "-- --try");
    assert_eq!(store.succeed(&["run", "job", "--try", "--", "echo", "a", "--", "b"]), "a -- b\n");
    assert_fails(&store.output(&["run", "job", "-x", "echo"]), 64, &["-x"]);
}

#[test]
fn a_command_can_have_several_locks() {
    for store in [Store::file(), Store::redis()] {
        let words = ["run", "b", "--also", "a", "--also", "c", "--also", "a", "sh", "-c"];
        let script = "echo $FENCEPOST_NAME $FENCEPOST_TOKEN; echo $FENCEPOST_TOKENS; touch has; \
                      until [ -e stop ]; do sleep 0.01; done";
        let running = store.start(&[&words[..], &[script]].concat());
        eventually("it has them", || store.path("has").exists());
        let listed = store.json(&["--json", "list"]);
        let holders: Vec<_> = listed.as_array().unwrap().iter().map(|holder| &holder["name"]).collect();
        assert_eq!(holders, ["a", "b", "c"]);
        for name in ["a", "b", "c"] {
            assert_fails(&store.output(&["run", "--try", "x", "--also", name, "true"]), 75, &["busy"]);
        }
        assert_fails(&store.output(&["show", "x"]), 1, &[]);
        std::fs::write(store.path("stop"), "").unwrap();
        let output = running.end();
        assert_eq!(code(&output), 0, "{output:?}");
        let said = text(&output.stdout);
        let (first, tokens) = said.trim().split_once('\n').unwrap();
        let tokens: serde_json::Value = serde_json::from_str(tokens).unwrap();
        assert_eq!(first, format!("b {}", tokens["b"]));
        assert_eq!(tokens.as_object().unwrap().len(), 3, "{tokens}");
        assert_eq!(store.succeed(&["list"]), "");
    }
}

#[test]
fn a_command_ends_with_the_first_of_its_locks() {
    for store in [Store::file(), Store::redis()] {
        let words = ["run", "a", "--also", "b", "--grace", "1s", "sh", "-c", "touch has; sleep 100"];
        let running = store.start(&words);
        eventually("it has them", || store.path("has").exists());
        store.succeed(&["force-release", "b", "--reason", "test"]);
        assert_fails(&running.end(), 70, &["lock `b` was lost", "test", "the command was ended"]);
        assert_eq!(store.succeed(&["list"]), "", "the other one was given back");
    }
    let many: Vec<_> = (0..20).flat_map(|lock| ["--also".to_owned(), lock.to_string()]).collect();
    let words: Vec<_> = ["run", "a"].into_iter().chain(many.iter().map(String::as_str)).collect();
    assert_fails(&Store::file().output(&[&words[..], &["true"]].concat()), 64, &["at most 16 locks"]);
}

#[test]
fn a_lock_that_a_command_runs_under_is_not_waited_for() {
    for store in [Store::file(), Store::redis()] {
        let us = env!("CARGO_BIN_EXE_fencepost");
        let words = ["run", "a", us, "run", "b", us, "run", "a", "true"];
        assert_fails(&store.output(&words), 75, &["lock `a` is held by the `fencepost run` that this runs"]);
        let words = ["run", "a", us, "run", "--busy-code", "3", "a", "true"];
        assert_eq!(code(&store.output(&words)), 3);
        assert_eq!(code(&store.output(&["run", "a", us, "acquire", "a"])), 75);
        // Given back, it is as good as any other.
        let script = format!("(unset FENCEPOST_OUTER; {us} run --try a true) || {us} run b {us} run c true");
        store.succeed(&["run", "a", "sh", "-c", &script]);
    }
}

/// An environment is anybody's. More than the guardian can be told in one message must not be taken from it.
#[test]
fn an_environment_full_of_anything_keeps_no_command_from_starting() {
    let store = Store::file();
    let mut command = store.fencepost(&["run", "job", "echo", "ran"]);
    let output = command.env("FENCEPOST_OUTER", "\u{1}".repeat(100_000)).output().unwrap();
    assert_eq!((code(&output), &*text(&output.stdout)), (0, "ran\n"), "{output:?}");
}

/// The list of waiters is one file. Written beyond the limit, the kernel would end the process.
#[test]
fn a_limit_on_the_size_of_files_ends_no_waiter() {
    let store = Store::file();
    let _holder = store.hold("job", &[]);
    let mut limited = std::process::Command::new("sh");
    let script = "ulimit -f 1; exec \"$0\" run --wait 1s job true";
    limited.args(["-c", script, env!("CARGO_BIN_EXE_fencepost")]).env("FENCEPOST_STORE", &store.url);
    let output = limited.output().unwrap();
    assert_eq!(code(&output), 75, "{output:?}");
}

#[test]
fn locks_within_one_process_are_refused() {
    let store = Store::at("memory:".to_owned());
    for words in [&["run", "job", "true"][..], &["acquire", "job"], &["list"]] {
        assert_fails(&store.output(words), 64, &["would exclude nobody"]);
    }
}

#[test]
fn waiting_is_told_as_json_too() {
    let store = Store::file();
    let holder = store.hold("job", &[]);
    let output = store.output(&["--json", "run", "--wait", "4s", "job", "true"]);
    let stderr = text(&output.stderr);
    let said: Vec<serde_json::Value> =
        stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(said[0]["waiting"], "job", "{stderr}");
    assert_eq!(said[0]["holder"]["pid"], holder.pid().as_raw_nonzero().get(), "{stderr}");
    assert!(said[0]["waited_ms"].as_u64() >= Some(2_000), "{stderr}");
    assert_eq!(said.last().unwrap()["error"], "timeout", "{stderr}");
    let quiet = store.output(&["--json", "--quiet", "run", "--wait", "3s", "job", "true"]);
    assert_eq!(text(&quiet.stderr).lines().count(), 1, "{quiet:?}");
}

#[test]
fn waiting_is_told_more_than_once() {
    let store = Store::file();
    let _holder = store.hold("job", &[]);
    let mut waiter = store.start(&["run", "job", "true"]);
    let mut said = BufReader::new(waiter.stderr()).lines();
    for _ in 0..2 {
        let line = said.next().unwrap().unwrap();
        assert!(line.contains("waiting for lock `job`") && line.contains("held by"), "{line}");
    }
}

#[test]
fn stdin_and_stdout_are_passed_through() {
    let store = Store::file();
    let mut command = store.fencepost(&["run", "job", "--", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = common::Running::start(command);
    running.write("through\n");
    assert_eq!(text(&running.end().stdout), "through\n");
}

#[test]
fn the_command_inherits_no_descriptor_and_no_changed_signal() {
    let store = Store::file();
    let plain = std::process::Command::new("ls").arg("/proc/self/fd").stdin(Stdio::null()).output().unwrap();
    assert_eq!(store.succeed(&["run", "job", "--", "ls", "/proc/self/fd"]), text(&plain.stdout));

    let status = ["grep", "^Sig[BI]", "/proc/self/status"];
    for prefix in ["", "trap '' HUP TSTP CHLD; "] {
        let script = format!("{prefix}exec \"$@\"");
        let plain =
            std::process::Command::new("sh").args(["-c", &script, "sh"]).args(status).output().unwrap();
        let mut under = std::process::Command::new("sh");
        under.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_fencepost"), "--store", &store.url]);
        let under = under.args(["run", "job", "--"]).args(status).output().unwrap();
        assert_eq!(text(&under.stdout), text(&plain.stdout), "{under:?}");
    }
}

#[test]
fn twenty_at_once_never_overlap_and_see_growing_tokens_on_files() {
    twenty_at_once(&Store::file());
}

#[test]
fn twenty_at_once_never_overlap_and_see_growing_tokens_on_redis() {
    twenty_at_once(&Store::redis());
}

fn twenty_at_once(store: &Store) {
    let script = "mkdir inside || touch overlap; echo $FENCEPOST_TOKEN >> tokens; rmdir inside";
    let running: Vec<_> = (0..20).map(|_| store.start(&["run", "job", "--", "sh", "-c", script])).collect();
    for running in running {
        let output = running.end();
        assert!(output.status.success(), "{output:?}");
    }
    assert!(!store.path("overlap").exists(), "two held the lock at once");
    let tokens = std::fs::read_to_string(store.path("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 20);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn a_busy_lock_names_its_holder_and_the_next_step() {
    let store = Store::file();
    let holder = store.hold("job", &["--note", "nightly backup"]);
    let host = text(&std::process::Command::new("uname").arg("-n").output().unwrap().stdout);
    let pid = format!("pid {}", holder.pid().as_raw_nonzero());
    let words = ["`job` is busy", host.trim(), &pid, "nightly backup", "held for", "--wait"];
    assert_fails(&store.output(&["run", "--try", "job", "--", "true"]), 75, &words);
    let words = ["not free within", &pid, "nightly backup", "force-release"];
    assert_fails(&store.output(&["run", "--wait", "50ms", "job", "--", "true"]), 75, &words);
    assert_fails(&store.output(&["run", "--try", "--busy-code", "9", "job", "--", "true"]), 9, &["busy"]);

    let output = store.output(&["--json", "run", "--try", "job", "--", "true"]);
    assert_eq!(code(&output), 75);
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&error["error"], &error["name"]), (&"busy".into(), &"job".into()));
    assert_eq!(error["holder"]["note"], "nightly backup");
    assert_eq!(error["holder"]["pid"], holder.pid().as_raw_nonzero().get());
}

#[test]
fn signals_reach_the_command() {
    let store = Store::file();
    for (signal, name, expected) in [
        (Signal::INT, "INT", 11),
        (Signal::TERM, "TERM", 12),
        (Signal::HUP, "HUP", 13),
        (Signal::QUIT, "QUIT", 14),
    ] {
        let script =
            format!("trap 'exit {expected}' {name}; echo ready > ready-{name}; while :; do sleep 0.01; done");
        let running = store.start(&["run", "job", "--", "sh", "-c", &script]);
        store.line(&format!("ready-{name}"));
        running.signal(signal);
        assert_eq!(code(&running.end()), expected, "{name}");
    }
}

#[test]
fn a_signal_ends_the_waiting_and_leaves_nothing_behind() {
    for store in [Store::file(), Store::redis()] {
        let holder = store.hold("job", &[]);
        for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
            let mut waiter = store.start(&["run", "job", "--", "touch", "ran"]);
            let mut line = String::new();
            let mut stderr = BufReader::new(waiter.stderr());
            stderr.read_line(&mut line).unwrap();
            assert!(line.contains("waiting for lock `job`") && line.contains("held by host"), "{line}");
            waiter.signal(signal);
            assert_eq!(code(&waiter.end()), expected);
        }
        std::fs::write(store.path("stop"), "").unwrap();
        assert_eq!(code(&holder.end()), 0);
        assert_eq!(store.succeed(&["list"]), "");
        assert!(!store.path("ran").exists());
    }
}

#[test]
fn a_stopped_and_continued_wrapper_stops_and_continues_the_command() {
    let store = Store::file();
    // Starts no processes meanwhile: a shell whose child is stopped before it could exec does not stop
    // itself.
    let script = "mkfifo gate; echo $$ > child; read line < gate";
    let running = store.start(&["run", "job", "--", "sh", "-c", script]);
    let child = store.pid("child");
    running.signal(Signal::TSTP);
    eventually("the command is stopped", || state(child) == Some('T'));
    running.signal(Signal::CONT);
    eventually("the command goes on", || state(child) != Some('T'));
    std::fs::write(store.path("gate"), "go\n").unwrap();
    assert_eq!(code(&running.end()), 0);
}

#[test]
fn a_waiter_that_is_killed_leaves_no_guardian() {
    let store = Store::file();
    let _holder = store.hold("job", &[]);
    let waiter = store.start(&["run", "job", "--", "touch", "ran"]);
    let mut guardian = None;
    eventually("the guardian runs", || {
        let pid = waiter.pid().as_raw_nonzero();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        guardian = children.ok().and_then(|pids| Pid::from_raw(pids.trim().parse().ok()?));
        guardian.is_some()
    });
    waiter.signal(Signal::KILL);
    waiter.end();
    eventually("the guardian is gone", || !guardian.is_some_and(is_alive));
    assert!(!store.path("ran").exists());
}

#[test]
fn wrong_usage_is_64_and_says_what_is_wrong() {
    let store = Store::file();
    for (words, expected) in [
        (&["run"][..], "<NAME>"),
        (&["run", "job"][..], "<CMD>..."),
        (&["run", "job", "--ttl", "5", "--", "true"][..], "not a duration"),
        (&["run", "job", "--ttl", "1ms", "--", "true"][..], "a ttl lies between"),
        (&["run", "", "--", "true"][..], "must not be empty"),
        (&["run", &"x".repeat(513), "--", "true"][..], "at most 512 bytes"),
        (&["run", "job", "--try", "--wait", "1s", "--", "true"][..], "cannot be used with"),
        (&["lock", "job"][..], "unrecognized subcommand"),
        (&["--store", "nfs:x", "list"][..], "known are `file:`"),
        (&["--store", "redis", "list"][..], "no scheme"),
        (&["--store-file", "missing", "list"][..], "`missing`"),
        (&["release", "nonsense"][..], "handle"),
    ] {
        assert_fails(&store.output(words), 64, &[expected]);
    }
    let output = store.output(&["--json", "lock"]);
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((code(&output), &error["error"]), (64, &"usage".into()));
}

#[test]
fn the_flag_wins_over_the_environment() {
    let (here, there) = (Store::file(), Store::file());
    let _holder = there.hold("job", &[]);
    here.succeed(&["run", "--try", "job", "--", "true"]);
    assert_fails(&here.output(&["--store", &there.url, "run", "--try", "job", "--", "true"]), 75, &["busy"]);
    std::fs::write(here.path("url"), format!("{}\n", there.url)).unwrap();
    assert_fails(&here.output(&["--store-file", "url", "run", "--try", "job", "--", "true"]), 75, &["busy"]);
}
