//! The nine verbs of `scripts/ops.lua` as words, and its replies. The head of the script says what each verb
//! does.

use std::borrow::Cow;
use std::time::Duration;

use super::driver::resp::Value;
use super::driver::session::ScriptStep;
use super::keys::KeySet;
use super::milliseconds;
use crate::{FencingToken, Owner};

/// All that the server does for us.
pub(super) const SCRIPT: &str = include_str!("scripts/ops.lua");

/// How long a lock that the server pushed to a waiter is its own, unless the waiter renews it.
pub(super) const TERM: Duration = Duration::from_secs(1);

/// One step of the script.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op<'a> {
    Try { entry: &'a str, ttl: Duration },
    Wait { entry: &'a str, ttl: Duration },
    Again { entry: &'a str, ttl: Duration },
    Free { owner: Owner, token: FencingToken },
    Leave { entry: &'a str },
    Renew { owner: Owner, token: FencingToken, ttl: Duration },
    Attach { owner: Owner, token: FencingToken, entry: &'a str, ttl: Duration },
    Ask { value: &'a [u8], reason: &'a str },
    Seize { entry: &'a str, value: &'a [u8], reason: &'a str },
}

impl<'a> Op<'a> {
    /// This verb for one lock.
    pub(super) fn on(self, keys: &'a KeySet) -> ScriptStep<'a> {
        let pushes = matches!(self, Self::Free { .. } | Self::Leave { .. });
        ScriptStep { keys: keys.each(), words: self.words(), pushes }
    }

    fn words(self) -> [Cow<'a, [u8]>; 3] {
        let text = |text: &'a str| Cow::Borrowed(text.as_bytes());
        let made = |text: String| Cow::Owned(text.into_bytes());
        let time = |ttl| made(milliseconds(ttl));
        match self {
            Self::Try { entry, ttl } => [text("try"), text(entry), time(ttl)],
            Self::Wait { entry, ttl } => [text("wait"), text(entry), time(ttl)],
            Self::Again { entry, ttl } => [text("again"), text(entry), time(ttl)],
            Self::Free { owner, token } => [text("free"), made(format!("{owner} {token}")), text("")],
            Self::Leave { entry } => [text("leave"), text(entry), text("")],
            Self::Renew { owner, token, ttl } => [text("renew"), made(format!("{owner} {token}")), time(ttl)],
            Self::Attach { owner, token, entry, ttl } => {
                [text("attach"), made(format!("{owner} {token}\n{entry}")), time(ttl)]
            }
            Self::Ask { value, reason } => [text("ask"), value.into(), text(reason)],
            Self::Seize { entry, value, reason } => {
                [text("seize"), Cow::Owned([entry.as_bytes(), b"\n", value].concat()), text(reason)]
            }
        }
    }
}

/// The reply to `try`, `wait`, `again`, `ask` and `seize`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Granted(FencingToken),
    /// The lock's value, empty if it is free; its time left in milliseconds, negative if it has no end; the
    /// place in the queue, from 0.
    Held {
        value: Vec<u8>,
        ttl: i64,
        place: Option<u32>,
    },
}

impl Taken {
    /// `None` if it is no such reply.
    pub(super) fn read(reply: Value) -> Option<Self> {
        match reply {
            Value::Text(token) => {
                let token = std::str::from_utf8(&token).ok()?.parse().ok()?;
                FencingToken::new(token).map(Self::Granted)
            }
            Value::List(mut items) => {
                let [_, ttl, place] = items.as_slice() else { return None };
                let (ttl, place) = (ttl.as_int()?, u32::try_from(place.as_int()?).ok());
                match items.swap_remove(0) {
                    Value::Text(value) => Some(Self::Held { value, ttl, place }),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// The reply to `free` and `leave`: whether there was something to give back.
pub(super) fn given(reply: &Value) -> Option<bool> {
    match reply.as_int()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// The reply to `renew` and `attach`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Ours,
    /// The value found instead, empty if there is none.
    Not(Vec<u8>),
}

impl Kept {
    /// `None` if it is no such reply.
    pub(super) fn read(reply: Value) -> Option<Self> {
        match reply {
            Value::Int(1) => Some(Self::Ours),
            Value::Text(value) => Some(Self::Not(value)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn each_verb_has_the_words_that_the_script_takes() {
        let (owner, ttl) = (Owner::fresh(), Duration::from_millis(1500));
        for (op, words) in [
            (Op::Wait { entry: "e", ttl }, ["wait".into(), "e".into(), "1500".into()]),
            (Op::Free { owner, token: token(7) }, ["free".into(), format!("{owner} 7"), String::new()]),
            (
                Op::Attach { owner, token: token(7), entry: "e", ttl },
                ["attach".into(), format!("{owner} 7\ne"), "1500".into()],
            ),
            (
                Op::Seize { entry: "e", value: b"!v\nx", reason: "why" },
                ["seize".into(), "e\n!v\nx".into(), "why".into()],
            ),
        ] {
            let said = op.words().map(|word| String::from_utf8(word.into_owned()).unwrap());
            assert_eq!(said, words);
        }
    }

    #[test]
    fn replies_are_read_and_nonsense_is_not() {
        assert_eq!(Taken::read(text("42")), Some(Taken::Granted(token(42))));
        let held = vec![text("v"), Value::Int(-1), Value::Int(3)];
        let read = Taken::Held { value: b"v".to_vec(), ttl: -1, place: Some(3) };
        assert_eq!(Taken::read(Value::List(held.clone())), Some(read));
        for odd in [text("0"), text("x"), Value::Nil, Value::Int(1), Value::List(held[..2].to_vec())] {
            assert_eq!(Taken::read(odd), None);
        }
        assert_eq!(Kept::read(Value::Int(1)), Some(Kept::Ours));
        assert_eq!(Kept::read(text("")), Some(Kept::Not(Vec::new())));
        assert_eq!((Kept::read(Value::Int(0)), Kept::read(Value::Nil)), (None, None));
        assert_eq!([0, 1, 2].map(|number| given(&Value::Int(number))), [Some(false), Some(true), None]);
    }
}
