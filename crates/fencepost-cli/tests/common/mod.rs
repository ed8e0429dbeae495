//! What the tests of all subcommands share: a store of their own, and the real binary.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use fencepost_testkit::{Folder, eventually, redis::Server};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Undoes what a runner in the background or under `nohup` does to its children: they would ignore the
/// signals that these tests are about.
fn heed_signals() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM] {
            // SAFETY: restores a default; no handler runs.
            #[allow(unsafe_code)]
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    });
}

/// A store that ends with the test, and a folder for what commands write.
pub(crate) struct Store {
    pub(crate) url: String,
    folder: Folder,
    pub(crate) server: Option<Server>,
}

impl Store {
    pub(crate) fn file() -> Self {
        heed_signals();
        let folder = Folder::new("command");
        let url = format!("file://{}", folder.path().join("locks").display());
        Self { url, folder, server: None }
    }

    pub(crate) fn redis() -> Self {
        Self::on(Server::start())
    }

    pub(crate) fn on(server: Server) -> Self {
        heed_signals();
        Self { url: server.url(), folder: Folder::new("command"), server: Some(server) }
    }

    /// A store at a URL.
    pub(crate) fn at(url: String) -> Self {
        heed_signals();
        Self { url, folder: Folder::new("command"), server: None }
    }

    /// `fencepost WORDS…` on this store, in its folder.
    pub(crate) fn fencepost(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
        command.args(words).current_dir(self.folder.path()).env("FENCEPOST_STORE", &self.url);
        command
    }

    /// Runs it to its end.
    pub(crate) fn output(&self, words: &[&str]) -> Output {
        self.fencepost(words).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs it to its end, which must be a good one; returns its stdout.
    pub(crate) fn succeed(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        text(&output.stdout)
    }

    /// Runs it to its end, which must be a good one; returns the JSON it printed. `show` may find the lock
    /// free.
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let output = self.output(words);
        let is_free = words.contains(&"show") && output.status.code() == Some(1);
        assert!(output.status.success() || is_free, "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Starts it in the background.
    pub(crate) fn start(&self, words: &[&str]) -> Running {
        let mut command = self.fencepost(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(command)
    }

    /// Starts a holder of a lock that goes on until `stop` is created, and waits until it holds.
    pub(crate) fn hold(&self, name: &str, options: &[&str]) -> Running {
        let script = "touch held-$$; until [ -e stop ]; do sleep 0.01; done";
        let words = [&["run", name], options, &["--", "sh", "-c", script]].concat();
        let running = self.start(&words);
        eventually("the lock is held", || {
            let mut files = std::fs::read_dir(self.folder.path()).unwrap();
            files.any(|file| file.unwrap().file_name().to_string_lossy().starts_with("held-"))
        });
        running
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The first line of a file in the folder, as soon as there is one.
    pub(crate) fn line(&self, name: &str) -> String {
        let mut line = None;
        eventually(&format!("a line in `{name}`"), || {
            line = complete_line(&self.path(name));
            line.is_some()
        });
        line.unwrap()
    }

    /// A pid that a command wrote to a file.
    pub(crate) fn pid(&self, name: &str) -> Pid {
        pid(self.line(name).parse().unwrap())
    }
}

fn complete_line(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.split_once('\n').map(|(line, _)| line.to_owned())
}

/// A process in the background that does not outlive the test.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        Self::of(command.spawn().unwrap())
    }

    pub(crate) fn of(child: Child) -> Self {
        Self(Some(child))
    }

    pub(crate) fn pid(&self) -> Pid {
        pid(self.0.as_ref().unwrap().id().try_into().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.0.as_mut().unwrap().stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// The pipe of its stderr.
    pub(crate) fn stderr(&mut self) -> std::process::ChildStderr {
        self.0.as_mut().unwrap().stderr.take().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("killed: {output:?}"))
}

/// Checks an exit code and that stderr has all of these words.
#[track_caller]
pub(crate) fn assert_fails(output: &Output, expected: i32, words: &[&str]) {
    assert_eq!(code(output), expected, "{output:?}");
    let stderr = text(&output.stderr);
    for word in words {
        assert!(stderr.contains(word), "no `{word}` in: {stderr}");
    }
}

fn pid(raw: i32) -> Pid {
    Pid::from_raw(raw).unwrap()
}

/// Whether a process runs code: it exists and is not a zombie that nobody has collected.
pub(crate) fn is_alive(pid: Pid) -> bool {
    state(pid).is_some_and(|state| !['Z', 'X'].contains(&state))
}

/// Waits until a process runs `program`. A shell that is interrupted on its way there may swallow the signal.
pub(crate) fn becomes(pid: Pid, program: &str) {
    eventually(&format!("it runs `{program}`"), || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
        name.is_ok_and(|name| name.trim() == program)
    });
}

/// The state of a process as `ps` shows it.
pub(crate) fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}
