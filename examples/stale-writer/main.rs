//! A holder is frozen past the end of its lease, another takes over and writes, the first one wakes up and
//! writes, too. A resource that checks the token refuses it; one that does not loses what the second one
//! wrote.
//!
//! `cargo run --example stale-writer`, or with `--resource file` for one kind of resource

#![allow(clippy::print_stdout)]

mod account;
mod holder;
mod http;
mod memory;
mod places;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use fencepost_examples::{Process, Result, block_on, die_with_parent, exit};

use account::Account;
use places::Places;

/// Freezes the holder of a lock past its lease, and shows who refuses it when it wakes up
#[derive(Parser)]
#[command(disable_help_subcommand = true)]
struct Cli {
    /// Which kind of resource to show; can be given several times [default: all of them]
    #[arg(long, value_name = "KIND")]
    resource: Vec<Kind>,
    /// A store of your own for the lock, one with leases; without it, a Redis is started and ended again
    ///
    /// The freeze lasts as long as its locks do without renewal: `redis://host?ttl=2s`.
    #[arg(long, env = "FENCEPOST_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Where the account is that the lock protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A file that checks nothing: what goes wrong
    Unchecked,
    Memory,
    File,
    Redis,
    Postgres,
    Http,
}

/// What a process of the example does.
#[derive(Subcommand)]
enum Part {
    /// Reads, is frozen, and writes
    #[command(hide = true)]
    First { account: String },
    /// Comes when the lease has ended, reads and writes
    #[command(hide = true)]
    Second { account: String },
    /// Has the account, and serves it by HTTP
    #[command(hide = true)]
    Serve { tokens: String },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    exit(match (cli.part, cli.store) {
        (Some(part), Some(store)) => die_with_parent().and_then(|()| block_on(play(part, &store))),
        (Some(_), None) => Err("a part needs a store".into()),
        (None, store) => show(cli.resource, store),
    })
}

async fn play(part: Part, store: &str) -> Result<()> {
    match part {
        Part::First { account } => holder::first(&Account::open(&account).await?, store).await,
        Part::Second { account } => holder::second(&Account::open(&account).await?, store).await,
        Part::Serve { tokens } => http::serve(&tokens).await,
    }
}

fn show(kinds: Vec<Kind>, own: Option<String>) -> Result<()> {
    let kinds = if kinds.is_empty() { Kind::value_variants().to_vec() } else { kinds };
    if own.as_ref().is_some_and(|url| url.starts_with("file:") || url.starts_with("memory:")) {
        let why = "a frozen process keeps its lock on `file:` for as long as it is frozen, and nobody else \
        sees its `memory:`";
        return Err(format!("{why}; name a store with leases, such as `--store redis://host?ttl=2s`").into());
    }
    println!("An account has 100 in it. Two holders of one lock each read it, add to it and write it back.");
    if kinds == [Kind::Memory] {
        // Needs no server and no store.
        println!("\n{}", title(Kind::Memory));
        return block_on(memory::show());
    }
    let mut places = Places::make()?;
    let store = match own {
        Some(url) => url,
        None => format!("{}?ttl=2s", places.redis()?),
    };
    for kind in kinds {
        let place = places.of(kind, &store)?;
        println!("\n{}", title(kind));
        match kind {
            Kind::Memory => block_on(memory::show())?,
            _ => freeze_and_wake(kind, &place, &store)?,
        }
    }
    Ok(())
}

fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Unchecked => "A file that checks nothing",
        Kind::Memory => {
            "A value in memory that checks the token (both holders in this process, frozen by a clock that \
            leaps)"
        }
        Kind::File => "A file that checks the token",
        Kind::Redis => "A value in Redis that checks the token",
        Kind::Postgres => "A row in PostgreSQL that checks the token",
        Kind::Http => "An HTTP service that checks the token",
    }
}

/// The story, with the account at a place.
fn freeze_and_wake(kind: Kind, place: &str, store: &str) -> Result<()> {
    block_on(holder::fill(place, store))?;
    let mut first = Process::start("first", &["first", place], store)?;
    first.listen()?;
    first.freeze()?;
    println!("  {} is frozen here, and renews its lease no more.", first.name());
    Process::start("second", &["second", place], store)?.end()?;
    println!("  {} wakes up, and goes on where it was.", first.name());
    first.tell("go on")?;
    first.wake()?;
    let refused = first.listen()? == holder::REFUSED;
    first.end()?;
    let balance = block_on(holder::balance(place, store))?;
    match (kind, refused, balance) {
        (Kind::Unchecked, false, 110) => {
            println!("  In the end 110 are in the account: the second holder's 50 are gone.")
        }
        (_, true, 150) => println!("  In the end 150 are in the account: nothing was lost."),
        other => return Err(format!("this should not have happened: {other:?}").into()),
    }
    Ok(())
}
