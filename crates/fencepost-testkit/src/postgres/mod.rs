//! A real PostgreSQL on a loopback port and a unix socket, without fsync unless asked for.
//!
//! PostgreSQL refuses to run as root, so a test that does starts it as another user. `initdb` takes a second
//! or two and runs once in a test process: the server that tests share keeps a fresh copy of its data, and
//! every other one starts from that.

mod bouncer;
mod config;
mod harness;
mod local;
mod standby;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

pub use bouncer::{Bouncer, Pooling};
pub use config::Config;
pub use local::LOCAL;

use crate::eventually::{LIMIT, within};
use crate::process::Process;
use crate::{Certificates, Folder, eventually, port};

/// A running server. Dropping it ends the processes and removes its folder.
#[derive(Debug)]
pub struct Server {
    config: Config,
    port: u16,
    certificates: Option<Certificates>,
    process: Option<Process>,
    folder: Folder,
}

impl Server {
    /// The server that the tests of this process share. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| {
            Self::launched(Config::new(), |server| {
                let template = server.template();
                let arguments =
                    ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "-D"];
                done(user_command(&binary("initdb")).args(arguments).arg(&template));
                copy(&template, &server.data());
            })
        })
    }

    /// Starts a server of its own.
    ///
    /// # Panics
    /// If it does not start; the message says why.
    pub fn start() -> Self {
        Config::new().start()
    }

    /// Says how a server shall be started.
    pub fn config() -> Config {
        Config::new()
    }

    fn start_with(config: Config) -> Self {
        let template = Self::shared().template();
        Self::launched(config, |server| copy(&template, &server.data()))
    }

    fn launched(config: Config, fill: impl FnOnce(&Self)) -> Self {
        let folder = Folder::new("postgres");
        give(folder.path());
        let certificates = config.tls.then(|| Certificates::make(folder.path()));
        if let Some(files) = &certificates {
            restrict(&files.server_key);
        }
        let mut server = Self { config, port: 0, certificates, process: None, folder };
        fill(&server);
        for _ in 0..10 {
            server.port = port::free();
            if server.launch() {
                return server;
            }
        }
        panic!("postgres does not start:\n{}", server.log());
    }

    /// Starts the process and waits until it answers; `false` if it ended instead.
    fn launch(&mut self) -> bool {
        let (data, folder) = (self.data(), self.folder.path());
        let text = self.config.text(self.port, folder, self.certificates.as_ref());
        fs::write(data.join("fencepost.conf"), text).expect("the folder is writable");
        fs::write(data.join("postgresql.conf"), "include 'fencepost.conf'\n")
            .expect("the folder is writable");
        fs::write(data.join("pg_hba.conf"), config::HBA).expect("the folder is writable");
        for file in ["fencepost.conf", "postgresql.conf", "pg_hba.conf"] {
            give(&data.join(file));
        }
        let mut words = user_words(&binary("postgres"));
        words.extend(["-D".to_owned(), data.display().to_string()]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // An immediate shutdown is what a crash is to the data, and leaves no child and no shared memory
        // behind.
        let process = Process::start_with(folder, "QUIT", &[], words[0], &words[1..]);
        let answered = within(LIMIT, &mut || process.is_dead() || self.ping()) && !process.is_dead();
        self.process = answered.then_some(process);
        answered
    }

    fn ping(&self) -> bool {
        self.try_psql("postgres", "SELECT 1").is_ok()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The URL of a database, for its superuser, who needs no password.
    pub fn url(&self, database: &str) -> String {
        self.url_at(self.addr(), database)
    }

    /// The same by way of another address, such as that of a [`Proxy`](crate::Proxy).
    pub fn url_at(&self, addr: SocketAddr, database: &str) -> String {
        format!("postgres://postgres@{addr}/{database}")
    }

    /// The folder of its unix socket.
    pub fn socket(&self) -> &Path {
        self.folder.path()
    }

    /// The certificates of a server with TLS.
    ///
    /// # Panics
    /// If it has none.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("a server with TLS")
    }

    /// Makes a new database and returns its name.
    pub fn create_database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Runs SQL by `psql` as the superuser and returns its answer: fields with `|` between them, a row a
    /// line.
    ///
    /// # Panics
    /// If it fails.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        self.try_psql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn try_psql(&self, database: &str, sql: &str) -> Result<String, String> {
        let output =
            self.psql_command(database).args(["-c", sql]).output().expect("psql starts; run `make deps`");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// A `psql` for a database, as the superuser, that prints bare values.
    pub fn psql_command(&self, database: &str) -> Command {
        let mut command = Command::new("psql");
        command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-h"]).arg(self.socket());
        command.args(["-p", &self.port.to_string(), "-d", database]);
        command
    }

    /// What it has printed so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The pid of its first process.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Stops all its processes (`SIGSTOP`): connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.process().signal(Signal::STOP);
        // It stands still, so there are no more children to come.
        eventually("the server stands still", || matches!(self.process().state(), None | Some('T')));
        self.signal_children(Signal::STOP);
    }

    /// Lets stopped processes go on.
    pub fn resume(&self) {
        self.signal_children(Signal::CONT);
        self.process().signal(Signal::CONT);
    }

    fn signal_children(&self, signal: Signal) {
        let pid = self.process().pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for child in children.split_whitespace() {
            if let Some(child) = child.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(child, signal);
            }
        }
    }

    /// Ends it as a crash does: connections are reset, nothing is written down that was not already.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same port with its data. Kills it first if it runs.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let started = within(LIMIT, &mut || self.launch());
        assert!(started, "postgres does not start again:\n{}", self.log());
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn template(&self) -> PathBuf {
        self.folder.path().join("template")
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }
}

/// Whether a server can be started on this machine.
pub fn is_installed() -> bool {
    find("initdb").is_some()
}

/// A program of the newest PostgreSQL that is installed.
fn binary(name: &str) -> String {
    let found = find(name)
        .expect("PostgreSQL is not installed; run `make deps`, or install the Debian package `postgresql`");
    found.display().to_string()
}

fn find(name: &str) -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest =
        folders.max_by_key(|folder| folder.file_name().to_string_lossy().parse::<u32>().unwrap_or(0));
    newest.map(|folder| folder.path().join("bin").join(name)).filter(|path| path.is_file())
}

/// The user that servers run as when we are root, who may not.
fn user() -> Option<(u32, u32)> {
    static USER: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *USER.get_or_init(|| {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let find = |name: &str| {
            let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
            let mut fields = line.split(':').skip(2).map(|field| field.parse().ok());
            Some((fields.next()??, fields.next()??))
        };
        Some(find("postgres").or_else(|| find("nobody")).expect("a user to run PostgreSQL as"))
    })
}

/// A program and what has to stand in front of it to run as the other user.
fn user_words(program: &str) -> Vec<String> {
    let mut words = match user() {
        None => Vec::new(),
        Some((user, group)) => vec![
            "setpriv".to_owned(),
            format!("--reuid={user}"),
            format!("--regid={group}"),
            "--clear-groups".to_owned(),
        ],
    };
    words.push(program.to_owned());
    words
}

fn user_command(program: &str) -> Command {
    let words = user_words(program);
    let mut command = Command::new(&words[0]);
    // The other user may not look at the folder that the tests run in.
    command.args(&words[1..]).current_dir("/");
    command
}

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Lets the server's user own a file or folder.
fn give(path: &Path) {
    if let Some((user, group)) = user()
        && fs::metadata(path).is_ok_and(|found| found.uid() != user)
    {
        std::os::unix::fs::chown(path, Some(user), Some(group)).expect("root may give files away");
    }
}

/// Makes a private key as private as PostgreSQL wants it.
fn restrict(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("our own file");
    give(path);
}

fn copy(from: &Path, to: &Path) {
    done(Command::new("cp").arg("-a").arg(from).arg(to));
}

#[cfg(test)]
mod tests;
