//! `acquire`, `extend`, `release`: locks that outlive the process that took them.

mod common;

use std::io::Write as _;
use std::process::Stdio;

use common::{Store, assert_fails, code, text};
use rustix::process::Signal;

fn stores() -> [Store; 2] {
    [Store::file(), Store::redis()]
}

#[test]
fn a_handle_extends_and_releases_its_lock() {
    for store in stores() {
        let handle = store.succeed(&["acquire", "--ttl", "1m", "--note", "by hand", "job"]);
        let handle = handle.trim();
        assert_fails(&store.output(&["acquire", "--try", "job"]), 75, &["`job` is busy", "by hand"]);
        assert_fails(&store.output(&["run", "--try", "job", "--", "true"]), 75, &["`job` is busy"]);

        let extended = store.json(&["--json", "extend", "--ttl", "1h", handle]);
        assert_eq!((&extended["name"], &extended["handle"]), (&"job".into(), &handle.into()));
        assert!(extended["expires_in_ms"].as_u64().unwrap() > 60_000, "{extended}");

        assert_eq!(store.json(&["--json", "release", handle])["released"], true);
        store.succeed(&["run", "--try", "job", "--", "true"]);
        assert_fails(&store.output(&["release", handle]), 70, &["lock `job` was lost"]);
        assert_fails(&store.output(&["extend", handle]), 70, &["lock `job` was lost"]);
    }
}

#[test]
fn json_tells_all_about_the_lock() {
    for store in stores() {
        let got = store.json(&["--json", "acquire", "--ttl", "1h", "job"]);
        assert_eq!(got["name"], "job");
        let (token, owner) = (got["token"].as_u64().unwrap(), got["owner"].as_str().unwrap());
        let handle = got["handle"].as_str().unwrap();
        assert!(handle.starts_with(&format!("{token}.")) && handle.ends_with(".job"), "{handle}");
        // What others see of a holder frees nothing.
        let rebuilt = [format!("{token}.{owner}.job"), format!("{token}.{}.job", owner.replace('-', ""))];
        assert_fails(&store.output(&["release", &rebuilt[0]]), 64, &["not a lock handle"]);
        assert_fails(&store.output(&["release", &rebuilt[1]]), 70, &["lock `job` was lost"]);
        let left = got["expires_in_ms"].as_u64().unwrap();
        assert!(left <= 3_600_000 && left > 3_000_000, "{left}");
        let holder = &store.json(&["--json", "show", "job"])["holder"];
        assert_eq!((holder["token"].as_u64(), holder["owner"].as_str()), (Some(token), Some(owner)));
    }
}

/// What is almost a handle is almost a key: it must not be in a log because of a slip.
#[test]
fn no_error_quotes_a_handle_and_stdin_keeps_it_out_of_the_process_list() {
    let store = Store::file();
    let handle = store.succeed(&["acquire", "--ttl", "1h", "job"]);
    let secret = handle.split('.').nth(1).unwrap();
    for command in ["extend", "release"] {
        for words in [&["--json", command][..], &[command][..]] {
            let output = store.output(&[words, &[&format!("x{}", handle.trim())]].concat());
            assert_fails(&output, 64, &["not a lock handle"]);
            assert!(!text(&output.stderr).contains(secret), "{}", text(&output.stderr));
        }
        let mut child =
            store.fencepost(&[command, "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(handle.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{command}");
    }
    assert_eq!(store.succeed(&["list"]), "");
}

#[test]
fn a_detached_lock_ends_with_its_ttl() {
    for store in stores() {
        let first = store.json(&["--json", "acquire", "--ttl", "3s", "job"]);
        let second = store.json(&["--json", "acquire", "--ttl", "1m", "job"]);
        assert!(second["token"].as_u64() > first["token"].as_u64());
        let stale = first["handle"].as_str().unwrap();
        assert_fails(&store.output(&["extend", stale]), 70, &["lost"]);
        assert_fails(&store.output(&["release", stale]), 70, &["lost"]);
        assert_eq!(store.json(&["--json", "show", "job"])["holder"]["owner"], second["owner"]);
    }
}

#[test]
fn a_signal_ends_the_waiting_and_leaves_nothing_behind() {
    for store in stores() {
        let handle = store.succeed(&["acquire", "--ttl", "1h", "job"]);
        let mut waiter = store.start(&["acquire", "job"]);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(waiter.stderr()), &mut line).unwrap();
        assert!(line.contains("waiting for lock `job`"), "{line}");
        waiter.signal(Signal::TERM);
        assert_eq!(code(&waiter.end()), 143);
        store.succeed(&["release", handle.trim()]);
        assert_eq!(store.succeed(&["list"]), "");
    }
}

#[test]
fn a_token_grows_from_lock_to_lock() {
    for store in stores() {
        let mut last = 0;
        for _ in 0..3 {
            let got = store.json(&["--json", "acquire", "job"]);
            let token = got["token"].as_u64().unwrap();
            assert!(token > last);
            last = token;
            store.succeed(&["release", got["handle"].as_str().unwrap()]);
        }
    }
}

/// A handle comes from others, and its name with it.
#[test]
fn a_name_in_a_handle_does_not_drive_the_terminal() {
    for store in stores() {
        let said = store.output(&["release", "5.0123456789abcdef0123456789abcdef.a%1B%5B31m%0Ab"]);
        assert_fails(&said, 70, &["lost", "next: "]);
        let text = String::from_utf8(said.stderr).unwrap();
        assert!(!text.contains('\u{1b}') && text.lines().count() == 2, "{text:?}");
    }
}
