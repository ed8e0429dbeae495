//! A real etcd cluster of one or more members on loopback ports. It does not wait for its disk unless told
//! to: these tests kill processes, not machines, and a killed process loses nothing that it has written.

mod harness;
mod local;
mod member;

use std::io::Write as _;
use std::ops::{Index, IndexMut};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub use local::{LOCAL, LOCAL_CLUSTER};
pub use member::Member;

use crate::eventually::{LIMIT, within};
use crate::{Certificates, Folder, eventually, port};

/// How a cluster shall be started.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs until `start`"]
pub struct Config {
    password: Option<String>,
    tls: Option<bool>,
    durable: bool,
    quota: Option<u64>,
}

impl Config {
    /// Waits for its disk, as a cluster does that somebody relies on.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Takes no more data than so many bytes.
    pub fn quota(mut self, bytes: u64) -> Self {
        self.quota = Some(bytes);
        self
    }

    /// Asks every client for a user: `root`, with this password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Speaks TLS only.
    pub fn tls(mut self) -> Self {
        self.tls = Some(false);
        self
    }

    /// Speaks TLS only, and only to clients that show a certificate.
    pub fn tls_with_client_certificate(mut self) -> Self {
        self.tls = Some(true);
        self
    }

    /// Starts so many members.
    ///
    /// # Panics
    /// If they do not start; the message says why.
    pub fn start(self, members: usize) -> Cluster {
        Cluster::start_with(self, members)
    }
}

/// A running cluster. Dropping it kills the processes and removes their folders.
#[derive(Debug)]
pub struct Cluster {
    config: Config,
    members: Vec<Member>,
    certificates: Option<Certificates>,
}

impl Cluster {
    /// Starts so many members, without password and TLS.
    ///
    /// # Panics
    /// If they do not start; the message says why.
    pub fn start(members: usize) -> Self {
        Config::default().start(members)
    }

    /// Says how a cluster shall be started.
    pub fn config() -> Config {
        Config::default()
    }

    fn start_with(config: Config, count: usize) -> Self {
        let mut log = String::new();
        for _ in 0..10 {
            let mut members: Vec<_> = (0..count).map(Member::new).collect();
            let peers: Vec<_> = members.iter().map(Member::peer).collect();
            // In a member's folder, which goes with its process however that ends.
            let certificates = config.tls.is_some().then(|| Certificates::make(members[0].folder()));
            let client_certificate = config.tls == Some(true);
            for member in &mut members {
                member.configure(&peers, certificates.as_ref(), client_certificate, config.durable);
                if let Some(bytes) = config.quota {
                    member.limit(bytes);
                }
                member.spawn();
            }
            let ready = || members.iter().all(Member::is_healthy) || members.iter().any(Member::is_dead);
            if within(LIMIT, &mut { ready }) && members.iter().all(Member::is_healthy) {
                let cluster = Self { config, members, certificates };
                cluster.ask_for_passwords();
                return cluster;
            }
            log = members.iter().map(Member::log).collect();
        }
        panic!("etcd does not start; is the Debian package `etcd-server` installed?\n{log}");
    }

    fn ask_for_passwords(&self) {
        if let Some(password) = &self.config.password {
            let run = |words: &[&str]| {
                let output = self.command(words).output().expect("etcdctl starts");
                assert!(output.status.success(), "{words:?}: {output:?}");
            };
            run(&["user", "add", &format!("root:{password}")]);
            run(&["user", "grant-role", "root", "root"]);
            run(&["auth", "enable"]);
        }
    }

    /// Its URL with all members: `etcd://…`, or `etcds://…` with the certificates as parameters.
    pub fn url(&self) -> String {
        let all: Vec<_> = self.members.iter().map(|member| member.addr().to_string()).collect();
        self.url_at(&all.join(","))
    }

    /// Its URL by way of other addresses, such as that of a [`Proxy`](crate::Proxy).
    pub fn url_at(&self, addresses: &str) -> String {
        let login =
            self.config.password.as_ref().map(|password| format!("root:{password}@")).unwrap_or_default();
        match &self.certificates {
            None => format!("etcd://{login}{addresses}"),
            Some(files) => {
                let mut url = format!("etcds://{login}{addresses}?ca={}", files.ca.display());
                if self.config.tls == Some(true) {
                    url += &format!("&cert={}&key={}", files.client.display(), files.client_key.display());
                }
                url
            }
        }
    }

    /// The certificates of a cluster with TLS.
    ///
    /// # Panics
    /// If it has none.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("a cluster with TLS")
    }

    /// The members.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// Which member is the leader.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        eventually("the cluster has a leader", || {
            leader = self.members.iter().position(|member| {
                member.is_running() && self.status(member).get(4).is_some_and(|leads| leads == "true")
            });
            leader.is_some()
        });
        leader.expect("waited for")
    }

    /// What a member says about itself: its address, its id, its version and more.
    fn status(&self, member: &Member) -> Vec<String> {
        let words = ["endpoint", "status", "-w", "simple", "--endpoints", &member.addr().to_string()];
        self.etcdctl(&words).split(", ").map(str::to_owned).collect()
    }

    /// Has the leader hand over to the next member.
    ///
    /// # Panics
    /// If it does not.
    pub fn move_leader(&self) {
        // An election may come in between.
        eventually("the leader hands over", || {
            let leader = self.leader();
            let status = self.status(&self.members[(leader + 1) % self.members.len()]);
            let Some(next) = status.get(1) else { return false };
            let address = self.members[leader].addr().to_string();
            self.etcdctl(&["move-leader", next, "--endpoints", &address]).contains("transferred")
        });
    }

    /// `etcdctl WORDS…` on this cluster, with its certificates and without a user.
    pub fn command(&self, words: &[&str]) -> Command {
        let running = self.members.iter().filter(|member| member.is_running());
        let endpoints: Vec<_> = running.map(|member| member.addr().to_string()).collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3");
        if !words.contains(&"--endpoints") {
            command.args(["--endpoints", &endpoints.join(",")]);
        }
        if let Some(files) = &self.certificates {
            command.arg("--cacert").arg(&files.ca);
            command.arg("--cert").arg(&files.client).arg("--key").arg(&files.client_key);
        }
        command.args(words);
        command
    }

    /// What `etcdctl WORDS…` prints; nothing if it fails.
    ///
    /// # Panics
    /// If `etcdctl` is not installed.
    pub fn etcdctl(&self, words: &[&str]) -> String {
        self.etcdctl_with(words, "")
    }

    /// The same, with something on its standard input.
    ///
    /// # Panics
    /// If `etcdctl` is not installed.
    pub fn etcdctl_with(&self, words: &[&str], input: &str) -> String {
        let mut command = self.command(words);
        if let Some(password) = &self.config.password {
            command.env("ETCDCTL_USER", format!("root:{password}"));
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcdctl is installed; run `make deps`");
        let written = process.stdin.take().expect("stdin is piped").write_all(input.as_bytes());
        let Output { stdout, .. } = process.wait_with_output().expect("etcdctl ends");
        written.expect("etcdctl reads its input");
        String::from_utf8_lossy(&stdout).trim().to_owned()
    }

    /// Saves a snapshot, in the folder of the first member.
    ///
    /// # Panics
    /// If that fails.
    pub fn snapshot(&self) -> PathBuf {
        let path = self.members[0].folder().join("snapshot");
        let address = self.members[0].addr().to_string();
        let saved = self.etcdctl(&["snapshot", "save", &path.display().to_string(), "--endpoints", &address]);
        assert!(path.is_file(), "{saved}");
        path
    }

    /// All keys that start with `prefix`.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        // An empty key cannot be asked for.
        let range = if prefix.is_empty() { ["", "--from-key"] } else { [prefix, "--prefix"] };
        let keys = self.etcdctl(&["get", range[0], range[1], "--keys-only"]);
        keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// The leases there are.
    pub fn leases(&self) -> Vec<String> {
        let list = self.etcdctl(&["lease", "list"]);
        list.lines().skip(1).map(str::to_owned).collect()
    }
}

impl Index<usize> for Cluster {
    type Output = Member;

    fn index(&self, index: usize) -> &Member {
        &self.members[index]
    }
}

impl IndexMut<usize> for Cluster {
    fn index_mut(&mut self, index: usize) -> &mut Member {
        &mut self.members[index]
    }
}

fn temporary() -> Folder {
    Folder::new("etcd")
}

fn ports() -> [u16; 3] {
    [port::free(), port::free(), port::free()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_members_have_a_leader_and_another_when_it_is_killed() {
        let mut cluster = Cluster::start(3);
        let leader = cluster.leader();
        assert_eq!(cluster.etcdctl(&["put", "a", "1"]), "OK");
        cluster[leader].kill();
        eventually("another member leads", || cluster.leader() != leader);
        assert_eq!(cluster.keys(""), ["a"]);
        cluster[leader].restart();
    }

    #[test]
    fn a_restarted_member_has_kept_its_data() {
        let mut cluster = Cluster::start(1);
        cluster.etcdctl(&["put", "a", "1"]);
        cluster[0].restart();
        assert_eq!(cluster.keys("a"), ["a"]);
        cluster[0].pause();
        cluster[0].resume();
        assert_eq!(cluster.leases(), [""; 0]);
    }

    #[test]
    fn users_and_certificates_are_asked_for() {
        let cluster = Cluster::config().password("hush").tls_with_client_certificate().start(1);
        assert_eq!(cluster.etcdctl(&["put", "a", "1"]), "OK");
        assert!(!cluster.command(&["get", "a"]).output().unwrap().status.success());
    }
}
