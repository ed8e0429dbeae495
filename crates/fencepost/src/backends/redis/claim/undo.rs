//! What an attempt leaves to be undone: its place in the queue, a turn that nobody wants, a request whose answer nobody heard.

use std::sync::Arc;
use std::time::Duration;

use super::{By, Claim};
use crate::FencingToken;
use crate::backend::Hold as _;
use crate::backends::redis::GRANT_TERM;
use crate::backends::redis::cohort::Membership;
use crate::backends::redis::keys::Keys;
use crate::backends::redis::node::{Node, On, Script};
use crate::backends::redis::resp::Value;
use crate::backends::redis::row::Row;
use crate::backends::redis::seat::{HandOver, Left};

impl Claim<'_> {
    /// Leaves the queue, where who has asked stands while a row has the lock, before its turn becomes a hold: left there, it would
    /// be served once more. Whatever comes of this request, and whenever, it does not touch the lock.
    pub(super) async fn quit(&self) {
        let (node, ttl) = (self.store.node.clone(), self.request.ttl);
        let (keys, value) = (self.keys.clone(), self.value.clone());
        // Its lease runs meanwhile.
        let timeout = node.config().timeout.min(ttl / 4);
        let quit = node.run(Script::Give, On::One(&keys), &["quit", &*value], timeout, |_| {}).await;
        if quit.is_err() {
            self.store.errands.spawn(&self.store.keeper, async move {
                insist(&node, &keys, &["quit", &*value], ttl, |_| true).await;
            });
        }
    }

    /// It was its turn in a row, and the server has served it otherwise. If that was long ago, the row has the lock.
    pub(super) fn give_back(&self, row: Arc<Row>) {
        row.give();
        let (node, keys, ttl) = (self.store.node.clone(), self.keys.clone(), self.request.ttl);
        self.store.errands.spawn(&self.store.keeper, async move {
            let free = ["free", &row.id.to_string(), GRANT_TERM.text];
            if let Some(freed) = insist(&node, &keys, &free, ttl, |_| true).await {
                row.given_back(freed == 1);
            }
        });
    }

    /// Its turn in a row came, and is not wanted any more.
    fn pass_on(&mut self, turn: HandOver) {
        let token = u64::try_from(turn.token).ok().and_then(FencingToken::new);
        let by = By::HandOver(turn.handed, turn.row);
        let Some(Ok(hold)) = token.map(|token| self.hold(token, by)) else { return };
        let ttl = self.request.ttl;
        self.store.errands.spawn(&self.store.keeper, async move {
            let mut pause = Duration::from_millis(50);
            while hold.release().await.is_err() && pause < ttl * 2 {
                tokio::time::sleep(pause).await;
                pause *= 3;
            }
        });
    }
}

fn leave(value: &str) -> [&str; 3] {
    ["leave", value, GRANT_TERM.text]
}

/// Sends a request until its answer settles it, or the lock would have ended without it.
async fn insist(
    node: &Node,
    keys: &Keys,
    arguments: &[&str],
    ttl: Duration,
    settles: impl Fn(i64) -> bool,
) -> Option<i64> {
    let (timeout, mut pause) = (node.config().timeout, Duration::from_millis(50));
    while pause < ttl * 2 {
        let answer = node.run(Script::Give, On::One(keys), arguments, timeout, |_| {}).await;
        let said = answer.ok().and_then(|answer| answer.value.as_int());
        if let Some(said) = said.filter(|said| settles(*said)) {
            return Some(said);
        }
        tokio::time::sleep(pause).await;
        pause *= 3;
    }
    None
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(holder) = self.seat.as_ref().and_then(Membership::seen) {
            // Who waited behind others has not asked itself.
            self.request.seen.note(holder);
        }
        let handed = match self.seat.take().map(Membership::leave) {
            Some(Left::Turn { turn, chosen }) => {
                self.pass_on(turn);
                chosen
            }
            left => matches!(left, Some(Left::Chosen)),
        };
        let link = self.link.take();
        if link.is_none() && !handed {
            return;
        }
        let now = self.store.clock.now();
        let undo = link.map(|link| link.send(Script::Give, On::One(&self.keys), &leave(&self.value), now));
        let (node, keys, value) = (self.store.node.clone(), self.keys.clone(), self.value.clone());
        let (timeout, ttl) = (node.config().timeout, self.request.ttl);
        self.store.errands.spawn(&self.store.keeper, async move {
            if let Some(Ok(reply)) = undo
                && let Ok(Ok(Value::Int(undone))) = tokio::time::timeout(timeout, reply).await
                && (undone == 1 || !handed)
            {
                return;
            }
            // The connection ended, the server is stuck, or a holder hands the lock over on a connection of its own.
            // What was sent may still arrive, so one answer that there is nothing to undo does not settle it.
            insist(&node, &keys, &leave(&value), ttl, |undone| undone == 1).await;
        });
    }
}
