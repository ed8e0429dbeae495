//! Takes events in the order of time and says what must not be.

use std::collections::HashMap;
use std::time::Duration;

use super::found::Place;
use super::record::Record;
use super::{Event, Fault, Figures, Hold, Moment, Register, Rule, Violation, What};

/// How much later than its deadline an answer may come: a busy machine lets nobody run on time.
const SLACK: Duration = Duration::from_secs(2);
/// Losses that must have a cause, if they come before the end that the guard has told.
const EARLY: [&str; 4] = ["taken", "force-released", "session ended", "expired"];

/// Decides whether a history may be. Give it the events of all clients, in the order of time.
#[derive(Debug, Default)]
pub struct Checker {
    start: Option<Moment>,
    now: Moment,
    locks: HashMap<String, Record>,
    /// Which lock a client asks for or holds.
    busy: HashMap<u32, String>,
    /// When a client asked, and when it shall have an answer.
    due: HashMap<u32, (Moment, Moment)>,
    /// What a client gave back last, until the store has answered.
    returned: HashMap<u32, (String, Hold)>,
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
        self.start.get_or_insert(at);
        if at < self.now {
            self.nonsense(client, at, "an event is older than the one before it");
        }
        self.now = self.now.max(at);
        match what {
            What::Tick => {}
            What::Left { lock, what } => {
                self.at_the_end(Rule::LeftBehind, &lock, at, format!("the store still has {what}"));
            }
            What::Stuck { lock, what } => self.at_the_end(Rule::Stuck, &lock, at, what),
            What::Hung => {
                self.at_the_end(
                    Rule::Deadline,
                    "",
                    at,
                    format!("client {client} did not end when it was told to"),
                );
            }
            What::Invoke { lock, by } => {
                if self.busy.contains_key(&client) {
                    return self.nonsense(client, at, "it asks for a lock while it has another");
                }
                self.locks.entry(lock.clone()).or_default().invoke(client, at);
                self.busy.insert(client, lock);
                self.due.extend(by.map(|by| (client, (at, by))));
            }
            What::GaveUp { why, error } => self.gave_up(client, at, why, error),
            What::Gone { why } => self.gone(client, at, &why),
            What::Died => self.die(client, at, "killed"),
            what => self.of_a_lock(client, at, what),
        }
    }

    /// What can only happen to a client that asks for a lock or has it.
    fn of_a_lock(&mut self, client: u32, at: Moment, what: What) {
        let Some(lock) = self.busy.get(&client).cloned() else {
            return self.nonsense(client, at, "something happened to a lock that it has not asked for");
        };
        match what {
            What::Acquired { token, until } => self.granted(client, at, &lock, token, until),
            What::Held { until } => self.touch(client, at, &lock, until),
            What::Lost { why, until } => self.lose(client, at, &lock, why, until),
            What::Released { until } => {
                self.touch(client, at, &lock, until);
                self.end(client, at, &lock, "released");
            }
            What::Read { register, value } => self.read(client, at, &lock, register, value),
            What::Write { register, based_on, accepted } => {
                self.write(client, at, &lock, register, based_on, accepted);
            }
            _ => {}
        }
    }

    fn granted(&mut self, client: u32, at: Moment, lock: &str, token: u64, until: Option<Moment>) {
        self.answered(client, at, lock);
        let granted = self.locks.get_mut(lock).and_then(|record| record.grant(client, at, token, until));
        let Some((grant, clash)) = granted else {
            return self.nonsense(client, at, "it was granted a lock that it has already");
        };
        self.figures.acquisitions += 1;
        self.figures.waits.add(at.since(grant.invoked));
        *self.figures.clients.entry(client).or_default() += 1;
        if self.last.insert(lock.to_owned(), client).is_some_and(|last| last != client) {
            self.figures.handovers += 1;
        }
        let found = clash.map(|clash| self.place(lock).clash(clash, Hold::new(grant, until)));
        self.violations.extend(found);
    }

    fn gave_up(&mut self, client: u32, at: Moment, why: String, error: Option<String>) {
        // Without a lock that it asked for, it could not connect.
        if let Some(lock) = self.busy.remove(&client) {
            self.answered(client, at, &lock);
            self.locks.entry(lock).or_default().give_up(client);
        }
        if let Some(error) = error {
            self.figures.errors.entry(why.clone()).or_insert(error);
        }
        *self.figures.gave_up.entry(why).or_default() += 1;
    }

    /// The store has answered a client, one way or the other.
    fn answered(&mut self, client: u32, at: Moment, lock: &str) {
        let Some((invoked, by)) = self.due.remove(&client) else { return };
        let limit = by.plus(SLACK);
        if at > limit {
            self.violations.push(self.place(lock).overdue(client, invoked, limit, at));
        }
    }

    /// The guard was asked at `at`, or right after, and said "held until".
    fn touch(&mut self, client: u32, at: Moment, lock: &str, until: Option<Moment>) {
        let Some(hold) = self.locks.get_mut(lock).and_then(|record| record.hold(client)) else {
            return self.nonsense(client, at, "it has a guard of a lock that it was not granted");
        };
        (hold.seen, hold.said) = (at, until);
        hold.promised = hold.promised.zip(until).map(|(one, other)| one.max(other));
        if let Some(until) = until.filter(|until| *until < at) {
            let hold = hold.clone();
            self.violations.push(self.place(lock).late_loss(hold, until, at));
        }
    }

    /// The guard said "lost" at `at`, and that it was valid until then.
    fn lose(&mut self, client: u32, at: Moment, lock: &str, why: String, until: Moment) {
        let Some(hold) = self.locks.get_mut(lock).and_then(|record| record.hold(client)) else {
            return self.nonsense(client, at, "it lost a lock that it was not granted");
        };
        (hold.seen, hold.said) = (at, Some(until));
        let mut shown = hold.clone();
        // One that has ended by its own clock as well may give either reason.
        if EARLY.contains(&why.as_str()) && hold.promised.is_none_or(|promised| at < promised) {
            shown.gone = Some(at);
            shown.how = format!("lost: {why}");
            self.violations.push(self.place(lock).early_loss(shown, &why, at));
        }
        self.end(client, at, lock, &format!("lost: {why}"));
        *self.figures.losses.entry(why).or_default() += 1;
    }

    /// The store had not what the client gave back.
    fn gone(&mut self, client: u32, at: Moment, why: &str) {
        let Some((lock, hold)) = self.returned.remove(&client) else {
            return self.nonsense(client, at, "the store answered a release that was not made");
        };
        if hold.promised.is_none_or(|promised| at < promised) {
            self.violations.push(self.place(&lock).early_loss(hold, why, at));
        }
        *self.figures.gone.entry(why.to_owned()).or_default() += 1;
    }

    fn end(&mut self, client: u32, at: Moment, lock: &str, how: &str) {
        self.busy.remove(&client);
        let Some((hold, others)) = self.locks.get_mut(lock).and_then(|record| record.end(client, at, how))
        else {
            return;
        };
        let place = self.place(lock);
        let overlaps: Vec<_> =
            others.into_iter().filter_map(|other| place.overlap(other, hold.clone())).collect();
        // Valid at that moment, it was alone at the store from its grant on: whoever has a larger token was
        // granted the lock later and so cannot have shown it yet.
        let refused = hold.refused.filter(|refused| *refused <= hold.end() && hold.was_valid());
        let refused = refused.map(|refused| place.refused(hold.clone(), refused));
        self.violations.extend(overlaps.into_iter().chain(refused));
        self.returned.insert(client, (lock.to_owned(), hold.clone()));
        self.finished.push((lock.to_owned(), hold));
    }

    fn die(&mut self, client: u32, at: Moment, how: &str) {
        let Some(lock) = self.busy.get(&client).cloned() else { return };
        if let Some(record) = self.locks.get_mut(&lock) {
            record.give_up(client);
        }
        self.end(client, at, &lock, how);
        self.busy.remove(&client);
        self.due.remove(&client);
    }

    fn read(&mut self, client: u32, at: Moment, lock: &str, register: Register, value: Option<u64>) {
        self.used(client, at, lock);
        let Some(value) = value else { return self.refused(client, at, lock, register) };
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
        self.used(client, at, lock);
        if !accepted {
            return self.refused(client, at, lock, register);
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
        let lost = lost.filter(|_| guarded);
        self.violations.extend(lost.map(|lost| self.place(lock).lost_update(lost, hold, at)));
    }

    fn used(&mut self, client: u32, at: Moment, lock: &str) {
        let hold = self.locks.get_mut(lock).and_then(|record| record.hold(client));
        hold.into_iter().for_each(|hold| hold.used(at));
    }

    fn refused(&mut self, client: u32, at: Moment, lock: &str, register: Register) {
        self.figures.guarded_refusals += u64::from(register == Register::Guarded);
        let hold = self.locks.get_mut(lock).and_then(|record| record.hold(client));
        hold.into_iter().for_each(|hold| hold.refused = hold.refused.or(Some(at)));
    }

    fn place<'a>(&self, lock: &'a str) -> Place<'a> {
        Place { lock, start: self.start.unwrap_or_default() }
    }

    fn at_the_end(&mut self, rule: Rule, lock: &str, at: Moment, what: String) {
        self.violations.push(self.place(lock).violation(rule, (at, at), vec![what], Vec::new()));
    }

    fn nonsense(&mut self, client: u32, at: Moment, what: &str) {
        let lock = self.busy.get(&client).cloned().unwrap_or_default();
        let place = self.place(&lock);
        let story = vec![format!("client {client} at {}: {what}", at.from_start(place.start))];
        self.violations.push(place.violation(Rule::Nonsense, (at, at), story, Vec::new()));
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
            // One that waits until the very end has waited for too long if its time was up.
            if let Some(lock) = self.busy.get(&client).cloned() {
                self.answered(client, self.now, &lock);
            }
            self.die(client, self.now, "still held at the end of the history");
        }
        for violation in &mut self.violations {
            violation.excused = violation.excuse(faults).map(str::to_owned);
        }
        (self.figures, self.violations)
    }
}
