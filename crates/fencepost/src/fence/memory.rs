//! Resources in this process. They end with it: for tests, and for what lives no longer itself.

use std::collections::HashMap;
use std::sync::Mutex;

use async_trait::async_trait;

use super::record::{Record, Rule};
use super::{Backend, Error, Result};
use crate::runtime::sync::lock;
use crate::url::StoreUrl;
use crate::{FencingToken, Name};

#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<Name, Record<Option<Vec<u8>>>>>);

impl Memory {
    pub(super) fn from_url(url: StoreUrl) -> Result<Self> {
        if !url.path.is_empty() || !url.hosts.is_empty() {
            return Err(Error::invalid(
                "resources in memory have no place to name: write `memory:`, and clone the `Fence` to share \
                 it",
            ));
        }
        url.finish()?;
        Ok(Self::default())
    }

    fn put(&self, resource: &Name, token: FencingToken, value: &[u8], rule: Rule) -> Result<()> {
        let mut records = lock(&self.0);
        let record = records.entry(resource.clone()).or_default();
        record.admit(resource.as_str(), token, rule)?;
        record.value = Some(value.to_vec());
        Ok(())
    }
}

#[async_trait]
impl Backend for Memory {
    async fn activate(&self, resource: &Name, token: FencingToken) -> Result<Option<Vec<u8>>> {
        let mut records = lock(&self.0);
        let record = records.entry(resource.clone()).or_default();
        record.admit(resource.as_str(), token, Rule::AtLeast)?;
        Ok(record.value.clone())
    }

    async fn write(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()> {
        self.put(resource, token, value, Rule::AtLeast)
    }

    async fn write_once(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()> {
        self.put(resource, token, value, Rule::Above)
    }
}
