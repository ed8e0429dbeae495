//! One Redis.
use crate::backend::Backend;
use crate::url::StoreUrl;
use crate::{Error, Result};
use std::sync::Arc;
pub(super) async fn connect(_url: StoreUrl) -> Result<Arc<dyn Backend>> {
    Err(Error::config("not yet"))
}
