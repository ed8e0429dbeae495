//! A client that is the command itself: a real `fencepost run`, with a command inside that says when it runs.
//! It holds the lock for as long as it does, so what counts is its own word, and not what any guard believes.

use std::io::{self, Write as _};
use std::process::Stdio;
use std::time::Duration;

use fencepost_testkit::history::{Moment, What};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep_until};

use super::worker::Worker;
use crate::args::TortureCommand;
use crate::exit::{BUSY, LOST, Outcome, UNAVAILABLE};

/// How often the command says that it runs.
const ALIVE: Duration = Duration::from_millis(10);

/// The command inside: says when it starts, that it goes on, and when it ends. Ends when nobody listens.
pub(crate) fn inside(args: &TortureCommand) -> Outcome {
    let token = std::env::var("FENCEPOST_TOKEN").unwrap_or_default();
    let say = |word: &str| {
        let mut out = io::stdout().lock();
        writeln!(out, "{word} {}", Moment::now().0).and_then(|()| out.flush()).is_ok()
    };
    let end = Moment::now().plus(args.lasts);
    let mut heard = say(&format!("start {token}"));
    while heard && Moment::now() < end {
        std::thread::sleep(ALIVE.min(end.since(Moment::now())));
        heard = say("alive");
    }
    if heard {
        say("end");
    }
    Ok(0)
}

/// What is done to a wrapper.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Harm {
    None,
    Stop,
    Kill,
}

impl Worker<'_> {
    /// Runs a command under a lock, and tells what it said.
    pub(super) async fn run_command(&mut self, name: &str, wait: Duration) {
        self.say(What::Invoke { lock: name.to_owned(), by: None });
        let harm = match self.dice.below(100) {
            0..12 if self.args.rough => Harm::Stop,
            12..20 if self.args.rough => Harm::Kill,
            _ => Harm::None,
        };
        let (mut wrapper, output) = match self.start(name, wait, harm) {
            Ok(started) => started,
            Err(error) => {
                let error = Some(error.to_string());
                return self.say(What::GaveUp { why: "not started".to_owned(), error });
            }
        };
        let (held, ended) = self.listen(&wrapper, output, harm).await;
        let (status, error) = (wrapper.wait().await, said(wrapper.stderr.take()).await);
        let code = status.ok().and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
        match held {
            // The guardian ended it, or we did.
            Some(until) if !ended => self.say(What::Lost { why: "ended".to_owned(), until }),
            Some(_) => {}
            None => {
                let why = match code {
                    Some(BUSY) => "timed out",
                    Some(UNAVAILABLE) => "unavailable",
                    Some(LOST) => "lost",
                    _ => "stopped",
                };
                let error = error.filter(|_| code != Some(BUSY));
                self.say(What::GaveUp { why: why.to_owned(), error });
            }
        }
    }

    fn start(&mut self, name: &str, wait: Duration, harm: Harm) -> io::Result<(Child, ChildStdout)> {
        let ttl = self.args.ttl;
        let milliseconds = |duration: Duration| format!("{}ms", duration.as_millis());
        let exe = std::env::current_exe()?;
        let mut command = Command::new(&exe);
        command.args(["run", name, "--wait", &milliseconds(wait), "--ttl", &milliseconds(ttl)]);
        let grace = [ttl / 4, ttl, Duration::from_secs(30)][self.dice.below(3)];
        command.args(["--grace", &milliseconds(grace)]);
        if self.dice.in_hundred(20) {
            command.args(["--max-hold", &milliseconds(ttl * 4)]);
        }
        // Past its lease, if its wrapper is broken meanwhile.
        let longest = if harm == Harm::None { ttl / 20 } else { ttl * 3 };
        let lasts = self.dice.between(longest / 2, longest);
        command.arg("--").arg(exe).args(["torture-command", "--lasts", &milliseconds(lasts)]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: one system call, which is allowed between fork and exec.
        #[allow(unsafe_code)]
        unsafe {
            // Nobody would tell of a command whose worker is dead.
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let mut wrapper = command.spawn()?;
        let output = wrapper.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok((wrapper, output))
    }

    /// Tells what the command says until it is gone. Returns when it was last heard of, if it ran, and
    /// whether it came to its end.
    async fn listen(&mut self, wrapper: &Child, output: ChildStdout, harm: Harm) -> (Option<Moment>, bool) {
        let pid = wrapper.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let signal = |signal| {
            let _ = pid.map(|pid| kill_process(pid, signal));
        };
        let (mut lines, mut held, mut ended, mut wakes) = (BufReader::new(output).lines(), None, false, None);
        let end = self.end.clone();
        loop {
            tokio::select! {
                line = lines.next_line() => {
                    let Ok(Some(line)) = line else { return (held, ended) };
                    let words: Vec<_> = line.split(' ').collect();
                    let at = words.last().and_then(|word| word.parse().ok()).map_or_else(Moment::now, Moment);
                    match words[..] {
                        ["start", token, _] => {
                            let token = token.parse().unwrap_or_default();
                            self.say_at(at, What::Acquired { token, until: None });
                            match harm {
                                Harm::None => {}
                                Harm::Kill => signal(Signal::KILL),
                                Harm::Stop => {
                                    signal(Signal::STOP);
                                    wakes = Some(Instant::now() + self.args.ttl * 2);
                                }
                            }
                        }
                        ["end", _] => {
                            self.say_at(at, What::Released { until: None });
                            ended = true;
                        }
                        _ => self.say_at(at, What::Held { until: None }),
                    }
                    held = Some(at);
                }
                () = sleep_until(wakes.unwrap_or_else(Instant::now)), if wakes.is_some() => {
                    wakes = None;
                    signal(Signal::CONT);
                }
                () = end.woken.notified() => signal(Signal::TERM),
            }
        }
    }
}

/// What a wrapper said on stderr.
async fn said(stderr: Option<tokio::process::ChildStderr>) -> Option<String> {
    let mut text = String::new();
    stderr?.read_to_string(&mut text).await.ok()?;
    text.lines().next().map(str::to_owned)
}
