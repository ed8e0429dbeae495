//! How to reach one server: opens connections, logs in, and finds out whether the server can be used.

use tokio::net::UnixStream;

use super::connection::{self, Connection, Reply};
use super::resp::Value;
use crate::backends::common::stream::{self, Stream};
use crate::backends::common::tls::{self, Tls};
use crate::backends::redis::config::{Address, Config};
use crate::backends::redis::errors;
use crate::backends::redis::sentinel::resolver;
use crate::{Error, Result, Source};

#[derive(Debug)]
pub(in crate::backends) struct Connector {
    pub(in crate::backends) config: Config,
    tls: Option<Tls>,
}

/// What a greeting has found out.
#[derive(Debug)]
pub(in crate::backends) struct Greeting {
    /// What to call the scripts by.
    pub(in crate::backends) scripts: Vec<String>,
    /// Of the server, if it tells.
    pub(in crate::backends) version: (u32, u32),
    /// The reply to the last command.
    #[cfg_attr(not(feature = "redlock"), allow(dead_code))]
    pub(in crate::backends) last: Value,
}

impl Connector {
    pub(in crate::backends) fn new(config: Config) -> Result<Self> {
        let tls = match (&config.tls, &config.address) {
            (Some(settings), Address::Tcp { host, .. }) => Some(Tls::new(settings, host, None)?),
            _ => None,
        };
        Ok(Self { config, tls })
    }

    /// Opens a byte stream.
    pub(in crate::backends) async fn open(&self) -> Result<Box<dyn Stream>> {
        let opened = match &self.config.address {
            Address::Unix(path) => UnixStream::connect(path).await.map(|stream| Box::new(stream) as _),
            Address::Tcp { host, port } => stream::connect(host, *port, self.tls.as_ref()).await,
            Address::Sentinel(sentinels) => {
                let patience = self.config.timeout / 2;
                let (host, port) = resolver::master(sentinels, &self.config.label, patience).await?;
                let tls = self.config.tls.as_ref();
                let tls = tls.map(|settings| Tls::new(settings, &host, None)).transpose()?;
                stream::connect(&host, port, tls.as_ref()).await
            }
        };
        opened.map_err(|error| {
            if let Some(why) = tls::distrust(&error) {
                return tls::not_trusted(&self.config.label, &why);
            }
            self.unavailable(error)
        })
    }

    /// Asks one question over a connection of its own.
    pub(in crate::backends) async fn ask_once(&self, words: &[&str]) -> Result<Value> {
        let (connection, drive) = Connection::new(self.open().await?, drop);
        tokio::spawn(drive);
        let hello = self.hello(&connection)?;
        let reply = connection.command(words).map_err(|why| self.unavailable(why))?;
        self.expect(&connection, hello).await?;
        self.expect(&connection, reply).await
    }

    /// Logs in.
    fn hello(&self, connection: &Connection) -> Result<Reply> {
        let mut hello = vec!["HELLO", "3"];
        if let Some(password) = &self.config.password {
            hello.extend(["AUTH", self.config.user.as_deref().unwrap_or("default"), password.reveal()]);
        }
        hello.extend(["SETNAME", "fencepost"]);
        connection.command(&hello).map_err(|why| self.unavailable(why))
    }

    /// Logs in, checks the server, loads the scripts, subscribes if told to and sends one more command. One
    /// round trip: nothing depends on an answer.
    pub(in crate::backends) async fn greet(
        &self,
        connection: &Connection,
        channel: Option<&str>,
        scripts: &[&str],
        last: &[&str],
    ) -> Result<Greeting> {
        let send = |words: &[&str]| connection.command(words).map_err(|why| self.unavailable(why));
        let mut before = vec![self.hello(connection)?];
        if self.config.database != 0 {
            before.push(send(&["SELECT", &self.config.database.to_string()])?);
        }
        let info = send(&["INFO"])?;
        let loads: Vec<_> =
            scripts.iter().map(|script| send(&["SCRIPT", "LOAD", script])).collect::<Result<_>>()?;
        // Answered by a push, not by a reply. An error would be a reply, to the PING after it at the latest.
        if let Some(channel) = channel {
            connection.send_unanswered(&["SUBSCRIBE", channel]).map_err(|why| self.unavailable(why))?;
        }
        let (ping, last) = (send(&["PING"])?, send(last)?);
        for reply in before {
            self.expect(connection, reply).await?;
        }
        let info = self.expect(connection, info).await?;
        let version = errors::check(info.as_text().unwrap_or_default(), &self.config)?;
        let mut scripts = Vec::with_capacity(loads.len());
        for load in loads {
            scripts.push(self.expect(connection, load).await?.as_text().unwrap_or_default().to_owned());
        }
        let pong = self.expect(connection, ping).await?;
        if pong.as_text() != Some("PONG") {
            return Err(self.refusal(&format!("{pong:?}")));
        }
        Ok(Greeting { scripts, version, last: self.expect(connection, last).await? })
    }

    /// Whether the user may listen and publish in shards, for the same reason that it publishes above. Most
    /// likely this one is another node's: that is no matter.
    pub(in crate::backends) async fn may_use_shard_channels(
        &self,
        connection: &Connection,
        channel: &str,
    ) -> Result<()> {
        let (call, listening) = connection::reply();
        let sent = connection.send_answered_by_push(&["SSUBSCRIBE", channel], call);
        let publishing = sent.and_then(|()| connection.command(&["SPUBLISH", channel, "hello"]));
        let publishing = publishing.map_err(|why| self.unavailable(why))?;
        let _ = connection.send_answered_by_push(&["SUNSUBSCRIBE", channel], Box::new(drop));
        // Without an error there is no answer to the first.
        for reply in [publishing.await, listening.await] {
            if let Ok(Value::Error(text)) = reply
                && errors::code(&text) == "NOPERM"
            {
                return Err(self.refusal(&text));
            }
        }
        Ok(())
    }

    async fn expect(&self, connection: &Connection, reply: Reply) -> Result<Value> {
        match reply.await {
            Ok(Value::Error(text)) => Err(self.refusal(&text)),
            Ok(value) => Ok(value),
            Err(_) => Err(self.unavailable(connection.why_ended())),
        }
    }

    pub(in crate::backends) fn unavailable(&self, source: impl Into<Source>) -> Error {
        errors::unavailable(source, &self.config)
    }

    /// What an error reply means for the caller.
    pub(in crate::backends) fn refusal(&self, text: &str) -> Error {
        errors::refusal(text, &self.config)
    }
}
