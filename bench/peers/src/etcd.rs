//! `etcd-client` and etcd's own lock service, under a lease that stays, as its documentation has it.

use std::time::Duration;

use etcd_client::{Client as Etcd, LockOptions};
use fencepost_measure::{Client, Contender, Holding};

use crate::Error;

/// In seconds; longer than any measure.
const LEASE: i64 = 120;

pub(crate) struct Peer(Etcd);

pub(crate) struct Lock {
    client: Etcd,
    lease: i64,
    name: String,
}

impl Peer {
    pub(crate) async fn connect(address: &str) -> Result<Self, Error> {
        Ok(Self(Etcd::connect([address], None).await?))
    }
}

impl Client for Peer {
    type Contender = Lock;
    type Error = Error;

    async fn contender(&self, name: &str) -> Result<Lock, Error> {
        let mut client = self.0.clone();
        let lease = client.lease_grant(LEASE, None).await?.id();
        Ok(Lock { client, lease, name: name.to_owned() })
    }

    async fn hold(&self, _: usize, _: Duration) -> Result<Holding, Error> {
        Err(crate::no_renewal())
    }
}

impl Contender for Lock {
    /// The key that stands for the hold.
    type Held = Vec<u8>;
    type Error = Error;

    async fn acquire(&mut self) -> Result<Vec<u8>, Error> {
        let options = LockOptions::new().with_lease(self.lease);
        Ok(self.client.lock(self.name.as_str(), Some(options)).await?.key().to_vec())
    }

    async fn release(&mut self, held: Vec<u8>) -> Result<(), Error> {
        self.client.unlock(held).await?;
        Ok(())
    }

    fn token(_: &Vec<u8>) -> Option<u64> {
        None
    }
}
