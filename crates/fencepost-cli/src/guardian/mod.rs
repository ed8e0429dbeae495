//! The guardian: a process that outlives the wrapper for as long as it takes to end the command.
//!
//! It is forked before any thread exists, waits in a process group of its own, starts the command in another,
//! and ends that group when the wrapper dies, stalls or says that the lock is lost. Being outside the
//! command's group it survives the KILL it sends, so it can wait until the group is really gone before the
//! lock is let go. Should both be killed at once, a third process does that (`net`).

mod leash;
mod net;
mod plan;
mod process;
mod wire;

pub(crate) use leash::{Leash, Listening, News};
pub(crate) use wire::{MOST_LOCKS, Start};
