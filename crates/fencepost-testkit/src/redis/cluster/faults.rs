//! What is done to a cluster while clients use it: slots move, replicas are promoted. (Nodes are killed,
//! stopped and started again by [`Server`](super::Server)'s own methods.)

use std::thread;
use std::time::{Duration, Instant};

use super::Cluster;
use crate::eventually;
use crate::redis::Reply;

/// A slot on its way. Until it has arrived, its old master answers `ASK` for keys that it does not have, and
/// both answer `TRYAGAIN` for several keys of which some are missing.
#[derive(Debug)]
#[must_use = "the slot stays on its way until `end_move`"]
pub struct Move {
    slot: u16,
    from: usize,
    to: usize,
}

impl Cluster {
    /// Begins to move a slot to another master.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn begin_move(&self, slot: u16, to: usize) -> Move {
        let from = self.master_of(slot);
        assert_ne!(from, to, "slot {slot} is there already");
        let text = slot.to_string();
        self[to].cli(&["CLUSTER", "SETSLOT", &text, "IMPORTING", &self.ids[from]]);
        self[from].cli(&["CLUSTER", "SETSLOT", &text, "MIGRATING", &self.ids[to]]);
        Move { slot, from, to }
    }

    /// Moves so many keys of the slot, or all that there are; returns how many.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn move_keys(&self, slot: &Move, count: usize) -> usize {
        let Move { slot, from, to } = slot;
        let (source, target) = (&self[*from], &self[*to]);
        let keys = source.call(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &count.to_string()]);
        let Reply::List(keys) = keys else { panic!("GETKEYSINSLOT {slot}: {keys:?}") };
        let keys: Vec<_> = keys.iter().flat_map(Reply::lines).collect();
        if keys.is_empty() {
            return 0;
        }
        let (host, port) = (target.addr().ip().to_string(), target.addr().port().to_string());
        let mut words = vec!["MIGRATE", &host, &port, "", "0", "5000"];
        if let Some((user, password)) = &target.config.login {
            words.extend(["AUTH2", user.as_deref().unwrap_or("default"), password]);
        }
        words.push("KEYS");
        words.extend(keys.iter().map(String::as_str));
        // A key that has gone meanwhile is no fault.
        assert!(["OK", "NOKEY"].contains(&source.cli(&words).as_str()));
        keys.len()
    }

    /// Moves what is left of the slot, and tells all masters that it has arrived.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn end_move(&self, slot: Move) {
        while self.move_keys(&slot, 100) > 0 {}
        let Move { slot, from, to } = slot;
        let text = slot.to_string();
        // The new master first: it answers `MOVED` back to the old one until it knows.
        let others = self.masters().into_iter().filter(|other| ![from, to].contains(other));
        for node in [to, from].into_iter().chain(others).filter(|node| self[*node].is_up()) {
            self[node].cli(&["CLUSTER", "SETSLOT", &text, "NODE", &self.ids[to]]);
        }
    }

    /// Moves slots to another master as `redis-cli --cluster reshard` does, one after the other; each stays
    /// on its way for at least so long, with a key moved now and then.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn reshard(&self, slots: impl IntoIterator<Item = u16>, to: usize, lasts: Duration) {
        for slot in slots {
            if self.master_of(slot) == to {
                continue;
            }
            let (begun, moving) = (Instant::now(), self.begin_move(slot, to));
            while begun.elapsed() < lasts {
                thread::sleep((lasts / 4).min(lasts.saturating_sub(begun.elapsed())));
                self.move_keys(&moving, 1);
            }
            self.end_move(moving);
        }
        self.settle();
    }

    /// Whether slots can be moved at one moment: by Valkey 9.
    pub fn can_move_at_once(&self) -> bool {
        let version = self[0].info("server", "valkey_version");
        let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        major.is_some_and(|major| major >= 9)
    }

    /// Moves slots to another master by `CLUSTER MIGRATESLOTS`, each at one moment. Valkey 9 only.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn move_at_once(&self, slots: impl IntoIterator<Item = u16>, to: usize) {
        for slot in slots {
            let text = slot.to_string();
            eventually("the slot has moved", || {
                let from = self.master_of(slot);
                if from == to {
                    return true;
                }
                // It may still be busy with the slot before.
                let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &text, &text, "NODE", &self.ids[to]];
                let reply = self[from].call(&words);
                let refused = |error: &str| error.contains("unknown subcommand");
                assert!(!matches!(&reply, Reply::Error(error) if refused(error)), "{reply:?}");
                false
            });
        }
        self.settle();
    }

    /// Has a replica take over from a master, which loses nothing and follows it from then on
    /// (`CLUSTER FAILOVER`). Returns which one did.
    ///
    /// # Panics
    /// If none does.
    pub fn failover(&self, master: usize) -> usize {
        // It is not carried out if the master does not hear of it in time, or no majority votes.
        eventually("a replica takes over", || {
            let Some(replica) = self.replicas_of(master).into_iter().find(|index| self[*index].is_up())
            else {
                return self.is_replica(master);
            };
            let asked = self[replica].call(&["CLUSTER", "FAILOVER"]);
            let begun = Instant::now();
            while asked == Reply::Text("OK".into()) && begun.elapsed() < Duration::from_secs(6) {
                if self.is_replica(master) {
                    return true;
                }
                thread::sleep(Duration::from_millis(5));
            }
            false
        });
        self.settle();
        self.master_followed_by(master).expect("it follows the one that took over")
    }

    /// Waits until one of these replicas has the slots of its master, which was killed or stopped; returns
    /// which.
    ///
    /// # Panics
    /// If none does.
    pub fn promoted(&self, replicas: &[usize]) -> usize {
        let mut promoted = None;
        eventually("a replica is promoted", || {
            let masters = self.masters();
            promoted = replicas.iter().copied().find(|replica| masters.contains(replica));
            promoted.is_some()
        });
        promoted.expect("waited for")
    }

    fn is_replica(&self, index: usize) -> bool {
        self.master_followed_by(index).is_some()
    }

    /// Whom a node says that it follows.
    fn master_followed_by(&self, index: usize) -> Option<usize> {
        let view = self.view(&self[index])?;
        let own = view.iter().find(|seen| seen.is("myself"))?;
        self.index(own.master.as_deref()?)
    }
}
