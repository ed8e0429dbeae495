//! The table of stores: schemes on the left, how to connect on the right. Adding a store means adding one folder
//! and one line.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::options::check_ttl;
use crate::url::StoreUrl;
use crate::{Error, Result};

mod common;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
#[cfg(feature = "file")]
pub(crate) mod file;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redlock")]
mod redlock;
#[cfg(feature = "zookeeper")]
mod zookeeper;

type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;

/// A scheme, the feature that brings it, and how to connect if that feature is on.
type Row = (&'static str, &'static str, Option<fn(StoreUrl) -> Connecting>);

/// `None` where a feature is off.
macro_rules! store {
    ($feature:literal, $connect:path) => {{
        #[cfg(feature = $feature)]
        let connect: Option<fn(StoreUrl) -> Connecting> = Some(|url| Box::pin($connect(url)));
        #[cfg(not(feature = $feature))]
        let connect: Option<fn(StoreUrl) -> Connecting> = None;
        connect
    }};
}

/// The one scheme that needs two features.
fn etcds() -> Option<fn(StoreUrl) -> Connecting> {
    #[cfg(all(feature = "etcd", feature = "tls"))]
    return Some(|url| Box::pin(etcd::connect(url)));
    #[cfg(not(all(feature = "etcd", feature = "tls")))]
    None
}

fn stores() -> [Row; 11] {
    [
        ("etcd", "etcd", store!("etcd", etcd::connect)),
        ("etcds", "etcd` and `tls", etcds()),
        ("file", "file", store!("file", file::connect)),
        ("memory", "", Some(|url| Box::pin(memory::connect(url)))),
        ("postgres", "postgres", store!("postgres", postgres::connect)),
        ("postgresql", "postgres", store!("postgres", postgres::connect)),
        ("redis", "redis", store!("redis", redis::connect)),
        ("rediss", "tls", store!("tls", redis::connect)),
        ("redis+unix", "redis", store!("redis", redis::connect)),
        ("redlock", "redlock", store!("redlock", redlock::connect)),
        ("zookeeper", "zookeeper", store!("zookeeper", zookeeper::connect)),
    ]
}

/// Connects to the store a URL names; also returns the ttl it sets for locks that name none.
pub(crate) async fn connect(url: &str) -> Result<(Arc<dyn Backend>, Option<Duration>)> {
    let mut url = StoreUrl::parse(url)?;
    let connect = find(&url)?;
    let ttl = url.take_duration("ttl")?;
    ttl.map(check_ttl).transpose()?;
    let ttl = match url.scheme.as_str() {
        // A deployment may allow less than the usual ttl.
        #[cfg(feature = "redlock")]
        "redlock" => Some(redlock::default_ttl(&url, ttl)?),
        _ => ttl,
    };
    Ok((connect(url).await?, ttl))
}

/// Declares a new deployment, or a change of one, where a store needs that. Says what was done, node by node.
pub(crate) async fn init(url: &str, reconfigure: bool) -> Result<Vec<String>> {
    let url = StoreUrl::parse(url)?;
    find(&url)?;
    match url.scheme.as_str() {
        #[cfg(feature = "redlock")]
        "redlock" => redlock::init(url, reconfigure).await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" if !reconfigure => postgres::init(url).await,
        _ if reconfigure => Err(Error::unsupported(
            format!("reconfiguring a `{}:` store", url.scheme),
            "it has no configuration of its own",
        )),
        _ => Ok(Vec::new()),
    }
}

/// How to connect to the store that a URL is of.
fn find(url: &StoreUrl) -> Result<fn(StoreUrl) -> Connecting> {
    let stores = stores();
    let Some((scheme, feature, connect)) = stores.iter().find(|(scheme, ..)| *scheme == url.scheme) else {
        let schemes: Vec<_> = stores.iter().map(|(scheme, ..)| format!("`{scheme}:`")).collect();
        return Err(Error::invalid(format!(
            "no store has the scheme `{}:`; known are {}",
            url.scheme,
            schemes.join(", ")
        )));
    };
    connect.ok_or_else(|| {
        Error::invalid(format!(
            "`{scheme}:` stores are not built in; build fencepost with the feature `{feature}`"
        ))
    })
}
