//! Acquire and release without contention, by one task and by many.

use std::path::Path;
use std::time::Instant;

use fencepost::{Lock, Locks};
use fencepost_testkit::redis::Server;
use tokio::runtime::{Builder, Runtime};

use crate::raw::{self, Bare, Scripts};
use crate::results::progress;
use crate::rounds::{SLICE, Slice, report_rates, report_times, slice};

pub(crate) const TASKS: usize = 64;

/// What acquires and releases one name, again and again.
pub(crate) trait Cycle: Send + 'static {
    fn run(&self) -> impl Future<Output = ()> + Send;
}

impl Cycle for Lock {
    async fn run(&self) {
        self.acquire().await.expect("the lock").release().await.expect("a release");
    }
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A name of its own for each of many tasks.
pub(crate) fn names(locks: &Locks, tasks: usize) -> Vec<Lock> {
    (0..tasks).map(|index| locks.lock(format!("bench:{index}"))).collect()
}

/// Each of several tasks goes through cycles of its own.
pub(crate) fn by_tasks<C: Cycle>(runtime: &Runtime, cycles: Vec<C>) -> Slice {
    let started = Instant::now();
    let mut all = Slice::default();
    runtime.block_on(async {
        let run = |cycle: C| async move {
            let mut times = Vec::new();
            while started.elapsed() < SLICE {
                let before = Instant::now();
                cycle.run().await;
                times.push(before.elapsed());
                // A store that never waits must not keep the others from their turn.
                tokio::task::yield_now().await;
            }
            times
        };
        let running: Vec<_> = cycles.into_iter().map(|cycle| tokio::spawn(run(cycle))).collect();
        for task in running {
            all.times.extend(task.await.expect("a task"));
        }
    });
    all.took = started.elapsed();
    all
}

pub(crate) fn one_by_one(runtime: &Runtime, cycle: &impl Cycle) -> Slice {
    runtime.block_on(async {
        let mut out = Slice::default();
        let started = Instant::now();
        while started.elapsed() < SLICE {
            let before = Instant::now();
            cycle.run().await;
            out.times.push(before.elapsed());
        }
        out.took = started.elapsed();
        out
    })
}

pub(crate) fn bare(runtime: &Runtime, socket: &mut Bare, scripts: &Scripts, tasks: usize) -> Slice {
    let names: Vec<String> = (0..tasks).map(|index| format!("raw:{index}")).collect();
    let (acquires, releases) = scripts.commands(&names);
    runtime.block_on(async {
        let mut out = Slice::default();
        let started = Instant::now();
        while started.elapsed() < SLICE {
            let before = Instant::now();
            socket.exchange(&acquires, tasks * scripts.granted_lines()).await;
            socket.exchange(&releases, tasks).await;
            out.times.extend(std::iter::repeat_n(before.elapsed(), tasks));
        }
        out.took = started.elapsed();
        out
    })
}

/// Our script for as many tasks in two calls: the server works on one half while the other half gets its
/// replies. More than one step of each task cannot be under way.
pub(crate) fn halves(runtime: &Runtime, socket: &mut Bare, scripts: &Scripts, tasks: usize) -> Slice {
    let names: Vec<String> = (0..tasks).map(|index| format!("raw:{index}")).collect();
    let halves: Vec<_> =
        names.chunks(tasks.div_ceil(2)).map(|half| (scripts.calls(half), half.len())).collect();
    runtime.block_on(async {
        let mut out = Slice::default();
        let started = Instant::now();
        for ([(acquires, _), _], _) in &halves {
            socket.send(acquires).await;
        }
        while started.elapsed() < SLICE {
            let before = Instant::now();
            for ([(_, granted), (releases, _)], _) in &halves {
                socket.hear(*granted).await;
                socket.send(releases).await;
            }
            for ([(acquires, _), (_, released)], count) in &halves {
                socket.hear(*released).await;
                socket.send(acquires).await;
                out.times.extend(std::iter::repeat_n(before.elapsed(), *count));
            }
        }
        for ([(_, granted), (releases, _)], _) in &halves {
            socket.hear(*granted).await;
            socket.send(releases).await;
        }
        out.took = started.elapsed();
        for ([_, (_, released)], _) in &halves {
            socket.hear(*released).await;
        }
        out
    })
}

/// Runs `cycle` again and again, with what is measured and with its raw limit in turns, one at a time. It
/// takes several times as long if the system has put client and server on two idle processors instead of one
/// busy one, or while the disk is slow: both have the same luck.
pub(crate) fn in_turns(runtime: &Runtime, mut cycle: impl AsyncFnMut(bool)) -> (Slice, Slice) {
    runtime.block_on(async {
        let (mut ours, mut raw) = (Slice::default(), Slice::default());
        while ours.took + raw.took < 2 * SLICE {
            for (with, slice) in [(true, &mut ours), (false, &mut raw)] {
                let before = Instant::now();
                cycle(with).await;
                slice.add(before.elapsed());
            }
        }
        (ours, raw)
    })
}

/// One lock and bare scripts on a socket.
fn beside(runtime: &Runtime, lock: &Lock, socket: &mut Bare, scripts: &Scripts) -> (Slice, Slice) {
    let (acquire, release) = scripts.commands(&["raw:one".to_owned()]);
    in_turns(runtime, async |ours| {
        if ours {
            lock.run().await;
        } else {
            socket.exchange(&acquire, scripts.granted_lines()).await;
            socket.exchange(&release, 1).await;
        }
    })
}

pub(crate) fn redis(server: &Server, rounds: usize) {
    let runtime = runtime();
    let locks = runtime.block_on(Locks::connect(&server.url())).expect("a store");
    let lock = locks.lock("bench:one");
    let mut socket = runtime.block_on(Bare::connect(server.addr()));
    let (ours, trivial) = (Scripts::ours(server.addr()), Scripts::trivial(server.addr()));
    let (mut one, mut one_trivial) = (vec![], vec![]);
    progress("redis, one task");
    for _ in 0..rounds {
        one.push(beside(&runtime, &lock, &mut socket, &ours));
        one_trivial.push(beside(&runtime, &lock, &mut socket, &trivial));
    }
    report_times("redis, one task: cycle / our scripts bare", None, &one);
    report_times("redis, one task: cycle / trivial scripts bare", Some(1.3), &one_trivial);
    for tasks in [16, TASKS, 256] {
        progress(&format!("redis, {tasks} tasks"));
        let (mut many, mut many_trivial, mut in_halves) = (vec![], vec![], vec![]);
        for _ in 0..rounds {
            let cycles = || by_tasks(&runtime, names(&locks, tasks));
            many.push((cycles(), bare(&runtime, &mut socket, &ours, tasks)));
            many_trivial.push((cycles(), bare(&runtime, &mut socket, &trivial, tasks)));
            in_halves.push((cycles(), halves(&runtime, &mut socket, &ours, tasks)));
        }
        let goal = (tasks == TASKS).then_some(0.7);
        report_rates(&format!("redis, {tasks} tasks: rate / our scripts pipelined"), None, &many);
        report_rates(&format!("redis, {tasks} tasks: rate / our script in two calls"), None, &in_halves);
        report_rates(&format!("redis, {tasks} tasks: rate / trivial pipelined"), goal, &many_trivial);
    }
}

pub(crate) fn file(folder: &Path, rounds: usize) {
    let runtime = runtime();
    let url = format!("file://{}", folder.join("locks").display());
    let locks = runtime.block_on(Locks::connect(&url)).expect("a store");
    let lock = locks.lock("bench:one");
    let path = folder.join("raw.lock");
    let (mut one, mut many) = (vec![], vec![]);
    progress("file, cycles");
    for _ in 0..rounds {
        one.push((one_by_one(&runtime, &lock), slice(|| raw::file_cycle(&path))));
        many.push((by_tasks(&runtime, names(&locks, TASKS)), slice(|| raw::file_cycle(&path))));
    }
    report_times("file, one task: cycle / bare system calls", Some(4.0), &one);
    report_rates("file, 64 tasks: rate / bare system calls", None, &many);
}
