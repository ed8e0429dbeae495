//! Measures Fencepost beside its raw limit, and beside its peers, in the same run, and prints ratios.
//!
//! Absolute figures of a shared machine mean little; the two sides of each ratio are measured in turns, a
//! fraction of a second each, so that both meet the same neighbours.

#![allow(clippy::print_stdout)]

mod cluster;
mod contention;
mod cycle;
mod etcd;
mod fence;
mod growth;
mod held;
mod peers;
mod postgres;
mod raw;
mod redlock;
mod results;
mod rounds;
mod startup;
mod stores;
mod wake;
mod workers;
mod zookeeper;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fencepost_testkit::Folder;
use fencepost_testkit::redis::Server;

/// What can be chosen by name, and how it is run with so many rounds.
const PARTS: [Part; 11] = [
    ("redis", redis),
    ("cluster", cluster::run),
    ("file", file),
    ("redlock", redlock::run),
    ("zookeeper", zookeeper::run),
    ("postgres", postgres::run),
    ("etcd", etcd::run),
    ("fence", fence::run),
    ("held", held::run),
    ("startup", startup::run),
    ("stores", stores::run),
];

const USAGE: &str = "usage: fencepost-bench [--rounds N] [--into FOLDER] [PART …]

Starts its own servers; N is 15 unless given, and 5 for peers. Without parts all but the peers are measured; \
`peers` and `growth` stand for all of theirs.";

fn redis(rounds: usize) {
    let server = Server::start();
    cycle::redis(&server, rounds);
    wake::redis(&server, rounds);
    contention::redis(&server, rounds);
}

fn file(rounds: usize) {
    let folder = Folder::new("bench");
    cycle::file(folder.path(), rounds);
    wake::file(folder.path(), rounds);
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [role, arguments @ ..] = words.as_slice()
        && let Some(role) = role.strip_prefix("--play=")
    {
        workers::play(role, arguments);
        return ExitCode::SUCCESS;
    }
    let all: Vec<_> = PARTS.into_iter().chain(growth::PARTS).chain(peers::PARTS).collect();
    let Some(Wanted { rounds, folder, parts }) = Wanted::parse(&words, &all) else {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        eprintln!("{USAGE}\nParts: {}", names.join(", "));
        return ExitCode::from(64);
    };
    println!("In turns; a ratio is the median over rounds. Load of the machine: {:.1}.\n", results::load());
    for (name, run) in parts {
        let rounds = rounds.unwrap_or(if name.starts_with("peers") { 5 } else { 15 });
        let load = results::load();
        run(rounds);
        if let Err(error) = results::write(&folder, name, rounds, load) {
            eprintln!("the results could not be written to {}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    }
    println!("\nWritten to {}", folder.display());
    ExitCode::SUCCESS
}

type Part = (&'static str, fn(usize));

/// What is asked for.
struct Wanted {
    rounds: Option<usize>,
    folder: PathBuf,
    parts: Vec<Part>,
}

impl Wanted {
    /// `peers` and `growth` stand for all of their parts.
    fn parse(words: &[String], all: &[Part]) -> Option<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        let mut wanted = Self { rounds: None, folder, parts: Vec::new() };
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "--rounds" => wanted.rounds = Some(words.next()?.parse().ok().filter(|rounds| *rounds > 0)?),
                "--into" => wanted.folder = words.next()?.into(),
                "growth" => wanted.parts.extend(growth::PARTS),
                "peers" => wanted.parts.extend(peers::PARTS),
                other => wanted.parts.push(*all.iter().find(|(name, _)| *name == other)?),
            }
        }
        if wanted.parts.is_empty() {
            wanted.parts.extend(PARTS.into_iter().chain(growth::PARTS));
        }
        Some(wanted)
    }
}
