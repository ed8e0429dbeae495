//! A script call that gathers steps. All steps that are sent before the connection is next written to go out
//! as one call: a server spends as much on a call as on what it does.

use std::collections::VecDeque;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Call;
use super::resp::{self, Part, Ready, Value};
use crate::runtime::clock::Moment;

/// A script that takes steps.
#[derive(Debug, Default)]
pub(in crate::backends) struct BatchedScript {
    /// What to call it by.
    pub(in crate::backends) name: String,
    /// What follows the steps in a call in which any step needs it.
    pub(in crate::backends) key: String,
    pub(in crate::backends) arguments: [String; 2],
    /// How many steps one call makes. More would keep a server busy for too long at a time.
    pub(in crate::backends) most: usize,
    /// What a call has to reach before it counts.
    pub(in crate::backends) replicas: Option<Replicas>,
}

/// How many replicas must have what a call wrote, and how long the server waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends) struct Replicas {
    pub(in crate::backends) count: u32,
    pub(in crate::backends) within: Duration,
}

/// Which other steps a step may share a call with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::backends) struct Sharing {
    /// The slot of its keys, where a server has slots: those of one slot share a call.
    pub(in crate::backends) slot: u16,
    /// It makes a call of its own. What the server refuses, it refuses to the whole call.
    pub(in crate::backends) alone: bool,
    /// So does this one, to a server that is only taking the slot over.
    pub(in crate::backends) asking: bool,
}

impl Sharing {
    /// Where there are no slots.
    pub(in crate::backends) fn of_one_server(alone: bool) -> Self {
        Self { alone, ..Self::default() }
    }
}

/// One step.
#[derive(Debug)]
pub(in crate::backends) struct Step<'a, W = &'a str> {
    pub(in crate::backends) keys: &'a [&'a str],
    pub(in crate::backends) arguments: &'a [W],
    /// Whether it needs what follows the steps.
    pub(in crate::backends) needs_end: bool,
    pub(in crate::backends) sharing: Sharing,
    /// Whether it may push to another client, which is to hear of it first.
    pub(in crate::backends) pushes: bool,
}

/// The call that is being gathered.
#[derive(Default)]
pub(super) struct ScriptBatch {
    script: Option<Arc<BatchedScript>>,
    keys: Ready,
    arguments: Ready,
    needs_end: bool,
    /// Of its first step.
    sharing: Sharing,
    /// Whether any step makes a grant that replicas must have.
    grants: bool,
    /// Whether any step may push to another client.
    pub(super) pushes: bool,
    /// When its first step was asked for.
    pub(super) sent: Option<Moment>,
    calls: Vec<Call>,
}

impl ScriptBatch {
    /// Whether a step can join.
    pub(super) fn takes<W>(&self, script: &Arc<BatchedScript>, step: &Step<'_, W>) -> bool {
        let same = self.script.as_ref().is_none_or(|ours| Arc::ptr_eq(ours, script));
        let shared = !step.sharing.alone && !step.sharing.asking && self.sharing == step.sharing;
        self.calls.is_empty() || same && shared && self.calls.len() < script.most
    }

    pub(super) fn push<W: AsRef<[u8]>>(
        &mut self,
        script: &Arc<BatchedScript>,
        step: &Step<'_, W>,
        sent: Moment,
        call: Call,
    ) {
        self.script.get_or_insert_with(|| script.clone());
        self.sent.get_or_insert(sent);
        self.keys.extend(step.keys);
        self.arguments.extend(step.arguments);
        self.needs_end |= step.needs_end;
        self.sharing = step.sharing;
        self.pushes |= step.pushes;
        self.grants |= !step.pushes;
        self.calls.push(call);
    }

    /// Appends the call, if there is one, and returns who waits for its reply.
    pub(super) fn finish(mut self, out: &mut Vec<u8>, pending: &mut VecDeque<PendingReply>) {
        let Some(script) = self.script else { return };
        let command = |out: &mut Vec<u8>, words: &[&str]| resp::encode(out, iter::once(Part::Words(words)));
        if self.sharing.asking {
            command(out, &["ASKING"]);
            pending.push_back(PendingReply { sent: self.sent, ..PendingReply::default() });
        }
        if self.needs_end {
            self.keys.push(&script.key);
            self.arguments.extend(&script.arguments);
        }
        let (keys, arguments) = (Part::Ready(&self.keys), Part::Ready(&self.arguments));
        let head = ["EVALSHA", &script.name, &keys.count().to_string()];
        resp::encode(out, [Part::Words(&head), keys, arguments].into_iter());
        let replicas = script.replicas.filter(|_| self.grants);
        if let Some(Replicas { count, within }) = replicas {
            command(out, &["WAIT", &count.to_string(), &within.as_millis().max(1).to_string()]);
        }
        let kind = replicas.map_or(Expected::One, |replicas| Expected::Replicated(replicas.count, None));
        pending.push_back(PendingReply { sent: self.sent, calls: self.calls, kind });
    }
}

/// What is called with the next reply: nothing, one call, or one for each step of a script call.
#[derive(Default)]
pub(super) struct PendingReply {
    #[cfg_attr(not(feature = "redlock"), allow(dead_code))]
    pub(super) sent: Option<Moment>,
    pub(super) calls: Vec<Call>,
    pub(super) kind: Expected,
}

/// The replies to one request.
#[derive(Default)]
pub(super) enum Expected {
    #[default]
    One,
    /// Only if it is an error.
    Refusal,
    /// `PONG`, and nothing else: it tells that all replies were given to whom they belong.
    Pong,
    /// And then how many replicas have what it wrote; so many must.
    Replicated(u32, Option<Value>),
}

impl PendingReply {
    /// Takes the next reply in. Gives it back if there is one more to come, or if it was none of this
    /// request.
    pub(super) fn take(&mut self, reply: Value) -> Taken {
        match &mut self.kind {
            Expected::One => Taken::Last(reply),
            Expected::Refusal if matches!(reply, Value::Error(_)) => Taken::Last(reply),
            Expected::Refusal => Taken::OfNext(reply),
            Expected::Pong if reply.as_text() == Some("PONG") => Taken::Last(reply),
            Expected::Pong => Taken::Garbled,
            Expected::Replicated(_, first @ None) => {
                *first = Some(reply);
                Taken::MoreToCome
            }
            Expected::Replicated(count, Some(first)) => Taken::Last(match reply {
                // What was not done needs no copies: why not is what counts.
                Value::Int(_) | Value::Error(_) if matches!(first, Value::Error(_)) => {
                    std::mem::replace(first, Value::Nil)
                }
                Value::Int(reached) if reached >= i64::from(*count) => std::mem::replace(first, Value::Nil),
                Value::Int(reached) => Value::Error(format!(
                    "{UNREPLICATED} only {reached} of {count} replicas have it, so it does not count"
                )),
                Value::Error(text) => Value::Error(format!("{UNREPLICATED} WAIT was refused: {text}")),
                _ => return Taken::Garbled,
            }),
        }
    }

    pub(super) fn answer(mut self, reply: Option<Value>) {
        match (self.calls.pop(), reply) {
            (None, _) => {}
            (Some(last), Some(Value::List(mut replies)))
                if !self.calls.is_empty() && replies.len() == self.calls.len() + 1 =>
            {
                let reply = replies.pop();
                self.calls.into_iter().zip(replies).for_each(|(call, reply)| call(Some(reply)));
                last(reply);
            }
            // A single request, or a call that was refused as a whole.
            (Some(last), reply) => {
                self.calls.into_iter().for_each(|call| call(reply.clone()));
                last(reply);
            }
        }
    }
}

/// The code of a reply that says that a call was carried out, but is not on enough replicas.
pub(in crate::backends) const UNREPLICATED: &str = "UNREPLICATED";

/// What a reply was to a request.
pub(super) enum Taken {
    Last(Value),
    MoreToCome,
    OfNext(Value),
    Garbled,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step<'a>(keys: &'a [&'a str], arguments: &'a [&'a str], needs_end: bool) -> Step<'a> {
        Step { keys, arguments, needs_end, sharing: Sharing::default(), pushes: false }
    }

    fn script() -> Arc<BatchedScript> {
        let arguments = ["v".to_owned(), "b".to_owned()];
        let name = "sha".to_owned();
        Arc::new(BatchedScript { name, key: "n".to_owned(), arguments, most: 3, replicas: None })
    }

    fn encoded(words: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        resp::encode(&mut out, std::iter::once(Part::Words(words)));
        out
    }

    #[test]
    fn steps_join_with_their_keys_before_all_arguments() {
        let (mut batch, script, mut out, mut pending) =
            (ScriptBatch::default(), script(), Vec::new(), VecDeque::new());
        std::mem::take(&mut batch).finish(&mut out, &mut pending);
        assert!(pending.is_empty());
        batch.push(&script, &step(&["a", "b"], &["1"], true), Moment::at(Default::default()), Box::new(drop));
        batch.push(&script, &step(&["c"], &["2", "3"], false), Moment::NEVER, Box::new(drop));
        std::mem::take(&mut batch).finish(&mut out, &mut pending);
        let reply = pending.pop_front().unwrap();
        assert_eq!((reply.sent, reply.calls.len()), (Some(Moment::at(Default::default())), 2));
        assert_eq!(out, encoded(&["EVALSHA", "sha", "4", "a", "b", "c", "n", "1", "2", "3", "v", "b"]));
        out.clear();
        batch.push(&script, &step(&["a"], &["1"], false), Moment::NEVER, Box::new(drop));
        batch.finish(&mut out, &mut pending);
        assert_eq!(out, encoded(&["EVALSHA", "sha", "1", "a", "1"]));
    }

    #[test]
    fn asking_goes_right_before_its_call_and_waiting_for_replicas_right_after() {
        let (mut batch, mut out, mut pending) = (ScriptBatch::default(), Vec::new(), VecDeque::new());
        let replicas = Some(Replicas { count: 2, within: Duration::from_millis(500) });
        let script = Arc::new(BatchedScript { replicas, name: "sha".to_owned(), ..BatchedScript::default() });
        let sharing = Sharing { asking: true, ..Sharing::default() };
        let asking = Step { sharing, ..step(&["a"], &["1"], false) };
        assert!(batch.takes(&script, &asking));
        batch.push(&script, &asking, Moment::NEVER, Box::new(drop));
        assert!(!batch.takes(&script, &asking));
        batch.finish(&mut out, &mut pending);
        let words: [&[&str]; 3] = [&["ASKING"], &["EVALSHA", "sha", "1", "a", "1"], &["WAIT", "2", "500"]];
        assert_eq!(out, words.map(encoded).concat());
        assert_eq!(pending.iter().map(|reply| reply.calls.len()).collect::<Vec<_>>(), [0, 1]);
        assert!(matches!(pending[1].kind, Expected::Replicated(2, None)));
        // What only gives back is not waited for.
        let (mut batch, mut out) = (ScriptBatch::default(), Vec::new());
        batch.push(
            &script,
            &Step { pushes: true, ..step(&["a"], &[], false) },
            Moment::NEVER,
            Box::new(drop),
        );
        batch.finish(&mut out, &mut pending);
        assert_eq!(out, encoded(&["EVALSHA", "sha", "1", "a"]));
    }

    #[test]
    fn steps_of_one_slot_share_a_call() {
        let (mut batch, script) = (ScriptBatch::default(), script());
        let of = |slot| Step { sharing: Sharing { slot, ..Sharing::default() }, ..step(&[], &[], false) };
        batch.push(&script, &of(7), Moment::NEVER, Box::new(drop));
        assert!(batch.takes(&script, &of(7)) && !batch.takes(&script, &of(8)));
    }

    #[test]
    fn a_grant_counts_only_if_enough_replicas_have_it() {
        let both = |first, second| {
            let mut reply = PendingReply { kind: Expected::Replicated(2, None), ..PendingReply::default() };
            assert!(matches!(reply.take(first), Taken::MoreToCome));
            reply.take(second)
        };
        let replicated = |second| both(Value::Int(7), second);
        assert!(matches!(replicated(Value::Int(3)), Taken::Last(Value::Int(7))));
        for (second, word) in [(Value::Int(1), "1 of 2"), (Value::Error("NOPERM wait".into()), "NOPERM")] {
            let Taken::Last(Value::Error(text)) = replicated(second) else { panic!() };
            assert!(text.starts_with(UNREPLICATED) && text.contains(word), "{text}");
        }
        assert!(matches!(replicated(Value::Nil), Taken::Garbled));
        let moved = Value::Error("MOVED 1 h:1".into());
        for second in [Value::Int(0), Value::Error("ERR WAIT cannot be used with replica instances".into())] {
            let Taken::Last(told) = both(moved.clone(), second) else { panic!() };
            assert_eq!(told, moved, "it did not run");
        }
    }

    #[test]
    fn a_request_that_only_a_refusal_answers_leaves_other_replies_to_the_next() {
        let of = |kind| PendingReply { kind, ..PendingReply::default() };
        let (pong, error) = (Value::Text("PONG".into()), Value::Error("MOVED 1 h:1".into()));
        assert!(matches!(of(Expected::Refusal).take(error.clone()), Taken::Last(_)));
        assert!(matches!(of(Expected::Refusal).take(pong.clone()), Taken::OfNext(_)));
        assert!(matches!(of(Expected::Pong).take(pong), Taken::Last(_)));
        assert!(matches!(of(Expected::Pong).take(error), Taken::Garbled), "replies went to the wrong calls");
    }

    #[test]
    fn a_batch_is_bounded_and_one_that_goes_alone_joins_nobody() {
        let (mut batch, script) = (ScriptBatch::default(), script());
        let alone = Step { sharing: Sharing::of_one_server(true), ..step(&[], &[], false) };
        assert!(batch.takes(&script, &alone));
        for _ in 0..script.most {
            assert!(batch.takes(&script, &step(&[], &[], false)));
            batch.push(&script, &step(&[], &[], false), Moment::NEVER, Box::new(drop));
            assert!(!batch.takes(&script, &alone));
        }
        assert!(!batch.takes(&script, &step(&[], &[], false)));
        let mut batch = ScriptBatch::default();
        batch.push(&script, &alone, Moment::NEVER, Box::new(drop));
        assert!(!batch.takes(&script, &step(&[], &[], false)));
    }
}
