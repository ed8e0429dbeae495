//! What the server pushes to this process: grants for waiters, and revocations for holders. Everything that
//! arrives here is a hint; whoever acts on it decides what it is worth.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::resp::Value;
use crate::backend::{Signal, lock};
use crate::{Loss, Owner};

/// Who can be told something, by owner.
#[derive(Debug, Default)]
pub(in crate::backends) struct Inbox(Mutex<HashMap<Owner, Arc<Content>>>);

#[derive(Debug)]
struct Content {
    signal: Mutex<Arc<Signal>>,
    token: Mutex<Option<i64>>,
    granted: Notify,
}

impl Inbox {
    /// Opens a letter box for one owner, for as long as the returned value lives.
    pub(in crate::backends) fn open(self: &Arc<Self>, owner: Owner, signal: Arc<Signal>) -> LetterBox {
        let (signal, token, granted) = (Mutex::new(signal), Mutex::default(), Notify::new());
        let content = Arc::new(Content { signal, token, granted });
        lock(&self.0).insert(owner, content.clone());
        LetterBox { inbox: self.clone(), owner, content }
    }

    /// Takes in a push: `message CHANNEL "granted OWNER TOKEN" | "revoked OWNER REASON" | "free OWNER "`.
    pub(in crate::backends) fn deliver(&self, push: &[Value]) {
        let [kind, _, message] = push else { return };
        if kind.as_text() != Some("message") {
            return;
        }
        let mut words = message.as_text().unwrap_or_default().splitn(3, ' ');
        let (Some(what), Some(owner), Some(rest)) = (words.next(), words.next(), words.next()) else {
            return;
        };
        let Ok(owner) = owner.parse::<Owner>() else { return };
        let Some(content) = lock(&self.0).get(&owner).cloned() else { return };
        match what {
            "granted" => {
                *lock(&content.token) = rest.parse().ok();
                content.granted.notify_one();
            }
            "free" => content.granted.notify_one(),
            "revoked" => lock(&content.signal).raise(Loss::ForceReleased { reason: rest.to_owned() }),
            _ => {}
        }
    }
}

/// The letter box of one owner.
#[derive(Debug)]
pub(in crate::backends) struct LetterBox {
    inbox: Arc<Inbox>,
    owner: Owner,
    content: Arc<Content>,
}

impl LetterBox {
    /// Waits for a message that the lock may be free.
    pub(in crate::backends) async fn hint(&self) {
        self.content.granted.notified().await;
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner
    }

    /// Lets somebody else be told of a loss from now on; `false`, and no change, if there was one already.
    pub(super) fn forward(&self, to: &Arc<Signal>) -> bool {
        let mut signal = lock(&self.content.signal);
        let held = signal.loss().is_none();
        if held {
            *signal = to.clone();
        }
        held
    }

    /// Tells whoever is to be told now.
    pub(super) fn lose(&self, loss: Loss) {
        lock(&self.content.signal).raise(loss);
    }

    /// Waits for a grant by push, and returns its token.
    pub(in crate::backends) async fn grant(&self) -> i64 {
        loop {
            self.content.granted.notified().await;
            if let Some(token) = lock(&self.content.token).take() {
                return token;
            }
        }
    }
}

impl Drop for LetterBox {
    fn drop(&mut self) {
        // The owner may have another box by now: the same lock, attached again.
        let mut boxes = lock(&self.inbox.0);
        if boxes.get(&self.owner).is_some_and(|content| Arc::ptr_eq(content, &self.content)) {
            boxes.remove(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push(message: &str) -> Vec<Value> {
        ["message", "channel", message].map(|text| Value::Text(text.into())).to_vec()
    }

    #[tokio::test]
    async fn letters_reach_their_owner_and_nobody_else() {
        let inbox = Arc::<Inbox>::default();
        let (one, two) = (Owner::fresh(), Owner::fresh());
        let signals = [Arc::<Signal>::default(), Arc::default()];
        let first = inbox.open(one, signals[0].clone());
        let second = inbox.open(two, signals[1].clone());
        inbox.deliver(&push(&format!("granted {one} 42")));
        inbox.deliver(&push(&format!("revoked {two} stuck since noon")));
        assert_eq!(first.grant().await, 42);
        assert!(signals[0].loss().is_none());
        assert_eq!(signals[1].loss(), Some(&Loss::ForceReleased { reason: "stuck since noon".into() }));
        drop(first);
        for odd in [format!("granted {one} 43"), format!("granted {two}"), "x y z".into(), String::new()] {
            inbox.deliver(&push(&odd));
        }
        assert!(lock(&second.content.token).is_none());
    }

    proptest! {
        #[test]
        fn no_message_makes_it_panic_or_grants_what_is_another_owners(
            what in "(granted|revoked|free|[a-z]{0,4})",
            rest in ".{0,40}",
        ) {
            let inbox = Arc::<Inbox>::default();
            let signal = Arc::<Signal>::default();
            let letters = inbox.open(Owner::fresh(), signal.clone());
            inbox.deliver(&push(&format!("{what} {rest}")));
            inbox.deliver(&push(&format!("{what} {} {rest}", Owner::fresh())));
            inbox.deliver(&push(&rest));
            prop_assert!(signal.loss().is_none() && lock(&letters.content.token).is_none());
        }
    }
}
