//! All workers, and what they share in their parent.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_testkit::history::{Event, Moment, What};

use super::dice::Dice;
use super::registers::Registers;
use super::worker_process::WorkerProcess;
use super::{Collector, Plan};

/// How long workers may take to end in good order, on top of a ttl.
const GRACE: Duration = Duration::from_secs(10);

/// What all threads of the parent use.
pub(crate) struct Shared {
    pub(super) registers: Mutex<Registers>,
    pub(crate) collector: Mutex<Collector>,
    /// A worker ended and nobody had told it to.
    pub(super) worker_crashed: AtomicBool,
    /// The pids of those that ended in good order, each with its number.
    pub(super) ended_well: Mutex<HashMap<u32, u32>>,
    /// The run is over.
    pub(crate) over: AtomicBool,
}

impl Shared {
    pub(crate) fn new(plan: &Plan) -> Arc<Self> {
        Arc::new(Self {
            registers: Mutex::new(Registers::new(plan.locks)),
            collector: Mutex::new(Collector::new(plan)),
            worker_crashed: AtomicBool::new(false),
            ended_well: Mutex::default(),
            over: AtomicBool::new(false),
        })
    }

    pub(super) fn note(&self, event: Event) {
        locked(&self.collector).push(event);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Whether a worker ended by itself.
    pub(crate) fn has_crashed(&self) -> bool {
        self.worker_crashed.load(Ordering::SeqCst)
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The workers.
pub(crate) struct Workers {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    dice: Dice,
    pub(super) processes: Vec<WorkerProcess>,
}

impl Workers {
    /// Starts them.
    pub(crate) fn start(plan: Arc<Plan>, shared: Arc<Shared>) -> io::Result<Self> {
        let dice = Dice::new(plan.seed);
        let mut workers = Self { plan, shared, dice, processes: Vec::new() };
        for client in 0..workers.plan.clients {
            let worker = workers.start_one(client)?;
            workers.processes.push(worker);
        }
        Ok(workers)
    }

    fn start_one(&mut self, client: u32) -> io::Result<WorkerProcess> {
        WorkerProcess::start(client, self.dice.roll(), &self.plan, &self.shared)
    }

    /// Kills a worker and puts another one in its place. Returns whether it was alive until then.
    pub(super) fn replace(&mut self, client: usize) -> io::Result<bool> {
        let killed = self.end(client);
        self.processes[client] = self.start_one(number(client))?;
        Ok(killed)
    }

    fn end(&mut self, client: usize) -> bool {
        let (worker, shared) = (&mut self.processes[client], &self.shared);
        let killed = worker.kill();
        if !killed {
            locked(&shared.ended_well).insert(worker.pid(), number(client));
        }
        shared.note(Event { at: Moment::now(), client: number(client), what: What::Died });
        killed
    }

    /// Lets all of them end in good order; those that do not are killed, and told of.
    pub(crate) fn finish(mut self) {
        for worker in &self.processes {
            worker.proxies.iter().for_each(fencepost_testkit::Proxy::pass);
            worker.go_on();
            worker.tell_to_end();
        }
        let deadline = Moment::now().plus(GRACE + self.plan.ttl);
        for client in 0..self.processes.len() {
            while !self.processes[client].has_ended() && Moment::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            let hung = !self.processes[client].has_ended();
            self.end(client);
            if hung {
                self.shared.note(Event { at: Moment::now(), client: number(client), what: What::Hung });
            }
        }
    }
}

fn number(client: usize) -> u32 {
    u32::try_from(client).unwrap_or(u32::MAX)
}
