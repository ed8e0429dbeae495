//! How locks are measured, for `fencepost bench` and for `make bench`: cycles without contention, turns of
//! those who contend for one name, and locks that are held and renewed. All by way of [`Client`], so that
//! everybody's locks are measured by the same loops, and in processes that obey a command a line ([`serve`],
//! [`Worker`]), in any language.

#![allow(clippy::print_stdout)]

mod client;
mod crowd;
mod cycles;
mod serve;
mod times;
mod turns;
pub mod usage;
mod worker;

pub use client::{Client, Contender, Holding};
pub use crowd::Crowd;
pub use cycles::cycles;
pub use serve::{answer, now, serve};
pub use times::Times;
pub use turns::{Contest, Turn, contend};
pub use worker::{Worker, contend_in_processes};
