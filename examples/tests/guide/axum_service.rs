//! A web service that ships each order once at a time.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Router, body::Body};
use fencepost::{Error, FencingToken, Locks, Wait};
use http::Request;
use tower::ServiceExt as _;

async fn send_parcel(order: u64, token: FencingToken) -> Result<String, Problem> {
    Ok(format!("order {order} is on its way, token {token}\n"))
}

/// One `Locks` for the whole service: it is cheap to clone.
fn service(locks: Locks) -> Router {
    Router::new().route("/orders/{order}/ship", post(ship)).with_state(locks)
}

/// If the client hangs up, axum drops this future, and the lock is released in the background.
async fn ship(State(locks): State<Locks>, Path(order): Path<u64>) -> Result<String, Problem> {
    let lock = locks.lock(format!("order:{order}")).ttl(Duration::from_secs(10)).wait(Wait::No);
    lock.scope(async |guard| send_parcel(order, guard.token()).await).await
}

struct Problem(Error);

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = match &self.0 {
            Error::Busy { .. } => StatusCode::CONFLICT,
            error if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, self.0.to_string()).into_response()
    }
}

#[tokio::test]
async fn an_order_that_somebody_ships_is_answered_with_a_conflict() {
    let locks = Locks::connect("memory:").await.unwrap();
    let service = service(locks.clone());
    let ask = async || {
        let request = Request::post("/orders/7/ship").body(Body::empty()).unwrap();
        service.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(ask().await, StatusCode::OK);
    let guard = locks.lock("order:7").acquire().await.unwrap();
    assert_eq!(ask().await, StatusCode::CONFLICT);
    guard.release().await.unwrap();
    assert_eq!(ask().await, StatusCode::OK);
}
