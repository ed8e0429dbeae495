//! TLS, by rustls.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::backends::common::tls::{self, TlsSettings};
use crate::{Error, Result};

/// What every connection of one store needs.
#[derive(Clone)]
pub(super) struct Tls {
    /// `None`: any server will do.
    settings: Option<TlsSettings>,
    config: Arc<ClientConfig>,
}

/// For one host.
pub(super) struct Connector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// With a server that proves who it is.
    pub(super) fn verified(settings: &TlsSettings) -> Result<Self> {
        Ok(Self { settings: Some(settings.clone()), config: Arc::new(tls::client_config(settings)?) })
    }

    /// With any server that speaks it: nobody can read along, and nobody who can change packets is kept out.
    pub(super) fn preferred() -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let anybody = Arc::new(Anybody(provider.signature_verification_algorithms));
        let config = ClientConfig::builder_with_provider(provider as Arc<CryptoProvider>)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::config(format!("TLS cannot be set up: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(anybody)
            .with_no_client_auth();
        Ok(Self { settings: None, config: Arc::new(config) })
    }

    pub(super) fn is_required(&self) -> bool {
        self.settings.is_some()
    }

    pub(super) fn connector(&self, host: &str) -> Result<Connector> {
        let settings = self.settings.clone().unwrap_or_default();
        Ok(Connector { config: self.config.clone(), name: tls::server_name(&settings, host)? })
    }
}

impl Connector {
    pub(super) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        self,
        stream: S,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<S>> {
        TlsConnector::from(self.config).connect(self.name, stream).await
    }
}

/// Takes any certificate, and checks that the server has its key.
#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
