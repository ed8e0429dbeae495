//! The processes of one peer, and what they answer in time.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fencepost_measure::{Contest, Crowd, Worker, contend_in_processes};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::{Cycles, Peer};
use crate::contention::CONTENDERS;
use crate::results::clear;

/// How long the processes of a peer may take to be there: interpreters that start side by side on few cores
/// need their time.
const START: Duration = Duration::from_secs(30);

/// How much longer than told a peer may take: those that poll come back late.
pub(super) const LATE: Duration = Duration::from_secs(10);

/// The names that are contended for; each peer has its own of each kind.
pub(super) const NAMES: [&str; 3] = ["apart", "together", "wake"];

/// How long a contest lasts.
const SPAN: Duration = Duration::from_secs(1);
/// The same for waking: those that poll get one hand-over in a tenth of a second.
const WAKING: Duration = Duration::from_secs(2);
/// The longest hold there, longer than what peers wait before they ask again.
const HOLD: Duration = Duration::from_millis(200);

/// The raw limits of a store.
pub(super) struct Raw {
    pub(super) what: &'static str,
    pub(super) cycles: Cycles,
    /// Contends for a token, where there is a limit to hand-overs.
    pub(super) token: Option<Box<dyn Fn() -> Command>>,
}

/// What a peer was asked and answered.
pub(super) type Asked<T> = Result<T, String>;

pub(super) struct Team<'a> {
    pub(super) name: &'static str,
    peer: &'a Peer,
    count: usize,
    /// Empty once one of them has failed; then the rest is of no use.
    workers: Vec<Worker>,
    /// What went wrong last.
    pub(super) failure: Option<String>,
    errors: File,
    /// A peer that was ready and then failed is started once more: what else is measured may still work.
    may_start_again: bool,
}

impl<'a> Team<'a> {
    /// Starts so many processes; they are not ready yet.
    pub(super) fn start(runtime: &Runtime, peer: &'a Peer, count: usize) -> Self {
        let errors = tempfile::tempfile().expect("a temporary file");
        let workers = Vec::new();
        let mut team =
            Self { name: peer.name, peer, count, workers, failure: None, errors, may_start_again: false };
        team.spawn(runtime);
        team
    }

    fn spawn(&mut self, runtime: &Runtime) {
        let start = || -> io::Result<Worker> {
            let mut command = (self.peer.start)();
            command.stderr(self.errors.try_clone()?);
            Worker::start(command)
        };
        let _inside = runtime.enter();
        match (0..self.count).map(|_| start()).collect() {
            Ok(workers) => self.workers = workers,
            Err(error) => drop(self.fail::<()>(&error.to_string())),
        }
    }

    pub(super) fn ready(&mut self, runtime: &Runtime) {
        if self.workers.is_empty() {
            return;
        }
        let ready = async {
            for worker in &mut self.workers {
                worker.ready().await?;
            }
            Ok(())
        };
        let ready = runtime.block_on(async { timeout(START, ready).await });
        self.may_start_again = self.settle(ready, START).is_ok();
    }

    /// One process goes through cycles.
    pub(super) fn cycle(&mut self, runtime: &Runtime, tasks: usize, lasts: Duration) -> Asked<Value> {
        self.ask(runtime, &format!("cycle {tasks} {}", lasts.as_secs_f64()), lasts + LATE)
    }

    pub(super) fn ask(&mut self, runtime: &Runtime, command: &str, patience: Duration) -> Asked<Value> {
        self.is_well(runtime)?;
        let worker = &mut self.workers[0];
        let asked = async {
            worker.tell(command).await?;
            worker.answer().await
        };
        let answer = runtime.block_on(async { timeout(patience, asked).await });
        self.settle(answer, patience)
    }

    /// Waits for one more answer.
    pub(super) fn answer(&mut self, runtime: &Runtime, patience: Duration) -> Asked<Value> {
        self.is_well(runtime)?;
        let answer = runtime.block_on(async { timeout(patience, self.workers[0].answer()).await });
        self.settle(answer, patience)
    }

    /// Eight processes with a contender each.
    pub(super) fn apart(&mut self, runtime: &Runtime) -> Asked<Crowd> {
        self.contend(runtime, CONTENDERS, &self.contest(NAMES[0], 1))
    }

    /// One process with eight.
    pub(super) fn together(&mut self, runtime: &Runtime) -> Asked<Crowd> {
        self.contend(runtime, 1, &self.contest(NAMES[1], CONTENDERS))
    }

    /// Two processes, one of which always waits.
    pub(super) fn wake(&mut self, runtime: &Runtime, turns: &Path) -> Asked<Crowd> {
        let contest = self.contest(NAMES[2], 1);
        let polite = Some(turns.to_owned());
        self.contend(runtime, 2, &Contest { hold: HOLD, lasts: WAKING, polite, ..contest })
    }

    fn contest(&self, kind: &str, contenders: usize) -> Contest {
        // One word: names are part of a command.
        let name = format!("{}:{kind}", self.name.replace([' ', ','], "-"));
        Contest { name, contenders, hold: Duration::ZERO, lasts: SPAN, polite: None }
    }

    fn contend(&mut self, runtime: &Runtime, processes: usize, contest: &Contest) -> Asked<Crowd> {
        self.is_well(runtime)?;
        let patience = contest.lasts + LATE;
        let contended = contend_in_processes(&mut self.workers[..processes], contest);
        let crowd = runtime.block_on(async { timeout(patience, contended).await });
        self.settle(crowd, patience)
    }

    fn is_well(&mut self, runtime: &Runtime) -> Asked<()> {
        if self.workers.is_empty() && self.may_start_again {
            self.spawn(runtime);
            self.ready(runtime);
            self.may_start_again = false;
        }
        match &self.failure {
            Some(failure) if self.workers.is_empty() => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    fn settle<T>(
        &mut self,
        answer: Result<io::Result<T>, tokio::time::error::Elapsed>,
        patience: Duration,
    ) -> Asked<T> {
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => self.fail(&error.to_string()),
            Err(_) => self.fail(&format!("no answer within {patience:?}")),
        }
    }

    /// Ends its processes, all of them: what is left of a contest would disturb whoever comes next.
    fn fail<T>(&mut self, why: &str) -> Asked<T> {
        self.workers.clear();
        let mut said = String::new();
        let _ = self.errors.rewind().and_then(|()| self.errors.read_to_string(&mut said));
        let last =
            said.lines().rev().find(|line| !line.trim().is_empty()).map(|line| format!(" ({})", line.trim()));
        let failure = format!("{why}{}", last.unwrap_or_default());
        clear();
        println!("{}: {failure}", self.name);
        self.failure = Some(failure.clone());
        Err(failure)
    }
}
