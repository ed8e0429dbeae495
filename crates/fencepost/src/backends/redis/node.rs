//! One server: keeps connections to it, and asks it things, each under a timeout.
//!
//! A connection belongs to the runtime whose task drives it, so there is one for each runtime that uses this store,
//! the keeper's among them. Every new connection is greeted anew: that is where a restarted server, a replica or a
//! changed configuration is noticed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::oneshot;

use super::config::Config;
use super::connection::{self, Connection, Reply};
use super::dial::Dial;
use super::inbox::Inbox;
use super::keys::Keys;
use super::resp::Value;
use super::turn::{Step, Stepper};
use crate::backend::lock;
use crate::clock::{Clock, Moment};
use crate::{Error, Result};

/// What a server is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// A step of a turn that takes a lock.
    Take,
    /// A step of a turn that gives one back or hands it over.
    Give,
    Renew,
    Attach,
    Revoke,
}

impl Script {
    /// Its place in [`SCRIPTS`].
    fn index(self) -> usize {
        match self {
            Self::Take | Self::Give => 0,
            Self::Renew => 1,
            Self::Attach => 2,
            Self::Revoke => 3,
        }
    }

    fn is_step(self) -> bool {
        matches!(self, Self::Take | Self::Give)
    }
}

const SCRIPTS: [&str; 4] = [
    include_str!("turn.lua"),
    include_str!("renew.lua"),
    include_str!("attach.lua"),
    concat!(include_str!("prelude.lua"), include_str!("revoke.lua")),
];

/// Steps that one call makes: as many as callers are answered at a time, so that the server works on some while others are
/// put together.
const MOST_STEPS: usize = connection::AT_A_TIME;

#[derive(Debug)]
pub(super) struct Node {
    dial: Dial,
    lines: Mutex<HashMap<runtime::Id, Arc<Line>>>,
    inbox: Arc<Inbox>,
    channels: RandomState,
    clock: Clock,
}

/// The connection of one runtime, over all its incarnations.
#[derive(Debug)]
pub(super) struct Line {
    /// Where the server pushes messages for this line.
    pub(super) channel: String,
    current: Mutex<Option<Arc<Link>>>,
    connecting: tokio::sync::Mutex<()>,
}

impl Line {
    fn usable(&self) -> Option<Arc<Link>> {
        lock(&self.current).clone().filter(|link| link.connection.is_usable())
    }
}

/// A greeted connection.
#[derive(Debug)]
pub(super) struct Link {
    connection: Connection,
    /// Which run of the server this is.
    run: String,
    scripts: Vec<String>,
    stepper: Arc<Stepper>,
}

/// The keys a script works on.
#[derive(Clone, Copy)]
pub(super) enum On<'a> {
    /// Lock, counter and queue of one lock.
    One(&'a Keys),
    /// The lock keys of many.
    Locks(&'a [&'a str]),
}

/// An answer, and when its request was sent.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) value: Value,
    pub(super) sent: Moment,
    /// The connection ended under the first request, which may have taken effect.
    pub(super) repeated: bool,
}

impl Link {
    /// Sends a script; never waits. A step of a turn goes out together with all other steps that are asked for until the
    /// connection is next written to, in the same order.
    pub(super) fn send(
        &self,
        script: Script,
        on: On<'_>,
        arguments: &[&str],
        sent: Moment,
    ) -> Result<Reply, String> {
        self.put(script, on, arguments, sent, false)
    }

    fn put(
        &self,
        script: Script,
        on: On<'_>,
        arguments: &[&str],
        sent: Moment,
        alone: bool,
    ) -> Result<Reply, String> {
        let fence;
        let one;
        let keys: &[&str] = match on {
            On::One(keys) => {
                fence = keys.fence(&self.run);
                one = [keys.lock(), fence.as_str(), keys.queue()];
                &one
            }
            On::Locks(keys) => keys,
        };
        if script.is_step() {
            let (sender, reply) = oneshot::channel();
            // Nobody may wait any more.
            let call = Box::new(move |value| drop(Option::map(value, |value| sender.send(value))));
            let step = Step { keys, arguments, needs_end: false, alone };
            return self.connection.join(&self.stepper, &step, sent, call).map(|()| reply);
        }
        let count = keys.len().to_string();
        let mut words = Vec::with_capacity(3 + keys.len() + arguments.len());
        words.extend_from_slice(&["EVALSHA", &self.scripts[script.index()], &count]);
        words.extend_from_slice(keys);
        words.extend_from_slice(arguments);
        self.connection.send(words.iter().map(|word| word.as_bytes()))
    }

    /// Lets the server write to others before it answers what is sent next. It writes first to whom it has had something to
    /// say last; so whoever has an answer waiting already comes behind those that a script pushes to.
    pub(super) fn answer_last(&self) {
        // Nobody needs the answer, and a connection that has ended says so to what is sent next.
        let _ = self.connection.command(&["PING"]);
    }

    /// Whether an error means that the script did not run and has a chance if it is sent again, alone.
    fn may_go_again(&self, script: Script, text: &str) -> bool {
        match text.split(' ').next().unwrap_or_default() {
            "NOSCRIPT" => {
                // It goes right behind the load.
                let _load = self.connection.command(&["SCRIPT", "LOAD", SCRIPTS[script.index()]]);
                true
            }
            // Of all keys in one call, one was not allowed.
            "NOPERM" => script.is_step(),
            _ => false,
        }
    }

    /// Whether the connection is gone, and with it the answers to what was sent.
    pub(super) fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }

    /// The name of a counter at this run of the server.
    pub(super) fn fence(&self, keys: &Keys) -> String {
        keys.fence(&self.run)
    }
}

/// Why an answer did not come.
enum Silence {
    /// The connection ended.
    Ended(String),
    TimedOut(Duration),
}

impl Node {
    pub(super) fn new(config: Config, inbox: Arc<Inbox>, clock: Clock) -> Result<Self> {
        let dial = Dial::new(config)?;
        Ok(Self { dial, lines: Mutex::default(), inbox, channels: RandomState::new(), clock })
    }

    pub(super) fn config(&self) -> &Config {
        &self.dial.config
    }

    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Runs a script. If the connection turns out to have ended, it is run once more over a new one: what it does, it
    /// does for one owner once. Only an acquire that was sent is never repeated: the first one, arriving late, could
    /// bring back a lock that was lost since. `on_send` is told the link before anything is sent over it.
    pub(super) async fn run(
        &self,
        script: Script,
        on: On<'_>,
        arguments: &[&str],
        timeout: Duration,
        mut on_send: impl FnMut(&Arc<Link>),
    ) -> Result<Answer> {
        let deadline = self.clock.now().plus(timeout);
        let (mut repeated, mut again) = (false, true);
        loop {
            let link = self.link(deadline).await?;
            on_send(&link);
            let sent = self.clock.now();
            let reply = link.send(script, on, arguments, sent);
            let left = reply.is_ok();
            let mut answer = self.answer(&link, reply, deadline).await;
            if let Ok(Value::Error(text)) = &answer
                && link.may_go_again(script, text)
            {
                // It did not run, so it can simply be sent again.
                answer = self.answer(&link, link.put(script, on, arguments, sent, true), deadline).await;
            }
            match answer {
                Ok(Value::Error(text)) => return Err(self.refusal(&text)),
                Ok(value) => return Ok(Answer { value, sent, repeated }),
                Err(Silence::Ended(_)) if again && !(left && script == Script::Take) => {
                    again = false;
                    repeated = left;
                }
                Err(silence) => return Err(self.silence(silence)),
            }
        }
    }

    /// Sends plain commands together and returns their replies. For commands that only read.
    pub(super) async fn ask(&self, commands: &[&[&str]]) -> Result<Vec<Value>> {
        let deadline = self.clock.now().plus(self.config().timeout);
        let mut repeated = false;
        'again: loop {
            let link = self.link(deadline).await?;
            let replies: Vec<_> = commands.iter().map(|words| link.connection.command(words)).collect();
            let mut values = Vec::with_capacity(replies.len());
            for reply in replies {
                match self.answer(&link, reply, deadline).await {
                    Ok(Value::Error(text)) if !text.starts_with("WRONGTYPE") => {
                        return Err(self.refusal(&text));
                    }
                    Ok(value) => values.push(value),
                    Err(Silence::Ended(_)) if !repeated => {
                        repeated = true;
                        continue 'again;
                    }
                    Err(silence) => return Err(self.silence(silence)),
                }
            }
            return Ok(values);
        }
    }

    /// Waits for a reply.
    async fn answer(
        &self,
        link: &Link,
        reply: Result<Reply, String>,
        deadline: Moment,
    ) -> Result<Value, Silence> {
        let reply = reply.map_err(Silence::Ended)?;
        let left = deadline.since(self.clock.now());
        match tokio::time::timeout(left, reply).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(Silence::Ended(link.connection.why_ended())),
            Err(_) => {
                link.connection.suspect();
                Err(Silence::TimedOut(left))
            }
        }
    }

    fn silence(&self, silence: Silence) -> Error {
        match silence {
            Silence::Ended(why) => self.unavailable(why),
            Silence::TimedOut(after) => self.unavailable(format!("no answer within {after:?}")),
        }
    }

    /// The current runtime's connection, opened if need be.
    pub(super) async fn link(&self, deadline: Moment) -> Result<Arc<Link>> {
        let line = self.line();
        match line.usable() {
            Some(link) => Ok(link),
            // Boxed: it is rare, and large, and would make the future of every request as large.
            None => Box::pin(self.new_link(&line, deadline)).await,
        }
    }

    async fn new_link(&self, line: &Line, deadline: Moment) -> Result<Arc<Link>> {
        let connect = async {
            let _turn = line.connecting.lock().await;
            if let Some(link) = line.usable() {
                return Ok(link);
            }
            let link = Arc::new(self.connect(line).await?);
            *lock(&line.current) = Some(link.clone());
            Ok(link)
        };
        let left = deadline.since(self.clock.now());
        match tokio::time::timeout(left, connect).await {
            Ok(link) => link,
            Err(_) => Err(self.unavailable(format!("no connection within {left:?}"))),
        }
    }

    /// The line of the current runtime.
    pub(super) fn line(&self) -> Arc<Line> {
        let id = runtime::Handle::current().id();
        let mut lines = lock(&self.lines);
        if let Some(line) = lines.get(&id) {
            return line.clone();
        }
        // Runtimes come and go, in tests above all. A line that somebody waits or holds a lock on keeps its channel.
        lines.retain(|_, line| Arc::strong_count(line) > 1 || line.usable().is_some());
        // The same each time for a runtime, also after a close: waiters and holders have told the server this one.
        let channel = format!("{:016x}", self.channels.hash_one(id));
        let line =
            Arc::new(Line { channel, current: Mutex::default(), connecting: tokio::sync::Mutex::default() });
        lines.insert(id, line.clone());
        line
    }

    async fn connect(&self, line: &Line) -> Result<Link> {
        let inbox = self.inbox.clone();
        let connection =
            Connection::start(&Arc::default(), self.dial.open().await?, move |push| inbox.deliver(&push));
        let greeting = self.dial.greet(&connection, Some(&line.channel), &SCRIPTS, &["PING"]).await?;
        tracing::debug!(store = %self.config().label, "connected");
        let run = super::fitness::run_id(&greeting.info).to_owned();
        let script = greeting.scripts[Script::Take.index()].clone();
        let stepper = Arc::new(Stepper { script, most: MOST_STEPS, ..Stepper::default() });
        Ok(Link { connection, run, scripts: greeting.scripts, stepper })
    }

    pub(super) fn unavailable(&self, source: impl Into<crate::Source>) -> Error {
        self.dial.unavailable(source)
    }

    fn refusal(&self, text: &str) -> Error {
        self.dial.refusal(text)
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        for line in std::mem::take(&mut *lock(&self.lines)).into_values() {
            if let Some(link) = lock(&line.current).take() {
                link.connection.close();
            }
        }
    }
}
