//! What to connect to, and how: a URL, and what a URL cannot say.

use std::fmt;
#[cfg(feature = "tls")]
use std::sync::Arc;

use crate::Result;
use crate::url::StoreUrl;

/// The URL of a store, and what a URL cannot say. What connects takes either: `Locks::connect(url)`, or
/// `Locks::connect(ConnectOptions::new(url).tls_config(config))`.
#[derive(Clone)]
pub struct ConnectOptions {
    url: String,
    #[cfg(feature = "tls")]
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl ConnectOptions {
    /// What the URL says, and nothing more.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// TLS by a configuration of your own, with its authorities, certificate and crypto provider, instead of
    /// the URL's `ca`, `cert` and `key`. The URL still asks for TLS, and its `server_name` counts. Where a
    /// protocol needs one, it sets the configuration's ALPN. Default: what the URL says.
    #[cfg(feature = "tls")]
    pub fn tls_config(mut self, config: impl Into<Arc<rustls::ClientConfig>>) -> Self {
        self.tls = Some(config.into());
        self
    }

    /// The URL taken apart, with the rest in it.
    pub(crate) fn into_url(self) -> Result<StoreUrl> {
        let url = StoreUrl::parse(&self.url)?;
        #[cfg(feature = "tls")]
        let url = url.with_tls(self.tls);
        Ok(url)
    }
}

impl From<&str> for ConnectOptions {
    fn from(url: &str) -> Self {
        Self::new(url)
    }
}

impl From<&String> for ConnectOptions {
    fn from(url: &String) -> Self {
        Self::new(url)
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = StoreUrl::parse(&self.url).map(|url| url.to_string());
        f.debug_tuple("ConnectOptions").field(&url.unwrap_or_default()).finish()
    }
}
