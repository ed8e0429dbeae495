//! Five orders, each delivered three times, to three workers at once; each is paid for exactly once.
//!
//! A worker that finds an order taken does not wait: it says who has the order and puts it back into the
//! queue. A payment takes longer than the ttl of its lock, which renewal keeps. The ledger checks tokens, so
//! that not even a worker that was frozen past its lease can pay for an order a second time.
//!
//! `cargo run --example orders`

#![allow(clippy::print_stdout)]

mod audit;
mod queue;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fencepost_examples::{Folder, Process, Result, block_on, die_with_parent, exit, redis};

use queue::Queue;

const ORDERS: usize = 5;
const COPIES: usize = 3;
const WORKERS: usize = 3;

/// Has three workers take the payments for five orders that each come three times
#[derive(Parser)]
#[command(disable_help_subcommand = true)]
struct Cli {
    /// A store of your own for the locks; without it, a Redis is started and ended again
    #[arg(long, env = "FENCEPOST_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What a process of the example does.
#[derive(Subcommand)]
enum Part {
    /// Takes payments for orders that it is told
    #[command(hide = true)]
    Worker { name: String, books: PathBuf },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    exit(match (cli.part, cli.store) {
        (Some(Part::Worker { name, books }), Some(store)) => {
            die_with_parent().and_then(|()| block_on(worker::work(&name, &books, &store)))
        }
        (Some(_), None) => Err("a part needs a store".into()),
        (None, Some(own)) => show(&own),
        (None, None) => redis().and_then(|server| show(&server.url())),
    })
}

fn show(store: &str) -> Result<()> {
    let books = Folder::make()?;
    println!(
        "{ORDERS} orders, each delivered {COPIES} times, for {WORKERS} workers. Each must be paid for once.\n"
    );
    let names: Vec<_> = (1..=ORDERS).map(|number| format!("order:{number}")).collect();
    let queue = Queue::of(names.iter().flat_map(|name| std::iter::repeat_n(name.clone(), COPIES)));
    let mut workers = hire(books.path(), store)?;
    workers.iter().try_for_each(|worker| worker.listen().map(drop))?;
    std::thread::scope(|scope| {
        let shifts: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(|| deliver(&queue, worker))).collect();
        shifts.into_iter().try_for_each(|shift| shift.join().map_err(|_| "a thread panicked")?)
    })?;
    workers.into_iter().try_for_each(Process::end)?;

    let counts = queue.counts();
    println!(
        "\n{} deliveries: {} paid for, {} paid for already. Put back to be tried later: {} times.",
        ORDERS * COPIES,
        counts.paid,
        counts.paid_already,
        counts.put_back
    );
    block_on(audit::check(&names, books.path(), store))
}

fn hire(books: &Path, store: &str) -> Result<Vec<Process>> {
    let books = books.to_str().ok_or("the temporary folder has a strange name")?;
    let hire = |number| {
        let name = format!("worker {number}");
        Process::start(&name, &["worker", &name, books], store)
    };
    (1..=WORKERS).map(hire).collect()
}

/// Delivers orders to one worker until all are done.
fn deliver(queue: &Queue, worker: &mut Process) -> Result<()> {
    while let Some(order) = queue.take() {
        match worker.tell(&order).and_then(|()| worker.listen()) {
            Ok(answer) => queue.answered(order, &answer),
            Err(error) => {
                // Somebody else gets it.
                queue.answered(order, worker::BUSY);
                return Err(error);
            }
        }
    }
    Ok(())
}
