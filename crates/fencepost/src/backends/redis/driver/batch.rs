//! A script call that gathers steps. All steps that are sent before the connection is next written to go out
//! as one call: a server spends as much on a call as on what it does.

use std::sync::Arc;

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
}

/// One step.
#[derive(Debug)]
pub(in crate::backends) struct Step<'a, W = &'a str> {
    pub(in crate::backends) keys: &'a [&'a str],
    pub(in crate::backends) arguments: &'a [W],
    /// Whether it needs what follows the steps.
    pub(in crate::backends) needs_end: bool,
    /// Whether it makes a call of its own. What the server refuses, it refuses to the whole call.
    pub(in crate::backends) alone: bool,
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
    /// Its step goes alone.
    full: bool,
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
        self.calls.is_empty() || same && !self.full && !step.alone && self.calls.len() < script.most
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
        self.full |= step.alone;
        self.pushes |= step.pushes;
        self.calls.push(call);
    }

    /// Appends the call, if there is one, and returns who waits for its reply.
    pub(super) fn finish(mut self, out: &mut Vec<u8>) -> Option<PendingReply> {
        let script = self.script?;
        if self.needs_end {
            self.keys.push(&script.key);
            self.arguments.extend(&script.arguments);
        }
        let (keys, arguments) = (Part::Ready(&self.keys), Part::Ready(&self.arguments));
        let head = ["EVALSHA", &script.name, &keys.count().to_string()];
        resp::encode(out, [Part::Words(&head), keys, arguments].into_iter());
        Some(PendingReply { sent: self.sent, calls: self.calls })
    }
}

/// What is called with the next reply: nothing, one call, or one for each step of a script call.
pub(super) struct PendingReply {
    #[cfg_attr(not(feature = "redlock"), allow(dead_code))]
    pub(super) sent: Option<Moment>,
    pub(super) calls: Vec<Call>,
}

impl PendingReply {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn step<'a>(keys: &'a [&'a str], arguments: &'a [&'a str], needs_end: bool) -> Step<'a> {
        Step { keys, arguments, needs_end, alone: false, pushes: false }
    }

    fn script() -> Arc<BatchedScript> {
        let arguments = ["v".to_owned(), "b".to_owned()];
        Arc::new(BatchedScript { name: "sha".to_owned(), key: "n".to_owned(), arguments, most: 3 })
    }

    fn encoded(words: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        resp::encode(&mut out, std::iter::once(Part::Words(words)));
        out
    }

    #[test]
    fn steps_join_with_their_keys_before_all_arguments() {
        let (mut batch, script, mut out) = (ScriptBatch::default(), script(), Vec::new());
        assert!(std::mem::take(&mut batch).finish(&mut out).is_none());
        batch.push(&script, &step(&["a", "b"], &["1"], true), Moment::at(Default::default()), Box::new(drop));
        batch.push(&script, &step(&["c"], &["2", "3"], false), Moment::NEVER, Box::new(drop));
        let reply = std::mem::take(&mut batch).finish(&mut out).unwrap();
        assert_eq!((reply.sent, reply.calls.len()), (Some(Moment::at(Default::default())), 2));
        assert_eq!(out, encoded(&["EVALSHA", "sha", "4", "a", "b", "c", "n", "1", "2", "3", "v", "b"]));
        out.clear();
        batch.push(&script, &step(&["a"], &["1"], false), Moment::NEVER, Box::new(drop));
        batch.finish(&mut out).unwrap();
        assert_eq!(out, encoded(&["EVALSHA", "sha", "1", "a", "1"]));
    }

    #[test]
    fn a_batch_is_bounded_and_one_that_goes_alone_joins_nobody() {
        let (mut batch, script) = (ScriptBatch::default(), script());
        let alone = Step { alone: true, ..step(&[], &[], false) };
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
