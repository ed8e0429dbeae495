//! One member of a cluster.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::{ports, temporary};
use crate::eventually::{LIMIT, within};
use crate::process::Process;
use crate::{Certificates, Folder, eventually};

/// One etcd process.
#[derive(Debug)]
pub struct Member {
    name: String,
    /// For clients, for the other members, and for questions about its health.
    ports: [u16; 3],
    arguments: Vec<String>,
    process: Option<Process>,
    folder: Folder,
}

impl Member {
    pub(super) fn new(number: usize) -> Self {
        let name = format!("m{number}");
        Self { name, ports: ports(), arguments: Vec::new(), process: None, folder: temporary() }
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn peer(&self) -> String {
        format!("{}=http://127.0.0.1:{}", self.name, self.ports[1])
    }

    pub(super) fn configure(
        &mut self,
        peers: &[String],
        files: Option<&Certificates>,
        client_certificate: bool,
        durable: bool,
    ) {
        let [clients, peer, health] = self.ports;
        let scheme = if files.is_some() { "https" } else { "http" };
        let data = self.folder.path().join("data");
        let mut arguments = vec![
            format!("--name={}", self.name),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={scheme}://127.0.0.1:{clients}"),
            format!("--advertise-client-urls={scheme}://127.0.0.1:{clients}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
            format!("--listen-metrics-urls=http://127.0.0.1:{health}"),
            format!("--initial-cluster={}", peers.join(",")),
            // A new leader in half a second, and so the shortest lease there is: one second.
            "--heartbeat-interval=100".to_owned(),
            "--election-timeout=500".to_owned(),
            "--logger=zap".to_owned(),
        ];
        if !durable {
            arguments.push("--unsafe-no-fsync".to_owned());
        }
        if let Some(files) = files {
            arguments.push(format!("--cert-file={}", files.server.display()));
            arguments.push(format!("--key-file={}", files.server_key.display()));
            if client_certificate {
                arguments.push("--client-cert-auth".to_owned());
                arguments.push(format!("--trusted-ca-file={}", files.ca.display()));
            }
        }
        self.arguments = arguments;
    }

    pub(super) fn limit(&mut self, bytes: u64) {
        self.arguments.push(format!("--quota-backend-bytes={bytes}"));
    }

    pub(super) fn spawn(&mut self) {
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        self.process = Some(Process::start(self.folder.path(), &[], "etcd", &arguments));
    }

    pub(super) fn is_dead(&self) -> bool {
        self.process.as_ref().is_none_or(Process::is_dead)
    }

    /// Whether it was started and not killed.
    pub(super) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    fn ask(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[2]))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Whether it answers, and the cluster has a leader.
    pub(super) fn is_healthy(&self) -> bool {
        self.ask("/health").is_ok_and(|text| text.contains("\"health\":\"true\""))
    }

    /// How many requests of a kind, such as `LeaseKeepAlive`, have come so far.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn requests(&self, method: &str) -> u64 {
        let text = self.ask("/metrics").expect("its metrics");
        let ours = |line: &&str| {
            line.starts_with("grpc_server_msg_received_total{")
                && line.contains(&format!("grpc_method=\"{method}\""))
        };
        text.lines().filter(ours).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Where it listens for clients.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[0]).into()
    }

    /// What it has printed so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The process id.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Stops the process (`SIGSTOP`): connections stay open, nothing is answered. Returns when it stands
    /// still.
    pub fn pause(&self) {
        self.process().signal(Signal::STOP);
        eventually("the member stands still", || matches!(self.process().state(), None | Some('T')));
    }

    /// Lets a stopped process go on.
    pub fn resume(&self) {
        self.process().signal(Signal::CONT);
    }

    /// Kills the process (`SIGKILL`).
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same ports, with its data. Kills it first if it runs. Returns when it is
    /// healthy.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let started = within(LIMIT, &mut || {
            if self.is_dead() {
                self.spawn();
            }
            self.is_healthy()
        });
        assert!(started, "etcd does not start again:\n{}", self.log());
    }

    /// Starts it again on the same ports as a cluster of its own that a snapshot is restored to. Kills it
    /// first if it runs.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restore(&mut self, snapshot: &Path) {
        self.kill();
        let data = self.folder.path().join("data");
        fs::remove_dir_all(&data).expect("its data");
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(snapshot);
        command.args(["--name", &self.name, "--initial-cluster", &self.peer()]);
        command.arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{}", self.ports[1]));
        let output = command.arg("--data-dir").arg(&data).output().expect("etcdctl is installed");
        assert!(output.status.success(), "{output:?}");
        self.restart();
    }

    /// Starts it again on the same ports without any data. Kills it first if it runs.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_empty(&mut self) {
        self.kill();
        fs::remove_dir_all(self.folder.path().join("data")).expect("its data");
        self.restart();
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("a running member")
    }
}
