//! TLS by rustls, with one crypto provider, for every store that has it.

use std::path::PathBuf;
#[cfg(feature = "tls")]
use std::{path::Path, sync::Arc};

#[cfg(feature = "tls")]
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
#[cfg(feature = "tls")]
use rustls::{ClientConfig, RootCertStore};
#[cfg(feature = "tls")]
use tokio_rustls::TlsConnector;

use super::stream::Stream;
use crate::url::StoreUrl;
use crate::{Error, Result};

/// How to speak TLS: by files that the URL names, or as the caller says.
#[derive(Clone, Debug, Default)]
pub(in crate::backends) struct TlsSettings {
    /// Authorities to trust instead of the system's.
    pub(in crate::backends) ca: Option<PathBuf>,
    /// Our own certificate and key.
    pub(in crate::backends) client: Option<(PathBuf, PathBuf)>,
    /// The name the server's certificate must have, if it is not the host's.
    pub(in crate::backends) server_name: Option<String>,
    /// The caller's own, instead of the files.
    #[cfg(feature = "tls")]
    config: Option<Arc<ClientConfig>>,
}

impl TlsSettings {
    /// Takes them out of a store URL.
    pub(in crate::backends) fn take(url: &mut StoreUrl) -> Result<Self> {
        let ca = url.take("ca").map(PathBuf::from);
        let client = match (url.take("cert"), url.take("key")) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => return Err(Error::invalid("parameters `cert` and `key` are given together or not at all")),
        };
        #[cfg(feature = "tls")]
        if url.tls.is_some() && (ca.is_some() || client.is_some()) {
            return Err(Error::invalid(
                "a TLS configuration was given: put into it what the parameters `ca`, `cert` and `key` name, \
                 and leave them out",
            ));
        }
        Ok(Self {
            ca,
            client,
            server_name: url.take("server_name"),
            #[cfg(feature = "tls")]
            config: url.tls.take(),
        })
    }

    /// The same for a server with a name of its own.
    pub(in crate::backends) fn of_another_server(&self) -> Self {
        Self { server_name: None, ..self.clone() }
    }
}

/// What every connection to one server needs.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(in crate::backends) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

#[cfg(feature = "tls")]
impl Tls {
    /// For connections to `host`; `protocol` is what is spoken inside, where the server wants to know.
    pub(in crate::backends) fn new(
        settings: &TlsSettings,
        host: &str,
        protocol: Option<&str>,
    ) -> Result<Self> {
        let mut config = client_config(settings)?;
        if let Some(protocol) = protocol {
            config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        }
        let name = server_name(settings, host)?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    pub(super) async fn wrap(&self, stream: impl Stream + 'static) -> std::io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.connector.connect(self.name.clone(), stream).await?))
    }
}

/// Why a server's certificate was refused, if that is what an error is about.
#[cfg(feature = "tls")]
pub(in crate::backends) fn distrust(error: &std::io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref()?;
    matches!(error, rustls::Error::InvalidCertificate(_)).then(|| error.to_string())
}

/// The error of a server whose certificate was refused: trying again does not make it good.
pub(in crate::backends) fn not_trusted(store: &str, why: &str) -> Error {
    Error::config(format!(
        "{store} shows a certificate that is not to be trusted ({why}); renew it, or name its authority with \
         `ca`, or in the TLS configuration of your own"
    ))
}

/// There is none without the feature. The table of stores has refused the URL before.
#[cfg(not(feature = "tls"))]
#[derive(Debug)]
pub(in crate::backends) enum Tls {}

#[cfg(not(feature = "tls"))]
impl Tls {
    pub(in crate::backends) fn new(_: &TlsSettings, _: &str, _: Option<&str>) -> Result<Self> {
        Err(Error::config("TLS is not built in"))
    }

    pub(super) async fn wrap(&self, _: impl Stream + 'static) -> std::io::Result<Box<dyn Stream>> {
        match *self {}
    }
}

#[cfg(not(feature = "tls"))]
pub(in crate::backends) fn distrust(_: &std::io::Error) -> Option<String> {
    None
}

/// The caller's own configuration, or what the parameters of the URL say.
#[cfg(feature = "tls")]
pub(in crate::backends) fn client_config(settings: &TlsSettings) -> Result<ClientConfig> {
    if let Some(config) = &settings.config {
        return Ok(ClientConfig::clone(config));
    }
    let roots = Arc::new(roots(settings.ca.as_deref())?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::config(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots);
    Ok(match &settings.client {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates(cert)?;
            let key_file = key;
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| unreadable(key_file, "a private key", &error))?;
            config.with_client_auth_cert(chain, key).map_err(|error| {
                Error::config(format!(
                    "the client certificate `{}` and key `{}` do not go together: {error}",
                    cert.display(),
                    key_file.display()
                ))
            })?
        }
    })
}

/// The name that the server's certificate must have.
#[cfg(feature = "tls")]
pub(in crate::backends) fn server_name(settings: &TlsSettings, host: &str) -> Result<ServerName<'static>> {
    let name = settings.server_name.as_deref().unwrap_or(host).to_owned();
    ServerName::try_from(name.clone())
        .map_err(|_| Error::invalid(format!("`{name}` is not a server name that a certificate can have")))
}

#[cfg(feature = "tls")]
impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(feature = "tls")]
fn roots(ca: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(file) => {
            for certificate in certificates(file)? {
                roots
                    .add(certificate)
                    .map_err(|error| unreadable(file, "a certificate authority", &error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(Error::config(
                    "this machine has no certificate authorities; install ca-certificates or give one with \
                     the parameter `ca`",
                ));
            }
        }
    }
    Ok(roots)
}

#[cfg(feature = "tls")]
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<std::result::Result<Vec<_>, _>>();
    match read() {
        Ok(certificates) if certificates.is_empty() => {
            Err(Error::config(format!("`{}` holds no certificate", file.display())))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(file, "a certificate", &error)),
    }
}

#[cfg(feature = "tls")]
fn unreadable(file: &Path, what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::config(format!("`{}` could not be read as {what} in PEM: {error}", file.display()))
}
