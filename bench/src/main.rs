//! Measures Fencepost beside its raw limit, in the same run, and prints ratios.
//!
//! Absolute figures of a shared machine mean little; the two sides of each ratio are measured in turns, a fraction of
//! a second each, so that both meet the same neighbours.

#![allow(clippy::print_stdout)]

mod contention;
mod cycle;
mod etcd;
mod fence;
mod growth;
mod held;
mod postgres;
mod raw;
mod redlock;
mod results;
mod rounds;
mod startup;
mod usage;
mod wake;
mod zookeeper;

use std::process::ExitCode;

use fencepost_testkit::redis::Server;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [role, arguments @ ..] = words.as_slice()
        && let Some(role) = role.strip_prefix("--play=")
    {
        match role {
            "held" => held::play(&arguments[0], &arguments[1]),
            "crowd" | "crowd token" => contention::play(role, &arguments[0]),
            _ => wake::play(role, arguments),
        }
        return ExitCode::SUCCESS;
    }
    let Some((rounds, parts)) = arguments(&words) else {
        eprintln!(
            "usage: fencepost-bench [--rounds N] [redis] [file] [redlock] [postgres] [etcd] [zookeeper] [fence] [held] [growth] [startup]\n\nStarts its own servers; N is 15 unless given."
        );
        return ExitCode::from(64);
    };
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    println!(
        "Fencepost beside its raw limit, {rounds} rounds in turns; the ratio is the median over rounds.\n"
    );
    if wanted("redis") {
        let server = Server::start();
        cycle::redis(&server, rounds);
        wake::redis(&server, rounds);
        contention::redis(&server, rounds);
    }
    if wanted("file") {
        let folder = tempfile::tempdir().expect("a temporary folder");
        cycle::file(folder.path(), rounds);
        wake::file(folder.path(), rounds);
    }
    if wanted("redlock") {
        redlock::run(rounds);
    }
    if wanted("zookeeper") {
        zookeeper::run(rounds);
    }
    if wanted("postgres") {
        postgres::run(rounds);
    }
    if wanted("etcd") {
        etcd::run(rounds);
    }
    if wanted("fence") {
        fence::run(rounds);
    }
    if wanted("held") {
        held::run();
    }
    if wanted("growth") {
        growth::run();
    }
    if wanted("startup") {
        startup::run(rounds.div_ceil(3));
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    match results::write(&folder, rounds) {
        Ok([json, svg]) => println!("\nWritten to {} and {}", json.display(), svg.display()),
        Err(error) => {
            eprintln!("the results could not be written to {}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// How many rounds, and which parts; none means all.
fn arguments(words: &[String]) -> Option<(usize, Vec<&str>)> {
    let (mut rounds, mut parts) = (15, Vec::new());
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--rounds" => rounds = words.next()?.parse().ok()?,
            "redis" | "file" | "redlock" | "postgres" | "etcd" | "zookeeper" | "fence" | "held"
            | "growth" | "startup" => parts.push(word),
            _ => return None,
        }
    }
    Some((rounds, parts))
}
