//! The table of stores. Adding a store means adding one folder, one Cargo feature, and one row here. Messages
//! and help list stores in the order of the table. CONTRIBUTING.md says the rest.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::options::check_ttl;
use crate::url::StoreUrl;
use crate::{ConnectOptions, DEFAULT_TTL, Error, Result};
pub use common::parameter::Parameter;

// A build without some of the stores leaves what they share unused.
#[cfg_attr(
    not(all(
        feature = "etcd",
        feature = "file",
        feature = "postgres",
        feature = "redlock",
        feature = "tls",
        feature = "zookeeper"
    )),
    allow(dead_code)
)]
mod common;

/// What a store is, for help texts, documents and tools. [`stores`] lists those that are built in.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreKind {
    /// Its name, which its page and its feature have, too.
    pub name: &'static str,
    /// Its name in prose.
    pub title: &'static str,
    /// What its URLs look like, the plainest first.
    pub urls: &'static [&'static str],
    /// The port of a server whose URL names none.
    pub default_port: Option<u16>,
    /// Its servers are nodes that know nothing of each other: each has a login of its own, and clients name
    /// them by `deployment=` where their addresses differ from client to client.
    pub independent_nodes: bool,
    /// The shortest ttl that its servers grant as they are set up by default.
    pub shortest_ttl: Duration,
    /// The ttl of locks that name none, for help texts.
    pub ttl: &'static str,
    /// The parameters of its URLs, beside `ttl`.
    pub parameters: &'static [Parameter],
    connect: fn(StoreUrl) -> Task<Arc<dyn Backend>>,
    init: Option<InitStore>,
    /// The ttl of locks that name none, of the one that the URL gives.
    default_ttl: fn(&StoreUrl, Option<Duration>) -> Result<Duration>,
}

type InitStore = fn(StoreUrl, Init) -> Task<Vec<String>>;

type Task<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// What to declare to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Init {
    /// A new deployment.
    New,
    /// A change of one.
    Change,
}

impl StoreKind {
    /// The store that a URL is of.
    ///
    /// # Errors
    /// [`Invalid`](Error::Invalid) if there is none, or if it is not built in.
    pub fn of(url: &str) -> Result<Self> {
        find(&url.split(':').next().unwrap_or_default().to_ascii_lowercase())
    }

    /// A store that has one server or none, no parameters, and nothing to declare.
    const fn new(
        name: &'static str,
        title: &'static str,
        urls: &'static [&'static str],
        connect: fn(StoreUrl) -> Task<Arc<dyn Backend>>,
    ) -> Self {
        Self {
            name,
            title,
            urls,
            default_port: None,
            independent_nodes: false,
            shortest_ttl: Duration::ZERO,
            ttl: "30s",
            parameters: &[],
            connect,
            init: None,
            default_ttl: |_, given| Ok(given.unwrap_or(DEFAULT_TTL)),
        }
    }
}

/// A row: the schemes of a store's URLs, the feature that brings them, and the store if that is on.
struct Row {
    schemes: &'static [&'static str],
    features: &'static str,
    needs_tls: bool,
    store: Option<StoreKind>,
}

macro_rules! table {
    ($(
        $visibility:vis $module:ident $feature:literal:
        $($store:ident $schemes:expr, tls $tls_schemes:expr),+;
    )+) => {
        $(
            #[cfg(feature = $feature)]
            $visibility mod $module;
        )+

        fn table() -> Vec<Row> {
            let mut rows = Vec::new();
            $($({
                #[cfg(feature = $feature)]
                let store = Some($module::$store);
                #[cfg(not(feature = $feature))]
                let store: Option<StoreKind> = None;
                rows.push(Row { schemes: &$schemes, features: $feature, needs_tls: false, store });
                let features = concat!($feature, "` and `tls");
                let store = store.filter(|_| cfg!(feature = "tls"));
                rows.push(Row { schemes: &$tls_schemes, features, needs_tls: true, store });
            })+)+
            let store = Some(memory::STORE);
            rows.push(Row { schemes: &["memory"], features: "", needs_tls: false, store });
            rows
        }
    };
    (@ $visibility:vis $module:ident $feature:literal) => {
        #[cfg(feature = $feature)]
        $visibility mod $module;
    };
    // It lives in the folder of another store.
    (@ $visibility:vis $module:ident $variant:ident $feature:literal) => {};
}

table! {
    pub(crate) file "file": STORE ["file"], tls [];
    pub(crate) redis "redis":
        STORE ["redis", "redis+unix"], tls ["rediss"],
        CLUSTER ["redis+cluster"], tls ["rediss+cluster"],
        SENTINEL ["redis+sentinel"], tls ["rediss+sentinel"];
    redlock "redlock": STORE ["redlock"], tls [];
    pub postgres "postgres": STORE ["postgres", "postgresql"], tls [];
    pub(crate) etcd "etcd": STORE ["etcd"], tls ["etcds"];
    zookeeper "zookeeper": STORE ["zookeeper"], tls [];
}

pub mod memory;

/// The stores that are built in.
pub fn stores() -> Vec<StoreKind> {
    let plain = table().into_iter().filter(|row| !row.needs_tls);
    plain.filter_map(|row| row.store).collect()
}

/// The store that a URL is of.
fn find(scheme: &str) -> Result<StoreKind> {
    let table = table();
    let Some(row) = table.iter().find(|row| row.schemes.contains(&scheme)) else {
        let schemes = table.iter().flat_map(|row| row.schemes).map(|scheme| format!("`{scheme}:`"));
        return Err(Error::invalid(format!(
            "no store has the scheme `{scheme}:`; known are {}",
            schemes.collect::<Vec<_>>().join(", ")
        )));
    };
    row.store.ok_or_else(|| {
        Error::invalid(format!(
            "`{scheme}:` stores are not built in; build fencepost with the feature `{}`",
            row.features
        ))
    })
}

/// Connects to the store a URL names; also returns the ttl of locks that name none.
pub(crate) async fn connect(options: ConnectOptions) -> Result<(Arc<dyn Backend>, Option<Duration>)> {
    let mut url = options.into_url()?;
    let store = find(&url.scheme)?;
    let ttl = url.take_duration("ttl")?;
    ttl.map(check_ttl).transpose()?;
    let ttl = (store.default_ttl)(&url, ttl)?;
    Ok(((store.connect)(url).await?, Some(ttl)))
}

/// Declares a deployment where a store needs that. Says what was done, server by server.
pub(crate) async fn init(options: ConnectOptions, what: Init) -> Result<Vec<String>> {
    let mut url = options.into_url()?;
    url.take("ttl");
    match (find(&url.scheme)?.init, what) {
        (Some(init), _) => init(url, what).await,
        (None, Init::New) => Ok(Vec::new()),
        (None, Init::Change) => Err(nothing_to_change(&url)),
    }
}

/// The error where a store has nothing that `init` could change.
fn nothing_to_change(url: &StoreUrl) -> Error {
    let what = format!("reconfiguring a `{}:` store", url.scheme);
    Error::unsupported(what, "it has no configuration of its own")
}
