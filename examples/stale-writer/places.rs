//! Where accounts are kept, and what has to run for that. It ends with the value.

use fencepost_examples::{Folder, Process, Result, postgres, redis};
use fencepost_testkit::redis::Server;

use crate::Kind;

pub(crate) struct Places {
    folder: Folder,
    redis: Option<Server>,
    service: Option<Process>,
}

impl Places {
    pub(crate) fn make() -> Result<Self> {
        Ok(Self { folder: Folder::make()?, redis: None, service: None })
    }

    /// The URL of a Redis, which is started if need be.
    pub(crate) fn redis(&mut self) -> Result<String> {
        if self.redis.is_none() {
            self.redis = Some(redis()?);
        }
        Ok(self.redis.as_ref().map(Server::url).unwrap_or_default())
    }

    /// Where an account of this kind is, for [`Account::open`](crate::account::Account::open).
    pub(crate) fn of(&mut self, kind: Kind, store: &str) -> Result<String> {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        match kind {
            Kind::Unchecked => Ok(format!("unchecked:{}", file("account"))),
            Kind::Memory => Ok("memory:".to_owned()),
            Kind::File => Ok(format!("file://{}", file("fenced"))),
            Kind::Redis => self.redis(),
            Kind::Postgres => Ok(postgres()?.url("postgres")),
            Kind::Http => {
                let tokens = format!("file://{}", file("tokens"));
                self.service.insert(Process::start("server", &["serve", &tokens], store)?).listen()
            }
        }
    }
}
