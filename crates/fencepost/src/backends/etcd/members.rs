//! The members of the cluster, and the connection to one of them. It is made once for all who wait for it, and a member
//! that does not serve us is left once by all of them.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::config::Config;
use super::grpc::Trouble;
use super::link::{Endpoint, Link};
use crate::Result;
use crate::runtime::sync::lock;

#[derive(Debug)]
pub(super) struct Members {
    endpoints: Arc<[Endpoint]>,
    login: Option<(String, crate::url::Password)>,
    current: Mutex<Current>,
}

#[derive(Debug, Default)]
struct Current {
    /// Whom the next connection is to.
    member: usize,
    connection: Option<Arc<Connection>>,
}

/// A connection to one member, or the making of one. Ends when nobody has it any more.
#[derive(Debug)]
pub(super) struct Connection {
    outcome: watch::Receiver<Option<Outcome>>,
    opening: AbortHandle,
}

type Outcome = Result<Arc<Link>, Trouble>;

impl Members {
    pub(super) fn new(config: &Config) -> Result<Self> {
        let endpoints = Endpoint::all(config)?.into();
        Ok(Self { endpoints, login: config.login.clone(), current: Mutex::default() })
    }

    /// The connection that there is; a new one if there is none, or if it has ended.
    pub(super) fn connection(&self) -> Arc<Connection> {
        let mut current = lock(&self.current);
        if let Some(connection) = &current.connection
            && !connection.is_over()
        {
            return connection.clone();
        }
        let connection = Arc::new(self.open(current.member));
        current.connection = Some(connection.clone());
        connection
    }

    fn open(&self, member: usize) -> Connection {
        let (endpoints, login) = (self.endpoints.clone(), self.login.clone());
        let (done, outcome) = watch::channel(None);
        let opening = tokio::spawn(async move {
            let endpoint = &endpoints[member % endpoints.len()];
            let link = Link::open(endpoint, login.as_ref()).await;
            let _ = done.send(Some(link.map(Arc::new)));
        });
        Connection { outcome, opening: opening.abort_handle() }
    }

    /// Leaves a member that did not serve us, and with it all who still wait for this connection; the next one is to the next
    /// member. Of many whose requests fail only the first does this, or they would leave the next member, too.
    pub(super) fn leave(&self, failed: &Arc<Connection>) {
        let mut current = lock(&self.current);
        if current.connection.take_if(|connection| Arc::ptr_eq(connection, failed)).is_some() {
            current.member = current.member.wrapping_add(1);
            failed.close();
        }
    }

    pub(super) fn close(&self) {
        lock(&self.current).connection.take();
    }
}

impl Connection {
    /// Waits until it is made.
    pub(super) async fn link(&self) -> Outcome {
        let mut outcome = self.outcome.clone();
        match outcome.wait_for(Option::is_some).await.ok().and_then(|made| made.clone()) {
            Some(outcome) => outcome,
            None => Err(Trouble::Broken("the member was left for another one".to_owned())),
        }
    }

    fn is_over(&self) -> bool {
        match &*self.outcome.borrow() {
            Some(Ok(link)) => link.is_over(),
            // Those who wait for it see to that, unless all of them gave up first.
            Some(Err(_)) => true,
            None => self.opening.is_finished(),
        }
    }

    fn close(&self) {
        self.opening.abort();
        if let Some(Ok(link)) = &*self.outcome.borrow() {
            link.close();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.opening.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::url::StoreUrl;

    /// Two members that take connections and answer no login.
    fn mute() -> ([std::net::TcpListener; 2], Members) {
        let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let [first, second] = [0, 1].map(|member: usize| listeners[member].local_addr().unwrap());
        let url = StoreUrl::parse(&format!("etcd://user:hush@{first},{second}")).unwrap();
        (listeners, Members::new(&Config::from_url(url).unwrap()).unwrap())
    }

    fn next(members: &Members) -> usize {
        lock(&members.current).member
    }

    #[tokio::test]
    async fn a_member_is_left_once_by_all_who_wait_for_it() {
        let (_listeners, members) = mute();
        let waiting = [(); 3].map(|()| members.connection());
        waiting.iter().for_each(|connection| members.leave(connection));
        assert_eq!(next(&members), 1);
        let later = members.connection();
        waiting.iter().for_each(|connection| members.leave(connection));
        assert_eq!(next(&members), 1);
        assert!(Arc::ptr_eq(&later, &members.connection()));
        members.leave(&later);
        assert_eq!(next(&members), 2);
    }

    #[tokio::test]
    async fn who_waits_for_a_member_that_is_left_waits_no_longer() {
        let (_listeners, members) = mute();
        let connection = members.connection();
        let waits = connection.link();
        tokio::pin!(waits);
        tokio::time::timeout(Duration::from_millis(50), &mut waits).await.unwrap_err();
        members.leave(&connection);
        assert!(matches!(waits.await, Err(Trouble::Broken(_))));
        assert_eq!(next(&members), 1);
    }
}
