//! One attempt to acquire, from before its first byte is sent until it is a hold. Each waiting task has an
//! entry of its own in the server's queue, one identity, and one request under way at a time.
//!
//! Dropped before it is a hold, an attempt undoes itself. The request that leaves the queue and gives the
//! lock back goes over the same connection, right after what it undoes.

use std::sync::Arc;
use std::time::Duration;

use super::client::{self, Client, GrantReply, Op, PUSHED_TERM, Undone};
use super::driver::batch;
use super::driver::resp::Value;
use super::driver::session::{ScriptReply, Session};
use super::driver::shard_channels::ShardChannel;
use super::errors;
use super::hold::Held;
use super::keys::KeySet;
use super::push::PushSlot;
use super::record::{self, Record};
use crate::backend::{Grant, Identity, Request, TryOutcome};
use crate::backends::common::backoff::Backoff;
use crate::runtime::clock::Moment;
use crate::wait::{jittered, random};
use crate::{FencingToken, Holder, Result};

/// How long a waiter sleeps for each place in the queue before it looks again, and at most. Releases push,
/// but the end of a lease and clients of other make do not, nor does the end of a push that nobody took.
const LOOK: Duration = Duration::from_millis(250);
const LAST_LOOK: Duration = Duration::from_secs(5);

/// Far back it sleeps so long for each place, and at most: all looks together cost the server no more for
/// each waiter, and where locks are handed over faster than that it does not look at all.
const FAR_LOOK: Duration = Duration::from_millis(5);
const LAST_FAR_LOOK: Duration = Duration::from_secs(30);

/// So many waiters look as soon as the lease in their way ends. More would be a crowd.
const FIRST_PLACES: u32 = 8;

/// Pauses between requests that undo something, until one is answered.
const UNDO_PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

pub(super) async fn try_acquire(client: &Arc<Client>, request: &Request) -> Result<TryOutcome> {
    let mut acquire = Acquire::new(client, request, request.identity)?;
    match acquire.ask(false).await? {
        Asked::Granted(grant) => Ok(TryOutcome::Granted(grant)),
        Asked::Busy(busy) => {
            // The server has nothing of an attempt that does not wait.
            acquire.session = None;
            Ok(TryOutcome::Busy(Some(busy.holder)))
        }
        Asked::Revoked => Ok(TryOutcome::Busy(None)),
        Asked::Quarantined { why, .. } => {
            acquire.session = None;
            Err(errors::unavailable(why, client.config()))
        }
    }
}

pub(super) async fn acquire(client: &Arc<Client>, request: &Request) -> Result<Grant> {
    let mut identity = request.identity;
    loop {
        if let Some(grant) = Acquire::new(client, request, identity)?.wait().await? {
            return Ok(grant);
        }
        identity = Identity::fresh(&request.name);
    }
}

/// What a request for the lock has come to.
enum Asked {
    Granted(Grant),
    /// Granted, and asked back, before we knew of it.
    Revoked,
    Busy(Busy),
    /// Nobody has it, and nobody gets it for now.
    Quarantined {
        why: String,
        look_in: Duration,
    },
}

/// Somebody else has the lock.
struct Busy {
    holder: Holder,
    /// When the request was sent that this answers.
    sent: Moment,
    place: Option<u32>,
    look_in: Duration,
}

impl Busy {
    /// Whether a push may be believed. A token above that of the holder in the last answer was granted after
    /// that answer, so after its request was sent: the pushed term counts from there. If too little of the
    /// term is left, or the push is an old one, or the holder has no token, another look settles it.
    fn vouches_for(&self, token: FencingToken, now: Moment) -> bool {
        self.holder.token.is_some_and(|of_holder| token > of_holder) && now < self.sent.plus(PUSHED_TERM / 2)
    }
}

/// When to look again, by the place in the queue and the milliseconds that the lock's lease has left.
fn look_in(place: u32, ttl: i64) -> Duration {
    let near = LOOK.saturating_mul(place.saturating_add(1)).min(LAST_LOOK);
    let by_place = jittered(near.max(FAR_LOOK.saturating_mul(place).min(LAST_FAR_LOOK)));
    match u64::try_from(ttl) {
        // One millisecond more than the ttl: the key lives to the end of its last one.
        Ok(ttl) if place < FIRST_PLACES => {
            let apart = Duration::from_millis(5) * place;
            by_place.min(Duration::from_millis(ttl + 1) + apart.mul_f64(random()))
        }
        _ => by_place,
    }
}

struct Acquire<'a> {
    client: &'a Arc<Client>,
    request: &'a Request,
    keys: Arc<KeySet>,
    identity: Identity,
    entry: Arc<str>,
    /// `None` once it is a hold.
    pushes: Option<(PushSlot, Arc<String>)>,
    /// The session of the last request, while the server may have anything of this attempt.
    session: Option<Arc<Session>>,
    /// Whether the last request entered the queue.
    queues: bool,
    /// Requests that may have reached the server.
    sent: u32,
    /// Where a grant is pushed, if that is not the channel of this runtime.
    shard_channel: Option<ShardChannel>,
    /// In the queue, by the last answer.
    place: Option<u32>,
    /// One of them went over a session that ended, and may arrive later than what came after it.
    astray: bool,
}

impl<'a> Acquire<'a> {
    fn new(client: &'a Arc<Client>, request: &'a Request, identity: Identity) -> Result<Self> {
        client.config().check_ttl(request.ttl)?;
        let keys = client.keys(&request.name)?;
        client.servers.prepare(keys.each()[0], request.ttl, &client.keeper);
        let pushes = client.listen(identity.owner(), &request.signal);
        let entry = record::entry(identity.owner(), &pushes.1, &request.note).into();
        Ok(Self {
            client,
            request,
            keys,
            identity,
            entry,
            pushes: Some(pushes),
            session: None,
            queues: false,
            sent: 0,
            shard_channel: None,
            place: None,
            astray: false,
        })
    }

    /// Waits until the lock is ours; `None` if it was, and was taken back before we knew.
    async fn wait(mut self) -> Result<Option<Grant>> {
        loop {
            let busy = match self.ask(true).await? {
                Asked::Granted(grant) => return Ok(Some(grant)),
                Asked::Revoked => return Ok(None),
                Asked::Busy(busy) => busy,
                Asked::Quarantined { why, look_in } => {
                    self.request.seen.answered();
                    self.request.seen.obstacle(Some(why.into()));
                    self.sleeps(look_in).await;
                    continue;
                }
            };
            self.place = busy.place;
            self.request.seen.note(busy.holder.clone());
            self.request.seen.answered();
            if !self.queues {
                continue;
            }
            if let Some(token) = self.pushed(&busy).await {
                return self.granted(token, busy.sent, true).map(Some);
            }
        }
    }

    /// Asks for the lock; with `wait`, stands in the queue if it is held. A request that is repeated, because
    /// the first one was not answered, finds the place or the lock that the first one got.
    async fn ask(&mut self, wait: bool) -> Result<Asked> {
        let (client, ttl, entry, place) = (self.client, self.request.ttl, self.entry.clone(), self.place);
        let (session, sent, shard_channel) = (&mut self.session, &mut self.sent, &mut self.shard_channel);
        let (queues, keys) = (&mut self.queues, &self.keys);
        let pushes = &self.pushes;
        let channel = || pushes.as_ref().map_or(String::new(), |(_, channel)| [keys.tag(), channel].concat());
        let op = |over: &Arc<Session>| {
            *session = Some(over.clone());
            *sent += 1;
            // Most locks are free. To listen for the first request would cost each of them as much again.
            *queues = wait && (*sent > 1 || ShardChannel::is_open(over, channel));
            if *queues {
                *shard_channel = ShardChannel::listen(over, channel);
            }
            match (*queues, *sent) {
                (false, _) => Op::Try { entry: &entry, ttl },
                (true, 1) => Op::Wait { entry: &entry, ttl },
                (true, _) => Op::Again { entry: &entry, ttl, place },
            }
        };
        let reply = client.send(&self.keys, client.timeout().min(ttl), op).await?;
        self.astray |= reply.repeated;
        self.read(reply).await
    }

    async fn read(&mut self, ScriptReply { value, sent, .. }: ScriptReply) -> Result<Asked> {
        let name = &self.request.name;
        if let Value::Error(text) = &value {
            // A lock key of another type is somebody else's.
            if let Some((0, _)) = self.client.key_of_another_type(&self.keys, text).await {
                let (holder, look_in) = (Holder::unknown(name.clone()), look_in(0, -1));
                return Ok(Asked::Busy(Busy { holder, sent, place: None, look_in }));
            }
            if self.sent == 1 && errors::code(text) != batch::UNREPLICATED {
                // Nothing was done, so there is nothing to undo.
                self.session = None;
            }
            return Err(self.client.refusal(&self.keys, text).await);
        }
        let (value, ttl, place) = match GrantReply::read(value).ok_or_else(|| self.client.unreadable())? {
            GrantReply::Granted(token) => return self.granted(token, sent, false).map(Asked::Granted),
            GrantReply::Held { value, ttl, place } => {
                let reign = self.session.as_ref().and_then(|session| session.reign());
                if let Some(why) = reign.and_then(|reign| reign.quarantine(&value, ttl)) {
                    return Ok(Asked::Quarantined { why, look_in: look_in(place.unwrap_or(0), ttl) });
                }
                (String::from_utf8_lossy(&value).into_owned(), ttl, place)
            }
        };
        if Record::parse(&value).is_some_and(|record| record.owner == self.identity.owner()) {
            return Ok(Asked::Revoked);
        }
        let holder = record::holder(name, &value, ttl);
        let look_in = look_in(place.unwrap_or(0), ttl);
        Ok(Asked::Busy(Busy { holder, sent, place, look_in }))
    }

    /// Waits until it is time to look again, or the session ends.
    async fn sleeps(&self, look_in: Duration) {
        let Some(session) = &self.session else { return };
        tokio::select! {
            () = session.ended() => {}
            () = tokio::time::sleep(look_in) => {}
        }
    }

    /// Waits for a push that can be believed. `None` when it is time to look again.
    async fn pushed(&self, busy: &Busy) -> Option<FencingToken> {
        let (Some((pushes, _)), Some(session)) = (&self.pushes, &self.session) else { return None };
        let moved = async {
            match &self.shard_channel {
                Some(channel) => channel.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // What comes over a later one says nothing about an answer of this one.
            () = session.ended() => None,
            () = moved => None,
            token = pushes.grant() => {
                // Replicas may not have it yet: a look tells.
                let counts = self.client.config().replicas.is_none();
                Some(token).filter(|token| counts && busy.vouches_for(*token, self.client.clock.now()))
            }
            () = tokio::time::sleep(busy.look_in) => None,
        }
    }

    /// The lock is ours: hands everything over to a hold.
    fn granted(&mut self, token: FencingToken, sent: Moment, pushed: bool) -> Result<Grant> {
        let Some(pushes) = self.pushes.take() else { return Err(self.client.unreadable()) };
        self.session = None;
        let hold = Held::new(self.client, self.keys.clone(), self.identity.owner(), token, pushes);
        let term = Some(if pushed { PUSHED_TERM } else { self.request.ttl });
        Ok(Grant { identity: self.identity, token, sent, term, pushed, hold })
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let (client, keys, entry) = (self.client.clone(), self.keys.clone(), self.entry.clone());
        let (pushes, astray, single, ttl) =
            (self.pushes.take(), self.astray, self.sent == 1, self.request.ttl);
        let leave = Op::Leave { entry: &entry };
        let sharing = client.servers.sharing(keys.each()[0]);
        let sent = client::post(&[leave], &keys, &session, client.clock.now(), sharing);
        self.client.background.spawn(&self.client.keeper, async move {
            // It came after all that it undoes, unless something went astray.
            let undone = if astray { Undone::Unknown } else { client.undone(sent).await };
            if undone != Undone::Done {
                leave_for(ttl, &client, &keys, &entry, (undone, single), pushes).await;
            }
        });
    }
}

/// Undoes an attempt whose session has ended, or is stuck, or whose slot is another node's: leaves the queue
/// and gives the lock back, again and again until the ttl has passed. What was sent may still arrive; where
/// that cannot be, once is enough. If it is a `single` request, to have undone it settles it.
async fn leave_for(
    ttl: Duration,
    client: &Client,
    keys: &KeySet,
    entry: &str,
    (undone, single): (Undone, bool),
    pushes: Option<(PushSlot, Arc<String>)>,
) {
    let (give_up, mut pauses) = (client.clock.now().plus(ttl), UNDO_PAUSES);
    while client.clock.now() < give_up {
        let reply = client.run(keys, Op::Leave { entry }, client.timeout(), client::freed).await;
        let settles = |given_back: bool| undone == Undone::Refused || single && given_back;
        if reply.is_ok_and(|reply| settles(reply.value)) {
            return;
        }
        let pushed = async {
            match &pushes {
                Some((pushes, _)) => drop(pushes.grant().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // It arrived late, and was served.
            () = pushed => {}
            () = pauses.sleep() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Name;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_first_look_when_the_lease_ends_and_the_others_the_later_the_further_back() {
        for _ in 0..100 {
            assert!((ms(125)..=ms(250)).contains(&look_in(0, -1)));
            assert!((ms(11)..=ms(11)).contains(&look_in(0, 10)));
            assert!((ms(11)..=ms(46)).contains(&look_in(7, 10)));
            assert!((ms(1000)..=ms(2000)).contains(&look_in(7, 60_000)));
            assert!((ms(1125)..=ms(2250)).contains(&look_in(8, 10)), "not a crowd at the end of a lease");
            assert!((ms(2500)..=ms(5000)).contains(&look_in(1000, 10)));
            assert!((ms(10_000)..=ms(20_000)).contains(&look_in(4000, 10)));
            assert!((ms(15_000)..=ms(30_000)).contains(&look_in(u32::MAX, i64::MAX)));
        }
    }

    #[test]
    fn a_push_is_believed_only_after_a_fresh_answer_with_a_smaller_token() {
        let (sent, token) = (Moment::at(ms(10_000)), |number| FencingToken::new(number).unwrap());
        let mut holder = Holder::unknown(Name::new("a").unwrap());
        holder.token = Some(token(7));
        let busy = |holder: &Holder| Busy { holder: holder.clone(), sent, place: Some(0), look_in: ms(250) };
        assert!(busy(&holder).vouches_for(token(8), sent.plus(ms(499))));
        assert!(!busy(&holder).vouches_for(token(8), sent.plus(ms(500))), "too old an answer");
        assert!(!busy(&holder).vouches_for(token(7), sent), "of a grant before that answer");
        holder.token = None;
        assert!(!busy(&holder).vouches_for(token(8), sent), "a foreign holder has no token");
    }
}
