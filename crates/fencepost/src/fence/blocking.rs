//! The same for code without an async runtime: same names, same errors, blocking calls.
//!
//! ```
//! use fencepost::FencingToken;
//! use fencepost::fence::blocking::Fence;
//!
//! let fence = Fence::connect("memory:")?;
//! let token = FencingToken::new(7).unwrap();                 // `guard.token()`
//! let account = fence.resource("account:7").activate(token)?;
//! account.write("100")?;
//! assert_eq!(account.read()?.as_deref(), Some(b"100".as_slice()));
//! # Ok::<(), fencepost::fence::Error>(())
//! ```
//!
//! As in [`crate::blocking`], calls from inside an async runtime are refused. A value in this process
//! ([`Fenced`](super::Fenced)) needs neither.

use std::sync::Arc;

use super::Result;
use crate::blocking::run;
use crate::runtime::clock::Clock;
use crate::runtime::keeper::Keeper;
use crate::{FencingToken, Name};

/// Values by name that only the newest holder may change. See [`super::Fence`].
#[derive(Clone, Debug)]
pub struct Fence {
    fence: super::Fence,
    keeper: Arc<Keeper>,
}

impl Fence {
    /// See [`super::Fence::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(url: &str) -> Result<Self> {
        let keeper = Keeper::of(&Clock::system())?;
        let fence = run(keeper.runtime(), super::Fence::connect(url))?;
        Ok(Self { fence, keeper })
    }

    /// See [`super::Fence::resource`].
    pub fn resource(&self, name: impl Into<String>) -> Resource {
        Resource { resource: self.fence.resource(name), keeper: self.keeper.clone() }
    }
}

/// One resource, before a token was shown to it. See [`super::Resource`].
#[derive(Clone, Debug)]
#[must_use = "a resource guards nothing until a token is activated"]
pub struct Resource {
    resource: super::Resource,
    keeper: Arc<Keeper>,
}

impl Resource {
    /// See [`super::Resource::activate`].
    ///
    /// # Errors
    /// As there.
    pub fn activate(&self, token: FencingToken) -> Result<Active> {
        let active = run(self.keeper.runtime(), self.resource.activate(token))?;
        Ok(Active { active, keeper: self.keeper.clone() })
    }

    /// See [`super::Resource::write_once`].
    ///
    /// # Errors
    /// As there.
    pub fn write_once(&self, token: FencingToken, value: impl AsRef<[u8]>) -> Result<()> {
        run(self.keeper.runtime(), self.resource.write_once(token, value))
    }
}

/// A resource as one holder sees it, whose token was activated. See [`super::Active`].
#[derive(Clone, Debug)]
pub struct Active {
    active: super::Active,
    keeper: Arc<Keeper>,
}

impl Active {
    /// See [`super::Active::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self) -> Result<Option<Vec<u8>>> {
        run(self.keeper.runtime(), self.active.read())
    }

    /// See [`super::Active::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, value: impl AsRef<[u8]>) -> Result<()> {
        run(self.keeper.runtime(), self.active.write(value))
    }

    /// The name of the resource.
    pub fn name(&self) -> &Name {
        self.active.name()
    }

    /// The token.
    pub fn token(&self) -> FencingToken {
        self.active.token()
    }
}
