//! Puts what all workers say in the order of time, has it checked, and keeps what the report shows.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fencepost_testkit::history::{
    Checker, Event, Excuse, Fault, Figures, Hold, Moment, Target, Timeline, Violation, What,
};

use super::Plan;
use super::waits::{Waits, covered};

/// Into how many parts a run is divided for its overview.
const WINDOWS: u32 = 100;
/// How many holds are remembered for close looks.
const MEMORY: usize = 50_000;

/// One part of the run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    pub(crate) acquisitions: u64,
    pub(crate) losses: u64,
    pub(crate) longest_wait: Duration,
}

/// A close look at one fault.
pub(crate) struct Exhibit {
    pub(crate) title: String,
    pub(crate) picture: String,
    /// How much there is to see.
    score: u32,
}

/// All that was heard.
pub(crate) struct Collector {
    pub(crate) start: Moment,
    ttl: Duration,
    window: Duration,
    /// What each client said and the checker has not seen, in its order.
    queues: Vec<VecDeque<Event>>,
    /// When each client was last heard of: it says nothing older any more.
    heard: Vec<Moment>,
    /// When each client asked for the lock that it has no answer about yet.
    asked: Vec<Option<Moment>>,
    pub(crate) waits: Waits,
    checker: Checker,
    pub(crate) windows: Vec<Window>,
    pub(crate) faults: Vec<Fault>,
    /// Which of the faults were looked at for an exhibit.
    examined: Vec<bool>,
    recent: VecDeque<(String, Hold)>,
    /// Locks lost, by the kind of fault that was at work.
    pub(crate) losses: BTreeMap<String, u64>,
    pub(crate) exhibits: BTreeMap<String, Exhibit>,
}

impl Collector {
    pub(crate) fn new(plan: &Plan) -> Self {
        let (clients, start) = (plan.clients as usize, Moment::now());
        let mut checker = Checker::new();
        // Nothing happens, at the time from which everything counts.
        checker.observe(Event { at: start, client: 0, what: What::Tick });
        Self {
            start,
            ttl: plan.ttl,
            window: (plan.lasts / WINDOWS).max(Duration::from_millis(100)),
            queues: vec![VecDeque::new(); clients],
            heard: vec![start; clients],
            asked: vec![None; clients],
            waits: Waits::default(),
            checker,
            windows: Vec::new(),
            faults: Vec::new(),
            examined: Vec::new(),
            recent: VecDeque::new(),
            losses: BTreeMap::new(),
            exhibits: BTreeMap::new(),
        }
    }

    /// Hears of an event.
    pub(super) fn push(&mut self, event: Event) {
        let client = event.client as usize;
        self.heard[client] = event.at;
        if event.what != What::Tick {
            self.queues[client].push_back(event);
        }
    }

    /// Checks what has certainly happened: everything before the moment from which each client was last heard
    /// of.
    pub(crate) fn advance(&mut self) {
        let frontier = self.heard.iter().min().copied().unwrap_or(self.start);
        self.check_until(frontier);
        self.exhibit(frontier);
    }

    fn check_until(&mut self, frontier: Moment) {
        let mut ready = Vec::new();
        for queue in &mut self.queues {
            while queue.front().is_some_and(|event| event.at <= frontier) {
                ready.extend(queue.pop_front());
            }
        }
        ready.sort_by_key(|event| event.at);
        for event in ready {
            self.count(&event);
            self.checker.observe(event);
        }
        let finished = self.checker.take_finished();
        finished.iter().for_each(|(_, hold)| self.blame(hold));
        self.recent.extend(finished);
        let horizon = frontier.minus(self.ttl * 6);
        while self.recent.len() > MEMORY
            || self.recent.front().is_some_and(|(_, hold)| hold.gone.is_some_and(|gone| gone < horizon))
        {
            self.recent.pop_front();
        }
    }

    fn count(&mut self, event: &Event) {
        let index = event.at.since(self.start).as_nanos() / self.window.as_nanos();
        let index = usize::try_from(index).unwrap_or(0);
        if self.windows.len() <= index {
            self.windows.resize(index + 1, Window::default());
        }
        let (window, asked) = (&mut self.windows[index], &mut self.asked[event.client as usize]);
        let waited = match event.what {
            What::Invoke { .. } => {
                *asked = Some(event.at);
                None
            }
            What::Acquired { .. } | What::GaveUp { .. } | What::Died => asked.take(),
            _ => None,
        };
        match (&event.what, waited) {
            (What::Acquired { .. }, Some(asked)) => {
                window.acquisitions += 1;
                window.longest_wait = window.longest_wait.max(event.at.since(asked));
            }
            (What::Lost { .. }, _) => window.losses += 1,
            _ => {}
        }
        if let Some(asked) = waited {
            self.waits.add(event.client, (asked, event.at), self.start, self.ttl, &self.faults);
        }
    }

    /// Notes that a fault begins; returns its number.
    pub(super) fn begin(&mut self, kind: &str, target: Target, excuse: Option<Excuse>) -> usize {
        let from = Moment::now();
        self.faults.push(Fault { kind: kind.to_owned(), target, from, struck: None, to: None, excuse });
        self.examined.push(false);
        self.faults.len() - 1
    }

    /// Notes that it was seen to have its effect.
    pub(super) fn struck(&mut self, fault: usize) {
        self.faults[fault].struck = Some(Moment::now());
    }

    /// Notes that it is over.
    pub(super) fn end(&mut self, fault: usize) {
        self.faults[fault].to = Some(Moment::now());
    }

    /// Counts a lock that was lost to what was broken then: its client if it was, else a server.
    fn blame(&mut self, hold: &Hold) {
        if !hold.how.starts_with("lost") {
            return;
        }
        let gone = hold.gone.unwrap_or(hold.seen);
        let near = || self.faults.iter().filter(|fault| fault.touches(hold.grant.at, gone));
        let own = near().find(|fault| fault.target == Target::Client(hold.grant.client));
        let guilty = own.or_else(|| near().find(|fault| matches!(fault.target, Target::Server(_))));
        let kind = guilty.map_or("nothing", |fault| fault.kind.as_str()).to_owned();
        *self.losses.entry(kind).or_default() += 1;
    }

    /// Which part of the run lies within a time in which an overlap can be excused.
    pub(crate) fn excused_share(&self, ran: Duration) -> f64 {
        let end = self.start.plus(ran);
        let covered = covered(self.faults.iter().filter_map(Fault::cover).collect(), self.start, end);
        covered.as_secs_f64() / ran.as_secs_f64().max(1e-3)
    }

    /// Keeps the most telling fault of each kind.
    fn exhibit(&mut self, frontier: Moment) {
        for number in 0..self.faults.len() {
            let fault = &self.faults[number];
            let Some(end) = fault.to else { continue };
            if self.examined[number] || frontier < end.plus(self.ttl / 2) {
                continue;
            }
            self.examined[number] = true;
            let Some((score, lock)) = self.tell(fault) else { continue };
            let kind = fault.kind.clone();
            if self.exhibits.get(&kind).is_some_and(|shown| shown.score >= score) {
                continue;
            }
            let (from, to) = (fault.from.minus(self.ttl / 4), end.plus(self.ttl / 2));
            let near = |hold: &Hold| hold.grant.invoked <= to && hold.gone.is_none_or(|gone| gone >= from);
            let holds = self.recent.iter().filter(|(of, hold)| *of == lock && near(hold));
            let holds = holds.map(|(_, hold)| hold.clone()).collect();
            let timeline = Timeline { holds, faults: &self.faults, from, to, mark: None, start: self.start };
            let title = format!("{kind}: {}, as seen on `{lock}`", fault.target);
            let picture = timeline.inline();
            self.exhibits.insert(kind, Exhibit { title, picture, score });
        }
    }

    /// How telling a fault was, and on which lock that can be seen.
    fn tell(&self, fault: &Fault) -> Option<(u32, String)> {
        let end = fault.to?;
        let Target::Client(victim) = fault.target else {
            let lost = |(_, hold): &&(String, Hold)| hold.grant.at < end && hold.how.starts_with("lost");
            let shown = self.recent.iter().rev().find(lost).map(|(lock, _)| (3, lock.clone()));
            return shown.or_else(|| self.recent.back().map(|(lock, _)| (1, lock.clone())));
        };
        let during = |hold: &Hold| hold.grant.at < end && hold.gone.is_some_and(|gone| gone >= fault.from);
        let hit = |(_, hold): &&(String, Hold)| {
            hold.grant.client == victim && hold.grant.at <= fault.from && during(hold)
        };
        let (lock, _) = self.recent.iter().find(hit)?;
        let other = |(of, hold): &(String, Hold)| of == lock && hold.grant.client != victim && during(hold);
        let taken_over = self.recent.iter().any(other);
        Some((1 + u32::from(taken_over) * 2, lock.clone()))
    }

    pub(crate) fn figures(&self) -> &Figures {
        self.checker.figures()
    }

    /// How many violations there are that nothing excuses, so far.
    pub(crate) fn violations(&self) -> usize {
        self.checker.violations().iter().filter(|violation| violation.excuse(&self.faults).is_none()).count()
    }

    /// Ends the history, with what was found when all clients had ended.
    pub(crate) fn finish(&mut self, found: Vec<What>) -> (Figures, Vec<Violation>) {
        let at = self.heard.iter().max().copied().unwrap_or(self.start).max(Moment::now());
        self.check_until(at);
        self.exhibit(Moment(u64::MAX));
        for what in found {
            self.checker.observe(Event { at, client: 0, what });
        }
        std::mem::take(&mut self.checker).finish(&self.faults)
    }

    /// How long a window is.
    pub(crate) fn window(&self) -> Duration {
        self.window
    }
}
