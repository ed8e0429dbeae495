//! A real `redis-server` on a loopback port and a unix socket, without persistence unless asked for.

pub mod cluster;
mod config;
mod harness;
mod local;
mod nodes;
mod program;
mod resp;
mod sentinel;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

pub use cluster::Cluster;
pub use config::Config;
pub use local::{LOCAL, LOCAL_REDLOCK, LOCAL_SENTINEL};
pub use nodes::Nodes;
pub(crate) use program::which;
pub use program::{is_installed, program, programs, redis_6, valkey};
pub use resp::Reply;
pub use sentinel::{Sentinel, Sentinels};

use crate::eventually::{LIMIT, within};
use crate::process::Process;
use crate::{Certificates, Clock, Folder, eventually, port};
use resp::Connection;

/// A running server. Dropping it kills the process and removes its folder.
#[derive(Debug)]
pub struct Server {
    config: Config,
    port: u16,
    certificates: Option<Certificates>,
    clock: Option<Clock>,
    process: Option<Process>,
    folder: Folder,
}

impl Server {
    /// Starts a server without password, TLS and persistence.
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
        assert!(
            config.program.is_some() || is_installed(),
            "redis-server is not installed; run `make deps`, or install the Debian package `redis-server`"
        );
        let folder = Folder::new("redis");
        let certificates = config.certificates.clone().or_else(|| {
            config.tls.map(|tls| match tls.expired {
                false => Certificates::make(folder.path()),
                true => Certificates::make_expired(folder.path()),
            })
        });
        let clock = config.movable_clock.then(|| Clock::make(folder.path()));
        let mut server = Self { config, port: 0, certificates, clock, process: None, folder };
        for _ in 0..10 {
            server.port = if server.config.is_in_cluster { port::free_with_bus() } else { port::free() };
            if server.launch() {
                return server;
            }
        }
        panic!("redis-server does not start:\n{}", server.log());
    }

    /// Starts the process and waits until it answers; `false` if it ended instead.
    fn launch(&mut self) -> bool {
        let text =
            self.config.text(self.port, &self.socket(), self.folder.path(), self.certificates.as_ref());
        fs::write(self.conf(), text).expect("the folder is writable");
        self.launch_as_configured()
    }

    fn conf(&self) -> PathBuf {
        self.folder.path().join("redis.conf")
    }

    fn launch_as_configured(&mut self) -> bool {
        let _ = fs::remove_file(self.socket());
        let file = self.conf();
        let file = file.to_str().expect("a temporary folder has an UTF-8 path");
        let variables = self.clock.iter().flat_map(Clock::environment);
        let environment: Vec<_> =
            variables.map(|(name, value)| format!("{name}={}", value.display())).collect();
        let program = self.config.program.clone().unwrap_or_else(program);
        let program = program.to_str().expect("a program with an UTF-8 path");
        let process = Process::start(self.folder.path(), &environment, program, &[file]);
        // The server opens its ports before the socket, so one that answers there has them.
        let answered = within(LIMIT, &mut || process.is_dead() || self.ping()) && !process.is_dead();
        if answered && self.clock.is_some() {
            assert!(Clock::is_loaded_in(process.pid()), "its clock cannot be moved:\n{}", self.log());
        }
        self.process = answered.then_some(process);
        answered
    }

    fn ping(&self) -> bool {
        let answer = self.ask(&["PING"], Duration::from_secs(1));
        matches!(answer, Ok(Reply::Text(text)) if text == "PONG")
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its URL, with user and password if it wants them: `redis://…`, or `rediss://…` with the certificates
    /// as parameters.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// Its URL by way of another address, such as that of a [`Proxy`](crate::Proxy).
    pub fn url_at(&self, addr: SocketAddr) -> String {
        let login = self.login();
        match &self.certificates {
            None => format!("redis://{login}{addr}"),
            Some(files) => {
                let mut url = format!("rediss://{login}{addr}?ca={}", files.ca.display());
                if self.config.tls.is_some_and(|tls| tls.client_certificate) {
                    url += &format!("&cert={}&key={}", files.client.display(), files.client_key.display());
                }
                url
            }
        }
    }

    /// The URL of its unix socket.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}{}", self.login(), self.socket().display())
    }

    fn login(&self) -> String {
        match &self.config.login {
            None => String::new(),
            Some((user, password)) => format!("{}:{password}@", user.as_deref().unwrap_or("")),
        }
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Its folder, with `dump.rdb`, `redis.conf` and `log`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The certificates of a server with TLS.
    ///
    /// # Panics
    /// If it has none.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("a server with TLS")
    }

    /// The process id.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Whether it runs and does not stand still.
    pub fn is_up(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !matches!(process.state(), None | Some('T' | 'Z')))
    }

    /// What it has printed so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Stops the process (`SIGSTOP`): connections stay open, nothing is answered. Returns when it stands
    /// still.
    pub fn pause(&self) {
        self.process().signal(Signal::STOP);
        eventually("the server stands still", || matches!(self.process().state(), None | Some('T')));
    }

    /// Lets a stopped process go on.
    pub fn resume(&self) {
        self.process().signal(Signal::CONT);
    }

    /// Sets its wall clock ahead of the true time by so many seconds, or behind it if negative. Takes effect
    /// at once and stays across restarts. Monotonic clocks go on as before.
    ///
    /// # Panics
    /// If it was started without [`Config::movable_clock`].
    pub fn set_clock(&self, seconds: i64) {
        self.clock.as_ref().expect("a server with a movable clock").set(seconds);
    }

    /// Kills the process (`SIGKILL`). Nothing is saved, connections are reset.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same port with what it has saved in its folder. Kills it first if it runs.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let started = within(LIMIT, &mut || self.launch());
        assert!(started, "redis-server does not start again:\n{}", self.log());
    }

    /// The same, with the configuration that it has written meanwhile: a replica that became master comes
    /// back as a master.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_as_configured(&mut self) {
        self.kill();
        let started = within(LIMIT, &mut || self.launch_as_configured());
        assert!(started, "redis-server does not start again:\n{}", self.log());
    }

    /// Starts it again on the same port without any data. Kills it first if it runs.
    pub fn restart_empty(&mut self) {
        self.kill();
        let _ = fs::remove_file(self.dump());
        let _ = fs::remove_file(self.folder.path().join("appendonly.aof"));
        let _ = fs::remove_dir_all(self.folder.path().join("appendonlydir"));
        self.restart();
    }

    /// Starts it again on the same port with the data of an earlier [`snapshot`](Self::snapshot).
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_from(&mut self, snapshot: &[u8]) {
        self.kill();
        fs::write(self.dump(), snapshot).expect("the folder is writable");
        self.restart();
    }

    /// Its data as it is now.
    ///
    /// # Panics
    /// If it cannot save.
    pub fn snapshot(&self) -> Vec<u8> {
        self.cli(&["SAVE"]);
        fs::read(self.dump()).expect("SAVE writes a dump")
    }

    fn dump(&self) -> PathBuf {
        self.folder.path().join("dump.rdb")
    }

    /// Sends one command and returns the answer as text, one value a line.
    ///
    /// # Panics
    /// If the server does not answer, or with an error.
    pub fn cli(&self, words: &[&str]) -> String {
        match self.call(words) {
            Reply::Error(error) => panic!("{words:?}: {error}"),
            reply => reply.lines().join("\n"),
        }
    }

    /// Sends one command and returns the answer, whatever it is.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn call(&self, words: &[&str]) -> Reply {
        self.ask(words, LIMIT).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The same, without an answer if none comes for so long.
    fn ask(&self, words: &[&str], patience: Duration) -> std::io::Result<Reply> {
        self.connect(patience)?.call(words)
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        self.keys_like("*")
    }

    /// The keys that match a pattern of the `KEYS` command, sorted.
    pub fn keys_like(&self, pattern: &str) -> Vec<String> {
        let mut keys = match self.call(&["KEYS", pattern]) {
            Reply::List(keys) => keys.iter().flat_map(Reply::lines).collect::<Vec<_>>(),
            other => panic!("KEYS {pattern}: {other:?}"),
        };
        keys.sort_unstable();
        keys
    }

    /// How many times it was asked to run a script by hash since it started: the round trips of a client
    /// whose every request is one script.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn evalsha_calls(&self) -> u64 {
        self.info("commandstats", "cmdstat_evalsha").map_or(0, |stats| {
            let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next()?.parse().ok());
            calls.unwrap_or_else(|| panic!("no number of calls: {stats}"))
        })
    }

    /// The id of this run of the server: another one after each restart.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn run_id(&self) -> String {
        self.info("server", "run_id").expect("every server has a run id")
    }

    /// The version of Redis that it is, or says that it is like.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn version(&self) -> (u32, u32) {
        let text = self.info("server", "redis_version").expect("every server has a version");
        let mut parts = text.split('.').map(|part| part.parse().expect("a number"));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    fn info(&self, section: &str, field: &str) -> Option<String> {
        let info = self.cli(&["INFO", section]);
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| *name == field).map(|(_, value)| value.to_owned())
    }

    fn connect(&self, patience: Duration) -> std::io::Result<Connection> {
        let mut connection = Connection::open(&self.socket(), patience)?;
        if let Some((user, password)) = &self.config.login {
            connection.call(&["AUTH", user.as_deref().unwrap_or("default"), password])?;
        }
        Ok(connection)
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }
}

#[cfg(test)]
mod tests;
