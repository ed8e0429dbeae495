//! Who waits for a lock, by the queues of all nodes. Reading writes nothing.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use super::nodes::Nodes;
use super::read::ask;
use super::record;
use super::session::Session;
use crate::backends::redis::driver::resp::Value;
use crate::backends::redis::push::{listeners, numsub};
use crate::{Holder, Name, Verdict};

/// The last place of a queue that is shown.
const LAST_SHOWN: &str = "999";

/// The waiters that listen. The entries of a client that died stay until a release comes across them.
pub(super) async fn waiters(
    nodes: &Nodes,
    sessions: &[Result<Arc<Session>, Verdict>],
    name: &Name,
) -> Vec<Holder> {
    let keys = nodes.keys(name);
    let [_, _, queue] = keys.each();
    let replies = ask_each(nodes, sessions, &["LRANGE", queue, "0", LAST_SHOWN]).await;
    let entries = |reply| {
        let entries = Value::as_list(reply).unwrap_or_default().iter().filter_map(Value::as_text);
        entries.filter_map(|entry| record::waiter(name, entry)).collect()
    };
    let mut queues: Vec<Vec<(&str, Holder)>> = replies.iter().map(entries).collect();
    let asked = numsub(queues.iter().flatten().map(|(channel, _)| *channel));
    // Without waiters there is nothing to ask.
    let replies = if asked.len() > 2 { ask_each(nodes, sessions, &asked).await } else { Vec::new() };
    let heard: Vec<_> = replies.iter().filter_map(listeners).collect();
    // A user who may not ask is shown them all.
    if !heard.is_empty() {
        let is_heard = |channel: &str| heard.iter().any(|heard| heard.contains(channel));
        queues.iter_mut().for_each(|queue| queue.retain(|(channel, _)| is_heard(channel)));
    }
    merged(queues.into_iter().map(|queue| queue.into_iter().map(|(_, waiter)| waiter).collect()).collect())
}

/// Asks each node that can be reached. All have the command before the first reply is waited for.
async fn ask_each(nodes: &Nodes, sessions: &[Result<Arc<Session>, Verdict>], words: &[&str]) -> Vec<Value> {
    let asked: Vec<_> = sessions.iter().flatten().map(|session| ask(nodes, session, &[words])).collect();
    let mut replies = Vec::with_capacity(asked.len());
    for reply in asked {
        replies.extend(reply.await.unwrap_or_default());
    }
    replies
}

/// One queue of several: the longest, and then those who stand only in others. A node that was away for a
/// while, or granted the lock for a moment, does not have them all.
fn merged(mut queues: Vec<Vec<Holder>>) -> Vec<Holder> {
    queues.sort_by_key(|queue| Reverse(queue.len()));
    let mut known = HashSet::new();
    queues.into_iter().flatten().filter(|waiter| known.insert(waiter.owner)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Owner;

    #[test]
    fn the_longest_queue_comes_first_and_nobody_twice() {
        let all: Vec<_> = (0..4)
            .map(|_| {
                let mut waiter = Holder::unknown(Name::new("x").unwrap());
                waiter.owner = Some(Owner::fresh());
                waiter
            })
            .collect();
        let queue = |places: &[usize]| -> Vec<Holder> { places.iter().map(|at| all[*at].clone()).collect() };
        assert_eq!(merged(vec![queue(&[2, 3]), queue(&[0, 1, 2]), queue(&[])]), queue(&[0, 1, 2, 3]));
        assert_eq!(merged(Vec::new()), []);
    }
}
