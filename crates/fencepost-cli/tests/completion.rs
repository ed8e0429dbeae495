//! Completions: the shell asks the command.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Store, text};

/// What bash is offered for the last word of a line.
fn offered(store: &Store, words: &[&str]) -> Vec<String> {
    let mut command = store.fencepost(&["--", "fencepost"]);
    command.args(words).env("_FENCEPOST_COMPLETE", "bash").env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_COMPLETE_COMP_TYPE", "9");
    let output = command.env("_CLAP_COMPLETE_SPACE", "true").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn commands_are_offered_but_no_internal_ones() {
    let store = Store::file();
    let commands = offered(&store, &[""]);
    for command in ["run", "show", "force-release", "check"] {
        assert!(commands.iter().any(|offer| offer == command), "{commands:?}");
    }
    let internal = |offer: &&String| offer.contains("worker") || *offer == "generate";
    assert_eq!(commands.iter().find(internal), None);
    assert_eq!(offered(&store, &["run", "--gr"]), ["--grace"]);
}

/// Whoever makes a lock chooses its name, and a completed word is run by the shell.
#[test]
fn held_locks_are_offered_if_a_shell_takes_their_names_for_words() {
    let store = Store::file();
    for name in ["nightly", "name with spaces", "$(touch pwned)", "n;reboot", "-n", "n*"] {
        store.succeed(&["acquire", "--ttl", "1h", "--", name]);
    }
    for command in ["show", "list", "force-release", "run"] {
        assert_eq!(offered(&store, &[command, "n"]), ["nightly"], "{command}");
    }
    let there = format!("--store={}", store.url);
    let elsewhere = Store::file();
    assert_eq!(offered(&elsewhere, &["show", &there, "n"]), ["nightly"]);
    assert!(offered(&elsewhere, &["show", "n"]).is_empty());
    assert!(offered(&Store::at("redis://127.0.0.1:1".to_owned()), &["show", "n"]).is_empty());
}

#[test]
fn the_script_of_each_shell_asks_the_command() {
    let store = Store::file();
    for shell in ["bash", "zsh", "fish"] {
        let script = store.succeed(&["generate", "completions", shell]);
        assert!(script.contains("_FENCEPOST_COMPLETE") && script.contains("-- "), "{script}");
    }
}
