//! How to reach one server: opens connections, logs in, finds out whether the server is fit for locks, and
//! says what its refusals mean.

use tokio::net::{TcpStream, UnixStream};

use super::connection::{Connection, Reply, Stream};
use super::resp::Value;
use super::server_checks;
#[cfg(feature = "tls")]
use crate::backends::common::tls::{self, Tls};
use crate::backends::redis::config::{Address, Config};
use crate::{Error, Result};

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
pub(in crate::backends) struct Connector {
    pub(in crate::backends) config: Config,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

/// What a greeting has found out.
#[derive(Debug)]
pub(in crate::backends) struct Greeting {
    /// What to call the scripts by.
    pub(in crate::backends) scripts: Vec<String>,
    /// The answer to the last command.
    pub(in crate::backends) last: Value,
}

impl Connector {
    pub(in crate::backends) fn new(config: Config) -> Result<Self> {
        #[cfg(feature = "tls")]
        let tls = match (&config.tls, &config.address) {
            (Some(files), Address::Tcp { host, .. }) => Some(Tls::new(files, host, None)?),
            _ => None,
        };
        Ok(Self {
            config,
            #[cfg(feature = "tls")]
            tls,
        })
    }

    /// Opens a byte stream.
    pub(in crate::backends) async fn open(&self) -> Result<Box<dyn Stream>> {
        self.stream().await.map_err(|error| {
            // Trying again does not make a certificate good.
            #[cfg(feature = "tls")]
            if let Some(why) = tls::distrust(&error) {
                let store = &self.config.label;
                return Error::config(format!(
                    "{store} shows a certificate that is not to be trusted ({why}); renew it, or name its authority with `ca`"
                ));
            }
            self.unavailable(error)
        })
    }

    async fn stream(&self) -> std::io::Result<Box<dyn Stream>> {
        match &self.config.address {
            Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                #[cfg(feature = "tls")]
                if let Some(tls) = &self.tls {
                    return Ok(Box::new(tls.wrap(stream).await?));
                }
                Ok(Box::new(stream))
            }
        }
    }

    /// Logs in, checks that the server is fit for locks, loads the scripts, subscribes if told to and sends
    /// one more command. One round trip: nothing depends on an answer.
    pub(in crate::backends) async fn greet(
        &self,
        connection: &Connection,
        channel: Option<&str>,
        scripts: &[&str],
        last: &[&str],
    ) -> Result<Greeting> {
        let mut hello = vec!["HELLO", "3"];
        if let Some(password) = &self.config.password {
            hello.extend(["AUTH", self.config.user.as_deref().unwrap_or("default"), password.reveal()]);
        }
        hello.extend(["SETNAME", "fencepost"]);
        let database = self.config.database.to_string();
        let send = |words: &[&str]| connection.command(words).map_err(|why| self.unavailable(why));
        let hello = send(&hello)?;
        let select = (self.config.database != 0).then(|| send(&["SELECT", &database])).transpose()?;
        let info = send(&["INFO"])?;
        let loads: Vec<_> = scripts.iter().map(|script| send(&["SCRIPT", "LOAD", script])).collect();
        // Answered by a push, not by a reply; an error would be a reply, to the PING behind it at the latest.
        if let Some(channel) = channel {
            connection.send_unanswered(&["SUBSCRIBE", channel]).map_err(|why| self.unavailable(why))?;
        }
        let ping = send(&["PING"])?;
        let last = send(last)?;
        self.expect(connection, hello).await?;
        if let Some(select) = select {
            self.expect(connection, select).await?;
        }
        let info = self.expect(connection, info).await?;
        server_checks::check(info.as_text().unwrap_or_default(), &self.config)?;
        let mut names = Vec::with_capacity(scripts.len());
        for load in loads {
            names.push(self.expect(connection, load?).await?.as_text().unwrap_or_default().to_owned());
        }
        let pong = self.expect(connection, ping).await?;
        if pong.as_text() != Some("PONG") {
            return Err(self.refusal(&format!("{pong:?}")));
        }
        let last = self.expect(connection, last).await?;
        Ok(Greeting { scripts: names, last })
    }

    async fn expect(&self, connection: &Connection, reply: Reply) -> Result<Value> {
        match reply.await {
            Ok(Value::Error(text)) => Err(self.refusal(&text)),
            Ok(value) => Ok(value),
            Err(_) => Err(self.unavailable(connection.why_ended())),
        }
    }

    pub(in crate::backends) fn unavailable(&self, source: impl Into<crate::Source>) -> Error {
        Error::Unavailable { store: self.config.label.clone(), source: source.into() }
    }

    /// What an error reply means for the caller.
    pub(in crate::backends) fn refusal(&self, text: &str) -> Error {
        let store = &self.config.label;
        // An unknown command is quoted with its arguments, and the first one carries the password.
        let text = text.split(", with args").next().unwrap_or_default();
        // What a script may not call has no code of its own.
        let code = if text.contains("can't run this command") { "NOPERM" } else { code(text) };
        let hidden = self.config.password.as_ref().map(|password| password.hide_in(text));
        let text = hidden.as_deref().unwrap_or(text);
        match code {
            "WRONGPASS" | "NOAUTH" => Error::config(format!(
                "{store} refused the user or password ({text}); give both in the URL as `redis://user:password@host`"
            )),
            "NOPERM" => Error::config(format!(
                "{store} does not let this user do what locks need ({text}); grant it `+@scripting +@pubsub +@string \
                 +@list +@keyspace +@connection +info +time` on the keys `{}*` and `{{{}*` and on all channels",
                self.config.start, self.config.prefix
            )),
            "READONLY" => server_checks::replica(store),
            "MOVED" | "ASK" | "CROSSSLOT" => server_checks::cluster(store),
            "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => self.unavailable(text),
            "ERR" if text.contains("unknown command") => Error::config(format!(
                "{store} is too old or not a Redis ({text}); Fencepost needs Redis 6.2 or newer, or a server compatible with it"
            )),
            _ => Error::Backend { store: store.clone(), source: text.into() },
        }
    }
}

/// The code of an error reply: its first word. What follows may name a key, and so anything. Redis 6 wraps the error of a
/// command in that of the script that called it, which names none.
pub(super) fn code(text: &str) -> &str {
    let mut words = text.split([' ', ':']).map(|word| word.trim_start_matches('-'));
    let first = words.next().unwrap_or_default();
    let in_script = text.starts_with("ERR Error running script") || text.starts_with("@user_script");
    match in_script {
        true => words.find(|word| CODES.contains(word)).unwrap_or(first),
        false => first,
    }
}
