//! What servers push to this process: grants for waiters, and revocations for holders. Each is a hint;
//! whoever acts on it decides what it is worth.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::driver::resp::Value;
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::{FencingToken, Loss, Owner};

/// Who can be told something, by owner.
#[derive(Debug, Default)]
pub(in crate::backends) struct PushRouter(Mutex<HashMap<Owner, Arc<Pushed>>>);

/// What was pushed to one owner.
#[derive(Debug)]
struct Pushed {
    signal: Arc<LossSignal>,
    token: Mutex<Option<FencingToken>>,
    arrived: Notify,
}

impl PushRouter {
    /// Opens a slot for one owner, for as long as the returned value lives.
    pub(in crate::backends) fn open(self: &Arc<Self>, owner: Owner, signal: Arc<LossSignal>) -> PushSlot {
        let pushed = Arc::new(Pushed { signal, token: Mutex::default(), arrived: Notify::new() });
        lock(&self.0).insert(owner, pushed.clone());
        PushSlot { router: self.clone(), owner, pushed }
    }

    /// Takes in a push: `[s]message CHANNEL "granted OWNER TOKEN" | "revoked OWNER REASON" | "free OWNER "`.
    pub(in crate::backends) fn deliver(&self, push: &[Value]) {
        let [kind, _, message] = push else { return };
        if !matches!(kind.as_text(), Some("message" | "smessage")) {
            return;
        }
        let mut words = message.as_text().unwrap_or_default().splitn(3, ' ');
        let (Some(what), Some(owner), Some(rest)) = (words.next(), words.next(), words.next()) else {
            return;
        };
        let Ok(owner) = owner.parse::<Owner>() else { return };
        let Some(pushed) = lock(&self.0).get(&owner).cloned() else { return };
        match what {
            "granted" => {
                *lock(&pushed.token) = rest.parse().ok().and_then(FencingToken::new);
                pushed.arrived.notify_one();
            }
            "free" => pushed.arrived.notify_one(),
            "revoked" => pushed.signal.raise(Loss::ForceReleased { reason: rest.to_owned() }),
            _ => {}
        }
    }
}

/// Where pushes for one owner arrive.
#[derive(Debug)]
pub(in crate::backends) struct PushSlot {
    router: Arc<PushRouter>,
    owner: Owner,
    pushed: Arc<Pushed>,
}

impl PushSlot {
    /// Waits for a message that the lock may be free.
    pub(in crate::backends) async fn hint(&self) {
        self.pushed.arrived.notified().await;
    }

    /// Waits for a grant, and returns its token.
    pub(in crate::backends) async fn grant(&self) -> FencingToken {
        loop {
            self.hint().await;
            if let Some(token) = lock(&self.pushed.token).take() {
                return token;
            }
        }
    }
}

impl Drop for PushSlot {
    fn drop(&mut self) {
        // The owner may have another slot by now.
        let mut slots = lock(&self.router.0);
        if slots.get(&self.owner).is_some_and(|pushed| Arc::ptr_eq(pushed, &self.pushed)) {
            slots.remove(&self.owner);
        }
    }
}

/// The command that asks who listens to some channels.
pub(in crate::backends) fn numsub<'a>(channels: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    ["PUBSUB", "NUMSUB"].into_iter().chain(channels.collect::<BTreeSet<_>>()).collect()
}

/// The channels that somebody listens to, by the reply to that; `None` if it is refused.
pub(in crate::backends) fn listeners(reply: &Value) -> Option<HashSet<&str>> {
    let pairs = reply.as_list()?.chunks_exact(2);
    let heard = pairs.filter(|pair| pair[1].as_int().is_some_and(|count| count > 0));
    Some(heard.filter_map(|pair| pair[0].as_text()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push(message: &str) -> Vec<Value> {
        ["message", "channel", message].map(|text| Value::Text(text.into())).to_vec()
    }

    #[tokio::test]
    async fn pushes_reach_their_owner_and_nobody_else() {
        let router = Arc::<PushRouter>::default();
        let (one, two) = (Owner::fresh(), Owner::fresh());
        let signals = [Arc::<LossSignal>::default(), Arc::default()];
        let first = router.open(one, signals[0].clone());
        let second = router.open(two, signals[1].clone());
        router.deliver(&push(&format!("granted {one} 42")));
        router.deliver(&push(&format!("revoked {two} stuck since noon")));
        assert_eq!(first.grant().await.get(), 42);
        assert!(signals[0].loss().is_none());
        assert_eq!(signals[1].loss(), Some(&Loss::ForceReleased { reason: "stuck since noon".into() }));
        drop(first);
        for odd in [format!("granted {one} 43"), format!("granted {two}"), "x y z".into(), String::new()] {
            router.deliver(&push(&odd));
        }
        assert!(lock(&second.pushed.token).is_none());
    }

    #[test]
    fn those_who_listen_are_read_from_the_reply_and_a_refusal_tells_nothing() {
        assert_eq!(numsub(["b", "a", "b"].into_iter()), ["PUBSUB", "NUMSUB", "a", "b"]);
        let channel = |name: &str, count| [Value::Text(name.into()), Value::Int(count)];
        let reply = [channel("a", 1), channel("b", 0), channel("c", 2)].concat();
        assert_eq!(listeners(&Value::List(reply)), Some(HashSet::from(["a", "c"])));
        assert_eq!(listeners(&Value::Error("NOPERM".into())), None);
    }

    proptest! {
        #[test]
        fn no_message_makes_it_panic_or_grants_what_is_another_owners(
            what in "(granted|revoked|free|[a-z]{0,4})",
            rest in ".{0,40}",
        ) {
            let router = Arc::<PushRouter>::default();
            let signal = Arc::<LossSignal>::default();
            let slot = router.open(Owner::fresh(), signal.clone());
            router.deliver(&push(&format!("{what} {rest}")));
            router.deliver(&push(&format!("{what} {} {rest}", Owner::fresh())));
            router.deliver(&push(&rest));
            prop_assert!(signal.loss().is_none() && lock(&slot.pushed.token).is_none());
        }
    }
}
