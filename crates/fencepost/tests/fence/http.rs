//! The HTTP layer: what it answers, and who waits for whom.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use fencepost::FencingToken;
use fencepost::fence::http::{FENCING_TOKEN, FenceLayer, FenceService, Running, present, refusal};
use fencepost::fence::{Fence, StaleToken};
use fencepost_testkit::Folder;
use http::{Method, Request, Response};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower_layer::Layer as _;
use tower_service::Service as _;

use crate::harness::{bounded, token};
use crate::subjects::{Kind, Subject};

/// One account. `PUT` sets it to the body, everything else reads it.
#[derive(Clone)]
pub(crate) struct Account {
    pub(crate) number: Arc<Mutex<u64>>,
    /// How many handlers are at work, and who began and ended, in order.
    pub(crate) at_work: watch::Sender<usize>,
    pub(crate) log: Arc<Mutex<Vec<(bool, u64)>>>,
    /// A handler takes one before it ends.
    ends: Arc<Semaphore>,
    /// Its work goes on after it has answered.
    leaves_work: bool,
}

impl Account {
    pub(crate) fn new() -> Self {
        let ends = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        Self {
            number: Arc::default(),
            at_work: watch::Sender::new(0),
            log: Arc::default(),
            ends,
            leaves_work: false,
        }
    }

    /// Its handlers end when they are told.
    pub(crate) fn slow() -> Self {
        Self { ends: Arc::new(Semaphore::new(0)), ..Self::new() }
    }

    pub(crate) fn end_one(&self) {
        self.ends.add_permits(1);
    }

    pub(crate) async fn until_at_work(&self, count: usize) {
        let mut at_work = self.at_work.subscribe();
        bounded("handlers begin", at_work.wait_for(|now| *now == count)).await.unwrap();
    }

    async fn handle(self, request: Request<String>) -> Response<String> {
        let who = request.extensions().get::<FencingToken>().map_or(0, |token| token.get());
        self.log.lock().unwrap().push((true, who));
        self.at_work.send_modify(|count| *count += 1);
        let left = AtWork(self.clone(), who);
        self.ends.acquire().await.unwrap().forget();
        if request.method() == Method::PUT {
            *self.number.lock().unwrap() = request.body().parse().unwrap();
        }
        drop(left);
        Response::new(self.number.lock().unwrap().to_string())
    }
}

struct AtWork(Account, u64);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.log.lock().unwrap().push((false, self.1));
        self.0.at_work.send_modify(|count| *count -= 1);
    }
}

impl tower_service::Service<Request<String>> for Account {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let account = self.clone();
        if account.leaves_work {
            let running = request.extensions().get::<Running>().cloned();
            tokio::spawn(async move {
                account.handle(request).await;
                drop(running);
            });
            return Box::pin(async { Ok(Response::new("later".to_owned())) });
        }
        Box::pin(async move { Ok(account.handle(request).await) })
    }
}

pub(crate) type Guarded = FenceService<Account>;

pub(crate) fn layer(fence: Fence) -> FenceLayer {
    FenceLayer::new(fence, |parts| parts.uri.path().to_owned()).patience(fencepost_testkit::LIMIT)
}

pub(crate) async fn guarded(account: &Account) -> Guarded {
    layer(Fence::connect("memory:").await.unwrap()).layer(account.clone())
}

/// Polls once.
async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())).await
}

fn request(method: Method, token: Option<u64>, body: &str) -> Request<String> {
    let mut request = Request::builder().method(method).uri("/account").body(body.to_owned()).unwrap();
    if let Some(number) = token {
        present(request.headers_mut(), crate::harness::token(number));
    }
    request
}

pub(crate) async fn put(service: &Guarded, token: u64, body: &str) -> Response<String> {
    service.clone().call(request(Method::PUT, Some(token), body)).await.unwrap()
}

pub(crate) fn start(
    service: &Guarded,
    token: u64,
    body: &'static str,
) -> tokio::task::JoinHandle<Response<String>> {
    let service = service.clone();
    tokio::spawn(async move { put(&service, token, body).await })
}

#[tokio::test]
async fn a_stale_request_is_answered_with_412_and_the_largest_token() {
    let account = Account::new();
    let service = guarded(&account).await;
    assert_eq!(put(&service, 8, "100").await.status(), 200);
    let response = put(&service, 7, "0").await;
    assert_eq!(response.status(), 412);
    let expected = StaleToken::new("/account", token(7), token(8));
    assert_eq!(refusal(&response, "/account", token(7)), Some(expected));
    let body: serde_json::Value = serde_json::from_str(response.body()).unwrap();
    assert_eq!((body["presented"].as_u64(), body["highest"].as_u64()), (Some(7), Some(8)));
    assert_eq!(*account.number.lock().unwrap(), 100);
    let accepted = put(&service, 8, "101").await;
    assert_eq!((accepted.status().as_u16(), refusal(&accepted, "/account", token(8))), (200, None));
}

#[tokio::test]
async fn requests_without_a_proper_token_are_refused_and_reads_may_be_let_through() {
    let account = Account::new();
    let fence = Fence::connect("memory:").await.unwrap();
    let strict = layer(fence.clone()).layer(account.clone());
    let lenient = layer(fence).reads_without_token().layer(account.clone());
    for (service, method, status) in [
        (&strict, Method::GET, 428),
        (&strict, Method::PUT, 428),
        (&lenient, Method::POST, 428),
        (&lenient, Method::GET, 200),
    ] {
        let response = service.clone().call(request(method, None, "5")).await.unwrap();
        assert_eq!(response.status(), status);
    }
    for value in ["", "0", "abc", "-1", "1.5", "9007199254740992"] {
        for method in [Method::PUT, Method::GET] {
            let mut request = request(method, None, "5");
            request.headers_mut().insert(FENCING_TOKEN, value.parse().unwrap());
            assert_eq!(lenient.clone().call(request).await.unwrap().status(), 400, "{value}");
        }
    }
    let mut twice = request(Method::PUT, Some(5), "5");
    twice.headers_mut().append(FENCING_TOKEN, "6".parse().unwrap());
    assert_eq!(lenient.clone().call(twice).await.unwrap().status(), 400);
    let mut long = request(Method::PUT, Some(5), "5");
    *long.uri_mut() = format!("/{}", "x".repeat(512)).parse().unwrap();
    assert_eq!(lenient.clone().call(long).await.unwrap().status(), 400);
    assert_eq!(*account.number.lock().unwrap(), 0);
}

#[tokio::test]
async fn a_newer_request_waits_for_an_older_ones_handler_and_older_ones_are_refused_meanwhile() {
    let account = Account::slow();
    let service = guarded(&account).await;
    let older = start(&service, 7, "7");
    account.until_at_work(1).await;
    let mut newer = Box::pin(put(&service, 8, "8"));
    assert!(is_pending(&mut newer).await, "it has arrived, and waits");
    let another = bounded("an older one is refused", put(&service, 7, "70")).await;
    assert_eq!(another.status(), 412);
    assert_eq!(*account.at_work.borrow(), 1, "the newer one waits");
    account.end_one();
    assert_eq!(bounded("the older one ends", older).await.unwrap().status(), 200);
    account.end_one();
    assert_eq!(bounded("the newer one gets in", newer).await.body(), "8");
}

#[tokio::test]
async fn work_that_a_handler_leaves_behind_is_waited_for_if_it_says_so() {
    let account = Account { leaves_work: true, ..Account::slow() };
    let service = guarded(&account).await;
    assert_eq!(put(&service, 7, "7").await.body(), "later");
    account.until_at_work(1).await;
    let newer = start(&service, 8, "8");
    account.end_one();
    bounded("the newer one gets in", newer).await.unwrap();
    account.end_one();
    account.until_at_work(0).await;
    assert_eq!(*account.log.lock().unwrap(), [(true, 7), (false, 7), (true, 8), (false, 8)]);
}

#[tokio::test(start_paused = true)]
async fn patience_has_an_end() {
    let account = Account::slow();
    let fence = Fence::connect("memory:").await.unwrap();
    let service = layer(fence).patience(Duration::from_secs(5)).layer(account.clone());
    let older = start(&service, 7, "7");
    account.until_at_work(1).await;
    let response = bounded("the patience ends", put(&service, 8, "8")).await;
    assert_eq!(
        (response.status().as_u16(), response.headers()["retry-after"].as_bytes()),
        (503, b"1".as_slice())
    );
    let late = bounded("it is refused", put(&service, 7, "70")).await;
    assert_eq!(late.status(), 412, "the newer token was seen");
    account.end_one();
    assert_eq!(bounded("the older one ends", older).await.unwrap().status(), 200);
    account.end_one();
    assert_eq!(bounded("the newer one gets in", put(&service, 8, "8")).await.status(), 200);
}

#[tokio::test]
async fn tokens_are_remembered_over_a_restart() {
    let folder = Folder::new("http");
    let url = format!("file://{}", folder.path().display());
    let account = Account::new();
    let service = layer(Fence::connect(&url).await.unwrap()).layer(account.clone());
    assert_eq!(put(&service, 8, "8").await.status(), 200);
    let service = layer(Fence::connect(&url).await.unwrap()).layer(account.clone());
    assert_eq!(refusal(&put(&service, 7, "7").await, "/account", token(7)).unwrap().highest, token(8));
}

#[tokio::test]
async fn a_place_that_is_out_of_reach_lets_nobody_in() {
    let server = fencepost_testkit::redis::Server::start();
    let fence = Fence::connect(&format!("{}?timeout=5s", server.url())).await.unwrap();
    let account = Account::new();
    let service = layer(fence).layer(account.clone());
    assert_eq!(put(&service, 7, "7").await.status(), 200);
    drop(server);
    let response = put(&service, 8, "8").await;
    assert_eq!(response.status(), 503);
    assert!(!response.body().contains("redis"), "{}", response.body());
    assert_eq!(*account.number.lock().unwrap(), 7);
}

/// A newer one never begins before all older ones have ended, and no older one begins behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_a_crowd_holders_come_one_after_the_other() {
    let account = Account::new();
    let folder = Folder::new("http");
    let fence = Fence::connect(&format!("file://{}?timeout=20s", folder.path().display())).await.unwrap();
    let service = layer(fence).layer(account.clone());
    let mut tasks = JoinSet::new();
    for number in 0..400u64 {
        let service = service.clone();
        tasks.spawn(async move { put(&service, 1 + (number * 7) % 40, "1").await.status().as_u16() });
    }
    let mut accepted = 0;
    while let Some(status) = bounded("all are answered", tasks.join_next()).await {
        accepted += usize::from(status.unwrap() == 200);
    }
    let log = account.log.lock().unwrap();
    assert_eq!(log.len(), 2 * accepted);
    let (mut highest, mut at_work) = (0, 0);
    for (begins, who) in log.iter() {
        if *begins {
            assert!(*who >= highest, "{who} behind {highest}");
            assert!(*who == highest || at_work == 0, "{who} while {highest} is at work");
            highest = *who;
            at_work += 1;
        } else {
            assert_eq!(*who, highest);
            at_work -= 1;
        }
    }
    assert!(accepted > 0 && at_work == 0);
}

/// For the interleavings: anybody may read, and a holder shows its token with its first request.
pub(crate) struct Service;

#[async_trait]
impl Kind for Service {
    fn name(&self) -> String {
        "an HTTP service".to_owned()
    }

    async fn subject(&self) -> Box<dyn Subject> {
        let fence = Fence::connect("memory:").await.unwrap();
        Box::new(layer(fence).reads_without_token().layer(Account::new()))
    }
}

#[async_trait]
impl Subject for Guarded {
    async fn activate(&self, token: FencingToken) -> bool {
        self.clone().call(request(Method::GET, Some(token.get()), "")).await.unwrap().status() == 200
    }

    async fn read(&self) -> u64 {
        let response = self.clone().call(request(Method::GET, None, "")).await.unwrap();
        response.body().parse().unwrap()
    }

    async fn write(&self, token: FencingToken, number: u64) -> bool {
        let response = put(self, token.get(), &number.to_string()).await;
        assert!([200, 412].contains(&response.status().as_u16()), "{}", response.body());
        response.status() == 200
    }
}
