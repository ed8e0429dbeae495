//! One Redis whose address Sentinel knows: `redis+sentinel://s1,s2,s3/service`.
//!
//! It is the store of one Redis, with two things before it. Each new connection asks all sentinels for the
//! master and goes where a majority of them says (`resolver.rs`). And the server may grant a lock only after
//! what its predecessor may have granted has ended: the reign key says from when on (`reign.rs`).

pub(super) mod config;
pub(super) mod reign;
pub(super) mod resolver;

use std::sync::Arc;
use std::time::Duration;

use super::config::Config;
use super::driver::connector::Connector;
use super::driver::session::{Script, Sessions};
use crate::backends::{Init, StoreKind};
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Error, Result, format_duration};
use reign::GreetMode;

/// Operators are patient.
const PATIENCE: Duration = Duration::from_secs(5);

/// The store's row in the registry.
pub(in crate::backends) const STORE: StoreKind = StoreKind {
    default_port: Some(config::DEFAULT_PORT),
    ttl: "10s",
    parameters: config::PARAMETERS,
    init: Some(|url, what| Box::pin(init(url, what))),
    default_ttl: config::default_ttl,
    ..StoreKind::new(
        "redis-sentinel",
        "one Redis that Sentinel finds",
        &["redis+sentinel://s1,s2,s3/service", "rediss+sentinel://s1,s2,s3/service"],
        |url| Box::pin(super::connect(url)),
    )
};

/// Declares a new deployment, or a change of its longest ttl. For operators, never for programs: a server
/// cannot tell whether it is new or has just lost everything while locks are held.
async fn init(url: StoreUrl, what: Init) -> Result<Vec<String>> {
    let mut config = Config::from_url(url)?;
    config.timeout = config.timeout.max(PATIENCE);
    let label = config.label.clone();
    if config.quarantine().is_none() {
        return Ok(vec![format!("{label} has no quarantine: there is nothing to declare")]);
    }
    let mode = if what == Init::New { GreetMode::Found } else { GreetMode::Change };
    let script = Script { text: reign::script(), sharded: None };
    let sessions = Sessions::new(Connector::new(config)?, script, None, Arc::default(), Clock::system());
    let sessions = sessions.greeting(mode);
    let session = sessions.current(sessions.deadline()).await?;
    let Some(reign) = session.reign() else { return Err(Error::config("there is no quarantine")) };
    let said = match (reign.left.is_zero(), reign.is_new) {
        (true, true) => format!("{label} grants locks"),
        (true, false) => format!("{label} grants locks already"),
        (false, true) => format!("{label} grants locks in {}", format_duration(reign.left)),
        (false, false) => {
            return Err(Error::config(format!(
                "{label} is in use: it grants locks again in {}, when its quarantine is over",
                format_duration(reign.left)
            )));
        }
    };
    sessions.close();
    Ok(vec![said])
}
