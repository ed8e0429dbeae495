//! A real Redis Cluster on loopback ports. It is formed with the plain commands of every version since 6.2.

mod faults;
mod harness;
mod local;
mod slot;
#[cfg(test)]
mod tests;
mod view;

use std::ops::{Index, IndexMut};
use std::thread;
use std::time::Duration;

pub use faults::Move;
pub use local::LOCAL;
pub use slot::{SLOTS, slot};

use super::{Config, Reply, Server};
use crate::eventually;
use view::Seen;

/// A node that answers later than this counts as one that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running cluster. The first nodes are its masters at the start, the others their replicas: with three
/// masters `cluster[4]` begins as a replica of `cluster[1]`. Dropping it kills the processes and removes
/// their folders.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
}

impl Cluster {
    /// Starts so many masters, each with so many replicas, without password, TLS and persistence.
    ///
    /// # Panics
    /// If they do not start or do not find each other; the message says why.
    pub fn start(masters: usize, replicas: usize) -> Self {
        Self::start_with(masters, replicas, |config| config)
    }

    /// The same with other settings; `configure` is called for one node after the other. A master that does
    /// not answer for three seconds is replaced, unless a line sets another `cluster-node-timeout`.
    ///
    /// # Panics
    /// If they do not start or do not find each other; the message says why.
    pub fn start_with(masters: usize, replicas: usize, mut configure: impl FnMut(Config) -> Config) -> Self {
        let mut configs: Vec<_> =
            (0..masters * (1 + replicas)).map(|_| configure(Config::new().cluster())).collect();
        let mut nodes = Vec::new();
        if configs.iter().any(|config| config.tls.is_some()) {
            // Nodes trust each other by one authority. Its files go with the first one's process.
            nodes.push(configs.remove(0).start());
            let shared = nodes[0].certificates();
            configs.iter_mut().for_each(|config| config.certificates = Some(shared.clone()));
        }
        thread::scope(|scope| {
            let starting: Vec<_> =
                configs.into_iter().map(|config| scope.spawn(move || config.start())).collect();
            nodes.extend(starting.into_iter().map(|node| match node.join() {
                Ok(node) => node,
                Err(panic) => std::panic::resume_unwind(panic),
            }));
        });
        let ids = nodes.iter().map(|node| node.cli(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { nodes, ids };
        cluster.form(masters);
        cluster
    }

    fn form(&self, masters: usize) {
        for (index, node) in self.nodes.iter().enumerate() {
            // Without an epoch of its own each would have to find out that others have the same.
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < masters {
                let part = |index: usize| index * usize::from(SLOTS) / masters;
                let slots: Vec<_> = (part(index)..part(index + 1)).map(|slot| slot.to_string()).collect();
                let words: Vec<_> =
                    ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
                node.cli(&words);
            }
            // Everybody meets everybody: to hear of each other takes longer.
            for other in &self.nodes[..index] {
                let addr = other.addr();
                node.cli(&["CLUSTER", "MEET", &addr.ip().to_string(), &addr.port().to_string()]);
            }
        }
        eventually("all nodes know each other", || {
            self.nodes.iter().all(|node| {
                let view = self.view(node).unwrap_or_default();
                self.ids.iter().all(|id| view.iter().any(|seen| seen.id == *id && seen.is_well()))
            })
        });
        for (index, node) in self.nodes.iter().enumerate().skip(masters) {
            // A node that has just met a master may not have heard yet that it is one.
            eventually("a replica follows its master", || {
                node.call(&["CLUSTER", "REPLICATE", &self.ids[index % masters]]) == Reply::Text("OK".into())
            });
        }
        self.settle();
    }

    /// Waits until all nodes that run agree on who has which slots, all slots are served, and all replicas
    /// that run are in sync.
    ///
    /// # Panics
    /// If that does not come about.
    pub fn settle(&self) {
        eventually("the cluster settles", || self.is_settled());
    }

    fn is_settled(&self) -> bool {
        let up: Vec<_> = (0..self.len()).filter(|index| self.nodes[*index].is_up()).collect();
        let views: Option<Vec<_>> = up.iter().map(|index| self.view(&self.nodes[*index])).collect();
        let Some(views) = views else { return false };
        let ids: Vec<_> = up.iter().map(|index| self.ids[*index].as_str()).collect();
        let Some(truth) = views.first().and_then(|view| view::agreed(view, &ids)) else { return false };
        let served = truth.owners.iter().map(|(first, last, _)| last - first + 1).sum::<u16>() == SLOTS;
        let agreed = views.iter().all(|view| view::agreed(view, &ids).as_ref() == Some(&truth));
        let in_sync = |(index, master): (&usize, &Option<&str>)| {
            let replicas = truth.masters.iter().filter(|of| **of == Some(self.ids[*index].as_str())).count();
            self.is_in_sync(*index, master.is_some(), replicas)
        };
        served && agreed && up.iter().zip(&truth.masters).all(in_sync)
    }

    /// Whether a node serves, and has all these replicas, or is one itself and in sync.
    fn is_in_sync(&self, index: usize, is_replica: bool, replicas: usize) -> bool {
        let node = &self.nodes[index];
        let ask = |words: &[&str]| match node.ask(words, PATIENCE) {
            Ok(reply) => reply.lines().join("\n"),
            Err(_) => String::new(),
        };
        let (state, replication) = (ask(&["CLUSTER", "INFO"]), ask(&["INFO", "replication"]));
        let fields: Vec<_> = replication.lines().filter_map(|line| line.trim().split_once(':')).collect();
        let field = |name: &str| fields.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        let synced = if is_replica {
            field("master_link_status") == Some("up")
        } else {
            let online = fields.iter().filter(|(_, value)| value.contains("state=online")).count();
            let good = field("min_slaves_good_slaves").and_then(|count| count.parse().ok());
            online >= replicas && good.is_none_or(|good: usize| good >= replicas)
        };
        state.contains("cluster_state:ok") && synced
    }

    /// What a node sees; nothing if it does not answer.
    fn view(&self, node: &Server) -> Option<Vec<Seen>> {
        match node.ask(&["CLUSTER", "NODES"], PATIENCE) {
            Ok(Reply::Text(text)) => Some(view::parse(&text)),
            _ => None,
        }
    }

    /// What the first node that answers sees.
    fn any_view(&self) -> Vec<Seen> {
        let views = || self.nodes.iter().filter(|node| node.is_up()).find_map(|node| self.view(node));
        let mut view = None;
        eventually("a node answers", || {
            view = views();
            view.is_some()
        });
        view.unwrap_or_default()
    }

    fn index(&self, id: &str) -> Option<usize> {
        self.ids.iter().position(|own| own == id)
    }

    /// Which nodes have slots.
    pub fn masters(&self) -> Vec<usize> {
        let view = self.any_view();
        let masters = view.iter().filter(|seen| !seen.slots.is_empty());
        let mut masters: Vec<_> = masters.filter_map(|seen| self.index(&seen.id)).collect();
        masters.sort_unstable();
        masters
    }

    /// Which node has a slot.
    ///
    /// # Panics
    /// If none has.
    pub fn master_of(&self, slot: u16) -> usize {
        let view = self.any_view();
        let owner = view.iter().find(|seen| seen.slots.iter().any(|range| range.contains(&slot)));
        owner.and_then(|owner| self.index(&owner.id)).unwrap_or_else(|| panic!("nobody has slot {slot}"))
    }

    /// Which nodes follow a master.
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        let view = self.any_view();
        let replicas = view.iter().filter(|seen| seen.master.as_ref() == Some(&self.ids[master]));
        replicas.filter_map(|seen| self.index(&seen.id)).collect()
    }

    /// The URL of all nodes, with the login of the first one: `redis+cluster://127.0.0.1:1,127.0.0.1:2,…`, or
    /// `rediss+cluster://…` with the certificates as parameters.
    pub fn url(&self) -> String {
        let addrs: Vec<_> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        self.url_at(&addrs.join(","))
    }

    /// Its URL by way of other addresses, such as one node's alone.
    pub fn url_at(&self, addresses: &str) -> String {
        let one = self.nodes[0].url();
        let own = self.nodes[0].addr().to_string();
        one.replacen("://", "+cluster://", 1).replacen(&own, addresses, 1)
    }

    /// The keys that match a pattern, on all masters, sorted.
    pub fn keys_like(&self, pattern: &str) -> Vec<String> {
        let masters = self.masters();
        let mut keys: Vec<_> =
            masters.into_iter().flat_map(|index| self.nodes[index].keys_like(pattern)).collect();
        keys.sort_unstable();
        keys
    }

    /// The nodes, one after the other.
    pub fn iter(&self) -> std::slice::Iter<'_, Server> {
        self.nodes.iter()
    }

    /// How many nodes there are, running or not.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node at all.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

impl Index<usize> for Cluster {
    type Output = Server;

    fn index(&self, index: usize) -> &Server {
        &self.nodes[index]
    }
}

impl IndexMut<usize> for Cluster {
    fn index_mut(&mut self, index: usize) -> &mut Server {
        &mut self.nodes[index]
    }
}
