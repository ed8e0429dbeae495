//! The options of a lock, as Python hands them over: checked durations in seconds.

use std::time::Duration;

use fencepost::{Retry, Wait};
use pyo3::prelude::*;

use crate::errors::invalid;

/// How to poll: the first pause, the longest one, or all of them one by one; how often at most; with jitter.
pub(crate) type Schedule = (f64, f64, Option<Vec<f64>>, Option<u32>, bool);

#[derive(FromPyObject)]
pub(crate) struct Options {
    #[pyo3(item)]
    ttl: Option<f64>,
    #[pyo3(item)]
    wait: Option<f64>,
    #[pyo3(item)]
    retry: Option<Schedule>,
    #[pyo3(item)]
    note: String,
    #[pyo3(item)]
    renew: bool,
    #[pyo3(item)]
    renew_every: Option<f64>,
    #[pyo3(item)]
    max_hold: Option<f64>,
}

pub(crate) fn seconds(what: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| invalid(&format!("{what} must be a number of seconds from 0 on, this one is {value}")))
}

fn schedule((first, most, pauses, attempts, jitter): Schedule) -> PyResult<Retry> {
    let pause = |value| seconds("a pause", value);
    let mut retry = match pauses {
        Some(pauses) => Retry::after(pauses.into_iter().map(pause).collect::<PyResult<Vec<_>>>()?),
        None => Retry::exponential(pause(first)?, pause(most)?),
    };
    if let Some(attempts) = attempts {
        retry = retry.attempts(attempts);
    }
    Ok(if jitter { retry.jitter() } else { retry })
}

/// Puts options on a lock or a set of locks.
macro_rules! put_on {
    ($lock:expr, $options:expr) => {{
        let (mut lock, options): (_, $crate::options::Options) = ($lock, $options);
        if let Some(ttl) = options.ttl() {
            lock = lock.ttl(ttl?);
        }
        if let Some(retry) = options.retry() {
            lock = lock.retry(retry?);
        }
        if let Some(every) = options.renew_every() {
            lock = lock.renew_every(every?);
        }
        if let Some(hold) = options.max_hold() {
            lock = lock.max_hold(hold?);
        }
        if !options.renew() {
            lock = lock.without_renewal();
        }
        lock.wait(options.wait()?).note(options.note())
    }};
}
pub(crate) use put_on;

impl Options {
    pub(crate) fn ttl(&self) -> Option<PyResult<Duration>> {
        self.ttl.map(|value| seconds("ttl", value))
    }

    pub(crate) fn wait(&self) -> PyResult<Wait> {
        self.wait.map_or(Ok(Wait::Forever), |value| seconds("wait", value).map(Wait::from))
    }

    pub(crate) fn retry(&self) -> Option<PyResult<Retry>> {
        self.retry.clone().map(schedule)
    }

    pub(crate) fn note(&self) -> String {
        self.note.clone()
    }

    pub(crate) fn renew(&self) -> bool {
        self.renew
    }

    pub(crate) fn renew_every(&self) -> Option<PyResult<Duration>> {
        self.renew_every.map(|value| seconds("renew_every", value))
    }

    pub(crate) fn max_hold(&self) -> Option<PyResult<Duration>> {
        self.max_hold.map(|value| seconds("max_hold", value))
    }
}
