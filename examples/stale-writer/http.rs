//! The account behind HTTP: a small server in a process of its own, with the fence in front of its handler;
//! and its client.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use fencepost::FencingToken;
use fencepost::fence::http::{FenceLayer, present, refusal};
use fencepost::fence::{Fence, StaleToken};
use fencepost_examples::{Result, tell};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tower::ServiceBuilder;

use crate::account::NAME;

/// Serves the account until it is killed. Tokens are remembered at a place that outlives the server.
pub(crate) async fn serve(tokens: &str) -> Result<()> {
    let account = Arc::new(Mutex::new(String::new()));
    let fence = FenceLayer::new(Fence::connect(tokens).await?, |_| NAME.to_owned());
    let service =
        ServiceBuilder::new().layer(fence).service_fn(move |request| handle(account.clone(), request));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    tell(&format!("http://{}", listener.local_addr()?));
    loop {
        let (stream, _) = listener.accept().await?;
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
        );
    }
}

/// `PUT` sets the balance, everything else reads it. A stale request does not come this far.
async fn handle(
    account: Arc<Mutex<String>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut account = account.lock().await;
    if request.method() == Method::PUT {
        match request.into_body().collect().await {
            Ok(body) => *account = String::from_utf8_lossy(&body.to_bytes()).into_owned(),
            Err(_) => {
                let mut response = Response::default();
                *response.status_mut() = StatusCode::BAD_REQUEST;
                return Ok(response);
            }
        }
    }
    Ok(Response::new(account.clone().into()))
}

/// The account as a client with a token sees it.
pub(crate) struct Remote {
    address: String,
    token: FencingToken,
}

impl Remote {
    /// The first request with a token keeps older ones out, so a holder begins with one.
    pub(crate) async fn activate(address: &str, token: FencingToken) -> Result<Self> {
        let remote = Self { address: address.to_owned(), token };
        remote.read().await.map(|_| remote)
    }

    pub(crate) async fn read(&self) -> Result<Vec<u8>> {
        Ok(self.send(Method::GET, String::new()).await??)
    }

    pub(crate) async fn write(&self, balance: String) -> Result<Result<(), StaleToken>> {
        Ok(self.send(Method::PUT, balance).await?.map(drop))
    }

    async fn send(&self, method: Method, body: String) -> Result<Result<Vec<u8>, StaleToken>> {
        let stream = TokioIo::new(TcpStream::connect(&self.address).await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        tokio::spawn(connection);
        let mut request =
            Request::builder().method(method).uri("/").header("host", &self.address).body(body)?;
        present(request.headers_mut(), self.token);
        let response = sender.send_request(request).await?;
        if let Some(stale) = refusal(&response, NAME, self.token) {
            return Ok(Err(stale));
        }
        if !response.status().is_success() {
            return Err(format!("the server answered {}", response.status()).into());
        }
        Ok(Ok(response.into_body().collect().await?.to_bytes().to_vec()))
    }
}
