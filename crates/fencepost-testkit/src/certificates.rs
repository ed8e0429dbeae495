//! A throw-away certificate authority with one server and one client certificate.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

/// The paths of the certificates and keys, all PEM. The server's is for `localhost` and `127.0.0.1`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Certificates {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The server's certificate.
    pub server: PathBuf,
    /// The server's key.
    pub server_key: PathBuf,
    /// The client's certificate.
    pub client: PathBuf,
    /// The client's key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes a new authority and its certificates in `folder`.
    ///
    /// # Panics
    /// If they cannot be made or written.
    pub fn make(folder: &Path) -> Self {
        Self::make_until(folder, None)
    }

    /// The same with a server's certificate that ended years ago.
    ///
    /// # Panics
    /// If they cannot be made or written.
    pub fn make_expired(folder: &Path) -> Self {
        Self::make_until(folder, Some(2020))
    }

    fn make_until(folder: &Path, year: Option<i32>) -> Self {
        let paths = Self {
            ca: folder.join("ca.pem"),
            server: folder.join("server.pem"),
            server_key: folder.join("server.key"),
            client: folder.join("client.pem"),
            client_key: folder.join("client.key"),
        };
        let ca_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([]).expect("no names");
        params.distinguished_name = name("test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca = params.self_signed(&ca_key).expect("the authority's certificate");
        write(&paths.ca, &ca.pem());
        let issuer = Issuer::new(params, ca_key);

        let issue = |names: &[&str], usage, certificate: &Path, key: &Path| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let pair = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::new(names.clone()).expect("valid names");
            // Not the authority's own name: OpenSSL would take the certificate for a self-signed one.
            params.distinguished_name = name(&names[0]);
            params.extended_key_usages = vec![usage];
            if let Some(year) = year {
                params.not_after = rcgen::date_time_ymd(year, 1, 1);
            }
            let signed = params.signed_by(&pair, &issuer).expect("a certificate");
            write(certificate, &signed.pem());
            write(key, &pair.serialize_pem());
        };
        let (server, client) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
        issue(&["localhost", "127.0.0.1"], server, &paths.server, &paths.server_key);
        issue(&["client"], client, &paths.client, &paths.client_key);
        paths
    }
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
