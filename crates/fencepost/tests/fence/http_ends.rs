//! The HTTP layer when something ends before its time: clients that hang up, handlers that panic, answers
//! that do not come.

use async_trait::async_trait;
use fencepost::fence::http::refusal;
use fencepost::fence::{Backend, Error, Fence, Result};
use fencepost::{FencingToken, Name};
use tower_layer::Layer as _;

use crate::harness::{bounded, token};
use crate::http::{Account, guarded, layer, put, start};

#[tokio::test]
async fn a_handler_whose_client_hung_up_runs_to_its_end_and_is_waited_for() {
    let account = Account::slow();
    let service = guarded(&account).await;
    let older = start(&service, 7, "7");
    account.until_at_work(1).await;
    older.abort();
    assert!(bounded("the client is gone", older).await.unwrap_err().is_cancelled());
    assert_eq!(*account.at_work.borrow(), 1, "its handler is not");
    let newer = start(&service, 8, "8");
    account.end_one();
    account.end_one();
    assert_eq!(bounded("the newer one gets in", newer).await.unwrap().body(), "8");
    assert_eq!(*account.log.lock().unwrap(), [(true, 7), (false, 7), (true, 8), (false, 8)]);
}

#[tokio::test]
async fn a_panic_in_a_handler_goes_on_in_its_caller_and_frees_the_gate() {
    let account = Account::new();
    let service = guarded(&account).await;
    let error = bounded("it ends", start(&service, 7, "no number")).await.unwrap_err();
    assert!(error.is_panic(), "{error}");
    assert_eq!(bounded("the newer one gets in", put(&service, 8, "8")).await.status(), 200);
}

#[tokio::test]
async fn a_one_shot_token_gets_through_once() {
    let account = Account::new();
    let service = layer(Fence::connect("memory:").await.unwrap()).once().layer(account.clone());
    assert_eq!(put(&service, 7, "7").await.status(), 200);
    let again = refusal(&put(&service, 7, "70").await, "/account", token(7)).unwrap();
    assert_eq!(again.highest, token(7));
    assert_eq!(put(&service, 8, "8").await.status(), 200);
    assert_eq!(*account.number.lock().unwrap(), 8);
}

/// Records, and does not say so.
#[derive(Debug)]
struct Silent(Fence);

#[async_trait]
impl Backend for Silent {
    async fn activate(&self, resource: &Name, token: FencingToken) -> Result<Option<Vec<u8>>> {
        self.0.resource(resource.as_str()).activate(token).await?.read().await
    }

    async fn write(&self, _: &Name, _: FencingToken, _: &[u8]) -> Result<()> {
        unreachable!("the layer writes no values")
    }

    async fn write_once(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()> {
        self.0.resource(resource.as_str()).write_once(token, value).await?;
        Err(Error::uncertain(resource, "no answer"))
    }
}

/// A repetition would be refused with its own token, as if the effect had happened.
#[tokio::test]
async fn a_one_shot_token_that_may_have_been_recorded_is_not_to_be_repeated() {
    let account = Account::new();
    let silent = Silent(Fence::connect("memory:").await.unwrap());
    let service = layer(Fence::new(silent)).once().layer(account.clone());
    let response = put(&service, 7, "7").await;
    assert_eq!(response.status(), 500);
    assert!(!response.headers().contains_key("retry-after"));
    assert!(response.body().contains("do not repeat"), "{}", response.body());
    assert_eq!(put(&service, 7, "7").await.status(), 412);
    assert_eq!(*account.number.lock().unwrap(), 0, "no handler has run");
}

#[tokio::test]
async fn tokens_of_the_layer_are_kept_apart_from_values_of_the_same_name() {
    let fence = Fence::connect("memory:").await.unwrap();
    let value = fence.resource("/account").activate(token(5)).await.unwrap();
    value.write("money").await.unwrap();
    for layer in [layer(fence.clone()), layer(fence.clone()).once()] {
        let service = layer.layer(Account::new());
        put(&service, 7, "7").await;
        let stale = refusal(&put(&service, 6, "6").await, "/account", token(6)).unwrap();
        assert_eq!((stale.resource.as_str(), stale.highest), ("/account", token(7)));
    }
    assert_eq!(value.read().await.unwrap().as_deref(), Some(b"money".as_slice()));
}
