//! TLS by rustls, with one crypto provider.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::config::TlsFiles;
use super::connection::Stream;
use crate::{Error, Result};

/// What every connection of one store needs.
#[derive(Clone)]
pub(in crate::backends) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    pub(in crate::backends) fn new(files: &TlsFiles, host: &str) -> Result<Self> {
        let config = client_config(files)?;
        let name = server_name(files, host)?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    pub(in crate::backends) async fn wrap(&self, stream: TcpStream) -> std::io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.connector.connect(self.name.clone(), stream).await?))
    }
}

/// What the parameters of a URL say about TLS.
pub(in crate::backends) fn client_config(files: &TlsFiles) -> Result<ClientConfig> {
    let roots = Arc::new(roots(files.ca.as_deref())?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::config(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots);
    Ok(match &files.client {
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
pub(in crate::backends) fn server_name(files: &TlsFiles, host: &str) -> Result<ServerName<'static>> {
    let name = files.server_name.as_deref().unwrap_or(host).to_owned();
    ServerName::try_from(name.clone())
        .map_err(|_| Error::invalid(format!("`{name}` is not a server name that a certificate can have")))
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

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
                    "this machine has no certificate authorities; install ca-certificates or give one with the \
                     parameter `ca`",
                ));
            }
        }
    }
    Ok(roots)
}

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

fn unreadable(file: &Path, what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::config(format!("`{}` could not be read as {what} in PEM: {error}", file.display()))
}
