//! Sessions with one server: greeted connections, each with the script that its requests call.
//!
//! A connection belongs to the runtime whose task drives it, so each runtime has a session of its own, the
//! keeper's among them. Every new connection is greeted anew: that is where a restarted server, a replica or
//! a changed configuration is noticed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use super::batch::{BatchedScript, Step};
use super::connection::{self, Connection, Reply};
use super::connector::{self, Connector};
use super::push::PushRouter;
use super::resp::Value;
use crate::backends::redis::config::Config;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::sync::lock;
use crate::{Error, Result, Source};

/// Steps of one call: as many as callers are answered at a time, so that the server works on some while
/// others are put together.
const MOST_STEPS: usize = connection::AT_A_TIME;

/// The sessions with one server.
#[derive(Debug)]
pub(in crate::backends) struct Sessions {
    connector: Connector,
    script: &'static str,
    /// Where pushes go; without one, nothing is subscribed to.
    router: Option<Arc<PushRouter>>,
    runtimes: Mutex<HashMap<runtime::Id, Arc<RuntimeSlot>>>,
    clock: Clock,
}

/// The session of one runtime, over all its connections.
#[derive(Debug)]
pub(in crate::backends) struct RuntimeSlot {
    /// Where the server pushes messages for this runtime. Queues and held locks name it, so it stays the same
    /// while connections come and go, and nobody else has it: also not a process that was forked from this
    /// one.
    pub(in crate::backends) channel: String,
    current: Mutex<Option<Arc<Session>>>,
    connecting: tokio::sync::Mutex<()>,
}

impl RuntimeSlot {
    fn new() -> Self {
        let mut channel = Uuid::new_v4().simple().to_string();
        channel.truncate(16);
        Self { channel, current: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    fn usable(&self) -> Option<Arc<Session>> {
        lock(&self.current).clone().filter(|session| session.connection.is_usable())
    }
}

/// A greeted connection.
#[derive(Debug)]
pub(in crate::backends) struct Session {
    connection: Connection,
    script: Arc<BatchedScript>,
    text: &'static str,
    /// Closed with the connection.
    ended: watch::Receiver<()>,
}

/// One step of a script call.
#[derive(Debug)]
pub(in crate::backends) struct ScriptStep<'a> {
    pub(in crate::backends) keys: [&'a str; 3],
    pub(in crate::backends) words: [Cow<'a, [u8]>; 3],
    /// Whether it may push to another client, which is to hear of it first.
    pub(in crate::backends) pushes: bool,
}

/// Why an answer did not come.
#[derive(Debug)]
pub(in crate::backends) enum Silence {
    /// The session had ended before anything was sent.
    NotSent(String),
    /// It ended before the answer came: the request may have been carried out, or be carried out later.
    Ended(String),
    /// The server says that it is a replica by now, and has done nothing. The session is over.
    ReadOnly,
    TimedOut(Duration),
}

impl Session {
    /// Sends one step, in one call with all others that are sent until the connection is next written to, and
    /// in the same order. Never waits.
    pub(in crate::backends) fn send(&self, step: &ScriptStep<'_>, sent: Moment) -> Result<Reply, String> {
        let (sender, reply) = oneshot::channel();
        // Nobody may wait any more.
        let call = Box::new(move |value| drop(Option::map(value, |value| sender.send(value))));
        let ScriptStep { keys, words: arguments, pushes } = step;
        let step = Step { keys, arguments, needs_end: false, alone: false, pushes: *pushes };
        self.connection.join(&self.script, &step, sent, call).map(|()| reply)
    }

    /// Sends some steps in a call of their own. Never waits.
    fn call(&self, steps: &[ScriptStep<'_>]) -> Result<Reply, String> {
        let keys: Vec<_> = steps.iter().flat_map(|step| step.keys).collect();
        let words: Vec<_> = steps.iter().flat_map(|step| step.words.iter().map(AsRef::as_ref)).collect();
        self.eval(&keys, &words)
    }

    /// Calls the script.
    pub(super) fn eval(&self, keys: &[&str], arguments: &[&[u8]]) -> Result<Reply, String> {
        let count = keys.len().to_string();
        let mut words = Vec::with_capacity(3 + keys.len() + arguments.len());
        words.extend(["EVALSHA", &self.script.name, &count].map(str::as_bytes));
        words.extend(keys.iter().map(|key| key.as_bytes()));
        words.extend(arguments);
        self.connection.send(words.into_iter())
    }

    /// Whether an error means that the script did not run, and may be called again. Loads it if it was
    /// missing.
    pub(super) fn did_not_run(&self, error: &str) -> bool {
        match error.split(' ').next().unwrap_or_default() {
            "NOSCRIPT" => {
                // The next call goes right after it.
                let _load = self.connection.command(&["SCRIPT", "LOAD", self.text]);
                true
            }
            // Of all keys in one call, one was not allowed.
            "NOPERM" => true,
            _ => false,
        }
    }

    /// Waits until the connection has ended.
    pub(in crate::backends) async fn ended(&self) {
        let _ = self.ended.clone().changed().await;
    }
}

impl Sessions {
    pub(in crate::backends) fn new(
        connector: Connector,
        script: &'static str,
        router: Option<Arc<PushRouter>>,
        clock: Clock,
    ) -> Self {
        Self { connector, script, router, runtimes: Mutex::default(), clock }
    }

    pub(in crate::backends) fn config(&self) -> &Config {
        &self.connector.config
    }

    /// When a request that is sent now must be answered.
    pub(in crate::backends) fn deadline(&self) -> Moment {
        self.clock.now().plus(self.config().timeout)
    }

    /// Sends steps over a session and waits for the answer: one step shares a call with others, several make
    /// one of their own, answered by a list.
    pub(in crate::backends) async fn exchange(
        &self,
        session: &Session,
        steps: &[ScriptStep<'_>],
        sent: Moment,
        deadline: Moment,
    ) -> Result<Value, Silence> {
        let reply = match steps {
            [step] => session.send(step, sent),
            steps => session.call(steps),
        };
        match self.answer(session, reply, deadline).await? {
            Value::Error(text) if session.did_not_run(&text) => {
                self.answer(session, session.call(steps), deadline).await
            }
            value => Ok(value),
        }
    }

    /// Sends plain commands that only read, and returns their replies, errors included.
    pub(in crate::backends) async fn ask(&self, commands: &[&[&str]]) -> Result<Vec<Value>> {
        let deadline = self.deadline();
        let mut repeated = false;
        loop {
            let session = self.current(deadline).await?;
            match self.ask_once(&session, commands, deadline).await {
                Err(Silence::Ended(_) | Silence::NotSent(_)) if !repeated => repeated = true,
                answers => return answers.map_err(|silence| self.error(silence)),
            }
        }
    }

    async fn ask_once(
        &self,
        session: &Session,
        commands: &[&[&str]],
        deadline: Moment,
    ) -> Result<Vec<Value>, Silence> {
        let replies: Vec<_> = commands.iter().map(|words| session.connection.command(words)).collect();
        let mut values = Vec::with_capacity(replies.len());
        for reply in replies {
            values.push(self.answer(session, reply, deadline).await?);
        }
        Ok(values)
    }

    /// Waits for a reply.
    pub(super) async fn answer(
        &self,
        session: &Session,
        reply: Result<Reply, String>,
        deadline: Moment,
    ) -> Result<Value, Silence> {
        let reply = reply.map_err(Silence::NotSent)?;
        let left = deadline.since(self.clock.now());
        match tokio::time::timeout(left, reply).await {
            Ok(Ok(value)) if is_read_only(&value) => {
                session.connection.close();
                Err(Silence::ReadOnly)
            }
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(Silence::Ended(session.connection.why_ended())),
            Err(_) => {
                session.connection.suspect();
                Err(Silence::TimedOut(left))
            }
        }
    }

    /// The current runtime's session, opened if need be.
    pub(in crate::backends) async fn current(&self, deadline: Moment) -> Result<Arc<Session>> {
        let slot = self.slot();
        match slot.usable() {
            Some(session) => Ok(session),
            // Boxed: it is rare, and large, and would make the future of every request as large.
            None => Box::pin(self.open(&slot, deadline)).await,
        }
    }

    async fn open(&self, slot: &RuntimeSlot, deadline: Moment) -> Result<Arc<Session>> {
        let open = async {
            let _turn = slot.connecting.lock().await;
            if let Some(session) = slot.usable() {
                return Ok(session);
            }
            let session = Arc::new(self.greet(&slot.channel).await?);
            *lock(&slot.current) = Some(session.clone());
            Ok(session)
        };
        let left = deadline.since(self.clock.now());
        match tokio::time::timeout(left, open).await {
            Ok(session) => session,
            Err(_) => Err(self.unavailable(format!("no connection within {}", crate::format_duration(left)))),
        }
    }

    async fn greet(&self, channel: &str) -> Result<Session> {
        let (open, ended) = watch::channel(());
        let router = self.router.clone();
        let connection = Connection::start(&Arc::default(), self.connector.open().await?, move |push| {
            let _while_open = &open;
            if let Some(router) = &router {
                router.deliver(&push);
            }
        });
        // Whoever may not publish could not hand a lock on: better refused now than when somebody waits.
        let publish = ["PUBLISH", channel, "hello"];
        let (channel, last): (_, &[&str]) = match self.router {
            Some(_) => (Some(channel), &publish),
            None => (None, &["PING"]),
        };
        let mut greeting = self.connector.greet(&connection, channel, &[self.script], last).await?;
        tracing::debug!(store = %self.config().label, "connected");
        let name = greeting.scripts.pop().unwrap_or_default();
        let script = Arc::new(BatchedScript { name, most: MOST_STEPS, ..BatchedScript::default() });
        Ok(Session { connection, script, text: self.script, ended })
    }

    /// The slot of the current runtime.
    pub(in crate::backends) fn slot(&self) -> Arc<RuntimeSlot> {
        let id = runtime::Handle::current().id();
        let mut runtimes = lock(&self.runtimes);
        if let Some(slot) = runtimes.get(&id) {
            return slot.clone();
        }
        // Runtimes come and go, in tests above all. A slot that somebody waits or holds a lock with keeps its
        // channel.
        runtimes.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.usable().is_some());
        let slot = Arc::new(RuntimeSlot::new());
        runtimes.insert(id, slot.clone());
        slot
    }

    /// What silence means for the caller.
    pub(in crate::backends) fn error(&self, silence: Silence) -> Error {
        match silence {
            Silence::NotSent(why) | Silence::Ended(why) => self.unavailable(why),
            Silence::ReadOnly => super::server_checks::replica(&self.config().label),
            Silence::TimedOut(after) => {
                self.unavailable(format!("no answer within {}", crate::format_duration(after)))
            }
        }
    }

    pub(in crate::backends) fn unavailable(&self, source: impl Into<Source>) -> Error {
        self.connector.unavailable(source)
    }

    /// What an error reply means for the caller.
    pub(in crate::backends) fn refusal(&self, text: &str) -> Error {
        self.connector.refusal(text)
    }

    /// Ends all connections.
    pub(in crate::backends) fn close(&self) {
        for slot in lock(&self.runtimes).values() {
            if let Some(session) = lock(&slot.current).take() {
                session.connection.close();
            }
        }
    }
}

/// Whether a server that was a master says that it is none any more. A call of several steps has it in the
/// reply to any of them.
fn is_read_only(value: &Value) -> bool {
    match value {
        Value::Error(text) => connector::code(text) == "READONLY",
        Value::List(replies) => replies.iter().any(is_read_only),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demoted_server_is_known_by_any_of_its_replies() {
        let error = |text: &str| Value::Error(text.to_owned());
        let wrapped = "ERR Error running script (call to f_0): @user_script:41: -READONLY You can't write";
        assert!(is_read_only(&error("READONLY You can't write against a read only replica.")));
        assert!(is_read_only(&Value::List(vec![Value::Int(1), error(wrapped)])));
        assert!(is_read_only(&error("@user_script: 41: -READONLY You can't write")));
        assert!(!is_read_only(&error("WRONGTYPE Operation: {lock:a: -READONLY b}:fence")));
        assert!(!is_read_only(&Value::Text(b"READONLY".to_vec())));
        assert!(!is_read_only(&error("ERR no")));
    }

    #[test]
    fn no_two_runtimes_have_the_same_channel() {
        let channels = [RuntimeSlot::new().channel, RuntimeSlot::new().channel];
        assert!(channels.iter().all(|channel| channel.len() == 16));
        assert_ne!(channels[0], channels[1]);
    }
}
