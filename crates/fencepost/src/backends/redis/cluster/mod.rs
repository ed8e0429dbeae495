//! A Redis Cluster: each lock is on the master that serves its slot, and is there what it is on one server.
//! What a node answers that does not serve a slot leads to the one that does.

mod settings;
mod slots;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::slots::Redirect;
pub(super) use self::slots::SlotMap;
use super::config::{Config, NodeAddress};
use super::driver::batch::Sharing;
use super::driver::connection::Reply;
use super::driver::connector::Connector;
use super::driver::resp::Value;
use super::driver::session::{Channels, NoReply, OnPush, Script, ScriptReply, Session, Sessions};
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::wait::{jittered, random};
use crate::{Error, Result};

use self::settings::Settings;

/// The map is read again that often, and no two times closer together than that.
const REFRESH: Duration = Duration::from_secs(60);
const APART: Duration = Duration::from_millis(100);

/// So many nodes are asked for the map at a time.
const ASKED: usize = 3;

/// After so many redirects in a row, the map is given time to settle.
const REDIRECTS: u32 = 5;
const SETTLE: Duration = Duration::from_millis(50);

/// A slot on its way is asked for again after at most that long.
const TRY_AGAIN: Duration = Duration::from_millis(30);

/// A node that cannot serve is asked again after that long, as long as there is time.
const OUTAGE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Cluster {
    config: Config,
    clock: Clock,
    keeper: Arc<Keeper>,
    script: Script,
    on_push: Pushes,
    channels: Arc<Channels>,
    map: Mutex<Map>,
    /// When the map was last asked for. Held while it is.
    refreshed: tokio::sync::Mutex<Moment>,
    /// A refresh is under way in the background.
    refreshing: AtomicBool,
    settings: OnceLock<Settings>,
}

struct Pushes(OnPush);

impl std::fmt::Debug for Pushes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pushes")
    }
}

#[derive(Debug)]
pub(super) struct Node {
    address: NodeAddress,
    pub(super) sessions: Arc<Sessions>,
}

#[derive(Debug, Default)]
struct Map {
    slots: SlotMap,
    /// Those that were called, as long as they are in the map.
    nodes: HashMap<NodeAddress, Arc<Node>>,
    /// When to read it again.
    due: Option<Moment>,
}

impl Cluster {
    pub(super) async fn connect(
        config: Config,
        script: Script,
        on_push: OnPush,
        clock: Clock,
        keeper: Arc<Keeper>,
    ) -> Result<Arc<Self>> {
        let cluster = Arc::new(Self {
            config,
            clock: clock.clone(),
            keeper,
            script,
            on_push: Pushes(on_push),
            channels: Arc::new(Channels::default()),
            map: Mutex::default(),
            refreshed: tokio::sync::Mutex::new(clock.now()),
            refreshing: AtomicBool::default(),
            settings: OnceLock::new(),
        });
        cluster.learn(cluster.config.seeds.clone()).await?;
        // One master tells at once what is wrong with the login or the settings: the first that is there.
        let mut last = cluster.unavailable("it has no master".to_owned());
        for master in cluster.masters()? {
            match master.current(master.deadline()).await {
                Ok(_) if cluster.config.allow_failover => return Ok(cluster),
                Ok(_) => {
                    let _ = cluster.settings.set(Settings::read(&master).await);
                    return Ok(cluster);
                }
                Err(error @ Error::Unavailable { .. }) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn channel(&self) -> Arc<String> {
        super::driver::session::channel(&self.channels)
    }

    pub(super) fn sharing(key: &str) -> Sharing {
        Sharing { slot: slots::of(key), ..Sharing::default() }
    }

    /// Warns, once, of a lease that may outlive the failover that loses it.
    pub(super) fn look_at(&self, ttl: Duration) {
        if let Some(settings) = self.settings.get() {
            settings.look_at(ttl, &self.config.label);
        }
    }

    /// Calls the script on the master of a key, as [`Sessions::call`] does on its server.
    ///
    /// An error answer means that a call did not run. So it may go to another node, under its identity.
    pub(super) async fn call(
        self: &Arc<Self>,
        key: &str,
        deadline: Moment,
        repeatable: bool,
        mut post: impl FnMut(&Arc<Session>, Moment, Sharing) -> Result<Reply, String>,
    ) -> Result<ScriptReply, NoReply> {
        let fresh = Self::sharing(key);
        let (mut sharing, slot) = (fresh, fresh.slot);
        let mut node = self.owner(slot).map_err(NoReply::NoSession)?;
        let (mut redirects, mut repeated) = (0, false);
        loop {
            let began = self.clock.now();
            let called = node.sessions.call(deadline, repeatable, |session, sent, alone| {
                post(session, sent, Sharing { alone: sharing.alone || alone, ..sharing })
            });
            match called.await {
                Ok(mut reply) => {
                    reply.repeated |= repeated;
                    let Some(redirect) = Redirect::read(&reply.value, &node.address) else {
                        return Ok(reply);
                    };
                    redirects += 1;
                    let is_down = redirect == Redirect::Down;
                    let pause = match redirect {
                        Redirect::Moved(owner) => {
                            self.moved(slot, owner);
                            node = self.owner(slot).map_err(NoReply::NoSession)?;
                            sharing = fresh;
                            (redirects % REDIRECTS == 0).then_some(SETTLE)
                        }
                        // A lock that shared the call may still be here.
                        Redirect::Ask(_) | Redirect::TryAgain if !sharing.alone => {
                            sharing.alone = true;
                            None
                        }
                        Redirect::Ask(to) => {
                            sharing.asking = true;
                            node = self.node(&to).map_err(NoReply::NoSession)?;
                            None
                        }
                        Redirect::TryAgain => {
                            sharing.asking = false;
                            node = self.owner(slot).map_err(NoReply::NoSession)?;
                            Some(TRY_AGAIN.mul_f64(0.2 + 0.8 * random()))
                        }
                        Redirect::Down => {
                            self.refresh_soon();
                            Some(OUTAGE)
                        }
                    };
                    if self.clock.now().plus(pause.unwrap_or_default()) >= deadline {
                        return Ok(reply);
                    }
                    if let Some(pause) = pause {
                        tokio::time::sleep(pause).await;
                    }
                    if is_down {
                        (node, sharing) = (self.owner(slot).map_err(NoReply::NoSession)?, fresh);
                    }
                }
                Err(error) => {
                    let elsewhere = match &error {
                        NoReply::NoSession(error) => matches!(error, Error::Unavailable { .. }),
                        NoReply::NotSent(_) | NoReply::Deposed(_) => true,
                        NoReply::Ended(_) => repeatable,
                        NoReply::TimedOut(_) => false,
                    };
                    if !elsewhere {
                        self.refresh_soon();
                        return Err(error);
                    }
                    // The first request may have been carried out, also where the error is of the second.
                    repeated |= repeatable;
                    let left = deadline.since(self.clock.now());
                    let _ = tokio::time::timeout(left, self.refresh(began)).await;
                    let owner = self.owner(slot).map_err(NoReply::NoSession)?;
                    if owner.address == node.address && !sharing.asking {
                        // A failover that was planned takes a moment until all nodes know of it.
                        tokio::time::sleep(OUTAGE.min(deadline.since(self.clock.now()))).await;
                    }
                    if self.clock.now() >= deadline {
                        return Err(error);
                    }
                    (node, sharing) = (owner, fresh);
                }
            }
        }
    }

    /// Sends plain commands that only read, each with the key that it is about, and returns their replies,
    /// errors included. Those for one node go there together.
    pub(super) async fn ask(self: &Arc<Self>, commands: &[(&str, &[&str])]) -> Result<Vec<Value>> {
        let mut nodes = HashMap::<NodeAddress, (Arc<Node>, Vec<usize>)>::new();
        for (index, (key, _)) in commands.iter().enumerate() {
            let node = self.owner(slots::of(key))?;
            nodes.entry(node.address.clone()).or_insert_with(|| (node, Vec::new())).1.push(index);
        }
        let mut replies: Vec<Option<Value>> = vec![None; commands.len()];
        for (address, (node, indices)) in nodes {
            let words: Vec<_> = indices.iter().map(|index| commands[*index].1).collect();
            // What went wrong is told by the second try.
            for (index, reply) in indices.into_iter().zip(node.sessions.ask(&words).await.unwrap_or_default())
            {
                replies[index] = Some(reply).filter(|reply| Redirect::read(reply, &address).is_none());
            }
        }
        let mut told = Vec::with_capacity(commands.len());
        for (reply, (key, words)) in replies.into_iter().zip(commands) {
            told.push(match reply {
                Some(reply) => reply,
                None => self.ask_alone(key, words).await?,
            });
        }
        Ok(told)
    }

    async fn ask_alone(self: &Arc<Self>, key: &str, words: &[&str]) -> Result<Value> {
        let deadline = self.clock.now().plus(self.config.timeout);
        let called = self.call(key, deadline, true, |session, _, sharing| match sharing.asking {
            true => session.command_asking(words),
            false => session.command(words),
        });
        Ok(called.await.map_err(|error| error.into_error(&self.config))?.value)
    }

    /// Those who serve slots.
    pub(super) fn masters(&self) -> Result<Vec<Arc<Sessions>>> {
        let masters = lock(&self.map).slots.masters().to_vec();
        masters.iter().map(|address| Ok(self.node(address)?.sessions.clone())).collect()
    }

    /// Whether each slot has a master.
    pub(super) fn check(&self) -> Result<()> {
        if lock(&self.map).slots.is_whole() {
            return Ok(());
        }
        Err(self.unavailable("some slots have no master: see `CLUSTER INFO`".to_owned()))
    }

    /// The map as it is now, to compare with.
    pub(super) fn version(&self) -> SlotMap {
        lock(&self.map).slots.clone()
    }

    /// The master of a slot.
    pub(super) fn owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Node>> {
        let (owner, node, due) = {
            let map = lock(&self.map);
            let owner = map.slots.owner(slot);
            let node = owner.and_then(|owner| map.nodes.get(owner)).cloned();
            // Mostly the node is known: no need for an address of its own.
            (owner.filter(|_| node.is_none()).cloned(), node, map.due)
        };
        if due.is_some_and(|due| due < self.clock.now()) {
            self.refresh_soon();
        }
        match (node, owner) {
            (Some(node), _) => Ok(node),
            (None, Some(address)) => self.node(&address),
            (None, None) => {
                self.refresh_soon();
                Err(self.unavailable(format!("no node serves slot {slot}")))
            }
        }
    }

    fn node(&self, address: &NodeAddress) -> Result<Arc<Node>> {
        let mut map = lock(&self.map);
        if let Some(node) = map.nodes.get(address) {
            return Ok(node.clone());
        }
        let connector = Connector::new(self.config.of_node(address))?;
        let on_push = Some(self.on_push.0.clone());
        let (channels, clock) = (self.channels.clone(), self.clock.clone());
        let sessions = Arc::new(Sessions::new(connector, self.script, on_push, channels, clock));
        let node = Arc::new(Node { address: address.clone(), sessions });
        map.nodes.insert(address.clone(), node.clone());
        Ok(node)
    }

    /// A node has told who serves a slot. Others may have moved with it.
    fn moved(self: &Arc<Self>, slot: u16, owner: NodeAddress) {
        lock(&self.map).slots.set(slot, owner);
        self.refresh_soon();
    }

    /// Reads the map again.
    pub(super) async fn refresh_now(self: &Arc<Self>) {
        self.refresh(self.clock.now()).await;
    }

    /// Reads the map again, in the background.
    fn refresh_soon(self: &Arc<Self>) {
        if !self.refreshing.swap(true, Ordering::Relaxed) {
            let cluster = self.clone();
            self.keeper.spawn(async move {
                cluster.learn_again(cluster.clock.now()).await;
                cluster.refreshing.store(false, Ordering::Relaxed);
            });
        }
    }

    /// Reads the map again, unless that was done since then. Goes on when nobody waits for it any more.
    async fn refresh(self: &Arc<Self>, since: Moment) {
        let (cluster, (done, learned)) = (self.clone(), oneshot::channel::<()>());
        self.keeper.spawn(async move {
            cluster.learn_again(since).await;
            drop(done);
        });
        let _ = learned.await;
    }

    async fn learn_again(&self, since: Moment) {
        let mut refreshed = self.refreshed.lock().await;
        if *refreshed >= since {
            return;
        }
        tokio::time::sleep(refreshed.plus(APART).since(self.clock.now())).await;
        *refreshed = self.clock.now();
        let mut nodes: Vec<_> = lock(&self.map).slots.nodes().cloned().collect();
        nodes.sort();
        nodes.dedup();
        nodes.sort_by_cached_key(|_| uuid::Uuid::new_v4());
        // Only if none of these tells: what the URL names may be a node of another cluster by now.
        for nodes in [nodes, self.config.seeds.clone()] {
            match self.learn(nodes).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(store = %self.config.label, %error, "no node tells the slots");
                }
            }
        }
    }

    /// Asks these nodes for the map until one tells it.
    async fn learn(&self, nodes: Vec<NodeAddress>) -> Result<()> {
        let mut last = self.unavailable("no node is known".to_owned());
        for some in nodes.chunks(ASKED) {
            let mut asked = JoinSet::new();
            for address in some {
                let connector = Connector::new(self.config.of_node(address))?;
                let (address, timeout) = (address.clone(), self.config.timeout);
                asked.spawn(async move {
                    let reply = tokio::time::timeout(timeout, connector.ask_once(&["CLUSTER", "SLOTS"]));
                    let reply = reply.await.unwrap_or_else(|_| Err(connector.unavailable("no answer")))?;
                    SlotMap::read(&reply, &address)
                        .ok_or_else(|| connector.unavailable("it serves no slots, and knows of none"))
                });
            }
            while let Some(told) = asked.join_next().await {
                match told {
                    Ok(Ok(slots)) => {
                        self.take(slots);
                        return Ok(());
                    }
                    Ok(Err(error)) => last = error,
                    Err(_) => {}
                }
            }
            if matches!(last, Error::Config { .. }) {
                break;
            }
        }
        Err(last)
    }

    fn take(&self, slots: SlotMap) {
        let mut map = lock(&self.map);
        map.due = Some(self.clock.now().plus(jittered(REFRESH)));
        if map.slots != slots {
            let masters = slots.masters().len();
            tracing::debug!(store = %self.config.label, masters, "the slots have moved");
            map.nodes.retain(|address, _| slots.nodes().any(|known| known == address));
            map.slots = slots;
        }
    }

    fn unavailable(&self, why: String) -> Error {
        super::errors::unavailable(why, &self.config)
    }

    pub(super) fn close(&self) {
        // A guard that is still held finds its way again, by new connections.
        let nodes = std::mem::take(&mut lock(&self.map).nodes);
        nodes.values().for_each(|node| node.sessions.close());
    }
}
