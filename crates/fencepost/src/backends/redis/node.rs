//! One server: opens connections to it, greets it, and asks it things, each under a timeout.
//!
//! A connection belongs to the runtime whose task drives it, so there is one for each runtime that uses this store,
//! the keeper's among them. Every new connection is greeted anew: that is where a restarted server, a replica or a
//! changed configuration is noticed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::runtime;

use super::config::{Address, Config};
use super::connection::{Connection, Reply, Stream};
use super::inbox::Inbox;
use super::keys::Keys;
use super::resp::Value;
use crate::backend::lock;
use crate::clock::{Clock, Moment};
use crate::{Error, Result};

/// The scripts, in the order of [`SCRIPTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Acquire,
    Release,
    Renew,
    Attach,
    Revoke,
    HandOver,
}

const SCRIPTS: [&str; 6] = [
    concat!(include_str!("prelude.lua"), include_str!("acquire.lua")),
    concat!(include_str!("prelude.lua"), include_str!("release.lua")),
    include_str!("renew.lua"),
    include_str!("attach.lua"),
    concat!(include_str!("prelude.lua"), include_str!("revoke.lua")),
    concat!(include_str!("prelude.lua"), include_str!("hand_over.lua")),
];

/// The codes of error replies that mean something to us.
const CODES: [&str; 14] = [
    "WRONGPASS",
    "NOAUTH",
    "NOPERM",
    "READONLY",
    "MOVED",
    "ASK",
    "CROSSSLOT",
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOSCRIPT",
    "WRONGTYPE",
];

#[derive(Debug)]
pub(super) struct Node {
    pub(super) config: Config,
    #[cfg(feature = "tls")]
    tls: Option<super::tls::Tls>,
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
    /// Sends a script; never waits.
    pub(super) fn send(&self, script: Script, on: On<'_>, arguments: &[&str]) -> Result<Reply, String> {
        let fence;
        let one;
        let keys: &[&str] = match on {
            On::One(keys) => {
                fence = keys.fence(&self.run);
                one = [keys.lock.as_str(), fence.as_str(), keys.queue.as_str()];
                &one
            }
            On::Locks(keys) => keys,
        };
        let count = keys.len().to_string();
        let mut words = Vec::with_capacity(3 + keys.len() + arguments.len());
        words.extend_from_slice(&["EVALSHA", &self.scripts[script as usize], &count]);
        words.extend_from_slice(keys);
        words.extend_from_slice(arguments);
        self.connection.send(words.iter().map(|word| word.as_bytes()))
    }

    fn command(&self, words: &[&str]) -> Result<Reply, String> {
        self.connection.send(words.iter().map(|word| word.as_bytes()))
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
        #[cfg(feature = "tls")]
        let tls = match (&config.tls, &config.address) {
            (Some(files), Address::Tcp { host, .. }) => Some(super::tls::Tls::new(files, host)?),
            _ => None,
        };
        Ok(Self {
            config,
            #[cfg(feature = "tls")]
            tls,
            lines: Mutex::default(),
            inbox,
            channels: RandomState::new(),
            clock,
        })
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
            let reply = link.send(script, on, arguments);
            let left = reply.is_ok();
            let mut answer = self.answer(&link, reply, deadline).await;
            if let Ok(Value::Error(text)) = &answer
                && text.starts_with("NOSCRIPT")
            {
                // It did not run, so it can simply be sent again, right behind the load.
                let _load = link.command(&["SCRIPT", "LOAD", SCRIPTS[script as usize]]);
                answer = self.answer(&link, link.send(script, on, arguments), deadline).await;
            }
            match answer {
                Ok(Value::Error(text)) => return Err(self.refusal(&text)),
                Ok(value) => return Ok(Answer { value, sent, repeated }),
                Err(Silence::Ended(_)) if again && !(left && script == Script::Acquire) => {
                    again = false;
                    repeated = left;
                }
                Err(silence) => return Err(self.silence(silence)),
            }
        }
    }

    /// Sends plain commands together and returns their replies. For commands that only read.
    pub(super) async fn ask(&self, commands: &[&[&str]]) -> Result<Vec<Value>> {
        let deadline = self.clock.now().plus(self.config.timeout);
        let mut repeated = false;
        'again: loop {
            let link = self.link(deadline).await?;
            let replies: Vec<_> = commands.iter().map(|words| link.command(words)).collect();
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
        let stream = self.open().await.map_err(|error| self.unavailable(error))?;
        let inbox = self.inbox.clone();
        let connection = Connection::start(stream, move |push| inbox.deliver(&push));
        let mut link = Link { connection, run: String::new(), scripts: Vec::new() };
        self.greet(&mut link, &line.channel).await?;
        tracing::debug!(store = %self.config.label, "connected");
        Ok(link)
    }

    async fn open(&self) -> std::io::Result<Box<dyn Stream>> {
        match &self.config.address {
            Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                #[cfg(feature = "tls")]
                if let Some(tls) = &self.tls {
                    return tls.wrap(stream).await;
                }
                Ok(Box::new(stream))
            }
        }
    }

    /// Logs in, checks that the server is fit for locks, loads the scripts and subscribes. One round trip for all
    /// that does not depend on an answer.
    async fn greet(&self, link: &mut Link, channel: &str) -> Result<()> {
        let mut hello = vec!["HELLO", "3"];
        if let Some(password) = &self.config.password {
            hello.extend(["AUTH", self.config.user.as_deref().unwrap_or("default"), password]);
        }
        hello.extend(["SETNAME", "fencepost"]);
        let database = self.config.database.to_string();
        let send = |words: &[&str]| link.command(words).map_err(|why| self.unavailable(why));
        let hello = send(&hello)?;
        let select = (self.config.database != 0).then(|| send(&["SELECT", &database])).transpose()?;
        let info = send(&["INFO"])?;
        let loads = SCRIPTS.map(|script| send(&["SCRIPT", "LOAD", script]));
        // Answered by a push, not by a reply; an error would be a reply, to the PING behind it at the latest.
        link.connection.send_unanswered(&["SUBSCRIBE", channel]).map_err(|why| self.unavailable(why))?;
        let ping = send(&["PING"])?;
        self.expect(link, hello).await?;
        if let Some(select) = select {
            self.expect(link, select).await?;
        }
        let info = self.expect(link, info).await?;
        let info = info.as_text().unwrap_or_default();
        super::fitness::check(info, &self.config)?;
        let mut scripts = Vec::with_capacity(SCRIPTS.len());
        for load in loads {
            scripts.push(self.expect(link, load?).await?.as_text().unwrap_or_default().to_owned());
        }
        let pong = self.expect(link, ping).await?;
        if pong.as_text() != Some("PONG") {
            return Err(self.refusal(&format!("{pong:?}")));
        }
        link.run = super::fitness::run_id(info).to_owned();
        link.scripts = scripts;
        Ok(())
    }

    async fn expect(&self, link: &Link, reply: Reply) -> Result<Value> {
        match reply.await {
            Ok(Value::Error(text)) => Err(self.refusal(&text)),
            Ok(value) => Ok(value),
            Err(_) => Err(self.unavailable(link.connection.why_ended())),
        }
    }

    pub(super) fn unavailable(&self, source: impl Into<crate::Source>) -> Error {
        Error::Unavailable { store: self.config.label.clone(), source: source.into() }
    }

    /// What an error reply means for the caller.
    pub(super) fn refusal(&self, text: &str) -> Error {
        let store = &self.config.label;
        // An unknown command is quoted with its arguments, and the first one carries the password.
        let text = text.split(", with args").next().unwrap_or_default();
        // Redis 6 wraps the error of a command in the error of the script that called it.
        let words = || text.split([' ', ':']).map(|word| word.trim_start_matches('-'));
        let code = words().find(|word| CODES.contains(word)).or(words().next());
        match code.unwrap_or_default() {
            "WRONGPASS" | "NOAUTH" => Error::config(format!(
                "{store} refused the user or password ({text}); give both in the URL as `redis://user:password@host`"
            )),
            "NOPERM" => Error::config(format!(
                "{store} does not let this user do what locks need ({text}); grant it `+@scripting +@pubsub +@string \
                 +@list +@keyspace +@connection +info` on the keys `{0}lock:*` and `{{{0}lock:*` and on all channels",
                self.config.prefix
            )),
            "READONLY" => super::fitness::replica(store),
            "MOVED" | "ASK" | "CROSSSLOT" => super::fitness::cluster(store),
            "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => self.unavailable(text),
            "ERR" if text.contains("unknown command") => Error::config(format!(
                "{store} is too old or not a Redis ({text}); Fencepost needs Redis 6.2 or newer, or a server compatible with it"
            )),
            _ => Error::Backend { store: store.clone(), source: text.into() },
        }
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
