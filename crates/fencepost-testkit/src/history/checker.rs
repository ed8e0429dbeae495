//! Takes events in the order of time and says what must not be.

use std::collections::HashMap;

use super::record::{self, Record};
use super::violation::Violation;
use super::{Event, Fault, Figures, Hold, Moment, Register, Rule, What};

/// Decides whether a history may be. Give it the events of all clients, in the order of time.
#[derive(Debug, Default)]
pub struct Checker {
    start: Option<Moment>,
    now: Moment,
    locks: HashMap<String, Record>,
    /// Which lock a client asks for or holds.
    busy: HashMap<u32, String>,
    /// Who was granted each lock last.
    last: HashMap<String, u32>,
    figures: Figures,
    violations: Vec<Violation>,
    finished: Vec<(String, Hold)>,
}

impl Checker {
    /// A checker that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks a whole history, in whatever order.
    ///
    /// Faults tell which breaks of exclusion are legitimate.
    pub fn check(events: &[Event], faults: &[Fault]) -> (Figures, Vec<Violation>) {
        let mut events: Vec<_> = events.to_vec();
        // A stable sort: what one client did within one nanosecond stays in its order.
        events.sort_by_key(|event| event.at);
        let mut checker = Self::new();
        events.into_iter().for_each(|event| checker.observe(event));
        checker.finish(faults)
    }

    /// Takes the next event.
    pub fn observe(&mut self, event: Event) {
        let Event { at, client, what } = event;
        let start = *self.start.get_or_insert(at);
        if at < self.now {
            self.nonsense(client, at, "an event is older than the one before it");
        }
        self.now = self.now.max(at);
        match what {
            What::Tick => {}
            What::Left { lock, what } => self.violations.push(Violation {
                rule: Rule::LeftBehind,
                from: at,
                to: at,
                story: vec![format!("at the end the store still has {what}")],
                holds: Vec::new(),
                excused: None,
                lock,
                start,
            }),
            What::Invoke { lock } => {
                if self.busy.contains_key(&client) {
                    return self.nonsense(client, at, "it asks for a lock while it has another");
                }
                self.locks.entry(lock.clone()).or_default().invoke(client, at);
                self.busy.insert(client, lock);
            }
            What::Died => self.die(client, at, "killed"),
            what => self.of_a_lock(client, at, what),
        }
    }

    /// What can only happen to a client that asks for a lock or has it.
    fn of_a_lock(&mut self, client: u32, at: Moment, what: What) {
        let Some(lock) = self.busy.get(&client).cloned() else {
            return self.nonsense(client, at, "something happened to a lock that it has not asked for");
        };
        let Some(record) = self.locks.get_mut(&lock) else { return };
        match what {
            What::GaveUp { why, error } => {
                record.give_up(client);
                self.busy.remove(&client);
                if let Some(error) = error {
                    self.figures.errors.entry(why.clone()).or_insert(error);
                }
                *self.figures.gave_up.entry(why).or_default() += 1;
            }
            What::Acquired { token, until } => self.granted(client, at, &lock, token, until),
            What::Held { until } => self.touch(client, at, &lock, until),
            What::Lost { why, until } => {
                self.touch(client, at, &lock, Some(until));
                self.end(client, at, &lock, &format!("lost: {why}"));
                *self.figures.losses.entry(why).or_default() += 1;
            }
            What::Released { until } => {
                self.touch(client, at, &lock, until);
                self.end(client, at, &lock, "released");
            }
            What::Read { register, value } => self.read(client, at, &lock, register, value),
            What::Write { register, based_on, accepted } => {
                self.write(client, at, &lock, register, based_on, accepted);
            }
            What::Invoke { .. } | What::Tick | What::Died | What::Left { .. } => {}
        }
    }

    fn granted(&mut self, client: u32, at: Moment, lock: &str, token: u64, until: Option<Moment>) {
        let start = self.start.unwrap_or_default();
        let granted = self.locks.get_mut(lock).and_then(|record| record.grant(client, at, token, until));
        let Some((grant, clash)) = granted else {
            return self.nonsense(client, at, "it was granted a lock that it has already");
        };
        self.figures.acquisitions += 1;
        self.figures.waits.add(at.since(grant.invoked));
        if self.last.insert(lock.to_owned(), client).is_some_and(|last| last != client) {
            self.figures.handovers += 1;
        }
        self.violations.extend(clash.map(|clash| record::clash(lock, start, clash, grant)));
    }

    /// The guard was asked at `at`, and said `until`.
    fn touch(&mut self, client: u32, at: Moment, lock: &str, until: Option<Moment>) {
        match self.locks.get_mut(lock).and_then(|record| record.hold(client)) {
            Some(hold) => (hold.seen, hold.said) = (at, until),
            None => self.nonsense(client, at, "it has a guard of a lock that it was not granted"),
        }
    }

    fn end(&mut self, client: u32, at: Moment, lock: &str, how: &str) {
        self.busy.remove(&client);
        let Some((hold, others)) = self.locks.get_mut(lock).and_then(|record| record.end(client, at, how))
        else {
            return;
        };
        let start = self.start.unwrap_or_default();
        let overlaps =
            others.into_iter().filter_map(|other| record::overlap(lock, start, other, hold.clone()));
        self.violations.extend(overlaps);
        self.finished.push((lock.to_owned(), hold));
    }

    fn die(&mut self, client: u32, at: Moment, how: &str) {
        let Some(lock) = self.busy.get(&client).cloned() else { return };
        if let Some(record) = self.locks.get_mut(&lock) {
            record.give_up(client);
        }
        self.end(client, at, &lock, how);
        self.busy.remove(&client);
    }

    fn read(&mut self, client: u32, at: Moment, lock: &str, register: Register, value: Option<u64>) {
        let Some(value) = value else {
            self.figures.guarded_refusals += u64::from(register == Register::Guarded);
            return;
        };
        let agrees = self.locks.get(lock).is_some_and(|record| record.reads(register, value));
        if !agrees && register == Register::Guarded {
            self.nonsense(client, at, "it read a value from a register that nobody wrote there last");
        }
    }

    fn write(
        &mut self,
        client: u32,
        at: Moment,
        lock: &str,
        register: Register,
        based_on: u64,
        accepted: bool,
    ) {
        let guarded = register == Register::Guarded;
        if !accepted {
            self.figures.guarded_refusals += u64::from(guarded);
            return;
        }
        let Some(record) = self.locks.get_mut(lock) else { return };
        let Some(hold) = record.hold(client).cloned() else {
            return self.nonsense(client, at, "it wrote under a lock that it was not granted");
        };
        let lost = record.write(register, based_on, (client, hold.grant.token, at));
        if guarded {
            self.figures.guarded_writes += 1;
        } else {
            self.figures.unguarded_writes += 1;
            self.figures.unguarded_lost_updates += u64::from(lost.is_some());
        }
        let start = self.start.unwrap_or_default();
        let lost = lost.filter(|_| guarded);
        self.violations.extend(lost.map(|lost| lost_update(lock, start, lost, hold, at)));
    }

    fn nonsense(&mut self, client: u32, at: Moment, what: &str) {
        let start = self.start.unwrap_or_default();
        self.violations.push(Violation {
            rule: Rule::Nonsense,
            lock: self.busy.get(&client).cloned().unwrap_or_default(),
            from: at,
            to: at,
            story: vec![format!("client {client} at {}: {what}", at.from_start(start))],
            holds: Vec::new(),
            excused: None,
            start,
        });
    }

    /// Counts so far.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// What must not be, so far, unless a fault is its [excuse](Violation::excuse).
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// When the history began.
    pub fn start(&self) -> Option<Moment> {
        self.start
    }

    /// The holds that have ended since this was last called, each with its lock.
    pub fn take_finished(&mut self) -> Vec<(String, Hold)> {
        std::mem::take(&mut self.finished)
    }

    /// Ends the history: who still holds a lock did so until last heard of.
    pub fn finish(mut self, faults: &[Fault]) -> (Figures, Vec<Violation>) {
        let mut clients: Vec<_> = self.locks.values().flat_map(Record::clients).collect();
        clients.sort_unstable();
        for client in clients {
            self.die(client, self.now, "still held at the end of the history");
        }
        for violation in &mut self.violations {
            violation.excused = violation.excuse(faults).map(str::to_owned);
        }
        (self.figures, self.violations)
    }
}

fn lost_update(lock: &str, start: Moment, lost: (u32, u64, Moment), hold: Hold, at: Moment) -> Violation {
    let (client, token, when) = lost;
    let story = vec![
        format!("client {client} wrote with token {token} at {}", when.from_start(start)),
        format!(
            "client {} had read before that, and its write with token {} was accepted at {}",
            hold.grant.client,
            hold.grant.token,
            at.from_start(start)
        ),
        "so the first write is lost".to_owned(),
    ];
    let rule = Rule::LostUpdate;
    Violation {
        rule,
        lock: lock.to_owned(),
        from: when,
        to: at,
        story,
        holds: vec![hold],
        excused: None,
        start,
    }
}
