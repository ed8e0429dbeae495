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
//! As in [`crate::blocking`], calls from an async task are refused. A value in this process
//! ([`Fenced`](super::Fenced)) needs neither.

use super::Result;
use crate::blocking::{run, same_as};
use crate::{ConnectOptions, FencingToken, Name};

/// Values by name that only the newest holder may change. See [`super::Fence`].
#[derive(Clone, Debug)]
pub struct Fence {
    fence: super::Fence,
}

impl Fence {
    /// See [`super::Fence::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(url: impl Into<ConnectOptions>) -> Result<Self> {
        run(super::Fence::connect(url)).map(|fence| Self { fence })
    }

    /// See [`super::Fence::resource`].
    pub fn resource(&self, name: impl Into<String>) -> Resource {
        Resource { resource: self.fence.resource(name) }
    }
}

/// One resource, before a token was shown to it. See [`super::Resource`].
#[derive(Clone, Debug)]
#[must_use = "a resource guards nothing until a token is activated"]
pub struct Resource {
    resource: super::Resource,
}

impl Resource {
    same_as! { super::Resource, resource:
        wait fn activate(&self, token: FencingToken) -> Result<Active>;
        wait fn write_once(&self, token: FencingToken, value: impl AsRef<[u8]>) -> Result<()>;
    }
}

/// A resource as one holder sees it, whose token was activated. See [`super::Active`].
#[derive(Clone, Debug)]
pub struct Active {
    active: super::Active,
}

impl Active {
    same_as! { super::Active, active:
        wait fn read(&self) -> Result<Option<Vec<u8>>>;
        wait fn write(&self, value: impl AsRef<[u8]>) -> Result<()>;
        fn name(&self) -> &Name;
        fn token(&self) -> FencingToken;
    }
}

impl From<super::Active> for Active {
    fn from(active: super::Active) -> Self {
        Self { active }
    }
}
