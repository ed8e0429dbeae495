//! One worker as its parent sees it: a process, its pipes, its links, and the thread that listens to it.

use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fencepost_testkit::history::{Event, Moment, Register, What};
use fencepost_testkit::{Proxy, process_state};
use rustix::process::{Pid, Signal, kill_process};

use super::wire::{Answer, Said, send};
use super::workers::{Shared, locked};
use super::{Collector, Fault, Plan};

/// An ambush that stops its victim; any other number but zero makes it work on.
const STOP: u64 = u64::MAX;
/// How long a signal may take to have its effect.
const EFFECT: Duration = Duration::from_secs(1);

/// A running worker.
pub(super) struct WorkerProcess {
    child: Child,
    listener: Option<JoinHandle<()>>,
    state: Arc<State>,
    /// Its own links to the servers, if links can be cut.
    pub(super) proxies: Vec<Proxy>,
}

/// What the listener and the nemesis both use.
struct State {
    pid: Pid,
    input: Mutex<ChildStdin>,
    /// What shall happen to the worker as soon as it holds a lock and is about to use it: nothing, a stop, or
    /// work for so many milliseconds.
    ambush: AtomicU64,
    /// Its end is ours.
    ending: AtomicBool,
}

impl WorkerProcess {
    /// Starts a worker.
    pub(super) fn start(client: u32, seed: u64, plan: &Plan, shared: &Arc<Shared>) -> io::Result<Self> {
        let proxies = plan.route.as_ref().map(|route| route.proxies()).unwrap_or_default();
        let url = plan.route.as_ref().map_or_else(|| plan.url.clone(), |route| route.through(&proxies));
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--quiet", "torture-worker", "--prefix", &plan.prefix])
            .args(["--client", &client.to_string(), "--locks", &plan.locks.to_string()])
            .args(["--ttl", &format!("{}ms", plan.ttl.as_millis()), "--seed", &seed.to_string()])
            .args(["--patience", &format!("{}ms", plan.patience.as_millis())])
            .args(["--rough"].iter().filter(|_| plan.deals(Fault::Pause) || plan.deals(Fault::Kill)))
            // Not an argument: it may hold a password.
            .env("FENCEPOST_STORE", url)
            // Ctrl-C is for the parent; and the kernel wakes a stopped worker of a group that has lost its
            // parent.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let input = Mutex::new(child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let state = Arc::new(State { pid, input, ambush: AtomicU64::new(0), ending: AtomicBool::new(false) });
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let (listening, shared) = (state.clone(), shared.clone());
        let listener = std::thread::spawn(move || listening.listen(client, output, &shared));
        Ok(Self { child, listener: Some(listener), state, proxies })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it. Returns whether it was seen to stand still.
    pub(super) fn stop(&self) -> bool {
        let _ = kill_process(self.state.pid, Signal::STOP);
        let deadline = Moment::now().plus(EFFECT);
        while process_state(self.pid()) != Some('T') {
            if Moment::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    pub(super) fn go_on(&self) {
        let _ = kill_process(self.state.pid, Signal::CONT);
    }

    /// Has the worker stopped the next time that it is about to use a lock that it holds.
    pub(super) fn ambush(&self) {
        self.state.ambush.store(STOP, Ordering::SeqCst);
    }

    /// Has the worker work on for so long the next time that it is about to use a lock that it holds.
    pub(super) fn detain(&self, lasts: Duration) {
        let millis = u64::try_from(lasts.as_millis()).unwrap_or(STOP - 1).max(1);
        self.state.ambush.store(millis, Ordering::SeqCst);
    }

    /// Whether it was, or is about to be, caught that way.
    pub(super) fn was_caught(&self) -> bool {
        self.state.ambush.load(Ordering::SeqCst) == 0
    }

    /// Calls the ambush off; `false` if it had not happened.
    pub(super) fn call_off(&self) -> bool {
        self.state.ambush.swap(0, Ordering::SeqCst) == 0
    }

    /// How often anything on its links was held up or cut so far.
    pub(super) fn harm(&self) -> u64 {
        self.proxies.iter().map(Proxy::harm).sum()
    }

    /// Tells it to end in good order.
    pub(super) fn tell_to_end(&self) {
        self.state.ending.store(true, Ordering::SeqCst);
        self.state.answer(Answer::Stop);
    }

    pub(super) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Kills it, and returns when all that it said has been heard: whether it was that which ended it.
    pub(super) fn kill(&mut self) -> bool {
        self.state.ending.store(true, Ordering::SeqCst);
        let _ = self.child.kill();
        let ended = self.child.wait();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        ended.is_ok_and(|status| status.signal() == Some(Signal::KILL.as_raw()))
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

impl State {
    fn listen(&self, client: u32, output: ChildStdout, shared: &Shared) {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(Said::Event(event)) => shared.note(event),
                Ok(Said::Read { lock, token }) => self.read(client, lock, token, shared),
                Ok(Said::Write { lock, token, guarded, unguarded }) => {
                    self.write(client, lock, token, guarded, unguarded, shared);
                }
                // A worker that was killed in the middle of a line.
                Err(_) => break,
            }
        }
        if !self.ending.load(Ordering::SeqCst) {
            shared.worker_crashed.store(true, Ordering::SeqCst);
        }
    }

    fn read(&self, client: u32, lock: usize, token: u64, shared: &Shared) {
        let ambush = self.ambush.swap(0, Ordering::SeqCst);
        if ambush == STOP {
            let _ = kill_process(self.pid, Signal::STOP);
        }
        let linger = if ambush == STOP { 0 } else { ambush };
        let (guarded, unguarded) = {
            let mut registers = locked(&shared.registers);
            let (guarded, unguarded) = registers.read(lock, token);
            let at = Moment::now();
            // Under the same lock, so that the history has the registers' own order.
            let mut collector = locked(&shared.collector);
            note(&mut collector, at, client, What::Read { register: Register::Guarded, value: guarded });
            note(
                &mut collector,
                at,
                client,
                What::Read { register: Register::Unguarded, value: Some(unguarded) },
            );
            (guarded, unguarded)
        };
        self.answer(Answer::Read { guarded, unguarded, linger });
    }

    fn write(
        &self,
        client: u32,
        lock: usize,
        token: u64,
        guarded: Option<u64>,
        unguarded: u64,
        shared: &Shared,
    ) {
        let accepted = {
            let mut registers = locked(&shared.registers);
            let accepted = registers.write(lock, token, guarded, unguarded);
            let at = Moment::now();
            let mut collector = locked(&shared.collector);
            if let Some(based_on) = guarded {
                note(
                    &mut collector,
                    at,
                    client,
                    What::Write { register: Register::Guarded, based_on, accepted },
                );
            }
            let what = What::Write { register: Register::Unguarded, based_on: unguarded, accepted: true };
            note(&mut collector, at, client, what);
            accepted
        };
        self.answer(Answer::Wrote { accepted });
    }

    fn answer(&self, answer: Answer) {
        // One that was killed does not listen any more.
        let _ = send(&mut *locked(&self.input), &answer);
    }
}

fn note(collector: &mut Collector, at: Moment, client: u32, what: What) {
    collector.push(Event { at, client, what });
}
