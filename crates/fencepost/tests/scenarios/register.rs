//! The resource that holders write to: a value in the place that a fence keeps, or an HTTP service with the
//! fence in front of it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use fencepost::FencingToken;
use fencepost::fence::http::{FenceLayer, FenceService, present, refusal};
use fencepost::fence::{Active, Error, Fence, Result};
use h2::RecvStream;
use http::{Method, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tower_layer::Layer as _;
use tower_service::Service;

/// The resource `a`, as a holder sees it that has shown its token.
pub(crate) enum Register {
    Kept(Active),
    Served { address: String, token: FencingToken },
}

impl Register {
    /// Shows a token to the resource at a URL.
    pub(crate) async fn activate(url: &str, token: FencingToken) -> Result<Self> {
        let Some(address) = url.strip_prefix("http://") else {
            return Fence::connect(url).await?.resource("a").activate(token).await.map(Self::Kept);
        };
        let served = Self::Served { address: address.to_owned(), token };
        served.read().await.map(|_| served)
    }

    pub(crate) async fn read(&self) -> Result<String> {
        match self {
            Self::Kept(active) => {
                Ok(String::from_utf8(active.read().await?.unwrap_or_default()).expect("it is text"))
            }
            Self::Served { address, token } => send(address, *token, Method::GET, "").await,
        }
    }

    pub(crate) async fn write(&self, value: &str) -> Result<()> {
        match self {
            Self::Kept(active) => active.write(value).await,
            Self::Served { address, token } => send(address, *token, Method::PUT, value).await.map(drop),
        }
    }
}

/// One request over a connection of its own; what the service says.
async fn send(address: &str, token: FencingToken, method: Method, body: &str) -> Result<String> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(format!("http://{address}/a")).body(()).unwrap();
    present(request.headers_mut(), token);
    let (response, mut stream) = sender.ready().await.unwrap().send_request(request, false).unwrap();
    stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true).unwrap();
    let response = response.await.unwrap();
    if let Some(stale) = refusal(&response, "a", token) {
        return Err(Error::Stale(stale));
    }
    assert!(response.status().is_success(), "{}", response.status());
    Ok(text(response.into_body()).await)
}

async fn text(mut body: RecvStream) -> String {
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

/// Starts the service, which remembers tokens in this process; its URL.
pub(crate) async fn serve() -> String {
    let fence = Fence::connect("memory:").await.unwrap();
    let service = FenceLayer::new(fence, |parts| parts.uri.path().to_owned()).layer(Account::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(answer_all(stream, service.clone()));
        }
    });
    url
}

async fn answer_all(stream: TcpStream, service: FenceService<Account>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let mut service = service.clone();
        tokio::spawn(async move {
            let (head, body) = request.into_parts();
            let response = service.call(Request::from_parts(head, text(body).await)).await.unwrap();
            let (head, body) = response.into_parts();
            let mut stream = respond.send_response(Response::from_parts(head, ()), false).unwrap();
            stream.send_data(body.into(), true).unwrap();
        });
    }
}

/// What is behind the fence: `PUT` sets the value, everything else reads it.
#[derive(Clone, Default)]
struct Account(Arc<Mutex<String>>);

impl Service<Request<String>> for Account {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<std::result::Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let mut value = self.0.lock().unwrap();
        if request.method() == Method::PUT {
            *value = request.into_body();
        }
        ready(Ok(Response::new(value.clone())))
    }
}
