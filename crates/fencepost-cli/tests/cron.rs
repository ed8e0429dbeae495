//! The crontab of `examples/cron`, run as cron runs it, on hosts that are processes here.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Running, Store, assert_fails, code, text};
use fencepost_testkit::eventually;
use rustix::fs::OFlags;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cron");

/// The settings of the crontab, and its only command.
fn crontab() -> (Vec<(String, String)>, String) {
    let text = std::fs::read_to_string(Path::new(FOLDER).join("crontab")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (entries, settings): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("0 3 * * *"));
    let [entry] = entries[..] else { panic!("not one entry: {entries:?}") };
    let pair =
        |line: &&str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap();
    (settings.iter().map(pair).collect(), entry.trim_start_matches("0 3 * * *").to_owned())
}

/// A host at three o'clock: the command, by a shell, in an almost empty environment.
fn host(store: &Store, command: &str, settings: Vec<(String, String)>) -> Command {
    let fencepost = Path::new(env!("CARGO_BIN_EXE_fencepost")).parent().unwrap().display();
    let mut host = Command::new("/bin/sh");
    host.args(["-c", command]).env_clear().envs(settings).current_dir(store.path("."));
    host.env("FENCEPOST_STORE", &store.url).env("PATH", format!("{fencepost}:{FOLDER}:/usr/bin:/bin"));
    host.env("ORDERS", store.path("orders")).env("REPORTS", store.path("reports"));
    host.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    host
}

/// The text of the only report there is.
fn report(store: &Store) -> String {
    let files = std::fs::read_dir(store.path("reports")).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    let [report] = &files[..] else { panic!("not one report: {files:?}") };
    std::fs::read_to_string(report).unwrap()
}

#[test]
fn one_host_makes_the_report_one_skips_and_a_late_one_finds_it_made() {
    let store = Store::redis();
    let (settings, command) = crontab();
    std::fs::create_dir(store.path("reports")).unwrap();
    // The first host cannot finish before it was given all orders.
    assert!(Command::new("mkfifo").arg(store.path("orders")).status().unwrap().success());
    let first = Running::start(host(&store, &command, settings.clone()));
    let mut orders = None;
    eventually("the first host reads the orders", || {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        orders = OpenOptions::new().write(true).custom_flags(flags).open(store.path("orders")).ok();
        orders.is_some()
    });

    let second = host(&store, &command, settings.clone()).output().unwrap();
    assert_fails(&second, 75, &["`nightly-report` is busy", "held by host"]);
    let forgiving = command.replace("--try", "--try --busy-code 0");
    let second = host(&store, &forgiving, settings.clone()).output().unwrap();
    assert_fails(&second, 0, &["`nightly-report` is busy"]);

    orders.unwrap().write_all(b"anvil,30\nrope,12\n").unwrap();
    let first = first.end();
    assert_eq!(code(&first), 0, "{first:?}");
    let made = report(&store);
    assert!(made.starts_with("2 orders, 42 in all, made with token "), "{made}");

    let late = host(&store, &command, settings).output().unwrap();
    assert_eq!(code(&late), 0, "{late:?}");
    assert!(text(&late.stdout).contains("is there already"), "{late:?}");
    assert_eq!(report(&store), made);
}

#[test]
fn a_host_that_was_frozen_cannot_put_its_report_over_a_newer_one() {
    let store = Store::file();
    let (settings, command) = crontab();
    std::fs::create_dir(store.path("reports")).unwrap();
    std::fs::write(store.path("orders"), "anvil,30\n").unwrap();
    // After its look at the folder, the next holder makes the report: that is what a freeze lets happen.
    let script = std::fs::read_to_string(Path::new(FOLDER).join("nightly-report")).unwrap();
    let (before, after) = script.split_once("trap").unwrap();
    let script = format!("{before}echo 'by the next holder' >\"$report\"\ntrap{after}");
    std::fs::write(store.path("frozen-report"), script).unwrap();

    let command = command.replace("-- nightly-report", "-- sh ./frozen-report");
    let frozen = host(&store, &command, settings).output().unwrap();
    assert_ne!(code(&frozen), 0, "{frozen:?}");
    assert_eq!(report(&store), "by the next holder\n");
}
