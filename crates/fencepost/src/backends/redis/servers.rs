//! Where the requests of this store go: to one server, or to the masters of a cluster.

use std::sync::Arc;
use std::time::Duration;

use super::cluster::Cluster;
use super::config::Config;
use super::driver::batch::Sharing;
use super::driver::connection::Reply;
use super::driver::connector::Connector;
use super::driver::resp::Value;
use super::driver::session::{Channels, NoReply, OnPush, Script, ScriptReply, Session, Sessions};
use crate::Result;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;

#[derive(Debug)]
pub(super) enum Servers {
    One(Arc<Sessions>),
    Cluster(Arc<Cluster>),
}

impl Servers {
    pub(super) async fn connect(
        config: Config,
        script: Script,
        on_push: OnPush,
        clock: &Clock,
        keeper: &Arc<Keeper>,
    ) -> Result<Self> {
        if config.is_cluster() {
            let connected = Cluster::connect(config, script, on_push, clock.clone(), keeper.clone());
            return Ok(Self::Cluster(connected.await?));
        }
        let (connector, channels) = (Connector::new(config)?, Arc::new(Channels::default()));
        let sessions = Sessions::new(connector, script, Some(on_push), channels, clock.clone());
        sessions.current(sessions.deadline()).await?;
        Ok(Self::One(Arc::new(sessions)))
    }

    pub(super) fn config(&self) -> &Config {
        match self {
            Self::One(sessions) => sessions.config(),
            Self::Cluster(cluster) => cluster.config(),
        }
    }

    /// The channel of the current runtime.
    pub(super) fn channel(&self) -> Arc<String> {
        match self {
            Self::One(sessions) => sessions.channel(),
            Self::Cluster(cluster) => cluster.channel(),
        }
    }

    /// Which other steps one about this key may share a call with.
    pub(super) fn sharing(&self, key: &str) -> Sharing {
        match self {
            Self::One(_) => Sharing::default(),
            Self::Cluster(_) => Cluster::sharing(key),
        }
    }

    /// Calls the script on the server of a key: [`Sessions::call`].
    pub(super) async fn call(
        &self,
        key: &str,
        deadline: Moment,
        repeatable: bool,
        mut post: impl FnMut(&Arc<Session>, Moment, Sharing) -> Result<Reply, String>,
    ) -> Result<ScriptReply, NoReply> {
        match self {
            Self::One(sessions) => {
                let post =
                    |session: &Arc<Session>, sent, alone| post(session, sent, Sharing::of_one_server(alone));
                sessions.call(deadline, repeatable, post).await
            }
            // Boxed: one server should not pay for the size of it.
            Self::Cluster(cluster) => Box::pin(cluster.call(key, deadline, repeatable, post)).await,
        }
    }

    /// Sends plain commands that only read, each with the key that it is about, and returns their replies,
    /// errors included.
    pub(super) async fn ask(&self, commands: &[(&str, &[&str])]) -> Result<Vec<Value>> {
        match self {
            Self::One(sessions) => {
                let commands: Vec<_> = commands.iter().map(|(_, words)| *words).collect();
                sessions.ask(&commands).await
            }
            Self::Cluster(cluster) => cluster.ask(commands).await,
        }
    }

    /// All servers that have locks.
    pub(super) fn masters(&self) -> Result<Vec<Arc<Sessions>>> {
        match self {
            Self::One(sessions) => Ok(vec![sessions.clone()]),
            Self::Cluster(cluster) => cluster.masters(),
        }
    }

    /// Lets the keeper connect before its first renewal, and looks at the ttl of a first lock.
    pub(super) fn prepare(&self, key: &str, ttl: Duration, keeper: &Keeper) {
        match self {
            Self::One(sessions) => sessions.connect_on(keeper),
            Self::Cluster(cluster) => {
                cluster.look_at(ttl);
                if let Ok(master) = cluster.owner(Cluster::sharing(key).slot) {
                    master.sessions.connect_on(keeper);
                }
            }
        }
    }

    /// Changes when locks move from one server to another.
    pub(super) fn version(&self) -> impl PartialEq + use<> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => Some(cluster.version()),
        }
    }

    /// Finds out which servers there are.
    pub(super) async fn refresh(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.refresh_now().await;
        }
    }

    /// Whether there is a server for each lock.
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::One(_) => Ok(()),
            Self::Cluster(cluster) => cluster.check(),
        }
    }

    pub(super) fn close(&self) {
        match self {
            Self::One(sessions) => sessions.close(),
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}
