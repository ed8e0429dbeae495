//! Real ZooKeeper servers on loopback ports, alone or as an ensemble. Nothing is synced to disk: a test kills
//! processes, not the power.

mod client;
mod counter;
mod ensemble;
mod harness;
mod local;
mod relay;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

pub use client::{Client, Mode};
pub use ensemble::Ensemble;
pub use local::{LOCAL, LOCAL_ENSEMBLE};
pub use relay::{Operation, Relay};

use crate::eventually::{LIMIT, within};
use crate::process::Process;
use crate::{Folder, eventually, port};

const FOLDER: &str = "/usr/share/java";
const JARS: [&str; 7] = [
    "zookeeper.jar",
    "zookeeper-jute.jar",
    "slf4j-api.jar",
    "slf4j-simple.jar",
    "netty-all.jar",
    "metrics-core.jar",
    "snappy-java.jar",
];

/// What `SETTINGS` calls a tick.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Sessions last from a fifth of a second to twenty minutes, so that a test can wait for the end of one or be
/// sure not to see it. The other limits are in ticks, and generous: a slow machine must not look like a
/// broken one.
const SETTINGS: &str = "\
tickTime=100
initLimit=300
syncLimit=100
minSessionTimeout=200
maxSessionTimeout=1200000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
clientPortAddress=127.0.0.1
";

/// A running server. Dropping it kills the process and removes its folder.
#[derive(Debug)]
pub struct Server {
    port: u16,
    /// What its configuration says besides the common settings and its port.
    settings: String,
    process: Option<Process>,
    folder: Folder,
}

impl Server {
    /// Starts a server that is alone.
    ///
    /// # Panics
    /// If it does not start; the message says why.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts a server that is alone, with more lines in its configuration.
    ///
    /// # Panics
    /// If it does not start; the message says why.
    pub fn start_with(settings: &str) -> Self {
        let mut server = Self::prepare(port::free(), settings.to_owned());
        for _ in 0..10 {
            server.launch();
            if server.becomes_ready() {
                return server;
            }
            server.port = port::free();
        }
        panic!("ZooKeeper does not start:\n{}", server.log());
    }

    fn prepare(port: u16, settings: String) -> Self {
        assert!(
            Path::new(FOLDER).join(JARS[0]).is_file(),
            "ZooKeeper is not installed; run `make deps`, or install the Debian package `zookeeper`"
        );
        let folder = Folder::new("zookeeper");
        Self { port, settings, process: None, folder }
    }

    /// Starts the process.
    fn launch(&mut self) {
        let folder = self.folder.path().to_str().expect("a temporary folder has an UTF-8 path");
        let text = format!("{SETTINGS}{}\nclientPort={}\ndataDir={folder}/data\n", self.settings, self.port);
        let file = format!("{folder}/zoo.cfg");
        fs::create_dir_all(format!("{folder}/data")).expect("the folder is writable");
        fs::write(&file, text).expect("the folder is writable");
        let jars: Vec<_> = JARS.iter().map(|jar| format!("{FOLDER}/{jar}")).collect();
        let arguments = [
            "-Xmx64m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dzookeeper.forceSync=no",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            &jars.join(":"),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            &file,
        ];
        self.process = Some(Process::start(self.folder.path(), &[], "java", &arguments));
    }

    /// Waits until it serves requests; `false`, and the process is gone, if it ended instead.
    fn becomes_ready(&mut self) -> bool {
        let process = self.process.as_ref().expect("a started server");
        // The first session of a server takes long: it loads what it needs for it.
        let serves = || Client::connect(self.addr()).and_then(|mut client| client.children("/")).is_ok();
        let is_up = || self.mode().is_some() && serves();
        let ready = within(LIMIT, &mut || process.is_dead() || is_up()) && !process.is_dead();
        if !ready {
            self.process = None;
        }
        ready
    }

    /// What it is while it serves requests: `standalone`, `leader` or `follower`.
    pub fn mode(&self) -> Option<String> {
        let answer = self.ask("srvr").ok()?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    /// Sends a command of four letters and returns the answer.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn ask(&self, command: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.addr(), Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(command.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.addr())
    }

    /// A client of its own make, for looking at nodes and breaking them.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn client(&self) -> Client {
        Client::connect(self.addr()).unwrap_or_else(|error| panic!("no session: {error}"))
    }

    /// The process id.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.process().pid()
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

    /// Kills the process (`SIGKILL`). Connections are reset; what it had answered stays in its folder.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same port with the data in its folder. Kills it first if it runs.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
        assert!(self.becomes_ready(), "ZooKeeper does not start again:\n{}", self.log());
    }

    /// The same, with other lines in its configuration.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_with(&mut self, settings: &str) {
        settings.clone_into(&mut self.settings);
        self.restart();
    }

    /// Starts it again on the same port without any data. Kills it first if it runs.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_empty(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(self.folder.path().join("data"));
        self.restart();
    }

    /// Starts it again with another number for the next child of a node. Only of a server that is alone.
    ///
    /// # Panics
    /// If there is no such node, or the server does not start.
    pub fn set_counter(&mut self, node: &str, counter: i32) {
        // A server that starts takes a snapshot first.
        self.restart();
        self.kill();
        counter::set(&self.folder.path().join("data"), node, counter);
        self.restart();
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_keeps_its_nodes_through_a_restart_and_not_through_an_empty_one() {
        let mut server = Server::start();
        assert_eq!(server.mode().as_deref(), Some("standalone"));
        assert_eq!(server.client().create("/a", b"x", Mode::Persistent).unwrap(), "/a");
        server.restart();
        assert_eq!(server.client().data("/a").unwrap(), Some(b"x".to_vec()));
        server.restart_empty();
        assert_eq!(server.client().data("/a").unwrap(), None);
    }

    #[test]
    fn ephemeral_nodes_end_with_their_session() {
        let server = Server::start();
        let mut holder = server.client();
        let path = holder.create("/a-", b"", Mode::EphemeralSequential).unwrap();
        let mut other = server.client();
        assert_eq!(other.tree("/"), [path.as_str()]);
        other.watch(&path).unwrap();
        drop(holder);
        assert_eq!(other.event().unwrap(), path);
        assert!(server.client().tree("/").is_empty());
    }

    #[test]
    fn an_ensemble_elects_another_leader() {
        let mut ensemble = Ensemble::start(3);
        let leader = ensemble.leader();
        ensemble.get(leader).client().create("/a", b"x", Mode::Persistent).unwrap();
        ensemble.get_mut(leader).kill();
        let next = ensemble.leader();
        assert_ne!(leader, next);
        assert_eq!(ensemble.get(next).client().data("/a").unwrap(), Some(b"x".to_vec()));
    }
}
