//! A script call that gathers steps: what is asked for until the connection is next written to goes out as one call. A server
//! spends as much on a call as on what it does.

use std::sync::Arc;

use super::connection::Call;
use super::resp;
use crate::clock::Moment;

/// The script that takes steps, and what follows theirs in a call in which any step asks for it.
#[derive(Debug, Default)]
pub(in crate::backends) struct Stepper {
    pub(in crate::backends) script: String,
    pub(in crate::backends) key: String,
    pub(in crate::backends) arguments: [String; 2],
    /// How many steps one call makes. More would keep a server busy for too long at a time.
    pub(in crate::backends) most: usize,
}

/// One step.
#[derive(Debug)]
pub(in crate::backends) struct Step<'a> {
    pub(in crate::backends) keys: &'a [&'a str],
    pub(in crate::backends) arguments: &'a [&'a str],
    /// Whether it needs what follows the steps.
    pub(in crate::backends) needs_end: bool,
    /// Whether nothing else shall be in the same call: what the server refuses, it refuses to all of it.
    pub(in crate::backends) alone: bool,
}

/// Words of a command, encoded.
#[derive(Debug, Default)]
struct Words {
    count: usize,
    bytes: Vec<u8>,
}

impl Words {
    fn push(&mut self, words: &[&str]) {
        self.count += words.len();
        resp::words(&mut self.bytes, words.iter().map(|word| word.as_bytes()));
    }

    fn move_to(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.bytes);
        self.count = 0;
    }
}

/// The call that is being gathered.
#[derive(Default)]
pub(super) struct Turn {
    stepper: Option<Arc<Stepper>>,
    keys: Words,
    arguments: Words,
    needs_end: bool,
    /// When its first step was asked for.
    pub(super) sent: Option<Moment>,
    pub(super) calls: Vec<Call>,
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a turn of {} steps", self.calls.len())
    }
}

impl Turn {
    /// Whether a step can join.
    pub(super) fn takes(&self, stepper: &Arc<Stepper>, step: &Step<'_>) -> bool {
        let same = self.stepper.as_ref().is_none_or(|ours| Arc::ptr_eq(ours, stepper));
        self.calls.is_empty() || same && !step.alone && self.calls.len() < stepper.most
    }

    pub(super) fn push(&mut self, stepper: &Arc<Stepper>, step: &Step<'_>, sent: Moment, call: Call) {
        if self.calls.is_empty() {
            self.stepper = Some(stepper.clone());
            self.sent = Some(sent);
        }
        self.keys.push(step.keys);
        self.arguments.push(step.arguments);
        self.needs_end |= step.needs_end;
        self.calls.push(call);
    }

    /// Appends the call, if there is one, and returns who waits for it.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Option<(Moment, Vec<Call>)> {
        let (stepper, sent) = (self.stepper.take()?, self.sent.take()?);
        if std::mem::take(&mut self.needs_end) {
            self.keys.push(&[&stepper.key]);
            self.arguments.push(&stepper.arguments.each_ref().map(String::as_str));
        }
        let count = self.keys.count.to_string();
        resp::header(out, b'*', 3 + self.keys.count + self.arguments.count);
        resp::words(out, ["EVALSHA", &stepper.script, &count].iter().map(|word| word.as_bytes()));
        self.keys.move_to(out);
        self.arguments.move_to(out);
        Some((sent, std::mem::take(&mut self.calls)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step<'a>(keys: &'a [&'a str], arguments: &'a [&'a str], needs_end: bool) -> Step<'a> {
        Step { keys, arguments, needs_end, alone: false }
    }

    fn stepper() -> Arc<Stepper> {
        let arguments = ["v".to_owned(), "b".to_owned()];
        Arc::new(Stepper { script: "sha".to_owned(), key: "n".to_owned(), arguments, most: 3 })
    }

    fn encoded(words: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        resp::encode(&mut out, words.len(), words.iter().map(|word| word.as_bytes()));
        out
    }

    #[test]
    fn steps_join_with_their_keys_before_all_arguments() {
        let (mut turn, stepper, mut out) = (Turn::default(), stepper(), Vec::new());
        assert!(turn.finish(&mut out).is_none());
        turn.push(&stepper, &step(&["a", "b"], &["1"], true), Moment::at(Default::default()), Box::new(drop));
        turn.push(&stepper, &step(&["c"], &["2", "3"], false), Moment::NEVER, Box::new(drop));
        let (sent, calls) = turn.finish(&mut out).unwrap();
        assert_eq!((sent, calls.len()), (Moment::at(Default::default()), 2));
        assert_eq!(out, encoded(&["EVALSHA", "sha", "4", "a", "b", "c", "n", "1", "2", "3", "v", "b"]));
        out.clear();
        turn.push(&stepper, &step(&["a"], &["1"], false), Moment::NEVER, Box::new(drop));
        turn.finish(&mut out).unwrap();
        assert_eq!(out, encoded(&["EVALSHA", "sha", "1", "a", "1"]));
    }

    #[test]
    fn a_turn_is_bounded_and_one_that_goes_alone_joins_nobody() {
        let (mut turn, stepper) = (Turn::default(), stepper());
        let alone = Step { alone: true, ..step(&[], &[], false) };
        assert!(turn.takes(&stepper, &alone));
        for _ in 0..stepper.most {
            assert!(turn.takes(&stepper, &step(&[], &[], false)));
            turn.push(&stepper, &step(&[], &[], false), Moment::NEVER, Box::new(drop));
            assert!(!turn.takes(&stepper, &alone));
        }
        assert!(!turn.takes(&stepper, &step(&[], &[], false)));
        turn.finish(&mut Vec::new());
        assert!(turn.takes(&stepper, &step(&[], &[], false)));
    }
}
