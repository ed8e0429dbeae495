//! `acquire`, `extend`, `release`: locks that outlive the process that took them.

mod common;

use common::{Store, assert_fails, code};
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
        assert_eq!(got["handle"], format!("{token}.{owner}.job"));
        let left = got["expires_in_ms"].as_u64().unwrap();
        assert!(left <= 3_600_000 && left > 3_000_000, "{left}");
        let holder = &store.json(&["--json", "show", "job"])["holder"];
        assert_eq!((holder["token"].as_u64(), holder["owner"].as_str()), (Some(token), Some(owner)));
    }
}

#[test]
fn a_detached_lock_ends_with_its_ttl() {
    for store in stores() {
        let first = store.json(&["--json", "acquire", "--ttl", "300ms", "job"]);
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
