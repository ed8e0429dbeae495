//! Processes that measure, seen from the one that started them.

use std::io;
use std::process::{Command, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::crowd::Crowd;
use crate::turns::{Contest, Turn};

/// A process that [serves](crate::serve). Killed if it is dropped before its end.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts it. It is [ready](Self::ready) later, so that several can get there at the same time.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn start(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("it has no input or no output"));
        };
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    /// Its process id, until it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it says so.
    ///
    /// # Errors
    ///
    /// It has ended, or said something else.
    pub async fn ready(&mut self) -> io::Result<()> {
        match self.line().await?.as_str() {
            "ready" => Ok(()),
            other => Err(io::Error::other(format!("it said `{other}` in place of `ready`"))),
        }
    }

    /// Tells it to do something.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub async fn tell(&mut self, command: &str) -> io::Result<()> {
        self.input.write_all(format!("{command}\n").as_bytes()).await?;
        self.input.flush().await
    }

    /// What it answers.
    ///
    /// # Errors
    ///
    /// It has ended, or says that something went wrong.
    pub async fn answer(&mut self) -> io::Result<Value> {
        let answer: Value = serde_json::from_str(&self.line().await?)?;
        match answer["error"].as_str() {
            Some(error) => Err(io::Error::other(error.to_owned())),
            None => Ok(answer),
        }
    }

    /// Lets it end by itself.
    ///
    /// # Errors
    ///
    /// It cannot be waited for.
    pub async fn end(self) -> io::Result<()> {
        let Self { mut child, input, .. } = self;
        drop(input);
        child.wait().await.map(drop)
    }

    async fn line(&mut self) -> io::Result<String> {
        let line = self.output.next_line().await?;
        line.ok_or_else(|| io::Error::other("it ended before it had answered"))
    }
}

/// Lets several processes, each of which is ready, contend.
///
/// # Errors
///
/// One of them has ended, or says that something went wrong.
pub async fn contend_in_processes(workers: &mut [Worker], contest: &Contest) -> io::Result<Crowd> {
    let command = contest.command();
    for worker in workers.iter_mut() {
        worker.tell(&command).await?;
    }
    let mut contenders: Vec<Vec<Turn>> = Vec::new();
    for worker in workers.iter_mut() {
        let answer = worker.answer().await?;
        for turns in answer["turns"].as_array().into_iter().flatten() {
            contenders.push(turns.as_array().into_iter().flatten().filter_map(Turn::parse).collect());
        }
    }
    Ok(Crowd::new(&contenders, contest.lasts))
}
