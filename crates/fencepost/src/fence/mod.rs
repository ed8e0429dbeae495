//! The resource's side: checks that make the token count.
//!
//! A lock can end while its holder stands still, and no lock service can stop that holder from writing when
//! it wakes up. The resource can, if it remembers the largest [token](FencingToken) it was shown and refuses
//! smaller ones. These are such resources:
//!
//! | what the lock protects | use |
//! |---|---|
//! | a value in this process | [`Fenced`] |
//! | a value in a file, in Redis or in PostgreSQL | [`Fence::connect`] with its URL |
//! | your own tables in PostgreSQL | `postgres::begin` for your transaction; or the trigger of `fence.sql` |
//! | your own keys in Redis | `Redis::run`: one command of yours, behind the check |
//! | an HTTP service | `http::FenceLayer` |
//! | something else | your own `Backend`, with the feature `unstable-backend` |
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use fencepost::Locks;
//! use fencepost::fence::Fence;
//!
//! let locks = Locks::connect("memory:").await?;
//! let fence = Fence::connect("memory:").await?;             // or `file:`, `redis://`, `postgres://`
//!
//! let guard = locks.lock("account:7").acquire().await?;
//! let account = fence.resource("account:7").activate(guard.token()).await?;
//! let balance = account.read().await?.map_or(0, |bytes| bytes[0]);
//! account.write([balance + 1]).await?;
//! guard.release().await?;
//!
//! let next = locks.lock("account:7").acquire().await?;
//! fence.resource("account:7").activate(next.token()).await?;
//! let refusal = account.write([0]).await.unwrap_err();      // the first holder again, too late
//! assert_eq!(refusal.stale().map(|stale| stale.highest), Some(next.token()));
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # Two rules
//! **Check and write are one step.** No call here checks alone. What a check found may have changed by the
//! time of the write.
//!
//! **Activate first.** A new holder shows its token to the resource *before it reads*. Otherwise the holder
//! before it, whose write is on its way, gets in between that read and the write that follows from it: its
//! token is still the largest, so its write is accepted, and then lost. The types see to it: only
//! [`activate`](Resource::activate) gives something to read with.
//!
//! # Many writes, or one
//! A holder that [activates](Resource::activate) writes as often as it likes, until the resource has seen a
//! larger token. For one effect that must not happen twice (a mail, a payment), and that depends on nothing
//! read before, [`write_once`](Resource::write_once) accepts each token once. If its answer was lost, repeat
//! it: a refusal with `highest == presented` says that the first one got through. (Not from an HTTP service,
//! which records the token before its handler begins.)
//!
//! # What it does not do
//! It orders holders, not the writes of one holder: wait for each write before you begin the next. It cannot
//! undo what was written while a token was the largest. And it forgets with its store: `SAFETY.md` says what
//! each kind needs to remember.

#[cfg_attr(not(feature = "unstable-backend"), allow(unreachable_pub))]
mod backend;
pub mod blocking;
mod error;
mod fenced;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "http")]
pub mod http;
mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
mod record;
#[cfg(feature = "redis")]
pub mod redis;

use std::sync::Arc;

#[cfg(feature = "unstable-backend")]
pub use self::backend::Backend;
#[cfg(not(feature = "unstable-backend"))]
use self::backend::Backend;
pub use self::error::{Error, Result, StaleToken};
pub use self::fenced::{Entry, Fenced};
#[cfg(feature = "redis")]
pub use self::redis::Redis;

use self::memory::Memory;
use crate::{ConnectOptions, FencingToken, Name};

/// Values by name that only the newest holder may change. Cheap to clone; share one per process.
#[derive(Clone, Debug)]
pub struct Fence(Arc<dyn Backend>);

impl Fence {
    /// Opens the place that a URL names.
    ///
    /// | URL | values are in |
    /// |---|---|
    /// | `memory:` | this process, and end with it |
    /// | `file:///path`, `file:path` | files of that directory; `?mode=shared` as for locks |
    /// | `redis://…`, `rediss://…`, `redis+unix://…` | one Redis, as for locks |
    /// | `postgres://…` | the schema `fencepost_fence`, made if this user may; no transaction pool |
    ///
    /// All know the parameter `timeout`.
    ///
    /// # Errors
    /// [`Failed`](Error::Failed), as for [`Locks::connect`](crate::Locks::connect).
    pub async fn connect(url: impl Into<ConnectOptions>) -> Result<Self> {
        let url = url.into().into_url()?;
        match url.scheme.as_str() {
            "memory" => Ok(Self::of(Memory::from_url(url)?)),
            #[cfg(feature = "file")]
            "file" => Ok(Self::of(file::File::from_url(url)?)),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Ok(Self::of(postgres::Postgres::connect(url).await?)),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" => Ok(Self::of(Redis::from_url(url).await?)),
            other => Err(Error::invalid(format!(
                "resources cannot be kept in `{other}:`, or it is not built in; known are `memory:`, \
                 `file:`, `redis:`, `rediss:`, `redis+unix:` and `postgres:`, with the features `file`, \
                 `redis`, `tls` and `postgres`"
            ))),
        }
    }

    /// Keeps values wherever you say.
    #[cfg(feature = "unstable-backend")]
    pub fn new(backend: impl Backend + 'static) -> Self {
        Self::of(backend)
    }

    fn of(backend: impl Backend + 'static) -> Self {
        Self(Arc::new(backend))
    }

    /// One resource: what one lock protects. Its name need not be the lock's, but everybody has to use the
    /// same.
    pub fn resource(&self, name: impl Into<String>) -> Resource {
        Resource { fence: self.clone(), name: name.into() }
    }
}

#[cfg(feature = "redis")]
impl From<Redis> for Fence {
    fn from(redis: Redis) -> Self {
        Self::of(redis)
    }
}

/// One resource, before a token was shown to it.
#[derive(Clone, Debug)]
#[must_use = "a resource guards nothing until a token is activated"]
pub struct Resource {
    fence: Fence,
    name: String,
}

impl Resource {
    /// Shows a token to the resource: from here on no older holder gets in. The first thing that a new holder
    /// does.
    ///
    /// # Errors
    /// [`Stale`](Error::Stale) if a larger token was seen: this holder has lost its lock.
    /// [`Failed`](Error::Failed) if the resource is out of reach.
    ///
    /// # Cancellation
    /// If the future is dropped, the token may have been recorded or not.
    pub async fn activate(&self, token: FencingToken) -> Result<Active> {
        let name = named(&self.name)?;
        self.fence.0.activate(&name, token).await?;
        Ok(Active { fence: self.fence.clone(), name, token })
    }

    /// Writes once for a token: for an effect that must not be repeated, and that depends on nothing read
    /// before. Comes instead of [`activate`](Self::activate), not after it: an activated token has been seen.
    ///
    /// # Errors
    /// [`Stale`](Error::Stale) if this token or a larger one was seen. [`Uncertain`](Error::Uncertain) if the
    /// answer did not come: repeat it, and be refused if the first one got through.
    /// [`Failed`](Error::Failed) if nothing was written.
    ///
    /// # Cancellation
    /// If the future is dropped, the value may have been written or not.
    pub async fn write_once(&self, token: FencingToken, value: impl AsRef<[u8]>) -> Result<()> {
        self.fence.0.write_once(&named(&self.name)?, token, value.as_ref()).await
    }
}

fn named(resource: &str) -> Result<Name> {
    Name::new(resource)
        .map_err(|_| Error::invalid("the name of a resource has 1 to 512 bytes and no NUL character"))
}

/// A resource as one holder sees it, whose token was activated.
#[derive(Clone, Debug)]
pub struct Active {
    fence: Fence,
    name: Name,
    token: FencingToken,
}

impl Active {
    /// The value; `None` if none was written yet.
    ///
    /// # Errors
    /// [`Stale`](Error::Stale) if a larger token was seen since. [`Failed`](Error::Failed) if the resource is
    /// out of reach.
    pub async fn read(&self) -> Result<Option<Vec<u8>>> {
        self.fence.0.activate(&self.name, self.token).await
    }

    /// Writes the value, as often as you like. Wait for each write before you begin the next: a token does
    /// not order its own.
    ///
    /// # Errors
    /// [`Stale`](Error::Stale) if a larger token was seen since: nothing was written.
    /// [`Uncertain`](Error::Uncertain) if the answer did not come. [`Failed`](Error::Failed) if nothing was
    /// written.
    ///
    /// # Cancellation
    /// If the future is dropped, the value may have been written, or be written later.
    pub async fn write(&self, value: impl AsRef<[u8]>) -> Result<()> {
        self.fence.0.write(&self.name, self.token, value.as_ref()).await
    }

    /// The name of the resource.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The token.
    pub fn token(&self) -> FencingToken {
        self.token
    }
}
