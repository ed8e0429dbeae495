//! What nodes have of locks, for operators and handles. Reading writes nothing.

use std::sync::Arc;
use std::time::Duration;

use super::nodes::Nodes;
use super::quarantine::Standing;
use super::quorum::majority;
use super::record;
use super::request::late;
use super::session::Session;
use crate::backends::redis::driver::resp::Value;
use crate::{Name, Result, Verdict};

/// How long the rest of the nodes is waited for when a majority is connected.
pub(super) const GRACE: Duration = Duration::from_millis(100);

/// What one node has of one lock.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Empty if nothing is known but that it is there.
    pub(super) value: Option<String>,
    pub(super) ttl: i64,
    pub(super) counter: Option<u64>,
}

impl Entry {
    fn read(replies: &[Value]) -> Self {
        let value = match &replies[0] {
            Value::Nil => None,
            Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            // A key of another type, or one that we may not read: somebody else's.
            _ => Some(String::new()),
        };
        let counter = replies[2].as_text().and_then(|text| text.parse().ok());
        Self { value, ttl: replies[1].as_int().unwrap_or(-1), counter }
    }

    /// The counter before a revocation raised it, as that says.
    pub(super) fn counter(&self) -> Option<u64> {
        let revoked = self.value.as_deref().filter(|value| record::victim(value) != *value);
        revoked.map_or(self.counter, record::token)
    }

    /// The value before a revocation.
    pub(super) fn victim(&self) -> Option<&str> {
        self.value.as_deref().map(record::victim)
    }
}

/// What one node has of several locks.
pub(super) struct NodeReading {
    pub(super) standing: Standing,
    pub(super) entries: Vec<Entry>,
}

impl NodeReading {
    pub(super) fn votes(&self) -> bool {
        matches!(self.standing, Standing::Votes)
    }
}

/// Sessions with all nodes that can be reached in time. An error if they are no majority: what a minority has
/// of a lock means nothing.
pub(super) async fn sessions(nodes: &Arc<Nodes>) -> Result<Vec<Result<Arc<Session>, Verdict>>> {
    let sessions = nodes.sessions(nodes.deadline(), GRACE).await;
    enough(nodes, &sessions)?;
    Ok(sessions)
}

/// The error if less than a majority can be used.
pub(super) fn enough<T>(nodes: &Nodes, each: &[Result<T, Verdict>]) -> Result<()> {
    if each.iter().flatten().count() >= majority(each.len()) {
        return Ok(());
    }
    let verdicts = each.iter().map(|node| node.as_ref().err().cloned().unwrap_or(Verdict::Granted));
    Err(nodes.no_majority(verdicts.collect()))
}

/// What each node has of some locks.
pub(super) async fn read(
    nodes: &Nodes,
    sessions: &[Result<Arc<Session>, Verdict>],
    names: &[Name],
) -> Result<Vec<Result<NodeReading, Verdict>>> {
    let keys: Vec<_> = names.iter().map(|name| nodes.keys(name)).collect();
    let mut commands: Vec<[&str; 2]> = Vec::with_capacity(1 + names.len() * 3);
    commands.push(["GET", &nodes.config.node_key]);
    for [lock, counter, _] in keys.iter().map(|keys| keys.each()) {
        commands.extend([["GET", lock], ["PTTL", lock], ["GET", counter]]);
    }
    let commands: Vec<&[&str]> = commands.iter().map(|words| &words[..]).collect();
    // All nodes have the commands before the first reply is waited for.
    let asked: Vec<_> = sessions
        .iter()
        .map(|session| session.as_ref().map(|session| ask(nodes, session, &commands)))
        .collect();
    let mut readings = Vec::with_capacity(sessions.len());
    for (asked, session) in asked.into_iter().zip(sessions) {
        readings.push(match (asked, session) {
            (Ok(replies), Ok(session)) => replies.await.map(|replies| {
                let node_key = replies.first().and_then(Value::as_text).unwrap_or_default();
                let standing = session.standing(node_key, &nodes.config, nodes.clock.now());
                let entries = replies.get(1..).unwrap_or_default().chunks_exact(3).map(Entry::read).collect();
                NodeReading { standing, entries }
            }),
            (Err(verdict), _) | (_, Err(verdict)) => Err(verdict.clone()),
        });
    }
    enough(nodes, &readings)?;
    Ok(readings)
}

/// Asks one node several things together. They are sent at once, not when the replies are waited for.
pub(super) fn ask(
    nodes: &Nodes,
    session: &Arc<Session>,
    commands: &[&[&str]],
) -> impl Future<Output = Result<Vec<Value>, Verdict>> + use<> {
    let replies: Vec<_> = commands.iter().map(|words| session.command(words)).collect();
    let (session, clock, deadline) = (session.clone(), nodes.clock.clone(), nodes.deadline());
    async move {
        let collect = async {
            let mut values = Vec::with_capacity(replies.len());
            for reply in replies {
                let reply = reply.map_err(|why| Verdict::Unreachable { why })?;
                match reply.await.map_err(|_| session.ended())? {
                    Value::Error(text) if !is_of_one_key(&text) => {
                        return Err(Verdict::of(&session.node.connector.refusal(&text)));
                    }
                    value => values.push(value),
                }
            }
            Ok(values)
        };
        clock.within(Some(deadline), collect).await.unwrap_or_else(|| Err(late()))
    }
}

/// Whether an error is about one key alone: it is of another type, or this user may not read it.
fn is_of_one_key(text: &str) -> bool {
    text.contains("WRONGTYPE") || text.starts_with("NOPERM") && text.contains("key")
}
