//! Greeted connections to one node, and the scripts that are called over them.
//!
//! Votes only ever go over connections that we opened and greeted. A connection ends with the server's
//! process, so a server that was restarted, and may have lost data, is always met by a greeting first.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use super::config::Config;
use super::node::Node;
use super::pool::Pool;
use super::quarantine::{self, Standing};
use crate::backends::redis::driver::batch::{BatchedScript, Step};
use crate::backends::redis::driver::connection::{Call, Connection, Reply};
use crate::backends::redis::driver::resp::{Part, Value};
use crate::backends::redis::push::PushRouter;
use crate::runtime::clock::{Clock, Moment};
use crate::{Error, Result, Verdict};

/// The scripts, in the order of [`SCRIPTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Ops,
    Hold,
    Attach,
    Revoke,
}

const SCRIPTS: [&str; 4] = [
    include_str!("scripts/ops.lua"),
    concat!(include_str!("scripts/prelude.lua"), include_str!("scripts/hold.lua")),
    concat!(include_str!("scripts/prelude.lua"), include_str!("scripts/attach.lua")),
    concat!(include_str!("scripts/prelude.lua"), include_str!("scripts/revoke.lua")),
];

const GREET: &str = include_str!("scripts/greet.lua");

/// Steps that one call makes.
const MOST_STEPS: usize = 64;

/// A node with so many unanswered requests is left out until it has caught up, if the others are a majority.
/// Callers go on as soon as a majority has replied, so nothing else would bound what gathers for a slow node.
pub(super) const MOST_UNANSWERED: usize = 1024;

/// What a greeting may settle on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GreetMode(&'static str);

impl GreetMode {
    /// Starts or ends a quarantine.
    pub(super) const MEET: Self = Self("meet");
    /// Nothing.
    pub(super) const LOOK: Self = Self("look");
    /// An operator declares a new deployment, or changes it.
    pub(super) const FOUND: Self = Self("found");
    pub(super) const REFORM: Self = Self("reform");

    fn words(self, config: &Config) -> [String; 8] {
        let [max_ttl, quarantine] =
            [config.max_ttl, config.quarantine].map(|time| time.as_millis().to_string());
        let (node_key, members) = (&config.node_key, &config.members);
        ["EVAL", GREET, "1", node_key, &max_ttl, &quarantine, members, self.0].map(str::to_owned)
    }
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) node: Arc<Node>,
    connection: Connection,
    /// The node key while this run of the server votes in our deployment.
    pub(super) votes: String,
    /// The node key after the greeting.
    pub(super) node_key: String,
    scripts: Vec<String>,
    ops: Arc<BatchedScript>,
}

/// Whether a session can be used.
pub(super) enum Health {
    Good,
    /// The node is not to be asked for now.
    Out(Verdict),
    Ended,
    /// A request has been unanswered for too long.
    Stuck,
}

impl Session {
    /// Opens and greets a connection, which tells the node to push to `channel`.
    pub(super) async fn open(
        node: &Arc<Node>,
        config: &Config,
        clock: &Clock,
        pool: &Arc<Pool>,
        channel: &str,
        router: Arc<PushRouter>,
        greeting: GreetMode,
    ) -> Result<Self> {
        let stream = node.connector.open().await?;
        let (connection, drive) = Connection::new(stream, move |push| router.deliver(&push));
        pool.join(drive);
        let sent = clock.now();
        let greet = greeting.words(config);
        let greet = greet.each_ref().map(String::as_str);
        let greeted = node.connector.greet(&connection, Some(channel), &SCRIPTS, &greet).await?;
        let Some((run, node_key, time)) = read_greeting(&greeted.last) else {
            return Err(Error::Backend {
                store: node.label().to_owned(),
                source: format!("a greeting that makes no sense: {:?}", greeted.last).into(),
            });
        };
        node.read_clock(time, sent, clock.now(), config);
        node.set_run(run);
        let votes = quarantine::voting_key(run, config);
        tracing::debug!(node = node.label(), run, node_key, "connected");
        let scripts = greeted.scripts;
        let ops = Arc::new(BatchedScript {
            name: scripts[Script::Ops as usize].clone(),
            key: config.node_key.clone(),
            arguments: [votes.clone(), config.bound_us.clone()],
            most: MOST_STEPS,
            replicas: None,
        });
        Ok(Self { node: node.clone(), connection, votes, node_key: node_key.to_owned(), scripts, ops })
    }

    /// Sends a step of `ops.lua`, in one call with others; never waits. `call` is not called if this fails.
    pub(super) fn step(&self, step: &Step<'_>, sent: Moment, call: Call) -> Result<(), String> {
        self.connection.join(&self.ops, step, sent, call)
    }

    /// Calls a script; never waits. `call` is not called if this fails.
    pub(super) fn eval(
        &self,
        script: Script,
        keys: &[Part<'_>],
        arguments: &[Part<'_>],
        sent: Moment,
        call: Call,
    ) -> Result<(), String> {
        let count = keys.iter().map(|part| part.count()).sum::<usize>().to_string();
        let head = ["EVALSHA", &self.scripts[script as usize], &count];
        let words = keys.iter().chain(arguments).copied();
        self.connection.send_calling(iter::once(Part::Words(&head)).chain(words), sent, call)
    }

    /// Loads a script again that the server has forgotten.
    pub(super) fn load(&self, script: Script, now: Moment) {
        self.send_unheeded(&["SCRIPT", "LOAD", SCRIPTS[script as usize]], now);
    }

    /// Greets the node again: its node key is gone, or its quarantine is over.
    pub(super) fn greet(&self, config: &Config, now: Moment) {
        self.send_unheeded(&GreetMode::MEET.words(config).each_ref().map(String::as_str), now);
    }

    /// Sends a command whose reply is of no interest.
    fn send_unheeded(&self, words: &[&str], now: Moment) {
        let _ = self.connection.send_calling(iter::once(Part::Words(words)), now, Box::new(drop));
    }

    /// Sends a plain command.
    pub(super) fn command(&self, words: &[&str]) -> Result<Reply, String> {
        self.connection.command(words)
    }

    /// What a node key means.
    pub(super) fn standing(&self, node_key: &str, config: &Config, now: Moment) -> Standing {
        quarantine::standing(node_key, &self.votes, self.node.time(now), config.quarantine)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }

    pub(super) fn ended(&self) -> Verdict {
        Verdict::Unreachable { why: self.connection.why_ended() }
    }

    pub(super) fn close(&self) {
        self.connection.close();
    }

    /// Whether the node keeps up with its requests; `None` if the connection has ended.
    pub(super) fn keeps_up(&self) -> Option<bool> {
        Some(self.connection.backlog()?.0 < MOST_UNANSWERED)
    }

    pub(super) fn health(&self, now: Moment, timeout: Duration) -> Health {
        let Some((_, oldest)) = self.connection.backlog() else { return Health::Ended };
        if oldest.is_some_and(|sent| now.since(sent) > timeout) {
            return Health::Stuck;
        }
        self.node.objection(now).map_or(Health::Good, Health::Out)
    }
}

fn read_greeting(value: &Value) -> Option<(&str, &str, u64)> {
    let [run, node_key, time] = value.as_list()? else { return None };
    Some((run.as_text()?, node_key.as_text()?, u64::try_from(time.as_int()?).ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A session with a server that never replies. It lasts as long as the other end.
    pub(in super::super) fn mute(node: &Arc<Node>) -> (Arc<Session>, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (connection, drive) = Connection::new(Box::new(ours), |_| {});
        tokio::spawn(drive);
        let scripts = vec![String::new(); SCRIPTS.len()];
        let (votes, node_key, ops) = Default::default();
        (Arc::new(Session { node: node.clone(), connection, votes, node_key, scripts, ops }), theirs)
    }
}
