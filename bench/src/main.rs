//! Measures Fencepost beside its raw limit, in the same run, and prints ratios.
//!
//! Absolute figures of a shared machine mean little; the two sides of each ratio are measured in turns, a fraction of
//! a second each, so that both meet the same neighbours.

#![allow(clippy::print_stdout)]

mod cycle;
mod raw;
mod rounds;
mod wake;

use std::process::ExitCode;

use fencepost_testkit::redis::Server;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [role, arguments @ ..] = words.as_slice()
        && let Some(role) = role.strip_prefix("--play=")
    {
        wake::play(role, arguments);
        return ExitCode::SUCCESS;
    }
    let rounds = match words.as_slice() {
        [] => 15,
        [flag, count] if flag == "--rounds" && count.parse::<usize>().is_ok() => count.parse().unwrap_or(15),
        _ => {
            eprintln!(
                "usage: fencepost-bench [--rounds N]\n\nStarts its own Redis server; N is 15 unless given."
            );
            return ExitCode::from(64);
        }
    };
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    println!(
        "Fencepost beside its raw limit, {rounds} rounds in turns; the ratio is the median over rounds.\n"
    );
    cycle::redis(&server, rounds);
    wake::redis(&server, rounds);
    cycle::file(folder.path(), rounds);
    wake::file(folder.path(), rounds);
    ExitCode::SUCCESS
}
