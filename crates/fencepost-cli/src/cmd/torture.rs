//! `torture`: attacks a store and says what it saw.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use fencepost::{Capabilities, Locks, format_duration};
use fencepost_testkit::history::Moment;
use fencepost_testkit::local::{Kind, Local};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::args::{Global, Torture, TortureWorker};
use crate::exit::{self, Failure, Outcome, system};
use crate::output::{Console, LiveLine};
use crate::signals::{Caught, Incoming};
use crate::torture::{
    self, Aftermath, Collector, Nemesis, Plan, ServerNemesis, Shared, Summary, Verdict, Workers, grouped,
    locked,
};
use crate::{store, waiting};

/// How often a log is told how it goes.
const PLAIN_PROGRESS: u32 = 10;

pub(super) fn run(args: &Torture, global: &Global, console: Console) -> Outcome {
    if let Some(package) = args.local.and_then(|kind| (kind.0.missing)()) {
        return Err(Failure::Usage(format!(
            "a server for `--local` is not installed; install the Debian package `{package}`, or torture \
            another store"
        )));
    }
    let url = if args.local.is_none() { Some(store::url(global)?) } else { None };
    let plan = Plan::new(args, url)?;
    let report = args.report.as_deref().map(open).transpose().map_err(system("creating the report"))?;
    // Before any thread starts.
    let caught = Caught::start(false).map_err(system("catching signals"))?;
    let local = plan.local.map(|kind| start(kind, plan.ttl)).transpose()?;
    let plan = Arc::new(match &local {
        Some(local) => plan.on(local.url().to_owned()),
        None => plan,
    });
    super::runtime()?.block_on(async {
        let signals = caught.listen().map_err(system("catching signals"))?;
        if local.is_some() {
            Locks::init(&plan.url).await?;
        }
        let locks = Locks::connect(&plan.url).await?;
        try_out(&locks, &plan).await?;
        let store = locks.capabilities();
        introduce(&plan, &store, console);
        let shared = Shared::new(&plan);
        let started = Moment::now();
        let attacked = attack(&plan, local, &shared, console, &signals).await;
        let ran = started.plus(plan.lasts).min(Moment::now()).since(started);
        // Whatever went wrong meanwhile: what was found until then is told.
        let (trouble, aftermath) = match attacked {
            Ok(local) => (None, look(&locks, &plan, &shared, local.as_ref(), &signals).await),
            Err(failure) => (Some(failure), Aftermath::broken_off("the run did not come to its end")),
        };
        locks.close().await;
        let mut collector = locked(&shared.collector);
        let (figures, violations) = collector.finish(aftermath.found);
        let figures = (figures, violations.as_slice());
        let summary = Summary::new(&plan, &store, ran, &collector, figures, aftermath.unknown);
        let told = console.result(&summary, || summary.text());
        let written = match report {
            Some(file) => write(file, &torture::page(&summary, &collector, &violations)),
            None => Ok(()),
        };
        conclude(summary.outcome, trouble, [written.map_err(system("writing the report")), told], console)
    })
}

/// Looks at what is left, until it is known or a signal comes.
async fn look(
    locks: &Locks,
    plan: &Plan,
    shared: &Shared,
    local: Option<&Local>,
    signals: &Incoming,
) -> Aftermath {
    let mut aftermath = Aftermath::default();
    let interrupted = tokio::select! {
        () = aftermath.look(locks, plan, shared, local) => false,
        _ = waiting::ending(signals) => true,
    };
    if interrupted {
        aftermath.break_off("interrupted");
    }
    aftermath
}

/// The exit code. A violation is one, whatever else went wrong: also if nobody reads on.
fn conclude(
    outcome: Verdict,
    trouble: Option<Failure>,
    telling: [Result<(), Failure>; 2],
    console: Console,
) -> Outcome {
    let told = telling.into_iter().collect::<Result<Vec<()>, _>>();
    let code = match (outcome, trouble) {
        (Verdict::Violated, trouble) => {
            trouble.iter().for_each(|failure| console.fail(failure));
            exit::VIOLATION
        }
        (_, Some(failure)) => return Err(failure),
        (Verdict::Inconclusive, None) => exit::INCONCLUSIVE,
        (Verdict::Clean, None) => return told.map(|_| 0),
    };
    if let Err(failure) = told {
        console.fail(&failure);
    }
    Ok(code)
}

/// Opens a file for the report, and leaves an older one in it as it is until there is a new one.
fn open(path: &Path) -> std::io::Result<File> {
    File::options().write(true).create(true).truncate(false).open(path)
}

fn write(mut file: File, page: &str) -> std::io::Result<()> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(page.as_bytes())
}

pub(super) fn worker(args: &TortureWorker, global: &Global) -> Outcome {
    torture::worker(args, &store::url(global)?)
}

/// Takes a lock once: what is wrong with the store or the ttl shows here, before clients are many.
async fn try_out(locks: &Locks, plan: &Plan) -> Result<(), Failure> {
    let lock = locks.lock(format!("{}first", plan.prefix)).ttl(plan.ttl).wait(plan.ttl * 4);
    let guard = lock.acquire().await?;
    guard.extend().await?;
    Ok(guard.release().await?)
}

fn introduce(plan: &Plan, store: &Capabilities, console: Console) {
    let faults: Vec<_> = plan.faults.iter().map(|fault| fault.name()).collect();
    let faults = if faults.is_empty() { "none".to_owned() } else { faults.join(", ") };
    console.note(&format!(
        "{} clients on {} locks named `{}…` of {}, for {}; faults: {faults}; Ctrl-C ends it early",
        plan.clients,
        plan.locks,
        plan.prefix,
        store.store,
        format_duration(plan.lasts)
    ));
    plan.notes.iter().for_each(|note| console.note(note));
}

/// Runs clients and breaks them until the time is over or a signal comes. All of them have ended when it
/// returns.
async fn attack(
    plan: &Arc<Plan>,
    local: Option<Local>,
    shared: &Arc<Shared>,
    console: Console,
    signals: &Incoming,
) -> Result<Option<Local>, Failure> {
    let workers = Workers::start(plan.clone(), shared.clone()).map_err(system("starting the clients"))?;
    let nemesis = Nemesis::new(plan.clone(), shared.clone(), workers);
    let breaking_clients = thread::spawn(move || nemesis.run());
    let breaking_servers = plan.local.zip(local).map(|(kind, local)| {
        let nemesis = ServerNemesis::new(plan.clone(), shared.clone(), kind, local);
        thread::spawn(move || nemesis.run())
    });
    tokio::select! {
        _ = waiting::ending(signals) => console.note("ending early"),
        () = watch(plan, shared, console) => {}
    }
    shared.over.store(true, Ordering::SeqCst);
    let broke =
        |_| Failure::System { doing: "breaking the store", error: std::io::Error::other("see above") };
    let workers = breaking_clients.join().map_err(broke)?.map_err(system("replacing a client"))?;
    let local = breaking_servers.map(thread::JoinHandle::join).transpose().map_err(broke)?;
    workers.finish();
    if shared.has_crashed() {
        let error =
            std::io::Error::other("it ended by itself; run with `--clients 1 --faults none` to see why");
        return Err(Failure::System { doing: "running a client", error });
    }
    Ok(local)
}

/// Checks what was heard and tells how it goes, until the time is over or a client has crashed.
async fn watch(plan: &Plan, shared: &Shared, console: Console) {
    let deadline = Moment::now().plus(plan.lasts);
    let mut line = console.has_live_line().then(LiveLine::new);
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = 0;
    while Moment::now() < deadline && !shared.has_crashed() {
        tokio::select! {
            _ = seconds.tick() => {}
            () = sleep(deadline.since(Moment::now())) => break,
        }
        let mut collector = locked(&shared.collector);
        collector.advance();
        told += 1;
        match &mut line {
            Some(line) => line.write(&progress(plan, &collector)),
            None if told % PLAIN_PROGRESS == 0 => console.note(&progress(plan, &collector)),
            None => {}
        }
    }
}

fn progress(plan: &Plan, collector: &Collector) -> String {
    let figures = collector.figures();
    let ran = Moment::now().since(collector.start);
    format!(
        "{:.0} of {:.0} s: {} acquisitions, {} faults, {} locks lost, {} violations",
        ran.as_secs_f64(),
        plan.lasts.as_secs_f64(),
        grouped(figures.acquisitions),
        collector.faults.len(),
        figures.losses.values().sum::<u64>(),
        collector.violations()
    )
}

/// Starts servers. The test kit panics where a test has to end, and says why; here that is an error like any
/// other.
fn start(kind: Kind, ttl: Duration) -> Result<Local, Failure> {
    std::panic::catch_unwind(|| Local::start(kind, ttl)).map_err(|_| Failure::System {
        doing: "starting the servers",
        error: std::io::Error::other("see above"),
    })
}
