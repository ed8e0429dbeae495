//! What this store asks its server: the nine verbs of `scripts/ops.lua`, the replies to them, and one way to
//! send them. The head of the script says what each verb does.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::config::Config;
use super::driver::batch::{Sharing, Step};
use super::driver::connection::Reply;
use super::driver::resp::Value;
use super::driver::session::{Script, ScriptReply, Session};
use super::errors;
use super::keys::{self, KeySet};
use super::push::{PushRouter, PushSlot};
use super::sentinel;
use super::servers::Servers;
use crate::backend::LossSignal;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;
use crate::{Error, FencingToken, Name, Owner, Result};

/// How long the server keeps a lock that it pushed to a waiter, unless the waiter renews it.
pub(super) const PUSHED_TERM: Duration = Duration::from_secs(1);

/// Renewals that are under way at a time. If more fall due at once, as after a pause of a process that holds
/// very many locks, the last are sent when the first are answered: none waits for its answer longer than it
/// takes the server to answer so many.
const MOST_RENEWALS: usize = 4096;

/// One step of the script.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op<'a> {
    Try { entry: &'a str, ttl: Duration },
    Wait { entry: &'a str, ttl: Duration },
    Again { entry: &'a str, ttl: Duration, place: Option<u32> },
    Free { owner: Owner, token: FencingToken },
    Leave { entry: &'a str },
    Renew { owner: Owner, token: FencingToken, ttl: Duration },
    Attach { owner: Owner, token: FencingToken, entry: &'a str, ttl: Duration },
    Ask { value: &'a [u8], reason: &'a str },
    Seize { entry: &'a str, value: &'a [u8], reason: &'a str },
}

impl<'a> Op<'a> {
    /// Those that a step names. What uses the lock alone names it alone: it also runs while only that key of
    /// a slot has not moved yet, or has.
    fn keys<'k>(&self, keys: &'k KeySet) -> [&'k str; 3] {
        let [lock, ..] = keys.each();
        match self {
            Self::Renew { .. } | Self::Attach { .. } => [lock; 3],
            _ => keys.each(),
        }
    }

    fn words(self) -> [Cow<'a, [u8]>; 3] {
        let text = |text: &'a str| Cow::Borrowed(text.as_bytes());
        let made = |text: String| Cow::Owned(text.into_bytes());
        let time = |ttl| made(super::milliseconds(ttl));
        match self {
            Self::Try { entry, ttl } => [text("try"), text(entry), time(ttl)],
            Self::Wait { entry, ttl } => [text("wait"), text(entry), time(ttl)],
            Self::Again { entry, ttl, place } => {
                let verb = place.map_or(text("again"), |place| made(format!("again {place}")));
                [verb, text(entry), time(ttl)]
            }
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

/// Sends steps for one lock: a single one in a call with others, if it may. Never waits.
pub(super) fn post(
    ops: &[Op<'_>],
    keys: &KeySet,
    session: &Session,
    sent: Moment,
    sharing: Sharing,
) -> Result<Reply, String> {
    let keys: Vec<_> = ops.iter().flat_map(|op| op.keys(keys)).collect();
    let words: Vec<_> = ops.iter().flat_map(|op| op.words()).collect();
    let sharing = Sharing { alone: sharing.alone || ops.len() > 1, ..sharing };
    let pushes = matches!(ops, [Op::Free { .. } | Op::Leave { .. }]);
    let needs_end = session.reign().is_some();
    session.send(&Step { keys: &keys, arguments: &words, needs_end, sharing, pushes }, sent)
}

/// The reply to `try`, `wait`, `again`, `ask` and `seize`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GrantReply {
    Granted(FencingToken),
    /// The lock's value, empty if it is free; its time left in milliseconds, negative if it has no end; the
    /// place in the queue, from 0.
    Held {
        value: Vec<u8>,
        ttl: i64,
        place: Option<u32>,
    },
}

impl GrantReply {
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
pub(super) fn freed(reply: Value) -> Option<bool> {
    match reply {
        Value::Int(0) => Some(false),
        Value::Int(1) => Some(true),
        _ => None,
    }
}

/// The reply to `renew` and `attach`: an error is the value found instead, empty if there is none.
pub(super) fn renewed(reply: Value) -> Option<Result<(), Vec<u8>>> {
    match reply {
        Value::Int(1) => Some(Ok(())),
        Value::Text(found) => Some(Err(found)),
        _ => None,
    }
}

/// What a request that undoes another one, sent right before it, has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undone {
    Done,
    /// It did nothing. What was sent before it has done what it will do.
    Refused,
    /// No answer came.
    Unknown,
}

/// What attempts and holds share.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) servers: Servers,
    router: Arc<PushRouter>,
    pub(super) clock: Clock,
    pub(super) keeper: Arc<Keeper>,
    pub(super) background: BackgroundTasks,
    /// Room for renewals.
    pub(super) renewals: Semaphore,
}

const SCRIPT: &str = include_str!("scripts/ops.lua");

/// The same for a server with channels of shards, in a cluster: whom it tells of a grant listens to one of
/// those, in the shard of the lock. A plain message would go to every node.
static SHARDED: LazyLock<String> = LazyLock::new(|| {
    REPLACED.iter().fold(SCRIPT.to_owned(), |script, (plain, sharded)| script.replace(plain, sharded))
});

const REPLACED: [(&str, &str); 5] = [
    (
        "head ~= who and sub(head, 38, 53)",
        "head ~= who and string.match(fence, '^[^}]*}') .. sub(head, 38, 53)",
    ),
    ("'NUMSUB', channel", "'SHARDNUMSUB', channel"),
    ("'NUMSUB', sub(first, 38, 53)", "'SHARDNUMSUB', string.match(fence, '^[^}]*}') .. sub(first, 38, 53)"),
    ("redis.pcall('PUBLISH', channel", "redis.pcall('SPUBLISH', channel"),
    ("' ' .. channel or ''", "' ' .. sub(head, 38, 53) or ''"),
];

impl Client {
    pub(super) async fn connect(config: Config) -> Result<Self> {
        let (clock, router) = (Clock::system(), Arc::<PushRouter>::default());
        let pushes = router.clone();
        let on_push = Arc::new(move |push: &[Value]| pushes.deliver(push));
        let (keeper, background) = (Keeper::of(&clock)?, BackgroundTasks::default());
        let sharded = config.is_cluster().then(|| SHARDED.as_str());
        let text = config.quarantine().map_or(SCRIPT, |_| sentinel::reign::script());
        let script = Script { text, sharded };
        let servers = Servers::connect(config, script, on_push, &clock, &keeper).await?;
        let renewals = Semaphore::new(MOST_RENEWALS);
        Ok(Self { servers, router, clock, keeper, background, renewals })
    }

    pub(super) fn config(&self) -> &Config {
        self.servers.config()
    }

    pub(super) fn timeout(&self) -> Duration {
        self.config().timeout
    }

    /// When a request that is sent now must be answered.
    pub(super) fn deadline(&self) -> Moment {
        self.clock.now().plus(self.timeout())
    }

    /// The keys of a lock; refuses a name that cannot have any.
    pub(super) fn keys(&self, name: &Name) -> Result<Arc<KeySet>> {
        keys::of(&self.config().start, name).map(Arc::new)
    }

    /// Opens a slot for pushes to an owner, on the channel of the current runtime.
    pub(super) fn listen(&self, owner: Owner, signal: &Arc<LossSignal>) -> (PushSlot, Arc<String>) {
        (self.router.open(owner, signal.clone()), self.servers.channel())
    }

    /// Runs one op and reads its reply.
    pub(super) async fn run<T>(
        &self,
        keys: &KeySet,
        op: Op<'_>,
        timeout: Duration,
        read: impl Fn(Value) -> Option<T>,
    ) -> Result<ScriptReply<T>> {
        let reply = self.send(keys, timeout, |_| op).await?;
        if let Value::Error(text) = &reply.value {
            return Err(self.refusal(keys, text).await);
        }
        let value = read(reply.value).ok_or_else(|| self.unreadable())?;
        Ok(ScriptReply { value, sent: reply.sent, repeated: reply.repeated })
    }

    /// Sends what `op` says for a session, and once more if that one ended first. Every verb but `seize` may
    /// be repeated: it names the identity that it is for, and mostly the token.
    pub(super) async fn send<'a>(
        &self,
        keys: &KeySet,
        timeout: Duration,
        mut op: impl FnMut(&Arc<Session>) -> Op<'a>,
    ) -> Result<ScriptReply> {
        let (deadline, [lock, ..]) = (self.clock.now().plus(timeout), keys.each());
        let mut last: Option<(usize, Op<'a>)> = None;
        let called = self.servers.call(lock, deadline, true, |session, sent, sharing| {
            let to = Arc::as_ptr(session).addr();
            // Alone it goes again over the session that refused the call that it shared.
            let again = last.filter(|(before, _)| sharing.alone && *before == to).map(|(_, op)| op);
            let op = again.unwrap_or_else(|| op(session));
            last = Some((to, op));
            post(&[op], keys, session, sent, sharing)
        });
        called.await.map_err(|error| error.into_error(self.config()))
    }

    /// What a request that undoes another one has come to.
    pub(super) async fn undone(&self, sent: Result<Reply, String>) -> Undone {
        let Ok(reply) = sent else { return Undone::Unknown };
        match tokio::time::timeout(self.timeout(), reply).await {
            Ok(Ok(Value::Error(_))) => Undone::Refused,
            Ok(Ok(_)) => Undone::Done,
            _ => Undone::Unknown,
        }
    }

    /// What an error reply to an op means. One about a key of another type says which key.
    pub(super) async fn refusal(&self, keys: &KeySet, text: &str) -> Error {
        match self.key_of_another_type(keys, text).await {
            Some((_, what)) => self.backend(what),
            None => errors::refusal(text, self.config()),
        }
    }

    /// The place of the key that an error is about, if that is of another type, and what to do about it.
    pub(super) async fn key_of_another_type(&self, keys: &KeySet, text: &str) -> Option<(usize, String)> {
        if !text.contains("WRONGTYPE") {
            return None;
        }
        let asked = keys.each().map(|key| ["TYPE", key]);
        let types = self.servers.ask(&asked.each_ref().map(|words| (words[1], &words[..]))).await.ok()?;
        let rights = ["string", "string", "list"];
        keys.each().iter().zip(&types).zip(rights).enumerate().find_map(|(index, ((key, found), right))| {
            let found = found.as_text().filter(|found| *found != "none" && *found != right)?;
            Some((index, format!("key `{key}` is a {found}, not a {right}; delete it if nobody needs it")))
        })
    }

    /// A reply that cannot be read.
    pub(super) fn unreadable(&self) -> Error {
        self.backend("an answer that makes no sense".to_owned())
    }

    fn backend(&self, what: String) -> Error {
        Error::Backend { store: self.config().label.clone(), source: what.into() }
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
    fn the_script_of_a_shard_differs_in_whom_it_tells_and_in_nothing_else() {
        for (plain, sharded) in REPLACED {
            assert_eq!((SCRIPT.matches(plain).count(), SHARDED.matches(sharded).count()), (1, 1), "{plain}");
        }
        // The channel of a revocation is everybody's, and so is that in a fence.
        assert_eq!(SHARDED.matches("'PUBLISH'").count(), 1);
        assert_eq!(SHARDED.matches("'NUMSUB'").count(), 0);
        assert_eq!(SCRIPT.lines().count(), SHARDED.lines().count());
    }

    #[test]
    fn each_verb_has_the_words_that_the_script_takes() {
        let (owner, ttl) = (Owner::fresh(), Duration::from_millis(1500));
        for (op, words) in [
            (Op::Wait { entry: "e", ttl }, ["wait".into(), "e".into(), "1500".into()]),
            (Op::Again { entry: "e", ttl, place: Some(3) }, ["again 3".into(), "e".into(), "1500".into()]),
            (Op::Again { entry: "e", ttl, place: None }, ["again".into(), "e".into(), "1500".into()]),
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
        assert_eq!(GrantReply::read(text("42")), Some(GrantReply::Granted(token(42))));
        let held = vec![text("v"), Value::Int(-1), Value::Int(3)];
        let read = GrantReply::Held { value: b"v".to_vec(), ttl: -1, place: Some(3) };
        assert_eq!(GrantReply::read(Value::List(held.clone())), Some(read));
        for odd in [text("0"), text("x"), Value::Nil, Value::Int(1), Value::List(held[..2].to_vec())] {
            assert_eq!(GrantReply::read(odd), None);
        }
        assert!(matches!(renewed(Value::Int(1)), Some(Ok(()))));
        assert!(matches!(renewed(text("v")), Some(Err(found)) if found == b"v"));
        assert!(renewed(Value::Int(0)).is_none() && renewed(Value::Nil).is_none());
        assert_eq!([0, 1, 2].map(|number| freed(Value::Int(number))), [Some(false), Some(true), None]);
    }
}
