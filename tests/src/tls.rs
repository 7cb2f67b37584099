//! Certificates, as the route table holds them, and instances that speak TLS.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ::ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    rand::{SecureRandom as _, SystemRandom},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    },
};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub pem: String,
}

/// A certificate with its private key.
#[derive(Debug, Clone)]
pub struct Issued {
    /// PEM.
    pub chain: String,
    /// PEM.
    pub key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Panics
    /// When the system has no randomness.
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for `name`; `common_name` distinguishes two of them.
    ///
    /// # Panics
    /// When the name is none.
    pub fn issue(&self, name: &str, common_name: &str) -> Issued {
        self.issue_with(name, common_name, |_| {})
    }

    /// One that is good from the beginning of a year to that of another.
    ///
    /// # Panics
    /// When the name is none.
    pub fn issue_for_years(&self, name: &str, common_name: &str, from: i32, to: i32) -> Issued {
        self.issue_with(name, common_name, |params| {
            (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        })
    }

    /// One that ends so long after the beginning of 1970.
    ///
    /// # Panics
    /// When the name is none.
    pub fn issue_until(&self, name: &str, common_name: &str, end: Duration) -> Issued {
        self.issue_with(name, common_name, |params| params.not_after = date_time_ymd(1970, 1, 1) + end)
    }

    fn issue_with(
        &self,
        name: &str,
        common_name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        change(&mut params);
        params.distinguished_name.push(DnType::CommonName, common_name);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Issued { chain: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Issued {
    /// The value of `cert:<name>`, the private key encrypted with the key file's contents.
    ///
    /// # Panics
    /// When `hex_key` is none.
    pub fn sealed(&self, name: &str, hex_key: &str) -> String {
        let hex_key = hex_key.trim();
        let key: Vec<u8> = (0..hex_key.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex_key[at..at + 2], 16).expect("hexadecimal digits"))
            .collect();
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("32 bytes"));
        let mut nonce = [0; 12];
        SystemRandom::new().fill(&mut nonce).expect("randomness");
        let mut text = self.key.clone().into_bytes();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(name), &mut text)
            .expect("a short text");
        let sealed = [&nonce[..], &text].concat();
        json!({"v": 1, "chain": self.chain, "key": STANDARD.encode(sealed)}).to_string()
    }
}

/// Connects with TLS to `host`, whose certificate has to be signed by `authority` (PEM), and settles for `protocol`.
///
/// # Errors
/// When the handshake fails, or the other side speaks another protocol.
///
/// # Panics
/// When `authority` is not a certificate or `host` not a valid name.
pub async fn connect(
    to: SocketAddr,
    host: &str,
    authority: &str,
    protocol: &[u8],
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).expect("PEM")).expect("a certificate");
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from(host.to_owned()).expect("a name");
    let stream = TcpStream::connect(to).await?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    if stream.get_ref().1.alpn_protocol() == Some(protocol) {
        Ok(stream)
    } else {
        Err(io::Error::other("no protocol was agreed on"))
    }
}

/// The server side of TLS, with this certificate.
pub(crate) fn acceptor(certificate: &Issued) -> TlsAcceptor {
    let chain = CertificateDer::pem_slice_iter(certificate.chain.as_bytes());
    let chain: Vec<_> = chain.collect::<Result<_, _>>().expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).expect("PEM");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a pair");
    TlsAcceptor::from(Arc::new(config))
}

/// An instance that speaks TLS, and answers each request with the server name that it was asked for.
#[derive(Debug)]
pub struct TlsApp {
    /// Where it listens.
    pub address: SocketAddr,
    names: Arc<Mutex<Vec<String>>>,
    task: AbortHandle,
}

impl TlsApp {
    /// Starts one with this certificate.
    ///
    /// # Panics
    /// When the certificate is none.
    pub async fn start(certificate: &Issued) -> Self {
        let acceptor = acceptor(certificate);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let names = Arc::new(Mutex::new(Vec::new()));
        let seen = names.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (acceptor, seen) = (acceptor.clone(), seen.clone());
                connections.spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let name = stream.get_ref().1.server_name().unwrap_or_default().to_owned();
                    seen.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
                    let mut piece = [0; 4096];
                    while let Ok(1..) = stream.read(&mut piece).await {
                        let head = "HTTP/1.1 200 OK\r\nX-App: tls\r\nContent-Length";
                        let answer = format!("{head}: {}\r\n\r\n{name}", name.len());
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, names, task: task.abort_handle() }
    }

    /// The server names of all handshakes so far.
    pub fn names(&self) -> Vec<String> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for TlsApp {
    fn drop(&mut self) {
        self.task.abort();
    }
}
