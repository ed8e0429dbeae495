//! Deals faults to clients: stops them, kills them, cuts their links. One thread; what it breaks it mends
//! later.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fencepost_testkit::history::{Moment, Target};

use super::dice::Dice;
use super::worker_process::WorkerProcess;
use super::workers::{Shared, locked};
use super::{Fault, Plan, Workers};

/// How long to wait for a client to hold a lock before another one is tried, and how many are.
const PATIENCE: Duration = Duration::from_millis(100);
const TRIES: usize = 5;
const LOOK: Duration = Duration::from_millis(5);

/// Breaks clients for as long as the run lasts.
pub(crate) struct Nemesis {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    workers: Workers,
    dice: Dice,
    /// What is broken, and when it is mended.
    broken: Vec<Broken>,
    /// How many links were broken so far: their manners take turns.
    cuts: usize,
}

struct Broken {
    until: Moment,
    client: usize,
    fault: usize,
    how: Fault,
    /// What its links had suffered before.
    harm: u64,
}

impl Nemesis {
    pub(crate) fn new(plan: Arc<Plan>, shared: Arc<Shared>, workers: Workers) -> Self {
        let dice = Dice::new(plan.seed ^ 1);
        Self { plan, shared, workers, dice, broken: Vec::new(), cuts: 0 }
    }

    /// Breaks and mends until the run is over; returns the workers, all in one piece.
    pub(crate) fn run(mut self) -> io::Result<Workers> {
        let kinds: Vec<_> =
            self.plan.faults.iter().copied().filter(|fault| !matches!(fault, Fault::Server(_))).collect();
        let mut next = Moment::now().plus(self.plan.ttl / 4);
        let mut round = Vec::new();
        while !self.shared.is_over() {
            self.mend(Moment::now());
            if Moment::now() >= next && !kinds.is_empty() {
                // Each kind once, then again: none is missing in a short run.
                if round.is_empty() {
                    round.clone_from(&kinds);
                }
                let kind = round.swap_remove(self.dice.below(round.len()));
                self.strike(kind)?;
                next = Moment::now().plus(self.dice.between(self.plan.ttl / 10, self.plan.ttl));
            }
            std::thread::sleep(LOOK);
        }
        self.mend(Moment(u64::MAX));
        Ok(self.workers)
    }

    fn strike(&mut self, kind: Fault) -> io::Result<()> {
        // One of several clients stays whole, or nothing happens at all.
        if self.broken.len() >= (self.workers.processes.len() - 1).max(1) {
            return Ok(());
        }
        let whole: Vec<_> = (0..self.workers.processes.len())
            .filter(|client| self.broken.iter().all(|broken| broken.client != *client))
            .collect();
        match kind {
            Fault::Pause => self.pause(&whole),
            Fault::Kill => return self.kill(&whole),
            Fault::Cut => self.cut(&whole),
            Fault::Server(_) => {}
        }
        Ok(())
    }

    /// Stops one of these clients, most times while it holds a lock.
    fn pause(&mut self, whole: &[usize]) {
        let ttl = self.plan.ttl;
        let lasts = match self.dice.below(10) {
            0 => self.dice.between(Duration::from_millis(5), ttl / 10),
            1..4 => self.dice.between(ttl / 4, ttl * 19 / 20),
            // PostgreSQL gives a stopped holder two seconds on top of its lease.
            _ => self.dice.between(ttl * 11 / 10, ttl * 3),
        };
        let (client, fault, stopped) = self.stop(whole, "pause");
        if stopped {
            locked(&self.shared.collector).struck(fault);
        }
        let until = Moment::now().plus(lasts);
        self.broken.push(Broken { until, client, fault, how: Fault::Pause, harm: 0 });
    }

    /// Kills one of these clients, most times while it holds a lock, and starts another one.
    fn kill(&mut self, whole: &[usize]) -> io::Result<()> {
        let (client, fault, _) = self.stop(whole, "kill");
        let killed = self.workers.replace(client)?;
        let mut collector = locked(&self.shared.collector);
        if killed {
            collector.struck(fault);
        }
        collector.end(fault);
        Ok(())
    }

    /// Stops one of these clients. Returns which, the fault, and whether it stands still.
    fn stop(&mut self, whole: &[usize], kind: &str) -> (usize, usize, bool) {
        let (client, _) = self.choose(whole, 80, WorkerProcess::ambush);
        let fault = self.note(kind, client);
        (client, fault, self.workers.processes[client].stop())
    }

    /// One of these clients; in so many of a hundred cases one that holds a lock, and whether it was caught
    /// at it.
    fn choose(&mut self, whole: &[usize], cases: usize, ambush: impl Fn(&WorkerProcess)) -> (usize, bool) {
        if self.dice.in_hundred(cases) {
            for _ in 0..TRIES {
                let client = whole[self.dice.below(whole.len())];
                if self.catch(client, &ambush) {
                    return (client, true);
                }
            }
        }
        (whole[self.dice.below(whole.len())], false)
    }

    /// Waits for a client to hold a lock, and has it ambushed then.
    fn catch(&self, client: usize, ambush: impl Fn(&WorkerProcess)) -> bool {
        let worker = &self.workers.processes[client];
        ambush(worker);
        let deadline = Moment::now().plus(PATIENCE);
        while !worker.was_caught() && Moment::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
        worker.call_off()
    }

    /// Breaks some or all links of one of these clients, most times while it holds a lock, which it then
    /// keeps for longer than a lease: so it has to be renewed.
    fn cut(&mut self, whole: &[usize]) {
        let ttl = self.plan.ttl;
        let detained = self.dice.between(ttl, ttl * 3);
        let (client, caught) = self.choose(whole, 70, |worker| worker.detain(detained));
        let harm = self.workers.processes[client].harm();
        let all = self.dice.in_hundred(50);
        let manner = self.cuts % 5;
        self.cuts += 1;
        let slow = self.dice.between(Duration::from_millis(1), ttl / 4);
        let proxies = &self.workers.processes[client].proxies;
        let only = self.dice.below(proxies.len());
        for (number, proxy) in proxies.iter().enumerate() {
            if !all && number != only {
                continue;
            }
            match manner {
                0 => proxy.reset(),
                1 => proxy.cut(),
                2 => proxy.stall(),
                3 => proxy.hold_answers(),
                _ => proxy.delay(slow),
            }
        }
        let lasts = match (manner, caught) {
            (0, _) => Duration::ZERO,
            // Until after a renewal was due, a third of a ttl later.
            (_, true) => self.dice.between(ttl * 2 / 3, ttl * 2),
            (_, false) => self.dice.between(ttl / 20, ttl * 3 / 2),
        };
        let kind = ["reset links", "cut links", "stuck links", "lost answers", "slow links"][manner];
        let fault = self.note(kind, client);
        self.broken.push(Broken { until: Moment::now().plus(lasts), client, fault, how: Fault::Cut, harm });
    }

    fn note(&self, kind: &str, client: usize) -> usize {
        let target = Target::Client(u32::try_from(client).unwrap_or(u32::MAX));
        locked(&self.shared.collector).begin(kind, target, None)
    }

    /// Mends what is due.
    fn mend(&mut self, now: Moment) {
        let broken = std::mem::take(&mut self.broken);
        let (due, later): (Vec<_>, _) = broken.into_iter().partition(|broken| broken.until <= now);
        self.broken = later;
        for Broken { client, fault, how, harm, .. } in due {
            let worker = &self.workers.processes[client];
            let mut collector = locked(&self.shared.collector);
            if how == Fault::Cut {
                if worker.harm() > harm {
                    collector.struck(fault);
                }
                worker.proxies.iter().for_each(fencepost_testkit::Proxy::pass);
            } else {
                worker.go_on();
            }
            collector.end(fault);
        }
    }
}
