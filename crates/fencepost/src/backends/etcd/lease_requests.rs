//! Requests about leases. What becomes of a lease is another room: see `leases.rs`.

use std::time::Duration;

use super::client::{Answer, Client, Fault};
use super::proto::{LeaseGrantRequest, LeaseGrantResponse, LeaseRequest, LeaseResponse, LeaseRevokeResponse};
use crate::{Error, Result};

impl Client {
    /// Makes a lease with an id of our choice.
    pub(super) async fn grant(&self, id: i64, seconds: u64) -> Result<Answer<LeaseGrantResponse>, Fault> {
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        let began = self.clock.now();
        let granted =
            self.call("Lease/LeaseGrant", &LeaseGrantRequest { ttl, id }, self.config.timeout).await;
        match granted {
            // A repeated request finds what one before it made, and that was sent after we began.
            Err(Fault::Error(Error::Backend { source, .. }))
                if source.to_string().contains("already exists") =>
            {
                Ok(Answer { value: LeaseGrantResponse { id, ttl }, sent: began, unknown: false })
            }
            granted => granted,
        }
    }

    /// Asks for a lease to live for all of its time again. Whether the answer counts is another matter.
    pub(super) async fn keep_alive(
        &self,
        id: i64,
        timeout: Duration,
    ) -> Result<Answer<LeaseResponse>, Fault> {
        let request = LeaseRequest { id, keys: false };
        let answer: Answer<LeaseResponse> = self.call("Lease/LeaseKeepAlive", &request, timeout).await?;
        if answer.value.ttl <= 0 { Err(Fault::NoLease) } else { Ok(answer) }
    }

    /// Ends a lease and deletes its keys.
    pub(super) async fn revoke(&self, id: i64) -> Result<(), Fault> {
        let request = LeaseRequest { id, keys: false };
        match self.call::<_, LeaseRevokeResponse>("Lease/LeaseRevoke", &request, self.config.timeout).await {
            Ok(_) | Err(Fault::NoLease) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// How long a lease has left, and what keys it has.
    pub(super) async fn time_to_live(&self, id: i64, keys: bool) -> Result<LeaseResponse, Fault> {
        let answer =
            self.call("Lease/LeaseTimeToLive", &LeaseRequest { id, keys }, self.config.timeout).await?;
        Ok(answer.value)
    }
}
