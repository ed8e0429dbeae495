//! The command line as typed: flags, their help and their first check. What they mean is decided in `cmd`.

#[cfg(feature = "torture")]
mod torture;

use std::ffi::OsString;
use std::io::{BufRead as _, Read as _};
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use fencepost::{FencingToken, Handle, Name, Wait, parse_duration};

#[cfg(feature = "torture")]
pub(crate) use self::torture::{Torture, TortureCommand, TortureWorker};
use crate::completion;
use crate::exit::{self, Failure, system};
use crate::version;

/// Distributed locks for shells and scripts: one holder at a time, a fencing token each time.
#[derive(Debug, Parser)]
#[command(name = "fencepost", version, long_version = version::long())]
#[command(max_term_width = 100, after_help = exit::HELP)]
#[command(after_long_help = format!("\
Examples:
  fencepost run nightly ./backup.sh                one backup at a time
  fencepost run --try --ttl 1m nightly ./job       or none if it is busy
  FENCEPOST_STORE=redis://db fencepost list        who holds what on Redis

{}", exit::HELP))]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The line in a subcommand's help for the options that all of them have.
const GLOBAL: &str =
    "Global options, see `fencepost --help`: --store, --store-file, --json, --verbose, --quiet";

/// The command line. The help of a subcommand names the global options and does not repeat them.
pub(crate) fn command() -> clap::Command {
    let mut command = Cli::command();
    // Gives the global options to the subcommands.
    command.build();
    command.mut_subcommands(|subcommand| {
        let hidden = subcommand.mut_args(|arg| {
            let is_global = arg.is_global_set();
            arg.hide(is_global)
        });
        let after = hidden.get_after_help().map(|after| format!("{after}\n\n")).unwrap_or_default();
        hidden.after_help(format!("{after}{GLOBAL}"))
    })
}

/// Where a URL comes from if none is given.
const STORE: &str = "\
Without it the URL is taken from the environment variable FENCEPOST_STORE, and without that it is `file:` \
(files \
in your state directory; excludes your own processes on this machine). Other users can read the arguments of \
a process: \
give a URL with a password in FENCEPOST_STORE or by --store-file.";

/// The URLs of all stores that processes can share.
fn stores() -> String {
    let urls = fencepost::stores().into_iter().flat_map(|store| store.urls);
    let urls: Vec<_> = urls.filter(|url| **url != "memory:").map(|url| format!("`{url}`")).collect();
    format!("Where the locks live: {}", urls.join(", "))
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    // Documented by the registry.
    #[arg(long, global = true, value_name = "URL", conflicts_with = "store_file")]
    #[arg(help = stores(), long_help = format!("{}\n\n{STORE}", stores()))]
    pub(crate) store: Option<String>,

    /// Read the store's URL from the first line of a file, which keeps its password out of the process list
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) store_file: Option<PathBuf>,

    /// Print JSON: one value on stdout; errors and warnings on stderr, an object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Log what happens to stderr; twice for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,

    /// Say nothing but errors: no warnings, nothing about waiting
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Acquire(Acquire),
    Extend(Extend),
    Release(Release),
    List(List),
    Show(Show),
    ForceRelease(ForceRelease),
    Check(Check),
    Init(Init),
    Bench(Bench),
    /// One of several processes of a bench
    #[command(hide = true)]
    BenchWorker,
    #[cfg(feature = "torture")]
    Torture(Torture),
    #[cfg(feature = "torture")]
    #[command(hide = true)]
    TortureWorker(TortureWorker),
    #[cfg(feature = "torture")]
    #[command(hide = true)]
    TortureCommand(TortureCommand),
    #[command(hide = true, subcommand)]
    Generate(Generate),
}

/// Run a command while holding a lock
///
/// Acquires the lock, runs the command in a process group of its own with stdin and the terminal passed
/// through, renews the lock, and releases it when the command has ended. INT, TERM, HUP and QUIT are
/// forwarded. The command sees FENCEPOST_NAME, FENCEPOST_TOKEN and FENCEPOST_OWNER: pass the token with every
/// write to what the lock protects. FENCEPOST_TOKENS has the tokens of all locks by their names, as JSON.
///
/// A command that asks for a lock that it runs under, itself or by a program that it starts, is told so at
/// once (75) instead of waiting for itself.
///
/// If the lock is lost, or this process is killed or stalls, a guardian process ends the command's process
/// group: TERM, then KILL after the grace. Where locks are leases (Redis) it does so before the lease can
/// end: TERM at the shorter of the grace and a quarter of the ttl before the end, KILL shortly before the
/// end. A command that is stopped (Ctrl-Z) goes on after `fg` only if the lock is still held.
///
/// What leaves the process group (`setsid`, daemons) escapes the guardian. When the command itself has ended,
/// processes that it left in the background go on, without the lock.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  fencepost run nightly ./backup.sh
  fencepost run --try --note \"$USER deploys\" deploy make deploy
  fencepost run report -- sh -c 'echo writing with token $FENCEPOST_TOKEN'
  fencepost run account:1 --also account:2 ./transfer.sh

{}", exit::HELP))]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) target: Target,

    /// Hold this lock as well; can be given several times
    ///
    /// All are had before the command starts, in the order of their names, so two `run`s never wait for each
    /// other.
    #[arg(long, value_name = "NAME", value_parser = Name::new, allow_hyphen_values = true)]
    #[arg(add = ArgValueCandidates::new(completion::names))]
    pub(crate) also: Vec<Name>,

    #[command(flatten)]
    pub(crate) lock: LockOptions,

    /// Time between TERM and KILL when the command has to end
    #[arg(long, value_name = "DUR", default_value = "5s", value_parser = parse_duration)]
    pub(crate) grace: Duration,

    /// End the command when it has held the lock for this long: TERM then, KILL after the grace
    ///
    /// The lock is renewed until the command is gone.
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) max_hold: Option<Duration>,

    /// Exit code for a lock that is busy or not free in time, for commands that use 75 themselves
    #[arg(long, value_name = "N", default_value_t = exit::BUSY)]
    pub(crate) busy_code: u8,

    /// The command and its arguments. A `--` in front of it is needed only if it starts with `-`
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

/// Acquire a lock and print a handle to it
///
/// The lock outlives this process and is NOT renewed: it ends after the ttl unless `extend` or `release` is
/// called with the handle. Whoever has the handle can do so: treat it like a key. Prefer `run` where you can.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  handle=$(fencepost acquire --ttl 10m deploy) || exit
  …
  fencepost release \"$handle\"")]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) target: Target,

    #[command(flatten)]
    pub(crate) lock: LockOptions,
}

/// Which lock.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The lock
    #[arg(value_name = "NAME", value_parser = Name::new, allow_negative_numbers = true)]
    #[arg(add = ArgValueCandidates::new(completion::names))]
    pub(crate) name: Name,

    /// NAME is a key of PostgreSQL's advisory locks, `12345` or `1,42`: excludes code that calls
    /// pg_advisory_lock with it
    #[arg(long)]
    pub(crate) pg_key: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LockOptions {
    /// How long the lock lives without renewal [default: the store's `ttl` parameter, else 30s]
    ///
    /// Shorter: a crashed holder is replaced sooner. Longer: the lock outlives longer outages of the store.
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,

    /// How long to wait while somebody else has the lock: `forever` or a duration
    #[arg(long, value_name = "DUR", default_value = "forever", value_parser = parse_wait)]
    pub(crate) wait: Wait,

    /// Do not wait: if the lock is busy say who has it and exit
    #[arg(long = "try", conflicts_with = "wait")]
    pub(crate) try_once: bool,

    /// Text that others see while the lock is held; no secrets
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

/// A handle as it was given. It is a key, so an error of ours never quotes it, as those of arguments do.
#[derive(Clone)]
pub(crate) struct HandleArgument(String);

/// Bytes of stdin that are read for one; the longest has a third of that.
const MOST_OF_HANDLE: u64 = 8192;

impl HandleArgument {
    /// Parses it, or the first line of stdin if it is `-`.
    pub(crate) fn read(&self) -> Result<Handle, Failure> {
        let mut line = String::new();
        let text = match self.0.as_str() {
            "-" => {
                io::stdin()
                    .lock()
                    .take(MOST_OF_HANDLE)
                    .read_line(&mut line)
                    .map_err(system("reading stdin"))?;
                line.trim_end()
            }
            text => text,
        };
        Ok(text.parse::<Handle>()?)
    }
}

impl From<String> for HandleArgument {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for HandleArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a handle")
    }
}

/// Make a lock from `acquire` end one ttl from now
///
/// It never makes a lock end sooner.
#[derive(Debug, Args)]
pub(crate) struct Extend {
    /// What `acquire` printed, or `-` to read it from stdin: other users can read the arguments of a process
    pub(crate) handle: HandleArgument,

    /// How long from now [default: the ttl that it was acquired with]
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
}

/// Give back a lock from `acquire`
#[derive(Debug, Args)]
pub(crate) struct Release {
    /// What `acquire` printed, or `-` to read it from stdin: other users can read the arguments of a process
    pub(crate) handle: HandleArgument,
}

/// List the locks that are held, with their holders
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    #[arg(add = ArgValueCandidates::new(completion::names))]
    pub(crate) prefix: String,

    /// By name, by age (longest held first) or by what is left of the lease (shortest first)
    #[arg(long, value_enum, default_value_t = Sort::Name)]
    pub(crate) sort: Sort,

    /// Print only how many there are
    #[arg(long)]
    pub(crate) count: bool,

    /// Print the list anew every so often until Ctrl-C: on a terminal in place, else only what has changed
    #[arg(long, value_name = "DUR", num_args = 0..=1, default_missing_value = "1s", require_equals = true)]
    #[arg(value_parser = parse_duration)]
    pub(crate) watch: Option<Duration>,
}

/// An order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    Name,
    Age,
    Left,
}

/// Show who holds a lock, and who waits for it
///
/// Exits with 0 if it is held and with 1 if it is free.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) target: Target,
}

/// Take a lock away from its holder
///
/// The holder's renewals are refused and it is told the reason; the lock is free when it has let go or its
/// lease ends. Only the holder that is found, or that --token names, loses the lock: whoever comes after it
/// keeps it. On a terminal, and without --token, it shows the holder and asks first. Prints a fresh token,
/// larger than the holder's: record ("activate") it at the resource that the lock protects, since only that
/// keeps a holder that does not listen from writing there.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  fencepost show deploy
  fencepost force-release deploy --token 1760000000000000 \\
    --reason 'host is gone, see ticket 123'")]
pub(crate) struct ForceRelease {
    #[command(flatten)]
    pub(crate) target: Target,

    /// Why, for the holder
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,

    /// Free the lock at once, although the holder may still be at work
    #[arg(long)]
    pub(crate) now: bool,

    /// Only from the holder with this token, as `show` prints it; asks nothing
    #[arg(long, value_name = "N", value_parser = parse_token)]
    pub(crate) token: Option<FencingToken>,
}

/// Find out whether the store grants locks now
///
/// Connects, acquires a lock, releases it, and says how long that took. A store that is out of reach, full,
/// read-only or without a majority fails (69), and so does one that refuses this user (64).
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  fencepost check --store redis://db && echo ready")]
pub(crate) struct Check {
    /// The lock to try, for users who may have only some
    #[arg(value_name = "NAME", value_parser = Name::new, default_value = "fencepost:check")]
    pub(crate) name: Name,
}

/// Declare a new deployment, where a store needs that
///
/// For files it makes the directory, and for `mode=shared` one that all users of the machine may use.
///
/// On PostgreSQL it makes the schema with the tables and functions, for which the user of the URL needs the
/// right; programs then need rights on these only.
///
/// A store of several servers (`redlock://a,b,c`) has to know that they are new: only then no lock can be
/// held that a server has forgotten, and all vote at once. Without `init` each one votes after its
/// quarantine, about a minute. Run it once, before the first lock, with the URL that all clients will use.
/// With --reconfigure, an existing deployment is changed to the servers and parameters (max_ttl, quarantine)
/// of the URL: its servers do not vote for the longer of the old and the new quarantine, and clients that use
/// the old URL are refused from then on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fencepost init --store 'file:///var/lock/app?mode=shared'
  fencepost init --store postgres://admin@host/database
  fencepost init --store redlock://a,b,c,d,e
  fencepost init --store redlock://a,b,c,d,f --reconfigure    f replaces e")]
pub(crate) struct Init {
    /// Change an existing deployment to what the URL says
    #[arg(long)]
    pub(crate) reconfigure: bool,
}

/// Measure how fast locks are on this store
///
/// Acquires and releases with 1 to 256 tasks, wakes a waiter in another process, and lets eight contend for
/// one name: how often the lock goes to another one, how long each waits, and how fair that is. Times are
/// told beside one round trip to the store from here. All names start with `bench:` and a process id: other
/// locks are not touched, but the store has to work as hard as it can for a while.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fencepost bench --store redis://locks.internal
  fencepost bench --store etcd://a,b,c --each 10s --json")]
pub(crate) struct Bench {
    /// How long each of the measures takes
    #[arg(long, value_name = "DUR", default_value = "2s", value_parser = parse_duration)]
    pub(crate) each: Duration,
}

/// Write what packagers install beside the binary
#[derive(Debug, Subcommand)]
pub(crate) enum Generate {
    /// Print a completion script
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages
    Man {
        /// Into which directory
        dir: PathBuf,
    },
    /// Print the names that `torture --local` takes
    #[cfg(feature = "torture")]
    LocalStores,
}

fn parse_token(text: &str) -> Result<FencingToken, String> {
    let token = text.parse().ok().and_then(FencingToken::new);
    token.ok_or_else(|| "a token is a whole number, as `fencepost show` prints it".to_owned())
}

fn parse_wait(text: &str) -> fencepost::Result<Wait> {
    match text {
        "forever" => Ok(Wait::Forever),
        text => parse_duration(text)
            .map(Wait::from)
            .map_err(|error| fencepost::Error::invalid(format!("{error}, or `forever`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_the_top_explains_the_global_options() {
        let mut command = command();
        let top = command.render_long_help().to_string();
        for option in Global::augment_args(clap::Command::new("")).get_arguments() {
            let flag = format!("--{}", option.get_long().unwrap());
            assert!(GLOBAL.contains(&flag) && top.contains(&flag), "{flag}");
        }
        let show = command.find_subcommand_mut("show").unwrap().render_long_help().to_string();
        assert!(show.contains(GLOBAL) && show.matches("--store").count() == 2, "{show}");
        let given = ["fencepost", "show", "job", "--store", "file:x"];
        let matches = super::command().try_get_matches_from(given).unwrap();
        assert_eq!(Cli::from_arg_matches(&matches).unwrap().global.store.unwrap(), "file:x");
    }

    #[test]
    fn waiting_is_forever_never_or_a_duration() {
        assert_eq!(parse_wait("forever").unwrap(), Wait::Forever);
        assert_eq!(parse_wait("0s").unwrap(), Wait::No);
        assert_eq!(parse_wait("2s").unwrap(), Wait::For(Duration::from_secs(2)));
        assert!(parse_wait("soon").unwrap_err().to_string().contains("`forever`"));
    }
}
