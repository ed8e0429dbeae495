//! `zookeeper-client`'s lock recipe, in the layout of Curator. Its release is a delete in the background: a
//! cycle leaves out half of the work that others wait for.

use std::time::Duration;

use fencepost_measure::{Client, Contender, Holding};
use zookeeper_client::{Acls, Client as Session, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use crate::Error;

pub(crate) struct Peer(Session);

pub(crate) struct Lock(Session, String);

impl Peer {
    pub(crate) async fn connect(address: &str) -> Result<Self, Error> {
        Ok(Self(Session::connect(address).await?))
    }
}

impl Client for Peer {
    type Contender = Lock;
    type Error = Error;

    async fn contender(&self, name: &str) -> Result<Lock, Error> {
        Ok(Lock(self.0.clone(), format!("/zookeeper-client-{name}")))
    }

    async fn hold(&self, _: usize, _: Duration) -> Result<Holding, Error> {
        Err(crate::no_renewal())
    }
}

impl Contender for Lock {
    type Held = OwnedLockClient;
    type Error = Error;

    async fn acquire(&mut self) -> Result<OwnedLockClient, Error> {
        let anyone = Acls::anyone_all();
        let options =
            LockOptions::new(anyone).with_ancestor_options(CreateMode::Container.with_acls(anyone))?;
        let prefix = LockPrefix::new_curator(&self.1, "lock-")?;
        Ok(self.0.lock(prefix, b"", options).await?.into_owned())
    }

    async fn release(&mut self, held: OwnedLockClient) -> Result<(), Error> {
        drop(held);
        Ok(())
    }

    fn token(_: &OwnedLockClient) -> Option<u64> {
        None
    }
}
