//! The account, wherever it is kept.

use std::path::PathBuf;

use fencepost::FencingToken;
use fencepost::fence::{self, Active, Fence, StaleToken};
use fencepost_examples::Result;

use crate::http::Remote;

pub(crate) const NAME: &str = "account";

pub(crate) enum Account {
    /// A plain file.
    Unchecked(PathBuf),
    /// A resource that remembers the largest token it was shown.
    Fenced(Fence),
    /// An HTTP service with such a resource in front, by its address.
    Http(String),
}

impl Account {
    /// Opens it by the URL of its place.
    pub(crate) async fn open(place: &str) -> Result<Self> {
        Ok(match place.split_once(':') {
            Some(("unchecked", path)) => Self::Unchecked(path.into()),
            Some(("http", address)) => Self::Http(address.trim_matches('/').to_owned()),
            _ => Self::Fenced(Fence::connect(place).await?),
        })
    }

    /// The first thing that a holder does: it shows its token. Only then it reads.
    pub(crate) async fn activate(&self, token: FencingToken) -> Result<Opened> {
        Ok(match self {
            Self::Unchecked(path) => Opened::Unchecked(path.clone()),
            Self::Fenced(fence) => Opened::Fenced(fence.resource(NAME).activate(token).await?),
            Self::Http(address) => Opened::Http(Remote::activate(address, token).await?),
        })
    }
}

/// The account as one holder sees it.
pub(crate) enum Opened {
    Unchecked(PathBuf),
    Fenced(Active),
    Http(Remote),
}

impl Opened {
    pub(crate) async fn read(&self) -> Result<i64> {
        let bytes = match self {
            Self::Unchecked(path) => std::fs::read(path)?,
            Self::Fenced(account) => account.read().await?.unwrap_or_default(),
            Self::Http(account) => account.read().await?,
        };
        Ok(String::from_utf8(bytes)?.parse()?)
    }

    /// Writes the balance. The inner result is the refusal; the outer one is whatever else went wrong.
    pub(crate) async fn write(&self, balance: i64) -> Result<Result<(), StaleToken>> {
        let balance = balance.to_string();
        match self {
            Self::Unchecked(path) => Ok(Ok(std::fs::write(path, balance)?)),
            Self::Http(account) => account.write(balance).await,
            Self::Fenced(account) => match account.write(balance).await {
                Err(fence::Error::Stale(refusal)) => Ok(Err(refusal)),
                other => Ok(Ok(other?)),
            },
        }
    }
}
