//! A server process that cannot outlive the test, however that ends.
//!
//! A shell stands between us and the server and reads from a pipe that only we hold: when we die, by whatever
//! signal, the pipe ends and the shell kills the server and removes its folder. (A parent-death signal would
//! not do: it fires when the *thread* that spawned the child ends.) The shell reaps the server only after it
//! was told to, so the server's pid stays its own for as long as we use it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const SUPERVISOR: &str = r#"
# The kernel hangs up a group that loses its parent while a member is stopped: a frozen server must not
# outlive us.
trap '' HUP
folder=$1; signal=$2; shift 2
"$@" </dev/null >>"$folder/log" 2>&1 &
server=$!
echo "$server"
read -r word
kill "-$signal" "$server"
# What the server has started may be frozen, and a server that asks it to end waits for it.
children=$(cat "/proc/$server/task/$server/children" 2>/dev/null)
[ "$signal" = KILL ] || kill -CONT "$server" $children 2>/dev/null
wait "$server"
[ "$word" = keep ] || rm -rf "$folder"
"#;

/// The state of any process as one letter (`R`, `S`, `T`, `Z`, …); `None` if there is none.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[derive(Debug)]
pub(crate) struct Process {
    supervisor: Child,
    server: Pid,
}

impl Process {
    /// Starts `program` with more variables (`NAME=value`) in its environment; what it prints goes to the
    /// file `log` in `folder`. If this process dies, `folder` goes, too.
    pub(crate) fn start(folder: &Path, environment: &[String], program: &str, arguments: &[&str]) -> Self {
        Self::start_with(folder, "KILL", environment, program, arguments)
    }

    /// The same for a server that is ended by another signal than `KILL`, since it has to end others first.
    pub(crate) fn start_with(
        folder: &Path,
        signal: &str,
        environment: &[String],
        program: &str,
        arguments: &[&str],
    ) -> Self {
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(folder)
            .arg(signal)
            // The variables are the server's alone: the supervisor must not load what the server shall.
            .arg("env")
            .args(environment)
            .arg(program)
            .args(arguments)
            // A signal to the test's group (Ctrl-C) must reach the server through the supervisor, which
            // cleans up.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.join("supervisor.log")).expect("the folder is writable"))
            .spawn()
            .expect("sh starts");
        let mut line = String::new();
        let out = supervisor.stdout.take().expect("stdout is piped");
        BufReader::new(out).read_line(&mut line).expect("the supervisor answers");
        let server = line.trim().parse().ok().and_then(Pid::from_raw).expect("the supervisor says the pid");
        Self { supervisor, server }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.server.as_raw_nonzero().get().unsigned_abs()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.server, signal).expect("the server is our process");
    }

    /// The process state as one letter (`R`, `S`, `T`, `Z`, …); `None` where there is no `/proc`.
    pub(crate) fn state(&self) -> Option<char> {
        state(self.pid())
    }

    /// Whether it has ended by itself.
    pub(crate) fn is_dead(&self) -> bool {
        self.state() == Some('Z')
    }
}

impl Drop for Process {
    /// Kills the server and waits until it is gone. Its folder stays.
    fn drop(&mut self) {
        if let Some(mut pipe) = self.supervisor.stdin.take() {
            let _ = pipe.write_all(b"keep\n");
        }
        let _ = self.supervisor.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;

    #[test]
    fn the_end_of_the_pipe_alone_ends_server_and_folder() {
        let folder = Folder::new("process");
        let mut process = Process::start(folder.path(), &[], "sleep", &["1000"]);
        // What the kernel does to the pipe of a killed test.
        drop(process.supervisor.stdin.take());
        process.supervisor.wait().unwrap();
        assert_eq!(process.state(), None);
        assert!(!folder.path().exists());
    }
}
