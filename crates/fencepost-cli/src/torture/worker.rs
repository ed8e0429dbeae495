//! One client: a process that takes locks, uses the registers beside them without asking its guard, and says
//! what it sees.
//!
//! It ends when its parent says so, or has gone: a thread of its own reads the pipe.

use std::io::{self, BufRead as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fencepost::SupervisorExt as _;
use fencepost::{Error, Guard, Locks, Loss, State};
use fencepost_testkit::history::{Event, Moment, What};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::dice::Dice;
use super::lock_name;
use super::wire::{Answer, Said, send};
use crate::args::TortureWorker;
use crate::exit::{Outcome, system};

/// How often a worker that waits says that it lives.
const TICK: Duration = Duration::from_millis(100);
/// How long a worker may take to end in good order when its parent has gone.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A rest after an error, so that an outage is not hammered at.
const REST: Duration = Duration::from_millis(50);

/// Runs a worker.
pub(crate) fn run(args: &TortureWorker, url: &str) -> Outcome {
    let end = Arc::new(End::default());
    let answers = listen(end.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(system("starting the runtime"))?.block_on(async {
        let (dice, seen) = (Dice::new(args.seed), Moment::default());
        let mut worker = Worker { args, answers, dice, end, seen, avoided: vec![seen; args.locks] };
        let Some(locks) = worker.connect(url).await else { return };
        while !worker.end.has_come() {
            worker.turn(&locks).await;
        }
        worker.ticking(locks.close()).await;
    });
    Ok(0)
}

/// That a worker shall end.
#[derive(Debug, Default)]
pub(super) struct End {
    come: AtomicBool,
    pub(super) woken: Notify,
}

impl End {
    fn has_come(&self) -> bool {
        self.come.load(Ordering::SeqCst)
    }

    fn announce(&self) {
        self.come.store(true, Ordering::SeqCst);
        self.woken.notify_one();
    }
}

/// Reads what the parent says, on a thread of its own.
fn listen(end: Arc<End>) -> Receiver<Answer> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
                Some(Answer::Stop) => end.announce(),
                Some(answer) => {
                    let _ = sender.send(answer);
                }
                None => break,
            }
        }
        drop(sender);
        end.announce();
        std::thread::sleep(LAST_WORDS);
        std::process::exit(0);
    });
    receiver
}

/// Why there is no lock.
struct Refusal {
    why: &'static str,
    /// What the store said, if it failed.
    error: Option<String>,
}

impl From<&'static str> for Refusal {
    fn from(why: &'static str) -> Self {
        Self { why, error: None }
    }
}

pub(super) struct Worker<'a> {
    pub(super) args: &'a TortureWorker,
    answers: Receiver<Answer>,
    pub(super) dice: Dice,
    pub(super) end: Arc<End>,
    /// When the guard last said that the lock is held.
    seen: Moment,
    /// Until when it leaves each lock alone.
    avoided: Vec<Moment>,
}

impl Worker<'_> {
    /// Connects, for as long as that takes: the store may be the thing that is broken.
    async fn connect(&mut self, url: &str) -> Option<Locks> {
        while !self.end.has_come() {
            match self.ticking(Locks::connect(url)).await {
                Ok(locks) => return Some(locks),
                Err(error) => {
                    let error = Some(error.to_string());
                    self.say(What::GaveUp { why: "no connection".to_owned(), error });
                }
            }
            self.ticking(sleep(REST)).await;
        }
        None
    }

    /// Takes a lock, works under it, and gives it back.
    async fn turn(&mut self, locks: &Locks) {
        let number = self.choose();
        let name = lock_name(&self.args.prefix, number);
        let wait = if self.is_patient(number) { self.args.patience } else { self.args.ttl / 50 };
        if self.args.client % 4 == 3 {
            // It takes a while to start.
            return self.run_command(&name, wait.max(self.args.ttl / 2)).await;
        }
        // One that does not wait at all takes as long as the store's own timeout.
        let trying = self.dice.in_hundred(10);
        let by = (!trying).then(|| Moment::now().plus(wait));
        self.say(What::Invoke { lock: name.clone(), by });
        let guard = match self.acquire(locks, &name, wait, trying).await {
            Ok(guard) => guard,
            Err(Refusal { why, error }) => {
                self.say(What::GaveUp { why: why.to_owned(), error });
                match why {
                    "busy" | "cancelled" => {}
                    "timed out" => self.avoided[number] = Moment::now().plus(self.args.ttl / 10),
                    _ => self.ticking(sleep(REST)).await,
                }
                return;
            }
        };
        let token = guard.token().get();
        self.seen = Moment::now();
        // Asked after the time was taken: a guard that is lost already was valid until some time before that.
        let valid = !guard.state().is_lost();
        let until = if valid { until(&guard) } else { Some(Moment::default()) };
        self.say_at(self.seen, What::Acquired { token, until });
        let answer = self.ask(&Said::Read { lock: number, token });
        let Some(Answer::Read { guarded, unguarded, linger }) = answer else { return };
        self.work(&guard, Duration::from_millis(linger)).await;
        // Whatever the guard would say now: this is what code does that relies on the lock alone.
        self.ask(&Said::Write { lock: number, token, guarded, unguarded });
        self.give_back(guard).await;
    }

    /// A lock, at random, but for those that it found stuck a moment ago.
    fn choose(&mut self) -> usize {
        let now = Moment::now();
        let free: Vec<_> = (0..self.args.locks).filter(|number| self.avoided[*number] <= now).collect();
        if free.is_empty() { self.dice.below(self.args.locks) } else { free[self.dice.below(free.len())] }
    }

    /// Whether it waits for this lock until it gets it. For each lock some do, to take over from a holder
    /// that is broken; if all did, one stuck lock would soon have stopped everybody.
    fn is_patient(&self, number: usize) -> bool {
        self.args.client as usize % self.args.locks == number
    }

    async fn acquire(
        &mut self,
        locks: &Locks,
        name: &str,
        wait: Duration,
        trying: bool,
    ) -> Result<Guard, Refusal> {
        let (ttl, end) = (self.args.ttl, self.end.clone());
        let lock = locks.lock(name).ttl(ttl).wait(wait).note("fencepost torture");
        let impatient =
            self.dice.in_hundred(5).then(|| self.dice.between(Duration::ZERO, Duration::from_millis(5)));
        let attempt =
            async { if trying { lock.try_acquire().await } else { lock.acquire().await.map(Some) } };
        let bounded = async {
            match impatient {
                // Dropped wherever it stands.
                Some(patience) => timeout(patience, attempt).await.map_err(|_| Refusal::from("cancelled")),
                None => Ok(attempt.await),
            }
        };
        let stopped = async {
            end.woken.notified().await;
            Err(Refusal::from("stopped"))
        };
        let outcome = self
            .ticking(async {
                tokio::select! { out = bounded => out, out = stopped => out }
            })
            .await?;
        match outcome {
            Ok(Some(guard)) => Ok(guard),
            Ok(None) => Err(Refusal::from("busy")),
            Err(error) => Err(Refusal { why: kind(&error), error: told(&error) }),
        }
    }

    /// Mostly nothing at all; sometimes, or if told so, for long enough that the lock has to be renewed.
    async fn work(&mut self, guard: &Guard, least: Duration) {
        let ttl = self.args.ttl;
        let most = match self.dice.below(10_000) {
            0..9_400 => Duration::ZERO,
            9_400..9_915 => Duration::from_millis(5),
            9_915..9_995 => ttl / 8,
            _ => ttl * 3 / 2,
        };
        let mut left = self.dice.between(Duration::ZERO, most).max(least);
        while !left.is_zero() && !self.end.has_come() {
            let slice = left.min(TICK);
            sleep(slice).await;
            left -= slice;
            if !self.look(guard) {
                return;
            }
        }
    }

    /// Asks the guard; says so and returns `true` if the lock is held.
    fn look(&mut self, guard: &Guard) -> bool {
        let now = Moment::now();
        if guard.state().is_lost() {
            return false;
        }
        self.seen = now;
        self.say_at(now, What::Held { until: until(guard) });
        true
    }

    async fn give_back(&mut self, guard: Guard) {
        let now = Moment::now();
        if let State::Lost(why) = guard.state() {
            // The guard's own deadline is exact. What ended a lock early did so after the guard was last
            // asked.
            let by_deadline = matches!(why, Loss::Expired | Loss::Unreachable | Loss::Paused | Loss::MaxHold);
            let until = until(&guard).filter(|_| by_deadline).unwrap_or(self.seen).min(now);
            self.say_at(now, What::Lost { why: why.as_str().to_owned(), until });
            return;
        }
        self.say_at(now, What::Released { until: until(&guard) });
        if self.dice.in_hundred(10) {
            drop(guard);
        } else if let Err(Error::Lost { why, .. }) = self.ticking(guard.release()).await {
            self.say(What::Gone { why: why.as_str().to_owned() });
        }
    }

    /// Waits for something, and says now and then that it lives.
    async fn ticking<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        loop {
            tokio::select! {
                biased;
                out = &mut future => return out,
                () = sleep(TICK) => self.say(What::Tick),
            }
        }
    }

    pub(super) fn say(&self, what: What) {
        self.say_at(Moment::now(), what);
    }

    pub(super) fn say_at(&self, at: Moment, what: What) {
        self.send(&Said::Event(Event { at, client: self.args.client, what }));
    }

    /// Asks the parent for something of the registers. `None` if it has gone.
    fn ask(&self, question: &Said) -> Option<Answer> {
        self.send(question);
        // Blocks the runtime, which has nothing else to do: the keeper has a thread of its own.
        self.answers.recv().ok()
    }

    fn send(&self, said: &Said) {
        if send(&mut io::stdout().lock(), said).is_err() {
            self.end.announce();
        }
    }
}

fn until(guard: &Guard) -> Option<Moment> {
    guard.valid_until_boottime().map(Moment::at)
}

/// What went wrong, unless it is only that somebody else has the lock.
fn told(error: &Error) -> Option<String> {
    (!matches!(error, Error::Busy { .. } | Error::Timeout { .. })).then(|| error.to_string())
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Busy { .. } => "busy",
        Error::Timeout { .. } => "timed out",
        Error::Lost { .. } => "lost",
        Error::Unavailable { .. } => "unavailable",
        Error::Uncertain { .. } => "uncertain",
        Error::Config { .. } => "refused",
        Error::Invalid { .. } | Error::Unsupported { .. } => "invalid",
        _ => "store error",
    }
}
