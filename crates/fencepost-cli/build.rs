//! Tells `fencepost --version` the commit that it is built from. Without git, or outside of a checkout, there
//! is none.

use std::path::Path;
use std::process::Command;

// Cargo reads stdout.
#[allow(clippy::print_stdout)]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A checkout of something else, with this in it, has other commits.
    if git(&["rev-parse", "--show-prefix"]).as_deref() != Some("crates/fencepost-cli/") {
        return;
    }
    // What a commit or a checkout writes, in worktrees as well: HEAD, its log, and the branch that it names.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_default();
    for file in ["HEAD", "logs/HEAD", "packed-refs", &branch] {
        // A file that is missing would have cargo run this each time.
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).is_file()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    if let Some(commit) = git(&["log", "-1", "--no-show-signature", "--abbrev=9", "--format=%h %cs"]) {
        println!("cargo::rustc-env=FENCEPOST_COMMIT={commit}");
    }
}

/// What git answers; `None` if it has no answer.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
}
