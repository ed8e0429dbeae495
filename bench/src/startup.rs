//! How long `fencepost run x -- true` takes beside `flock x true`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fencepost_testkit::Folder;

use crate::results::{Goal, progress};
use crate::rounds::{Slice, report_number, report_times};

const PAIRS: usize = 20;

pub(crate) fn run(rounds: usize) {
    let Some(program) = program() else {
        return println!("start-up is not measured: build the command first (`make build`)");
    };
    let folder = Folder::new("bench");
    // As it is when it is installed: the kernel takes longer to map a file that a linker has written here and
    // there.
    let installed = folder.path().join("fencepost");
    std::fs::copy(program, &installed).expect("a copy of the command");
    let (store, lock) =
        (format!("file://{}", folder.path().join("locks").display()), folder.path().join("lock"));
    let ours = || {
        let mut run = Command::new(&installed);
        run.args(["--store", &store, "run", "x", "--", "true"]);
        time(run)
    };
    let theirs = || {
        let mut flock = Command::new("flock");
        flock.arg(&lock).arg("true");
        time(flock)
    };
    let mut pairs = Vec::new();
    progress("start-up of commands");
    for _ in 0..rounds.div_ceil(3) {
        let (mut one, mut other) = (Slice::default(), Slice::default());
        for _ in 0..PAIRS {
            one.times.push(ours());
            other.times.push(theirs());
        }
        pairs.push((one, other));
    }
    report_times("`fencepost run x -- true` / `flock x true`", Some(1.5), &pairs);
    let more =
        pairs.iter().map(|(ours, raw)| (ours.median().as_secs_f64() - raw.median().as_secs_f64()) * 1e3);
    let more = crate::rounds::middle(more.collect());
    report_number("the same: milliseconds more (either will do)", more, "", Some(Goal::AtMost(2.0)));
}

/// The command that was built beside this program.
pub(crate) fn program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.parent().map(|folder: &Path| folder.join("fencepost"))?;
    program.exists().then_some(program)
}

fn time(mut command: Command) -> Duration {
    let started = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().expect("a program");
    assert!(status.success());
    started.elapsed()
}
