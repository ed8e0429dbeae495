//! What clients of locks saw, and whether that may be.
//!
//! Clients log [`Event`]s: asked, granted, lost, released, reads and writes of a register beside each lock.
//! The [`Checker`] takes them in the order of time, from all clients, and decides:
//!
//! - *exclusion*: no two holds of a lock overlap while both were valid, by what each guard itself said;
//! - *losses*: no guard says "held" after its own end, and none is lost before it unless something was
//!   broken;
//! - *tokens*: each is handed out once, is larger than all that were granted before it was asked for, and
//!   larger than those of holds before its own; no register refuses a valid holder's;
//! - *updates*: no write that the guarded register accepted has overwritten one which its writer had not
//!   read;
//! - *deadlines*: whoever asks has an answer in time, and ends when told to;
//! - *nothing left*: at the end the store has no entry of the run, and every lock can be had.
//!
//! It needs no more memory than what is open at a time, so a history may be as long as it likes. A
//! [`Violation`] holds the smallest piece of the history that shows it, in words and as a [`Timeline`].

mod checker;
mod event;
mod fault;
mod figures;
mod found;
mod hold;
mod moment;
mod record;
mod recorder;
mod timeline;
mod violation;

pub use checker::Checker;
pub use event::{Event, Register, What};
pub use fault::{Cause, Excuse, Fault, Target};
pub use figures::{Figures, Waits};
pub use hold::{Grant, Hold};
pub use moment::Moment;
pub use recorder::{Client, History};
pub use timeline::{STYLE, Timeline, escape, ticks};
pub use violation::{Rule, Violation};

#[cfg(test)]
mod tests;
