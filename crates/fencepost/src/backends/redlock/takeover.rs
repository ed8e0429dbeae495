//! Takes over a detached lock: one conditional renewal on every node, which a majority has to answer.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::claim::valid_until;
use super::fleet::{Fleet, Heard, Question, Reach, late};
use super::hold::Held;
use super::keys::Keys;
use super::node::{Link, Script};
use super::quorum::{Extended, Extension, Kept};
use super::renewal::loss;
use super::trace::Trace;
use super::{Store, milliseconds};
use crate::backend::{Grant, Request, lock};
use crate::backends::redis::connection::Call;
use crate::backends::redis::resp::Value;
use crate::clock::Moment;
use crate::{Error, Handle, Loss, Result, Verdict};

struct Takeover {
    fleet: Arc<Fleet>,
    keys: Arc<Keys>,
    owner: String,
    token: String,
    px: String,
    give_up_at: Moment,
    state: Mutex<State>,
}

struct State {
    extension: Extension<Moment>,
    verdicts: Vec<Verdict>,
    /// What the lock's key holds where it is ours, and what was found elsewhere.
    value: Option<String>,
    found: String,
    decided: Option<oneshot::Sender<Extended>>,
}

pub(super) async fn attach(store: &Store, handle: &Handle, request: &Request) -> Result<Grant> {
    store.warm_up();
    let (fleet, name) = (&store.fleet, handle.name());
    let (n, line) = (fleet.len(), fleet.line());
    let letters = fleet.inbox.open(handle.owner(), request.signal.clone());
    // So that nobody is missed who is being connected to.
    let deadline = fleet.clock.now().plus(fleet.config.timeout.min(request.ttl));
    let reaches = fleet.settle(&line, deadline).await;
    let (sent, life) = (fleet.clock.now(), fleet.config.key_life(request.ttl));
    let until = valid_until(sent, request.ttl);
    let (sender, decided) = oneshot::channel();
    let takeover = Arc::new(Takeover {
        fleet: fleet.clone(),
        keys: Arc::new(Keys::new(&fleet.config.start, name.as_str())),
        owner: handle.owner().to_string(),
        token: handle.token().to_string(),
        px: milliseconds(life),
        give_up_at: sent.plus(fleet.config.timeout).min(until),
        state: Mutex::new(State {
            extension: Extension::new(vec![Kept::Open; n], until),
            verdicts: vec![late(); n],
            value: None,
            found: String::new(),
            decided: Some(sender),
        }),
    });
    let mut links = Vec::with_capacity(n);
    for (node, reach) in reaches.into_iter().enumerate() {
        let verdict = match reach {
            Reach::Up(link) => {
                links.push(link.clone());
                match fleet.put(&takeover, &link) {
                    Ok(()) => continue,
                    Err(why) => Verdict::Unreachable { why },
                }
            }
            other => other.verdict(),
        };
        takeover.clone().hear(node, Heard::Not(verdict));
    }
    let outcome = fleet.clock.within(Some(takeover.give_up_at), decided).await;
    let (value, found, verdicts) = {
        let state = lock(&takeover.state);
        (state.value.clone(), state.found.clone(), state.verdicts.clone())
    };
    match (outcome, value) {
        (Some(Ok(Extended::Yes)), Some(value)) => {
            let trace = Trace::new(links, until, takeover.give_up_at, takeover.give_up_at.plus(life));
            let (owner, token, keys) = (handle.owner(), handle.token(), takeover.keys.clone());
            let hold = Held::assemble(store, owner, token, keys, value.into(), trace, letters, line, None);
            let term = Some(request.ttl);
            Ok(Grant { owner, token, sent, term, pushed: false, hold: Arc::new(hold) })
        }
        (Some(Ok(Extended::Lost)), _) => {
            let why = if found.is_empty() { Loss::Expired } else { loss(&found, handle.owner()) };
            Err(Error::lost(name, why))
        }
        _ => Err(fleet.no_majority(verdicts)),
    }
}

impl Question for Takeover {
    fn script(&self) -> Script {
        Script::Attach
    }

    fn send(&self, link: &Link, sent: Moment, call: Call) -> Result<(), String> {
        if sent >= self.give_up_at {
            return Err("its time is over".to_owned());
        }
        let left = u64::try_from(self.give_up_at.since(sent).as_micros()).unwrap_or(u64::MAX);
        let not_after = link.node.time(sent).saturating_add(left).to_string();
        let keys = [self.fleet.config.node_key.as_str(), self.keys.lock(), self.keys.counter()];
        let arguments = [&*link.votes, &not_after, &self.owner, &self.px, &self.token];
        link.eval(Script::Attach, &keys, &arguments, sent, call)
    }

    /// Makes nothing anew, so it may come whenever it likes.
    fn send_late(&self, link: &Arc<Link>, sent: Moment, call: Call) -> Result<(), String> {
        self.send(link, sent, call)
    }

    fn hear(self: Arc<Self>, node: usize, heard: Heard) {
        let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let mut state = lock(&self.state);
        let kept = match heard {
            Heard::Reply(Value::Text(value)) => {
                state.value.get_or_insert_with(|| text(&value));
                state.verdicts[node] = Verdict::Granted;
                Kept::Yes
            }
            Heard::Reply(reply) => {
                if let Some([Value::Text(found)]) = reply.as_list()
                    && !found.is_empty()
                {
                    state.found = text(found);
                }
                state.verdicts[node] = Verdict::Held { by: "somebody else, or nobody".to_owned() };
                Kept::No
            }
            Heard::Not(verdict) => {
                state.verdicts[node] = verdict;
                Kept::Silent
            }
        };
        let outcome = state.extension.hear(node, kept, self.fleet.clock.now());
        if outcome != Extended::Wait
            && let Some(decided) = state.decided.take()
        {
            let _ = decided.send(outcome);
        }
    }
}
