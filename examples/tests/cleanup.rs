//! An example that is killed leaves no process and no file behind, not even a frozen one.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use common::example;
use fencepost_testkit::{Folder, eventually};

/// The number behind `(pid `.
fn pid(line: &str) -> &str {
    line.split_once("(pid ").unwrap().1.split(')').next().unwrap()
}

#[test]
fn a_killed_example_takes_its_frozen_process_its_server_and_its_files_along() {
    let folder = Folder::new("cleanup");
    let mut killed = example("stale-writer")
        .args(["--resource", "file"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        // A process of its that dies a moment later may complain that nobody reads it any more.
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    let frozen =
        lines.by_ref().map(|line| line.unwrap()).find(|line| line.contains("is frozen here")).unwrap();
    assert_ne!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    killed.kill().unwrap();
    killed.wait().unwrap();

    eventually("its files are gone", || std::fs::read_dir(folder.path()).unwrap().next().is_none());
    let stat = format!("/proc/{}/stat", pid(&frozen));
    // Whoever adopts it may take its time to collect it.
    eventually("its frozen process is gone", || {
        std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    });
}
