//! Runs the examples as a user does, and looks at what they print.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::{Command, Output};

/// An example, as cargo has built it beside this test.
pub(crate) fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let path: PathBuf = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(
        path.is_file(),
        "no {}; `cargo test -p fencepost-examples` builds examples, `--test` does not",
        path.display()
    );
    let mut command = Command::new(path);
    command.env_remove("FENCEPOST_STORE");
    command
}

/// Runs an example to its end, which must be a good one; returns what it printed.
pub(crate) fn succeed(name: &str, words: &[&str]) -> String {
    let output = example(name).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    text(&output.stdout)
}

/// Runs an example that must refuse to go on; returns its error.
pub(crate) fn fail(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(1), "{}", text(&stderr));
    text(&stderr)
}

/// The lines that have all of these words.
pub(crate) fn lines<'a>(out: &'a str, words: &[&str]) -> Vec<&'a str> {
    out.lines().filter(|line| words.iter().all(|word| line.contains(word))).collect()
}

/// The number behind a word, in every line that has it.
pub(crate) fn numbers(out: &str, word: &str) -> Vec<u64> {
    let after = out.lines().filter_map(|line| Some(line.split_once(word)?.1));
    after.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()).collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
