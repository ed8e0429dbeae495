//! Ten teapots are left, and 300 buyers in four processes want one each.
//!
//! A buyer reads how many are left, thinks, and writes one less. Without a lock everybody may have read
//! before anybody wrote, and here a barrier makes sure of it. With the lock exactly ten are sold.
//!
//! `cargo run --example oversell`

#![allow(clippy::print_stdout)]

mod shelf;
mod shop;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fencepost_examples::{Process, Result, block_on, die_with_parent, exit, postgres};

use shelf::Shelf;

const STOCK: i32 = 10;
const SHOPS: i32 = 4;
/// In each shop.
const BUYERS: i32 = 75;

/// Sells ten teapots to 300 buyers, without a lock and with one
#[derive(Parser)]
#[command(disable_help_subcommand = true)]
struct Cli {
    /// A PostgreSQL of your own for teapots and locks; without it, one is started and ended again
    #[arg(long, env = "FENCEPOST_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What a process of the example does.
#[derive(Subcommand)]
enum Part {
    /// Sells without a lock
    #[command(hide = true)]
    Careless { schema: String },
    /// Sells under a lock
    #[command(hide = true)]
    Careful { schema: String },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    exit(match (cli.part, cli.store) {
        (Some(part), Some(store)) => die_with_parent().and_then(|()| block_on(play(part, &store))),
        (Some(_), None) => Err("a part needs a store".into()),
        (None, store) => show(store),
    })
}

async fn play(part: Part, store: &str) -> Result<()> {
    match part {
        Part::Careless { schema } => shop::without_lock(Shelf::open(store, &schema).await?).await,
        Part::Careful { schema } => shop::with_lock(Shelf::open(store, &schema).await?, store).await,
    }
}

fn show(own: Option<String>) -> Result<()> {
    let store = match own {
        Some(url) if url.starts_with("postgres") => url,
        Some(_) => {
            return Err(
                "the teapots are in PostgreSQL; name yours by `--store postgres://user@host/database`".into(),
            );
        }
        None => postgres()?.url("postgres"),
    };
    let schema = format!("fencepost_oversell_{}", std::process::id());
    block_on(Shelf::make(&store, &schema))?;
    let outcome = sell_twice(&store, &schema);
    let removed = block_on(Shelf::remove(&store, &schema));
    outcome.and(removed)
}

fn sell_twice(store: &str, schema: &str) -> Result<()> {
    println!("{STOCK} teapots are left. {} buyers in {SHOPS} processes want one each.", SHOPS * BUYERS);

    println!("\nWithout a lock: read how many are left, think, write one less.");
    let mut shops = open_shops("careless", store, schema)?;
    for shop in &shops {
        shop.listen()?;
    }
    println!(
        "  Everybody has looked and nobody has bought yet. That can happen by bad luck; here it is made to \
        happen."
    );
    for shop in &mut shops {
        shop.tell("buy")?;
    }
    close(shops)?;
    let (sold, left) = block_on(Shelf::count(store, schema))?;
    println!(
        "  Sold {sold} of {STOCK}, and the shelf says that {left} are left: oversold by {}.",
        sold - STOCK
    );
    if sold <= STOCK {
        return Err("it did not oversell, which it should have without a lock".into());
    }

    block_on(Shelf::refill(store, schema))?;
    println!(
        "\nWith the lock `{}`: acquire, show the token, read, think, write one less, release.",
        shop::LOCK
    );
    close(open_shops("careful", store, schema)?)?;
    let (sold, left) = block_on(Shelf::count(store, schema))?;
    println!(
        "  Sold {sold} of {STOCK}, and the shelf says that {left} are left. {} buyers came too late.",
        SHOPS * BUYERS - sold
    );
    if (sold, left) == (STOCK, 0) { Ok(()) } else { Err("the lock did not keep its promise".into()) }
}

fn open_shops(part: &str, store: &str, schema: &str) -> Result<Vec<Process>> {
    (1..=SHOPS).map(|number| Process::start(format!("shop {number}"), &[part, schema], store)).collect()
}

fn close(shops: Vec<Process>) -> Result<()> {
    shops.into_iter().try_for_each(Process::end)
}
