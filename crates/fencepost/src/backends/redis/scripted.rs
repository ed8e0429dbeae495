//! One script on one server, for what is no lock: one connection for each runtime that asks, greeted like all others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime;

use super::config::Config;
use super::connection::Connection;
use super::dial::Dial;
use super::resp::Value;
use crate::backend::lock;
use crate::url::StoreUrl;
use crate::{Error, Result};

#[derive(Debug)]
pub(crate) struct Scripted {
    dial: Dial,
    script: &'static str,
    lines: Mutex<HashMap<runtime::Id, Arc<Line>>>,
}

/// The connection of one runtime, over all its incarnations.
#[derive(Debug, Default)]
struct Line {
    current: Mutex<Option<Arc<Link>>>,
    connecting: tokio::sync::Mutex<()>,
}

impl Line {
    fn usable(&self) -> Option<Arc<Link>> {
        lock(&self.current).clone().filter(|link| link.connection.is_usable())
    }
}

#[derive(Debug)]
struct Link {
    connection: Connection,
    /// What to call the script by.
    name: String,
}

/// What came of a call.
pub(crate) enum Outcome {
    Answered(Value),
    /// The server's error, as it is.
    Refused(String),
    /// It was sent, and may have run, or may run later.
    Unanswered(String),
}

impl Scripted {
    pub(crate) async fn connect(url: StoreUrl, script: &'static str) -> Result<Self> {
        let scripted = Self { dial: Dial::new(Config::from_url(url)?)?, script, lines: Mutex::default() };
        scripted.link().await?;
        Ok(scripted)
    }

    pub(crate) fn label(&self) -> &str {
        &self.dial.config.label
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.dial.config.prefix
    }

    /// What an error reply means.
    pub(crate) fn refusal(&self, text: &str) -> Error {
        self.dial.refusal(text)
    }

    pub(crate) fn unavailable(&self, why: String) -> Error {
        self.dial.unavailable(why)
    }

    fn timeout(&self) -> Duration {
        self.dial.config.timeout
    }

    /// Runs the script once. An error means that it was not sent.
    pub(crate) async fn run(&self, key: &str, arguments: &[&[u8]]) -> Result<Outcome> {
        let link = self.link().await?;
        let outcome = self.send(&link, key, arguments).await?;
        match outcome {
            Outcome::Refused(text) if text.starts_with("NOSCRIPT") => {
                // It did not run, so it can simply be sent again, right behind the load.
                let _load = link.connection.command(&["SCRIPT", "LOAD", self.script]);
                self.send(&link, key, arguments).await
            }
            outcome => Ok(outcome),
        }
    }

    async fn send(&self, link: &Link, key: &str, arguments: &[&[u8]]) -> Result<Outcome> {
        let mut words: Vec<&[u8]> = Vec::with_capacity(4 + arguments.len());
        words.extend([b"EVALSHA".as_slice(), link.name.as_bytes(), b"1", key.as_bytes()]);
        words.extend(arguments);
        let reply = link.connection.send(words.into_iter()).map_err(|why| self.unavailable(why))?;
        Ok(match tokio::time::timeout(self.timeout(), reply).await {
            Ok(Ok(Value::Error(text))) => Outcome::Refused(text),
            Ok(Ok(value)) => Outcome::Answered(value),
            Ok(Err(_)) => Outcome::Unanswered(link.connection.why_ended()),
            Err(_) => {
                link.connection.suspect();
                Outcome::Unanswered(format!("no answer within {:?}", self.timeout()))
            }
        })
    }

    /// The current runtime's connection, opened if need be.
    async fn link(&self) -> Result<Arc<Link>> {
        let line = self.line();
        match line.usable() {
            Some(link) => Ok(link),
            // Boxed: it is rare, and large, and would make the future of every call as large.
            None => Box::pin(self.new_link(&line)).await,
        }
    }

    async fn new_link(&self, line: &Line) -> Result<Arc<Link>> {
        let connect = async {
            let _turn = line.connecting.lock().await;
            if let Some(link) = line.usable() {
                return Ok(link);
            }
            let connection = Connection::start(&Arc::default(), self.dial.open().await?, |_| {});
            let mut greeting = self.dial.greet(&connection, None, &[self.script], &["PING"]).await?;
            let name = greeting.scripts.pop().unwrap_or_default();
            let link = Arc::new(Link { connection, name });
            *lock(&line.current) = Some(link.clone());
            Ok(link)
        };
        match tokio::time::timeout(self.timeout(), connect).await {
            Ok(link) => link,
            Err(_) => Err(self.unavailable(format!("no connection within {:?}", self.timeout()))),
        }
    }

    fn line(&self) -> Arc<Line> {
        let id = runtime::Handle::current().id();
        let mut lines = lock(&self.lines);
        if let Some(line) = lines.get(&id) {
            return line.clone();
        }
        // Runtimes come and go, in tests above all.
        lines.retain(|_, line| Arc::strong_count(line) > 1 || line.usable().is_some());
        lines.entry(id).or_default().clone()
    }
}
