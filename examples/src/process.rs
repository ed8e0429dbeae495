//! The processes of an example: this program once more, with a part to play.
//!
//! What such a process prints is shown with its name in front. A line that starts with [`CUE`] is not shown:
//! it tells the program that started the process how far it is, so that nothing here depends on how long
//! something takes.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use fencepost_testkit::{LIMIT, eventually};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::Result;

const CUE: char = '\u{1}';

/// A process that plays a part. It does not outlive the example.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    cues: Receiver<String>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts this program with the words that name its part, on a store. Call it on the main thread: see
    /// [`die_with_parent`].
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(name: impl Into<String>, part: &[&str], store: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(part)
            // In the environment, where other users do not see the password that may be in it.
            .env("FENCEPOST_STORE", store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let name = format!("{} (pid {})", name.into(), child.id());
        let (sender, cues) = channel();
        let reader = child.stdout.take().map(|stdout| {
            let name = name.clone();
            std::thread::spawn(move || relay(&name, BufReader::new(stdout), &sender))
        });
        Ok(Self { name, stdin: child.stdin.take(), child, cues, reader })
    }

    /// Its name and pid.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Says a line to it, which it [listens](listen) for.
    ///
    /// # Errors
    /// If it has ended.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().ok_or("its stdin is closed")?;
        writeln!(stdin, "{line}").map_err(|_| format!("{} has ended early", self.name))?;
        Ok(())
    }

    /// Waits for the next line that it [tells](tell) us.
    ///
    /// # Errors
    /// If it ends instead.
    pub fn listen(&self) -> Result<String> {
        self.cues.recv_timeout(LIMIT).map_err(|error| match error {
            RecvTimeoutError::Disconnected => format!("{} has ended early", self.name).into(),
            RecvTimeoutError::Timeout => format!("{} said nothing for {LIMIT:?}", self.name).into(),
        })
    }

    /// Stops it where it is, as a long garbage collection or a machine that sleeps would (`SIGSTOP`).
    ///
    /// # Errors
    /// If it has ended.
    pub fn freeze(&self) -> Result<()> {
        kill_process(self.pid(), Signal::STOP)?;
        let stat = format!("/proc/{}/stat", self.child.id());
        eventually("the process stands still", || {
            std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
        });
        Ok(())
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// If it has ended.
    pub fn wake(&self) -> Result<()> {
        Ok(kill_process(self.pid(), Signal::CONT)?)
    }

    /// Closes its stdin and waits for its end, which must be a good one.
    ///
    /// # Errors
    /// If it is not.
    pub fn end(mut self) -> Result<()> {
        self.stdin = None;
        let status = self.child.wait()?;
        self.hear_out();
        if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", self.name).into()) }
    }

    fn hear_out(&mut self) {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing happens to one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.hear_out();
    }
}

fn relay(name: &str, lines: impl BufRead, cues: &Sender<String>) {
    for line in lines.lines().map_while(|line| line.ok()) {
        match line.strip_prefix(CUE) {
            // Nobody may listen any more.
            Some(cue) => drop(cues.send(cue.to_owned())),
            None if writeln!(std::io::stdout(), "  {name}: {line}").is_ok() => {}
            // Nobody reads us any more, as behind `| head`.
            None => std::process::exit(0),
        }
    }
}

/// Ends this process when the one that started it dies, even while this one is frozen.
///
/// The kernel does so when the *thread* that started it ends, so parts are started on the main thread.
///
/// # Errors
/// If the system refuses.
pub fn die_with_parent() -> Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Tells the program that started this process how far it is.
pub fn tell(cue: &str) {
    println!("{CUE}{cue}");
}

/// Waits for a line from the program that started this process; `None` when there are no more.
///
/// # Errors
/// If it cannot be read.
pub fn listen() -> Result<Option<String>> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim_end().to_owned()))
}
