//! A history of clients within one process, for tests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Checker, Event, Figures, Moment, Rule, What};

/// Collects what clients of one process see.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Vec<Event>>>);

/// One client's pen.
#[derive(Debug)]
pub struct Client {
    history: History,
    number: u32,
}

impl History {
    /// An empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Somebody who does one thing after the other. Each has a number of its own.
    pub fn client(&self, number: u32) -> Client {
        Client { history: self.clone(), number }
    }

    /// How many locks were granted so far.
    pub fn acquisitions(&self) -> usize {
        let granted = |event: &&Event| matches!(event.what, What::Acquired { .. });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(granted).count()
    }

    /// Checks that everything in it may be.
    ///
    /// # Panics
    /// If not: with what must not be, in words, and the path of a picture of each piece.
    pub fn check(&self) -> Figures {
        self.check_for(&Rule::ALL)
    }

    /// The same for some rules, where what was done excuses that others are broken.
    ///
    /// # Panics
    /// As [`check`](Self::check).
    pub fn check_for(&self, rules: &[Rule]) -> Figures {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (figures, mut violations) = Checker::check(&events, &[]);
        violations.retain(|violation| rules.contains(&violation.rule));
        let tell = |(number, violation): (usize, &super::Violation)| {
            let path = std::env::temp_dir().join(format!("violation-{}-{number}.svg", std::process::id()));
            let drawn = std::fs::write(&path, violation.timeline(&[]).svg());
            let picture = drawn.map(|()| format!("\n  picture: {}", path.display())).unwrap_or_default();
            format!("{violation}{picture}")
        };
        let told: Vec<_> = violations.iter().take(5).enumerate().map(tell).collect();
        assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), told.join("\n"));
        figures
    }
}

impl Client {
    fn note(&self, at: Moment, what: What) {
        let event = Event { at, client: self.number, what };
        self.history.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// It begins to ask for a lock.
    pub fn invoke(&self, lock: &str) {
        self.note(Moment::now(), What::Invoke { lock: lock.to_owned(), by: None });
    }

    /// It was granted the lock; `until` is the end of validity on the boot-time clock, as the guard says it.
    pub fn acquired(&self, token: u64, until: Option<Duration>) {
        self.note(Moment::now(), What::Acquired { token, until: until.map(Moment::at) });
    }

    /// It was not granted the lock.
    pub fn gave_up(&self, why: &str) {
        self.note(Moment::now(), What::GaveUp { why: why.to_owned(), error: None });
    }

    /// Its guard said that the lock is lost, which was valid until then at the latest.
    pub fn lost(&self, why: &str, until: Option<Duration>) {
        let now = Moment::now();
        self.note(now, What::Lost { why: why.to_owned(), until: until.map_or(now, Moment::at) });
    }

    /// It begins to give the lock back, whose guard said a moment ago that it is valid until then.
    pub fn released(&self, until: Option<Duration>) {
        let (now, until) = (Moment::now(), until.map(Moment::at));
        match until {
            // The guard was asked before this, and its end lies between.
            Some(until) if until < now => self.note(now, What::Lost { why: "ended".to_owned(), until }),
            until => self.note(now, What::Released { until }),
        }
    }
}
