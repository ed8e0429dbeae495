//! The command line of `torture`, as typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fencepost::parse_duration;

/// The stores that a torture can start.
fn local_stores() -> String {
    let names: Vec<_> = fencepost_testkit::local::STORES.iter().map(|kind| kind.0.name).collect();
    format!("Start servers for the run, and break them, too: {}", names.join(", "))
}

/// Attack a store with many clients, break them, and check what they saw
///
/// Starts clients, each a process of its own, that take locks, hold them for a while, and read and write
/// registers under them. Every fourth client runs a command by `fencepost run` instead, with all kinds of
/// options, and stops and kills that. Meanwhile clients are paused (past the end of their leases, too) and
/// killed, and their connections are cut. From what they say it is checked that no two held a lock at once by
/// what their guards said, that tokens are unique and in order, that registers which refuse a smaller token
/// lose no update, and that nothing is left behind.
///
/// All names start with `torture:` and a number of the run: other locks are not touched. Servers are only
/// broken if they were started for the run, by --local. Breaks of exclusion that SAFETY.md allows for such a
/// server are told apart from violations.
///
/// Ctrl-C ends it early, with what was seen until then. Exit code 1 if anything was violated; 2 if not, but
/// too little happened to say anything: no hand-over, a client that never got a lock, faults without effect,
/// or a store that cannot be asked what is left.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fencepost torture --store redis://db --minutes 5 --report report.html
  fencepost torture --local redlock5 --minutes 2 --report report.html
  fencepost torture --store etcd://a,b,c --faults pause,kill --json")]
pub(crate) struct Torture {
    // Documented by the test kit.
    #[arg(long, value_name = "STORE", conflicts_with_all = ["store", "store_file"], help = local_stores())]
    pub(crate) local: Option<fencepost_testkit::local::Kind>,

    /// How long
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = parse_minutes)]
    pub(crate) minutes: f64,

    /// How many clients, on half as many locks
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) clients: u32,

    /// What to break, with commas: none, pause, kill, cut (connections), and with --local server-pause,
    /// server-kill, server-empty (loses its data), and of a cluster server-failover (to a replica) and
    /// server-reshard (keys move) [default: all that the store allows]
    #[arg(long, value_name = "LIST")]
    pub(crate) faults: Option<String>,

    /// How long a lock lives without renewal [default: 2s, or more where the store grants no shorter one]
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,

    /// Write a report with pictures to this file, as one HTML page
    #[arg(long, value_name = "PATH")]
    pub(crate) report: Option<PathBuf>,
}

/// One client of a run
#[derive(Debug, Args)]
pub(crate) struct TortureWorker {
    #[arg(long)]
    pub(crate) prefix: String,
    #[arg(long)]
    pub(crate) client: u32,
    #[arg(long)]
    pub(crate) locks: usize,
    #[arg(long, value_parser = parse_duration)]
    pub(crate) ttl: Duration,
    /// How long it waits for the lock that it waits for longest
    #[arg(long, value_parser = parse_duration)]
    pub(crate) patience: Duration,
    #[arg(long)]
    pub(crate) seed: u64,
    /// Whether it may break the commands that it runs
    #[arg(long)]
    pub(crate) rough: bool,
}

/// The command that a client of a run has under a lock
#[derive(Debug, Args)]
pub(crate) struct TortureCommand {
    #[arg(long, value_parser = parse_duration)]
    pub(crate) lasts: Duration,
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if (0.01..=100_000.0).contains(&minutes) => Ok(minutes),
        _ => Err("a number of minutes, such as `2` or `0.5`".to_owned()),
    }
}
