//! Rows on Redis: a lock that one answer has granted to several waiters of a process, one after the other, and all that may
//! come between two of them.

#![allow(clippy::unwrap_used)]

mod ends;
mod late;
mod stage;
mod traces;
mod turns;
#[path = "../common/waiting.rs"]
mod waiting;
