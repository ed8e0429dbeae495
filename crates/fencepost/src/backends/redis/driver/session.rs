//! Sessions with one server: greeted connections, each with the script that its requests call.
//!
//! Each runtime has a session of its own. Every new connection is greeted: that is where a restarted server,
//! a replica or a changed configuration is noticed.

use std::iter;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use tokio::sync::watch;

use super::batch::{BatchedScript, Step};
use super::connection::{self, Connection, Reply};
use super::connector::Connector;
use super::per_runtime::{PerRuntime, new_channel};
use super::resp::Value;
use super::shard_channels::ShardChannels;
use crate::backends::redis::config::Config;
use crate::backends::redis::errors;
use crate::backends::redis::sentinel::reign::{self, GreetMode, Reign};
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::{Error, Result, format_duration};

/// Steps of one call: as many as replies are handed out at a time, so that the server works on some while
/// others are put together.
const MOST_STEPS: usize = connection::AT_A_TIME;

/// The first version with channels of shards.
const SHARDED: (u32, u32) = (7, 0);

/// Pause before the sentinels are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// A master that was silent for longer is asked for a sign of life before anything else. One that has stood
/// still, and been replaced, reads first what its replicas sent until they left it, and takes them for near.
/// After one answer it has read that they left.
const SILENCE: Duration = Duration::from_secs(1);

/// Called with what the server pushes.
pub(in crate::backends) type OnPush = Arc<dyn Fn(&[Value]) + Send + Sync>;

/// The sessions with one server.
pub(in crate::backends) struct Sessions {
    pub(in crate::backends) connector: Connector,
    script: Script,
    /// Without one, nothing is subscribed to.
    on_push: Option<OnPush>,
    channels: Arc<Channels>,
    slots: PerRuntime<RuntimeSlot>,
    clock: Clock,
    keeper_connects: Once,
    greeting: GreetMode,
}

/// The channel of each runtime, the same on every server. It stays the same while connections come and go:
/// what the servers keep names it.
pub(in crate::backends) type Channels = PerRuntime<String>;

/// The channel of the current runtime.
pub(in crate::backends) fn channel(channels: &Channels) -> Arc<String> {
    channels.current(|_| false, new_channel)
}

/// The script that is called.
#[derive(Clone, Copy, Debug)]
pub(in crate::backends) struct Script {
    pub(in crate::backends) text: &'static str,
    /// What a server with channels of shards gets instead.
    pub(in crate::backends) sharded: Option<&'static str>,
}

/// The session of one runtime, over all its connections.
#[derive(Debug)]
pub(in crate::backends) struct RuntimeSlot {
    /// Where the server pushes messages for this runtime.
    channel: Arc<String>,
    current: Mutex<Option<Arc<Session>>>,
    connecting: tokio::sync::Mutex<()>,
}

impl RuntimeSlot {
    fn new(channel: Arc<String>) -> Self {
        Self { channel, current: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    fn usable(&self) -> Option<Arc<Session>> {
        lock(&self.current).clone().filter(|session| session.connection.is_usable())
    }
}

/// A greeted connection.
#[derive(Debug)]
pub(in crate::backends) struct Session {
    pub(super) connection: Connection,
    script: Arc<BatchedScript>,
    text: &'static str,
    /// Where Sentinel names the master, unless that grants locks at once.
    reign: Option<Reign>,
    /// When a request was sent that the server has answered: then or later it did not stand still.
    answered: Mutex<Moment>,
    /// Closed with the connection.
    ended: watch::Receiver<()>,
    /// Where the server has channels of shards.
    pub(super) shard_channels: Option<Arc<ShardChannels>>,
}

/// The reply to a script call.
#[derive(Debug)]
pub(in crate::backends) struct ScriptReply<T = Value> {
    pub(in crate::backends) value: T,
    /// When the request was sent that this answers.
    pub(in crate::backends) sent: Moment,
    /// An earlier request was not answered, and may have been carried out.
    pub(in crate::backends) repeated: bool,
}

/// Why no reply came.
#[derive(Debug)]
pub(in crate::backends) enum NoReply {
    /// No session could be had.
    NoSession(Error),
    /// The session had ended before anything was sent.
    NotSent(String),
    /// It ended before the reply: the request may have been carried out, or be carried out later.
    Ended(String),
    /// The server is not, or not sure to be, the master any more, and has done nothing. The session is over.
    Deposed(String),
    TimedOut(String),
}

impl NoReply {
    /// What it means for the caller.
    pub(in crate::backends) fn into_error(self, config: &Config) -> Error {
        match self {
            Self::NoSession(error) => error,
            Self::NotSent(why) | Self::Ended(why) | Self::TimedOut(why) => errors::unavailable(why, config),
            Self::Deposed(text) => errors::refusal(&text, config),
        }
    }
}

impl Session {
    /// Sends a step: in one call with others that are sent until the connection is next written to, or alone.
    /// The server gets steps in the order in which they are sent. Never waits.
    pub(in crate::backends) fn send<W: AsRef<[u8]>>(
        &self,
        step: &Step<'_, W>,
        sent: Moment,
    ) -> Result<Reply, String> {
        let (call, reply) = connection::reply();
        self.connection.join(&self.script, step, sent, call).map(|()| reply)
    }

    /// Puts a plain command into the buffer.
    pub(in crate::backends) fn command(&self, words: &[&str]) -> Result<Reply, String> {
        self.connection.command(words)
    }

    /// Puts a plain command for a server that is only taking its slot over.
    pub(in crate::backends) fn command_asking(&self, words: &[&str]) -> Result<Reply, String> {
        self.connection.command_asking(words)
    }

    /// The reign that it has met, where there are any.
    pub(in crate::backends) fn reign(&self) -> Option<&Reign> {
        self.reign.as_ref()
    }

    /// Whether a master that Sentinel names may have stood still for too long since its last answer.
    fn may_have_stood_still(&self, now: Moment) -> bool {
        self.reign.is_some() && now.since(*lock(&self.answered)) > SILENCE
    }

    /// Notes that a request of that moment is answered. Fails if the server may have stood still meanwhile
    /// for so long that its word on its replicas counts for nothing.
    fn hears(&self, sent: Moment, now: Moment) -> Result<(), NoReply> {
        let Some(reign) = &self.reign else { return Ok(()) };
        if now.since(sent) > reign.max_lag {
            self.connection.close();
            return Err(NoReply::Ended("an answer that came too late to be believed".to_owned()));
        }
        let mut answered = lock(&self.answered);
        *answered = sent.max(*answered);
        Ok(())
    }

    /// Waits until the connection has ended.
    pub(in crate::backends) async fn ended(&self) {
        let _ = self.ended.clone().changed().await;
    }
}

impl Sessions {
    pub(in crate::backends) fn new(
        connector: Connector,
        script: Script,
        on_push: Option<OnPush>,
        channels: Arc<Channels>,
        clock: Clock,
    ) -> Self {
        let (slots, keeper_connects, greeting) = (PerRuntime::default(), Once::new(), GreetMode::Meet);
        Self { connector, script, on_push, channels, slots, clock, keeper_connects, greeting }
    }

    /// The same, with a greeting that settles more.
    pub(in crate::backends::redis) fn greeting(self, greeting: GreetMode) -> Self {
        Self { greeting, ..self }
    }

    pub(in crate::backends) fn config(&self) -> &Config {
        &self.connector.config
    }

    /// When a request that is sent now must be answered.
    pub(in crate::backends) fn deadline(&self) -> Moment {
        self.clock.now().plus(self.config().timeout)
    }

    /// Calls the script over the current session and waits for the reply.
    ///
    /// `post` sends the request, at the given moment, and alone if told to. It is called again if the first
    /// request did nothing: the script was not loaded, or nothing could be sent, or the server has become a
    /// replica. A `repeatable` request is also sent again if the session ended, or if the call that it shared
    /// was refused.
    pub(in crate::backends) async fn call(
        &self,
        deadline: Moment,
        repeatable: bool,
        mut post: impl FnMut(&Arc<Session>, Moment, bool) -> Result<Reply, String>,
    ) -> Result<ScriptReply, NoReply> {
        let (mut first, mut repeated) = (true, false);
        loop {
            let session = self.current(deadline).await.map_err(NoReply::NoSession)?;
            let mut sent = self.clock.now();
            let mut awake = Ok(());
            if session.may_have_stood_still(sent) {
                awake = Box::pin(self.wake(&session, deadline)).await;
                sent = self.clock.now();
            }
            let mut reply = match awake {
                Ok(()) => self.reply(&session, post(&session, sent, false), deadline).await,
                Err(why) => Err(why),
            };
            if let Ok(Value::Error(text)) = &reply {
                let unloaded = text.starts_with("NOSCRIPT");
                if unloaded {
                    // The next call goes right after it.
                    let _load = session.command(&["SCRIPT", "LOAD", session.text]);
                }
                // Of all keys in one call, one was not allowed.
                if unloaded || repeatable && text.starts_with("NOPERM") {
                    sent = self.clock.now();
                    reply = self.reply(&session, post(&session, sent, true), deadline).await;
                }
            }
            match reply.and_then(|value| session.hears(sent, self.clock.now()).map(|()| value)) {
                Ok(value) => return Ok(ScriptReply { value, sent, repeated }),
                Err(NoReply::NotSent(_) | NoReply::Deposed(_)) if first => {}
                Err(NoReply::Ended(_)) if first && repeatable => repeated = true,
                Err(error) => return Err(error),
            }
            first = false;
        }
    }

    /// Waits for a sign of life.
    async fn wake(&self, session: &Session, deadline: Moment) -> Result<(), NoReply> {
        let sent = self.clock.now();
        let heard = match self.reply(session, session.command(&["PING"]), deadline).await {
            Ok(_) => session.hears(sent, self.clock.now()),
            Err(error) => Err(error),
        };
        heard.map_err(|error| match error {
            NoReply::Ended(why) => NoReply::NotSent(why),
            error => error,
        })
    }

    /// Sends plain commands that only read, and returns their replies, errors included.
    pub(in crate::backends) async fn ask(&self, commands: &[&[&str]]) -> Result<Vec<Value>> {
        let mut earlier = Vec::new();
        let last = self.call(self.deadline(), true, |session, _, _| {
            let replies = commands.iter().map(|words| session.command(words));
            earlier = replies.collect::<Result<_, _>>()?;
            earlier.pop().ok_or_else(|| "nothing was asked".to_owned())
        });
        let last = last.await.map_err(|error| self.error(error))?;
        let mut values = Vec::with_capacity(commands.len());
        for reply in earlier {
            // Replies come in order: it is there.
            values.extend(reply.await);
        }
        values.push(last.value);
        Ok(values)
    }

    async fn reply(
        &self,
        session: &Session,
        reply: Result<Reply, String>,
        deadline: Moment,
    ) -> Result<Value, NoReply> {
        let reply = reply.map_err(NoReply::NotSent)?;
        let left = deadline.since(self.clock.now());
        match tokio::time::timeout(left, reply).await {
            Ok(Ok(value)) => match deposed(&value, self.config().is_found_by_sentinel()) {
                Some(text) => {
                    session.connection.close();
                    Err(NoReply::Deposed(text.to_owned()))
                }
                None => Ok(value),
            },
            Ok(Err(_)) => Err(NoReply::Ended(session.connection.why_ended())),
            Err(_) => {
                session.connection.suspect();
                Err(NoReply::TimedOut(format!("no answer within {}", format_duration(left))))
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
        let mut why = None;
        let open = async {
            let _one_at_a_time = slot.connecting.lock().await;
            if let Some(session) = slot.usable() {
                return Ok(session);
            }
            let session = Arc::new(self.connect(&slot.channel, &mut why).await?);
            *lock(&slot.current) = Some(session.clone());
            Ok(session)
        };
        let left = deadline.since(self.clock.now());
        match tokio::time::timeout(left, open).await {
            Ok(session) => session,
            Err(_) => Err(why.unwrap_or_else(|| {
                self.connector.unavailable(format!("no connection within {}", format_duration(left)))
            })),
        }
    }

    /// Opens a session. The master that sentinels name may be gone, or be none yet: they are asked again
    /// then, without end, and `why` says what was in the way.
    async fn connect(&self, channel: &str, why: &mut Option<Error>) -> Result<Session> {
        loop {
            match self.greet(channel).await {
                Err(error @ Error::Unavailable { .. }) if self.config().is_found_by_sentinel() => {
                    tracing::debug!(%error, "the sentinels are asked again");
                    *why = Some(error);
                }
                other => return other,
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    async fn greet(&self, channel: &str) -> Result<Session> {
        let (open, ended) = watch::channel(());
        let (on_push, shard_channels) = (self.on_push.clone(), Arc::<ShardChannels>::default());
        let listened = shard_channels.clone();
        let (connection, drive) = Connection::new(self.connector.open().await?, move |push| {
            let _while_open = &open;
            match push.as_slice() {
                [kind, channel, _] if kind.as_text() == Some("sunsubscribe") => {
                    listened.ended(channel.as_text().unwrap_or_default());
                }
                push => {
                    if let Some(on_push) = &on_push {
                        on_push(push);
                    }
                }
            }
        });
        tokio::spawn(drive);
        // A user that may not publish is better refused now than when somebody waits for a push.
        let publish = ["PUBLISH", channel, "hello"];
        let (channel, last): (_, &[&str]) = match self.on_push {
            Some(_) => (Some(channel), &publish),
            None => (None, &["PING"]),
        };
        let scripts: Vec<_> = iter::once(self.script.text).chain(self.script.sharded).collect();
        let answered = Mutex::new(self.clock.now());
        let mut greeting = self.connector.greet(&connection, channel, &scripts, last).await?;
        tracing::debug!(store = %self.config().label, "connected");
        let sharded = self.script.sharded.filter(|_| greeting.version >= SHARDED);
        let name = greeting.scripts.swap_remove(usize::from(sharded.is_some()));
        if let (Some(_), Some(channel)) = (sharded, channel) {
            self.connector.may_use_shard_channels(&connection, channel).await?;
        }
        let (most, replicas) = (MOST_STEPS, self.config().replicas);
        let mut script = BatchedScript { name, most, replicas, ..BatchedScript::default() };
        let (text, shard_channels) = (sharded.unwrap_or(self.script.text), sharded.map(|_| shard_channels));
        let reign = match self.config().is_found_by_sentinel() {
            true => {
                let quarantine = self.config().quarantine();
                reign::greet(&self.connector, &connection, quarantine, self.greeting).await?
            }
            false => None,
        };
        if let Some(reign) = &reign {
            script.key.clone_from(&reign.key);
            script.arguments = [reign.text.clone(), reign.terms.clone()];
        }
        let script = Arc::new(script);
        Ok(Session { connection, script, text, reign, answered, ended, shard_channels })
    }

    /// The slot of the current runtime.
    pub(in crate::backends) fn slot(&self) -> Arc<RuntimeSlot> {
        let make = || RuntimeSlot::new(self.channel());
        self.slots.current(|slot| slot.usable().is_some(), make)
    }

    /// The channel of the current runtime.
    pub(in crate::backends) fn channel(&self) -> Arc<String> {
        channel(&self.channels)
    }

    /// What a missing reply means for the caller.
    pub(in crate::backends) fn error(&self, error: NoReply) -> Error {
        error.into_error(self.config())
    }

    /// Lets the keeper connect, once, before its first renewal: after a push there is little time for that
    /// one.
    pub(in crate::backends) fn connect_on(self: &Arc<Self>, keeper: &Keeper) {
        self.keeper_connects.call_once(|| {
            let sessions = self.clone();
            keeper.spawn(async move {
                if let Err(error) = sessions.current(sessions.deadline()).await {
                    tracing::debug!(%error, "the keeper could not connect yet");
                }
            });
        });
    }

    /// Ends all connections.
    pub(in crate::backends) fn close(&self) {
        for slot in self.slots.all() {
            if let Some(session) = lock(&slot.current).take() {
                session.connection.close();
            }
        }
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sessions").field(self.config()).finish()
    }
}

/// What a server says that was a master and is none any more. A call of several steps has it in the reply to
/// any of them. Where Sentinel names the master, one without replicas may have been left alone.
fn deposed(value: &Value, by_sentinel: bool) -> Option<&str> {
    match value {
        Value::Error(text) => match errors::code(text) {
            "READONLY" => Some(text),
            "REIGN" | "NOREPLICAS" if by_sentinel => Some(text),
            _ => None,
        },
        Value::List(replies) => replies.iter().find_map(|reply| deposed(reply, by_sentinel)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demoted_server_is_known_by_any_of_its_replies() {
        let error = |text: &str| Value::Error(text.to_owned());
        let is_deposed = |value: &Value| deposed(value, false).is_some();
        assert!(is_deposed(&error("READONLY You can't write against a read only replica.")));
        assert!(is_deposed(&Value::List(vec![Value::Int(1), error("READONLY no")])));
        assert!(!is_deposed(&error("WRONGTYPE Operation: {a: -READONLY b}:fence")));
        assert!(!is_deposed(&Value::Text(b"READONLY".to_vec())));
        for text in ["REIGN the master has changed", "NOREPLICAS Not enough good replicas to write."] {
            assert!(deposed(&error(text), true).is_some() && !is_deposed(&error(text)), "{text}");
        }
    }
}
