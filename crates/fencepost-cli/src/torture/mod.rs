//! Attacking a store: many clients, each a process that can be stopped and killed, links that can be cut,
//! registers beside the locks, and a checker that hears of everything.
//!
//! The parent touches no lock while clients do. It keeps the registers, deals the faults and judges; workers
//! are this same binary, and end when their pipe does. Every fourth one uses no library, but the command.

mod aftermath;
mod collector;
mod command;
mod dice;
mod links;
mod nemesis;
mod plan;
mod registers;
mod report;
mod servers;
mod summary;
mod waits;
mod wire;
mod worker;
mod worker_process;
mod workers;

pub(crate) use aftermath::Aftermath;
pub(crate) use collector::Collector;
pub(crate) use command::inside;
pub(crate) use links::Route;
pub(crate) use nemesis::Nemesis;
pub(crate) use plan::{Fault, Plan};
pub(crate) use report::page;
pub(crate) use servers::ServerNemesis;
pub(crate) use summary::{Summary, Verdict, grouped};
pub(crate) use worker::run as worker;
pub(crate) use workers::{Shared, Workers, locked};

/// The names of a run's locks. On a cluster they are in slots of their own, but for those with the tag.
pub(crate) fn lock_name(prefix: &str, number: usize) -> String {
    let tag = if number.is_multiple_of(2) { "" } else { "{tag}" };
    format!("{prefix}{tag}{number}")
}
