//! Clients as processes of their own, to be stopped and killed. A child is the test binary again: it runs the
//! one test that its parent names, which does what its environment says.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// A child process and the pipes to it. It is killed with this value.
pub(crate) struct Family {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Family {
    /// Starts a child that runs `test` to do `what`, and waits until it says something; returns that.
    pub(crate) fn start(
        test: &str,
        what: &str,
        url: &str,
        change: impl FnOnce(&mut Command),
    ) -> (Self, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env("FENCEPOST_CHILD", what).env("FENCEPOST_URL", url);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut family = Self { child, stdin, stdout };
        let said = family.answer();
        (family, said)
    }

    /// What a child was told to do and where, if this process is one.
    pub(crate) fn task() -> Option<(String, String)> {
        Some((std::env::var("FENCEPOST_CHILD").ok()?, std::env::var("FENCEPOST_URL").ok()?))
    }

    /// Waits for what the child says next.
    pub(crate) fn answer(&mut self) -> String {
        let mut lines = self.stdout.by_ref().lines().map(Result::unwrap);
        let said = lines.find_map(|line| Some(line.split_once("done: ")?.1.to_owned()));
        said.expect("the child failed")
    }

    /// Tells it something.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Tells it something and waits for what it says.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// Stops it (`SIGSTOP`); returns when it stands still.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        fencepost_testkit::eventually("the child stands still", || {
            std::fs::read_to_string(&stat).unwrap().contains(") T ")
        });
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets the child come to its end, and waits for it.
    pub(crate) fn finish(mut self) {
        drop(self.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is no child of ours, ended with the test.
pub(crate) struct Stray(Pid);

impl Stray {
    pub(crate) fn new(pid: &str) -> Self {
        Self(Pid::from_raw(pid.parse().unwrap()).unwrap())
    }

    pub(crate) fn is_alive(&self) -> bool {
        test_kill_process(self.0).is_ok()
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// What the child says to its parent.
pub(crate) fn say(what: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "done: {what}").unwrap();
    out.flush().unwrap();
}

/// Waits until the parent lets it go on, or is gone.
pub(crate) fn wait_for_parent() {
    let _ = std::io::stdin().read(&mut [0]);
}
