//! One file a subcommand. Here: which one it is, and what they share.

mod acquire;
mod bench;
mod check;
mod extend;
mod force_release;
mod generate;
mod init;
mod list;
mod man;
mod release;
mod run;
mod show;
#[cfg(feature = "torture")]
mod torture;

use fencepost::{LockSet, Locks, Name, Wait};
use tokio::runtime::{Builder, Runtime};

use crate::args::{Cli, Command, Global, LockOptions, Target};
use crate::exit::{Failure, Outcome, system};
use crate::output::Console;
use crate::{log, store};

/// Runs the subcommand.
pub(crate) fn dispatch(cli: Cli, console: Console) -> Outcome {
    let Cli { global, command } = cli;
    log::start(&global);
    match command {
        Command::Run(args) => run::run(args, &global, console),
        Command::Acquire(args) => acquire::run(&args, &global, console),
        Command::Extend(args) => with_store(&global, async |locks| extend::run(&args, locks, console).await),
        Command::Release(args) => {
            with_store(&global, async |locks| release::run(&args, locks, console).await)
        }
        Command::List(args) => with_store(&global, async |locks| list::run(&args, locks, console).await),
        Command::Show(args) => with_store(&global, async |locks| show::run(&args, locks, console).await),
        Command::ForceRelease(args) => {
            with_store(&global, async |locks| force_release::run(&args, locks, console).await)
        }
        Command::Check(args) => with_store(&global, async |locks| check::run(&args, locks, console).await),
        Command::Init(args) => init::run(&args, &global, console),
        #[cfg(feature = "torture")]
        Command::Torture(args) => torture::run(&args, &global, console),
        #[cfg(feature = "torture")]
        Command::TortureWorker(args) => torture::worker(&args, &global),
        #[cfg(feature = "torture")]
        Command::TortureCommand(args) => crate::torture::inside(&args),
        Command::Bench(args) => bench::run(&args, &global, console),
        Command::BenchWorker => bench::worker(&global),
        Command::Generate(what) => generate::run(what),
    }
}

/// Connects, does the work, and lets what still runs in the background come to its end.
fn with_store(global: &Global, work: impl AsyncFnOnce(&Locks) -> Outcome) -> Outcome {
    let url = store::url(global)?;
    runtime()?.block_on(async {
        let locks = Locks::connect(&url).await?;
        let outcome = work(&locks).await;
        locks.close().await;
        outcome
    })
}

pub(crate) fn runtime() -> Result<Runtime, Failure> {
    Builder::new_current_thread().enable_all().build().map_err(system("starting the runtime"))
}

impl Target {
    /// The name of the lock.
    fn name(&self, locks: &Locks) -> Result<Name, Failure> {
        self.name_of(&self.name, locks)
    }

    /// The name of a lock that is named in the same way.
    fn name_of(&self, given: &Name, locks: &Locks) -> Result<Name, Failure> {
        if !self.pg_key {
            return Ok(given.clone());
        }
        if !locks.capabilities().store.starts_with("postgres") {
            return Err(Failure::Usage(
                "--pg-key names an advisory lock of PostgreSQL, and this is another store".to_owned(),
            ));
        }
        let key: fencepost::postgres::Key = given.as_str().parse()?;
        Ok(Name::new(&key.to_string())?)
    }
}

impl LockOptions {
    /// How long to wait.
    fn wait(&self) -> Wait {
        if self.try_once { Wait::No } else { self.wait }
    }

    /// The locks that these options describe.
    fn all(&self, locks: &Locks, names: &[Name]) -> LockSet {
        let mut set = locks.all(names.iter().map(Name::as_str)).wait(self.wait());
        if let Some(ttl) = self.ttl {
            set = set.ttl(ttl);
        }
        if let Some(note) = &self.note {
            set = set.note(note.as_str());
        }
        set
    }
}
