//! Every command that a document shows works, on real servers in the place of those that it names.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::time::Duration;

use fencepost_testkit::local::Local;
use fencepost_testkit::{Folder, postgres::Server};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The first words of commands that cannot run here, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("git clone URL fencepost && cd fencepost", "there is no network"),
    ("sudo apt-get install", "it changes the machine"),
    ("cargo install", "it builds for minutes"),
    ("make install", "`install.rs` runs its script"),
    ("make deb", "`install.rs` runs its script"),
    ("pip install .", "it builds for minutes; the Python tests run on what it installs"),
    ("cargo run --example", "the tests of the examples run it"),
    ("fencepost bench", "it takes long; `bench.rs` runs a shorter one"),
    ("fencepost torture", "it takes long; `torture.rs` runs shorter ones"),
    ("cargo test", "it is a test"),
    ("make test", "this is part of it"),
    ("make mutants", "it takes an hour"),
    ("make bench", "it takes a quarter of an hour"),
    ("make bench-peers", "it takes ten minutes"),
    ("make compare", "it writes into the tree"),
];

/// The stores that documents name, and what stands for them here. PostgreSQL has its own place below.
const STORES: &[(&str, &str)] = &[
    ("redis://127.0.0.1", "redis"),
    ("redis://locks.internal", "redis"),
    ("redis://:secret@db", "redis"),
    ("redis+cluster://:secret@a,b,c", "redis-cluster"),
    ("redis+sentinel://:secret@s1,s2,s3/mymaster", "redis-sentinel"),
    ("redlock://:secret@a,b,c,d,e", "redlock5"),
    ("etcd://a,b,c", "etcd1"),
    ("zookeeper://a,b,c/app", "zookeeper1"),
];

/// What runs before a command, by words of it or of what the document shows of its output.
const GIVEN: &[(&str, &str)] = &[
    ("is busy; held by", "hold nightly"),
    ("force-release nightly-report", "hold nightly-report"),
    ("force-release nightly --token", "on_redis; hold nightly"),
    ("was lost: force-released by an operator: disk is full", "seize deploy &"),
    ("fencepost list\nNAME", "on_redis; hold nightly --ttl 6s; second_waits nightly"),
];

/// What runs before all commands of a block.
const SHELL: &str = r#"
exec 2>&1
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
for job in backup report build push; do echo '#!/bin/sh' >$job.sh; chmod +x $job.sh; done
printf 'deploy:\n\tsleep 600\n' >Makefile
sudo() { "$@"; }
on_redis() { export FENCEPOST_STORE=redis://locks.internal; }
until_held() { until fencepost list | grep -q "^$1 "; do sleep 0.01; done; }
hold() { fencepost run "$@" -- sleep 600 & until_held "$1"; }
second_waits() {
  fencepost run "$1" --note second -- true &
  until fencepost show "$1" | grep -q second; do sleep 0.01; done
}
seize() { until_held "$1"; fencepost force-release "$1" --reason 'disk is full' >/dev/null; }
code=0
"#;

/// A command, and what the document shows of its output.
type Step = (String, String);

/// What is given, the command, and a line with its exit code.
fn script((command, shown): &Step) -> String {
    let page = format!("{command}\n{shown}");
    let given = GIVEN.iter().find(|(words, _)| page.contains(words)).map_or("", |(_, given)| given);
    format!("{given}\n(exit $code)\n{command}\ncode=$?; printf '\\n@@%s\\n' $code\n")
}

/// The commands of a block.
fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines().take_while(|line| *line != "```") {
        let code = line.split_once("  #").map_or(line, |(code, _)| code).trim_end();
        match (code.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push((command.to_owned(), String::new())),
            (None, Some((command, _))) if command.matches('\'').count() % 2 == 1 => {
                *command += &format!("\n{code}");
            }
            (None, Some((_, shown))) => *shown += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    let begins = |command: &str, words: &str| format!("{command} ").starts_with(&format!("{words} "));
    steps.retain(|(command, _)| !ELSEWHERE.iter().any(|(words, _)| begins(command, words)));
    steps
}

/// The documents of some folders.
fn documents(folders: &[&str]) -> impl Iterator<Item = (PathBuf, String)> {
    let folders = folders.iter().map(|folder| std::fs::read_dir(Path::new(ROOT).join(folder)).unwrap());
    let paths = folders.flatten().map(|file| file.unwrap().path());
    let documents = paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
}

/// A PostgreSQL with the database `app` and the user `worker`.
fn database() -> &'static Server {
    static MADE: Once = Once::new();
    let server = Server::shared();
    MADE.call_once(|| {
        server.psql("postgres", "CREATE ROLE worker LOGIN PASSWORD 'secret'");
        server.psql("postgres", "CREATE DATABASE app");
    });
    server
}

/// A script with stores of this machine in it, which end with the second value.
fn with_stores(script: &str, folder: &Path) -> (String, Vec<Local>) {
    let mut script = script.replace("cargo run --release -- ", "fencepost ");
    script = script.replace("1795041138076872", "$(fencepost show nightly | sed -n 's/^token *//p')");
    script = script.replace("/var/lock/app", &folder.join("app").display().to_string());
    let mut stores = Vec::new();
    for (url, kind) in STORES.iter().filter(|(url, _)| script.contains(url)).collect::<Vec<_>>() {
        stores.push(Local::start(kind.parse().unwrap(), Duration::from_secs(60)));
        script = script.replace(url, stores.last().unwrap().url());
    }
    if script.contains("@db/app") || script.contains("psql app") {
        let server = database();
        script = script.replace("psql app", &format!("psql {}", server.url("app")));
        script = script.replace("postgres://admin@db/app", &server.url("app"));
        script = script.replace("@db/app", &format!("@{}/app", server.addr()));
    }
    (script, stores)
}

/// Runs the commands of a block in one shell.
fn run(document: &Path, steps: &[Step]) {
    let folder = Folder::new("documents");
    let (folder, binary) = (folder.path(), Path::new(env!("CARGO_BIN_EXE_fencepost")));
    std::fs::write(folder.join("fence.sql"), fencepost::fence::postgres::MIGRATION).unwrap();
    let script = steps.iter().map(script).collect::<String>();
    let (script, _stores) = with_stores(&format!("{SHELL}{script}"), folder);
    let path = format!("{}:/usr/bin:/bin", binary.parent().unwrap().display());
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir(folder).env("PATH", path).env("XDG_STATE_HOME", folder);
    let output = bash.env_remove("FENCEPOST_STORE").stdin(Stdio::null()).output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout);
    let codes: Vec<_> = output.lines().filter_map(|line| line.strip_prefix("@@")).collect();
    let context = format!("{}:\n{script}\n{output}", document.display());
    // An error that a document shows has a next step.
    let expected: Vec<_> = steps.iter().map(|(_, shown)| !shown.contains("\n  next: ")).collect();
    assert_eq!(codes.iter().map(|code| *code == "0").collect::<Vec<_>>(), expected, "{context}");
    for word in steps.iter().flat_map(|(_, shown)| words(shown)) {
        assert!(output.contains(word), "`{word}` is shown, and not printed by {context}");
    }
}

/// Words of an output that are the same each time: those of letters alone, but for the name of a host.
fn words(shown: &str) -> impl Iterator<Item = &str> {
    let words = shown.split_whitespace().map(|word| word.trim_matches(|c: char| c.is_ascii_punctuation()));
    words.filter(|word| word.len() > 2 && word.chars().all(|c| c.is_ascii_alphabetic()))
}

fn commands_run(folders: &[&str]) {
    for (path, text) in documents(folders) {
        let blocks = text.split("```console\n").skip(1).map(steps);
        blocks.filter(|steps| !steps.is_empty()).for_each(|steps| run(&path, &steps));
    }
}

#[test]
fn the_commands_of_the_readme_run() {
    commands_run(&["", "examples", "docs", "docs/proofs", "docs/decisions"]);
}

#[test]
fn the_commands_of_the_guides_run() {
    commands_run(&["docs/guide"]);
}

#[test]
fn the_commands_of_the_pages_of_stores_run() {
    commands_run(&["docs/stores"]);
}

#[test]
fn a_command_that_is_not_run_is_still_in_a_document() {
    let texts: String = documents(&["", "docs", "docs/guide"]).map(|(_, text)| text).collect();
    for (command, why) in ELSEWHERE {
        assert!(texts.contains(&format!("$ {command}")), "`{command}` ({why}) is in no document");
    }
}
