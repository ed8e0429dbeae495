//! Resources in Redis: a guard key for each, which one script compares and then runs one command.

use std::fmt;

use async_trait::async_trait;

use super::record::Rule;
use super::{Backend, Error, Result, StaleToken, named};
use crate::backends::redis::driver::resp::Value;
use crate::backends::redis::driver::script_client::{ScriptClient, ScriptOutcome};
use crate::backends::redis::keys;
use crate::url::StoreUrl;
use crate::{ConnectOptions, FencingToken, Name};

/// The script behind [`Redis::run`] (`guarded.lua` in the repository), for clients in any language. Its keys,
/// arguments and replies are in its head.
pub const SCRIPT: &str = include_str!("guarded.lua");

/// Resources in one Redis server: one command of yours, behind the check.
///
/// ```no_run
/// use fencepost::fence::Redis;
///
/// # async fn example(guard: &fencepost::Guard) -> Result<(), fencepost::fence::Error> {
/// let redis = Redis::connect("redis://127.0.0.1:6379").await?;
/// let token = guard.token();
/// redis.activate("account:7", token).await?;                                    // before the first read
/// let balance = redis.run("account:7", token, &["HGET", "account:7", "balance"]).await?;
/// redis.run("account:7", token, &["HINCRBY", "account:7", "balance", "5"]).await?;
/// # Ok(()) }
/// ```
///
/// Made into a [`Fence`](super::Fence) it keeps values in keys of its own.
#[derive(Debug)]
pub struct Redis {
    server: ScriptClient,
}

/// What a command answered.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// Nothing: a key that is not there.
    Nil,
    /// A number.
    Int(i64),
    /// A string, or `OK`.
    Bytes(Vec<u8>),
    /// Several.
    List(Vec<Reply>),
}

impl Redis {
    /// Connects. The URL is that of the store for locks: `redis://`, `rediss://` or `redis+unix://`.
    ///
    /// # Errors
    /// As [`Locks::connect`](crate::Locks::connect). A server that evicts keys is refused: it would forget
    /// tokens.
    pub async fn connect(url: impl Into<ConnectOptions>) -> Result<Self> {
        let url = url.into().into_url()?;
        if !matches!(url.scheme.as_str(), "redis" | "rediss" | "redis+unix") {
            return Err(Error::invalid("a URL of Redis begins with `redis:`, `rediss:` or `redis+unix:`"));
        }
        Self::from_url(url).await
    }

    pub(super) async fn from_url(url: StoreUrl) -> Result<Self> {
        if url.scheme == "rediss" && cfg!(not(feature = "tls")) {
            return Err(Error::invalid("TLS is not built in; build fencepost with the feature `tls`"));
        }
        Ok(Self { server: ScriptClient::connect(url, SCRIPT).await? })
    }

    /// Records a token: the first thing that a new holder does, before it reads.
    ///
    /// # Errors
    /// [`Stale`](Error::Stale) if a larger token was seen.
    pub async fn activate(&self, resource: &str, token: FencingToken) -> Result<()> {
        self.repeat(&named(resource)?, token, &[]).await.map(drop)
    }

    /// Runs one command if no larger token was seen, and records the token, in one step. If the command
    /// itself fails, the token was recorded.
    ///
    /// # Errors
    /// [`Stale`](Error::Stale) if a larger token was seen: the command was not run.
    /// [`Uncertain`](Error::Uncertain) if no answer came.
    pub async fn run(
        &self,
        resource: &str,
        token: FencingToken,
        command: &[impl AsRef<[u8]>],
    ) -> Result<Reply> {
        self.once(&named(resource)?, token, Rule::AtLeast, &bytes(command)).await.and_then(reply)
    }

    /// The same if this token or a larger one was never seen.
    ///
    /// # Errors
    /// [`Stale`](Error::Stale) if it was: the command was not run. [`Uncertain`](Error::Uncertain) if no
    /// answer came: repeat it, and be refused if the first one got through.
    pub async fn run_once(
        &self,
        resource: &str,
        token: FencingToken,
        command: &[impl AsRef<[u8]>],
    ) -> Result<Reply> {
        self.once(&named(resource)?, token, Rule::Above, &bytes(command)).await.and_then(reply)
    }

    /// The key that holds the largest token of a resource, for clients that load [`SCRIPT`] themselves.
    pub fn guard_key(&self, resource: &str) -> String {
        self.key(resource, "token")
    }

    fn key(&self, resource: &str, what: &str) -> String {
        keys::about(what, &format!("{}fence:{resource}", self.server.prefix()))
    }

    /// Sends it once. The inner error says why no answer came.
    async fn ask(
        &self,
        resource: &Name,
        token: FencingToken,
        rule: Rule,
        command: &[&[u8]],
    ) -> Result<Result<Value, String>> {
        let (presented, guard) = (token.to_string(), self.guard_key(resource.as_str()));
        let rule: &[u8] = if rule == Rule::Above { b">" } else { b">=" };
        let mut arguments: Vec<&[u8]> = vec![presented.as_bytes(), rule];
        arguments.extend(command);
        match self.server.run(&guard, &arguments).await? {
            ScriptOutcome::Answered(value) => Ok(Ok(value)),
            ScriptOutcome::Unanswered(why) => Ok(Err(why)),
            ScriptOutcome::Refused(text) => Err(self.refusal(resource, token, &text)),
        }
    }

    fn refusal(&self, resource: &Name, token: FencingToken, text: &str) -> Error {
        match text.strip_prefix("STALE ").and_then(|number| number.trim().parse().ok()) {
            Some(highest) => StaleToken::new(resource.as_str(), token, highest).into(),
            None if text.contains("NOPERM") || text.contains("can't run this command") => {
                let (label, prefix) = (self.server.label(), self.server.prefix());
                crate::Error::config(format!(
                    "{label} does not let this user do that ({text}); grant it `+@scripting`, `+get +set` \
                     on the keys `{{{prefix}fence:*`, and what the command needs"
                ))
                .into()
            }
            None => self.server.refusal(text).into(),
        }
    }

    /// For commands that change nothing: asked again over a new connection if no answer came.
    async fn repeat(&self, resource: &Name, token: FencingToken, command: &[&[u8]]) -> Result<Value> {
        match self.ask(resource, token, Rule::AtLeast, command).await? {
            Ok(value) => Ok(value),
            Err(_) => {
                let again = self.ask(resource, token, Rule::AtLeast, command).await?;
                again.map_err(|why| self.server.unavailable(why).into())
            }
        }
    }

    async fn once(
        &self,
        resource: &Name,
        token: FencingToken,
        rule: Rule,
        command: &[&[u8]],
    ) -> Result<Value> {
        self.ask(resource, token, rule, command).await?.map_err(|why| Error::uncertain(resource, why))
    }
}

#[async_trait]
impl Backend for Redis {
    async fn activate(&self, resource: &Name, token: FencingToken) -> Result<Option<Vec<u8>>> {
        let key = self.key(resource.as_str(), "value");
        match self.repeat(resource, token, &[b"GET", key.as_bytes()]).await? {
            Value::Text(value) => Ok(Some(value)),
            _ => Ok(None),
        }
    }

    async fn write(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()> {
        let key = self.key(resource.as_str(), "value");
        self.once(resource, token, Rule::AtLeast, &[b"SET", key.as_bytes(), value]).await.map(drop)
    }

    async fn write_once(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()> {
        let key = self.key(resource.as_str(), "value");
        self.once(resource, token, Rule::Above, &[b"SET", key.as_bytes(), value]).await.map(drop)
    }
}

fn bytes(command: &[impl AsRef<[u8]>]) -> Vec<&[u8]> {
    command.iter().map(AsRef::as_ref).collect()
}

fn reply(value: Value) -> Result<Reply> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::Text(bytes) => Reply::Bytes(bytes),
        Value::List(items) | Value::Push(items) => {
            Reply::List(items.into_iter().map(reply).collect::<Result<_>>()?)
        }
        Value::Error(text) => return Err(Error::invalid(text)),
    })
}

impl Reply {
    /// The string, if it is one and is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Self::List(items) => f.debug_list().entries(items).finish(),
        }
    }
}
