//! A master with replicas, and the sentinels that watch it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Index, IndexMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::resp::Connection;
use super::{Config, Reply, Server};
use crate::eventually::{LIMIT, within};
use crate::process::Process;
use crate::{Folder, eventually, port};

/// What the master is called.
const SERVICE: &str = "locks";

/// A master, replicas and sentinels. `deployment[0]` is the server that is master at first.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
    parameters: String,
}

/// One of those that watch.
#[derive(Debug)]
pub struct Sentinel {
    port: u16,
    process: Process,
    folder: Folder,
}

impl Sentinels {
    /// Starts one master with `replicas` replicas, and three sentinels that take it for dead after
    /// `down_after`. Returns when all know each other. A master without replicas takes no writes, unless it
    /// never had any.
    ///
    /// # Panics
    /// If anything does not start; the message says why.
    pub fn start(replicas: usize, down_after: Duration) -> Self {
        Self::start_with(replicas, down_after, |config| config)
    }

    /// The same with servers that are configured in some way.
    ///
    /// # Panics
    /// If anything does not start.
    pub fn start_with(replicas: usize, down_after: Duration, configure: impl Fn(Config) -> Config) -> Self {
        let config = || {
            let config = configure(Config::new())
                .line("repl-diskless-sync-delay 0")
                .line("repl-ping-replica-period 1")
                .line("min-replicas-max-lag 2");
            config.line(if replicas > 0 { "min-replicas-to-write 1" } else { "min-replicas-to-write 0" })
        };
        let master = config().start();
        let mut servers: Vec<_> = (0..replicas).map(|_| config().replica_of(&master).start()).collect();
        servers.insert(0, master);
        let parameters = "max_ttl=2s".to_owned();
        let mut all = Self { servers, sentinels: Vec::new(), parameters };
        eventually("the replicas are in sync", || all.has_replicas(replicas));
        all.sentinels = (0..3).map(|_| Sentinel::start(all.servers[0].addr(), down_after)).collect();
        eventually("the sentinels know the master", || all.master() == Some(0));
        if replicas > 0 {
            all.know_each_other();
        }
        all
    }

    fn has_replicas(&self, count: usize) -> bool {
        self.servers[0].info("replication", "min_slaves_good_slaves").unwrap_or_default() == count.to_string()
            || count == 0
    }

    fn know_each_other(&self) {
        let field = |sentinel: &Sentinel, name: &str| {
            let words = sentinel.call(&["SENTINEL", "MASTER", SERVICE]).map_or(Vec::new(), |it| it.lines());
            words.chunks_exact(2).find(|pair| pair[0] == name).and_then(|pair| pair[1].parse().ok())
        };
        eventually("the sentinels know the replicas and each other", || {
            self.sentinels.iter().all(|sentinel| {
                field(sentinel, "num-slaves") == Some(self.servers.len() - 1)
                    && field(sentinel, "num-other-sentinels") == Some(self.sentinels.len() - 1)
            })
        });
    }

    /// Sets the parameters of the URL, such as `max_ttl=2s`.
    #[must_use]
    pub fn with_parameters(mut self, parameters: &str) -> Self {
        parameters.clone_into(&mut self.parameters);
        self
    }

    /// The URL of the service.
    pub fn url(&self) -> String {
        self.url_with(&self.parameters)
    }

    /// The URL of the service with other parameters.
    pub fn url_with(&self, parameters: &str) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.addr().to_string()).collect();
        let mark = if parameters.is_empty() { "" } else { "?" };
        let login = self.servers[0].login();
        format!("redis+sentinel://{login}{}/{SERVICE}{mark}{parameters}", hosts.join(","))
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// How many servers there are, running or not.
    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// The servers, one after the other.
    pub fn iter(&self) -> std::slice::Iter<'_, Server> {
        self.servers.iter()
    }

    /// Which server a majority of the sentinels takes for the master.
    pub fn master(&self) -> Option<usize> {
        let said: Vec<_> = self.sentinels.iter().filter_map(Sentinel::master).collect();
        let majority = said.iter().find(|one| said.iter().filter(|other| other == one).count() > 1)?;
        self.servers.iter().position(|server| server.addr() == *majority)
    }

    /// Waits until another server than `old` is master, and takes writes. Returns which.
    pub fn await_other_than(&self, old: usize) -> usize {
        let mut new = old;
        eventually("another server is master", || {
            new = self.master().unwrap_or(old);
            new != old && self.servers[new].info("replication", "role").as_deref() == Some("master")
        });
        new
    }

    /// Waits until all servers but the master are its replicas, in sync, and the sentinels know it.
    pub fn await_replicas(&self) {
        eventually("the other servers are replicas of the master", || {
            let Some(master) = self.master() else { return false };
            let good = self.servers[master].info("replication", "min_slaves_good_slaves");
            good == Some((self.servers.len() - 1).to_string())
        });
        self.know_each_other();
    }

    /// Has the sentinels make another server master. Returns which, when it is.
    ///
    /// # Panics
    /// If there is no master.
    pub fn fail_over(&self) -> usize {
        let old = self.master().expect("there is a master");
        // One that has begun may be given up after a while.
        for _ in 0..5 {
            self.sentinels[0].call(&["SENTINEL", "FAILOVER", SERVICE]);
            let replaced =
                within(Duration::from_secs(12), &mut || self.master().is_some_and(|master| master != old));
            if replaced {
                break;
            }
        }
        self.await_other_than(old)
    }
}

impl Index<usize> for Sentinels {
    type Output = Server;

    fn index(&self, index: usize) -> &Server {
        &self.servers[index]
    }
}

impl IndexMut<usize> for Sentinels {
    fn index_mut(&mut self, index: usize) -> &mut Server {
        &mut self.servers[index]
    }
}

impl Sentinel {
    fn start(master: SocketAddr, down_after: Duration) -> Self {
        let folder = Folder::new("sentinel");
        let file = folder.path().join("sentinel.conf");
        for _ in 0..10 {
            let port = port::free();
            let text = format!(
                "port {port}\nbind 127.0.0.1\ndir \"{}\"\nunixsocket \"{}\"\n\
                 sentinel monitor {SERVICE} {} {} 2\n\
                 sentinel down-after-milliseconds {SERVICE} {}\n\
                 sentinel failover-timeout {SERVICE} 5000\nsentinel parallel-syncs {SERVICE} 2\n",
                folder.path().display(),
                socket(folder.path()).display(),
                master.ip(),
                master.port(),
                down_after.as_millis(),
            );
            fs::write(&file, text).expect("the folder is writable");
            let words = [file.to_str().expect("a temporary folder has an UTF-8 path"), "--sentinel"];
            let process = Process::start(folder.path(), &[], "redis-server", &words);
            let answered = within(LIMIT, &mut || process.is_dead() || ask_master(folder.path()).is_some());
            if answered && !process.is_dead() {
                return Self { port, process, folder };
            }
        }
        panic!("no sentinel starts:\n{}", fs::read_to_string(folder.path().join("log")).unwrap_or_default());
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Stops the process: it answers nothing.
    pub fn pause(&self) {
        self.process.signal(Signal::STOP);
        eventually("the sentinel stands still", || matches!(self.process.state(), None | Some('T')));
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Where it takes the master for.
    pub fn master(&self) -> Option<SocketAddr> {
        ask_master(self.folder.path())
    }

    /// Sends one command; `None` if it does not answer.
    pub fn call(&self, words: &[&str]) -> Option<Reply> {
        call(self.folder.path(), words)
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}

fn call(folder: &Path, words: &[&str]) -> Option<Reply> {
    Connection::open(&socket(folder), Duration::from_secs(1)).ok()?.call(words).ok()
}

fn ask_master(folder: &Path) -> Option<SocketAddr> {
    let words = call(folder, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])?.lines();
    let [host, port] = words.as_slice() else { return None };
    Some((host.parse::<Ipv4Addr>().ok()?, port.parse().ok()?).into())
}
