//! A script call that gathers steps: all that are sent until the connection is next written to go out as one
//! call. A server spends as much on a call as on what it does.

use std::sync::Arc;

use super::connection::Call;
use super::resp;
use crate::runtime::clock::Moment;

/// A script that takes steps, and the words that follow them in a call in which any step asks for that.
#[derive(Debug, Default)]
pub(in crate::backends) struct BatchedScript {
    /// What to call it by.
    pub(in crate::backends) name: String,
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
    /// Whether nothing else shall be in the same call: what the server refuses, it refuses to all of it.
    pub(in crate::backends) alone: bool,
    /// Whether it may push to another client, which is to hear of it first.
    pub(in crate::backends) pushes: bool,
}

/// Words of a command, encoded.
#[derive(Debug, Default)]
struct Words {
    count: usize,
    bytes: Vec<u8>,
}

impl Words {
    fn push(&mut self, words: &[impl AsRef<[u8]>]) {
        self.count += words.len();
        resp::words(&mut self.bytes, words.iter().map(AsRef::as_ref));
    }

    fn move_to(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.bytes);
        self.count = 0;
    }
}

/// The call that is being gathered.
#[derive(Default)]
pub(super) struct ScriptBatch {
    script: Option<Arc<BatchedScript>>,
    keys: Words,
    arguments: Words,
    needs_end: bool,
    pushes: bool,
    /// When its first step was asked for.
    pub(super) sent: Option<Moment>,
    pub(super) calls: Vec<Call>,
}

impl std::fmt::Debug for ScriptBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a batch of {} steps", self.calls.len())
    }
}

impl ScriptBatch {
    /// Whether a step can join.
    pub(super) fn takes<W>(&self, script: &Arc<BatchedScript>, step: &Step<'_, W>) -> bool {
        let same = self.script.as_ref().is_none_or(|ours| Arc::ptr_eq(ours, script));
        self.calls.is_empty() || same && !step.alone && self.calls.len() < script.most
    }

    pub(super) fn push<W: AsRef<[u8]>>(
        &mut self,
        script: &Arc<BatchedScript>,
        step: &Step<'_, W>,
        sent: Moment,
        call: Call,
    ) {
        if self.calls.is_empty() {
            self.script = Some(script.clone());
            self.sent = Some(sent);
        }
        self.keys.push(step.keys);
        self.arguments.push(step.arguments);
        self.needs_end |= step.needs_end;
        self.pushes |= step.pushes;
        self.calls.push(call);
    }

    /// Whether a step may push to another client. Asked once, before the call is finished.
    pub(super) fn take_pushes(&mut self) -> bool {
        std::mem::take(&mut self.pushes)
    }

    /// Appends the call, if there is one, and returns who waits for it.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Option<(Moment, Vec<Call>)> {
        let (script, sent) = (self.script.take()?, self.sent.take()?);
        if std::mem::take(&mut self.needs_end) {
            self.keys.push(&[&script.key]);
            self.arguments.push(&script.arguments.each_ref().map(String::as_str));
        }
        let count = self.keys.count.to_string();
        resp::header(out, b'*', 3 + self.keys.count + self.arguments.count);
        resp::words(out, ["EVALSHA", &script.name, &count].iter().map(|word| word.as_bytes()));
        self.keys.move_to(out);
        self.arguments.move_to(out);
        Some((sent, std::mem::take(&mut self.calls)))
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
        resp::encode(&mut out, words.len(), words.iter().map(|word| word.as_bytes()));
        out
    }

    #[test]
    fn steps_join_with_their_keys_before_all_arguments() {
        let (mut batch, script, mut out) = (ScriptBatch::default(), script(), Vec::new());
        assert!(batch.finish(&mut out).is_none());
        batch.push(&script, &step(&["a", "b"], &["1"], true), Moment::at(Default::default()), Box::new(drop));
        batch.push(&script, &step(&["c"], &["2", "3"], false), Moment::NEVER, Box::new(drop));
        let (sent, calls) = batch.finish(&mut out).unwrap();
        assert_eq!((sent, calls.len()), (Moment::at(Default::default()), 2));
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
        batch.finish(&mut Vec::new());
        assert!(batch.takes(&script, &step(&[], &[], false)));
    }
}
