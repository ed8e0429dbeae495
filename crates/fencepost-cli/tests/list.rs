//! `list`: who holds what.

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use common::{Running, Store, text};

#[test]
fn every_holder_is_listed_by_name() {
    for store in [Store::file(), Store::redis()] {
        let output = store.output(&["list"]);
        assert!(output.status.success() && output.stdout.is_empty());
        assert!(text(&output.stderr).contains("no lock is held"));
        assert!(text(&store.output(&["list", "order:"]).stderr).contains("whose name starts with `order:`"));
        assert_eq!(store.json(&["--json", "list"]), serde_json::json!([]));

        store.succeed(&["acquire", "--ttl", "1h", "order:2"]);
        store.succeed(&["acquire", "--ttl", "1h", "--note", "two\nlines", "order:1"]);
        let _running = store.hold("report", &["--note", "nightly"]);

        let table = store.succeed(&["list"]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[0].starts_with("NAME"), "{table}");
        assert!(lines[1].starts_with("order:1") && lines[1].contains(r"two\nlines"), "{table}");
        assert!(lines[3].starts_with("report") && lines[3].ends_with("nightly"), "{table}");

        let some = store.json(&["--json", "list", "order:"]);
        let names: Vec<_> = some.as_array().unwrap().iter().map(|holder| &holder["name"]).collect();
        assert_eq!(names, ["order:1", "order:2"]);
        assert!(some[0]["token"].is_u64() && some[0]["host"].is_string() && some[0]["age_ms"].is_u64());
    }
}

#[test]
fn a_list_is_counted_sorted_and_narrowed_as_told() {
    let store = Store::redis();
    let output = store.output(&["list", "order:"]);
    assert!(text(&output.stderr).contains("whose name starts with `order:`"), "{output:?}");
    for (name, ttl) in [("a", "2h"), ("b", "3h"), ("c", "1h")] {
        store.succeed(&["acquire", "--ttl", ttl, name]);
    }
    let names = |sort: &str| {
        let listed = store.json(&["--json", "list", "--sort", sort]);
        let names = listed.as_array().unwrap().iter().map(|holder| holder["name"].as_str().unwrap());
        names.collect::<String>()
    };
    assert_eq!((names("name"), names("left")), ("abc".to_owned(), "cab".to_owned()));
    // Acquired one after the other, by one clock.
    assert_eq!(names("age"), "abc");
    assert_eq!(store.succeed(&["list", "--count"]), "3\n");
    assert_eq!(store.json(&["--json", "list", "--count", "c"]), serde_json::json!({ "count": 1 }));
}

#[test]
fn a_list_that_is_watched_shows_what_changes() {
    let store = Store::file();
    store.succeed(&["acquire", "--ttl", "1h", "first"]);
    let mut command = store.fencepost(&["--json", "list", "--watch=100ms"]);
    let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let _watching = Running::of(child);
    let mut names = || {
        let listed: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        listed.as_array().unwrap().iter().map(|holder| holder["name"].as_str().unwrap().to_owned()).collect()
    };
    let seen: Vec<String> = names();
    assert_eq!(seen, ["first"]);
    let handle = store.succeed(&["acquire", "--ttl", "1h", "second"]);
    let seen: Vec<String> = names();
    assert_eq!(seen, ["first", "second"]);
    store.succeed(&["release", handle.trim()]);
    let seen: Vec<String> = names();
    assert_eq!(seen, ["first"], "nothing was printed meanwhile");
    std::fs::write(store.path("locks/junk.lock"), "12345\n").unwrap();
    let seen: Vec<String> = names();
    assert_eq!(seen, ["first"], "and it is told what cannot be read");
}

#[test]
fn a_long_name_moves_its_own_row_only() {
    let store = Store::file();
    let long = "n".repeat(150);
    for name in ["short", &long] {
        store.succeed(&["acquire", "--ttl", "1h", name]);
    }
    let table = store.succeed(&["list"]);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[1].starts_with(&long), "{table}");
    assert!(lines[2].starts_with("short") && lines[2].len() < 120, "{table}");
}

/// Of a program that writes JSON to a terminal, or a log that somebody reads there.
#[test]
fn no_note_acts_on_a_terminal_also_not_as_json() {
    let store = Store::file();
    let note = "a\u{9b}31m\u{7f}\u{202e}\u{2028}\u{3164}\u{e0041}b";
    store.succeed(&["acquire", "--ttl", "1h", "--note", note, "job"]);
    let unfit = |c: char| c != '\n' && !(' '..='~').contains(&c);
    for words in [
        &["--json", "list"][..],
        &["--json", "show", "job"],
        &["--json", "run", "--try", "job", "--", "true"],
    ] {
        let output = store.output(words);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!said.contains(unfit), "{said:?}");
        assert!(
            serde_json::from_str::<serde_json::Value>(&said).unwrap().to_string().contains(note),
            "{said}"
        );
    }
    for words in [&["list"][..], &["show", "job"], &["run", "--try", "job", "--", "true"]] {
        let output = store.output(words);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("31m") && !said.contains(unfit), "{said:?}");
    }
}

/// An on-call engineer must not take half a list for the whole.
#[test]
fn a_list_that_misses_a_lock_says_which_and_does_not_succeed() {
    let store = Store::file();
    store.succeed(&["acquire", "--ttl", "1h", "good"]);
    std::fs::write(store.path("locks/junk.lock"), "12345\n").unwrap();
    let output = store.output(&["list"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("good"));
    assert!(text(&output.stderr).contains("junk.lock"));
    let output = store.output(&["--json", "list"]);
    assert_eq!(output.status.code(), Some(1));
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listed[0]["name"], "good");
    let report: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(report["message"].as_str().unwrap().contains("junk.lock"));
}
