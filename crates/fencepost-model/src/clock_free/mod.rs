//! Redlock without any clock: a lock key may vanish at any moment, and any message may be late for ever, or
//! come twice. Whatever expiry, release, clock jumps, pauses and lost packets can do is among that, so what
//! is found here to hold for tokens holds whatever the time.
//!
//! Two ways to search the same behaviour. *In full*: everything that can happen is a step of its own.
//! *Reduced*: only what can make things worse (see [`reduce`]); that reaches further.

#[cfg(test)]
mod any_token;
mod client;
#[cfg(test)]
mod configurations;
mod model;
mod mutants;
mod node;
mod reduce;
mod state;
