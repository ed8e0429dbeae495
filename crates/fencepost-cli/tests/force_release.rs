//! `force-release`: the victim learns the reason, the operator gets a larger token.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Store, assert_fails};

fn stores() -> [Store; 2] {
    [Store::file(), Store::redis()]
}

#[test]
fn the_victim_ends_with_70_and_the_operators_reason() {
    for store in stores() {
        for now in [&[][..], &["--now"][..]] {
            let victim = store.hold("job", &["--ttl", "1m", "--grace", "1s"]);
            let held = store.json(&["--json", "show", "job"])["holder"]["token"].as_u64();
            let words = [&["--json", "force-release", "job", "--reason", "host is gone"], now].concat();
            let released = store.json(&words);
            assert!(released["token"].as_u64() > held, "{released}");
            assert_eq!(released["holder"]["token"].as_u64(), held);
            assert_eq!(released["freed"], !now.is_empty());
            assert_fails(&victim.end(), 70, &["`job` was lost", "force-released", "host is gone"]);
            let next = store.succeed(&["run", "job", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
            assert!(next.trim().parse::<u64>().ok() > released["token"].as_u64(), "{next} {released}");
            for held in glob(&store, "held-") {
                std::fs::remove_file(held).unwrap();
            }
        }
    }
}

fn glob(store: &Store, prefix: &str) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(store.path("")).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix)).collect()
}

#[test]
fn the_operator_is_told_to_activate_the_token() {
    for store in stores() {
        store.succeed(&["acquire", "--ttl", "1h", "--note", "gone", "job"]);
        let said = store.succeed(&["force-release", "job", "--reason", "why", "--now"]);
        for word in ["`job` is free", "gone", "token ", "activate"] {
            assert!(said.contains(word), "no {word} in {said}");
        }
        store.succeed(&["run", "--try", "job", "--", "true"]);
    }
}

#[test]
fn a_free_lock_stays_free_and_a_reason_is_a_must() {
    for store in stores() {
        let said = store.succeed(&["force-release", "job", "--reason", "why"]);
        assert!(said.contains("nobody holds lock `job`"), "{said}");
        assert_eq!(store.json(&["--json", "force-release", "job", "--reason", "why"])["freed"], false);
        assert_fails(&store.output(&["force-release", "job"]), 64, &["--reason"]);
    }
}

#[test]
fn a_token_says_who_is_meant() {
    for store in stores() {
        let shown = || store.json(&["--json", "show", "job"])["holder"]["token"].as_u64().unwrap();
        let handle = store.succeed(&["acquire", "--ttl", "1h", "job"]);
        let before = shown().to_string();
        store.succeed(&["release", handle.trim()]);
        store.succeed(&["acquire", "--ttl", "1h", "job"]);
        let now = shown().to_string();
        for how in [&[][..], &["--now"][..]] {
            let words = [&["force-release", "job", "--reason", "why", "--token", &before], how].concat();
            assert_fails(&store.output(&words), 75, &["has changed hands", "show job"]);
        }
        assert_eq!(shown().to_string(), now, "the next holder keeps it");
        let wrong = store.output(&["force-release", "job", "--reason", "why", "--token", "x"]);
        assert_fails(&wrong, 64, &["--token", "whole number"]);
        let words = ["force-release", "job", "--reason", "why", "--token", &now, "--now"];
        assert!(store.succeed(&words).contains(&format!("taken from token {now}")));
    }
}
