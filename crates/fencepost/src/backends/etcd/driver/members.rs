//! The members of the cluster, and the connection to one of them. It is made once for all who wait for it,
//! and a member that does not serve us is left once by all of them.

use std::sync::{Arc, Mutex};

use tokio::runtime;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::connection::{Connection, Member};
use super::grpc::GrpcError;
use crate::Result;
use crate::backends::etcd::config::Config;
use crate::runtime::sync::lock;

#[derive(Debug)]
pub(crate) struct Members {
    members: Vec<Arc<Member>>,
    /// Where connections are driven.
    runtime: runtime::Handle,
    current: Mutex<CurrentMember>,
}

#[derive(Debug, Default)]
struct CurrentMember {
    /// Whom the next connection is to.
    index: usize,
    connection: Option<Arc<SharedConnection>>,
}

/// A connection to one member, or the making of one. Ends when nobody has it any more.
#[derive(Debug)]
pub(crate) struct SharedConnection {
    opened: watch::Receiver<Option<Result<Arc<Connection>, GrpcError>>>,
    opening: AbortHandle,
}

impl Members {
    pub(crate) fn new(config: &Config, runtime: runtime::Handle) -> Result<Self> {
        Ok(Self { members: Member::all(config)?, runtime, current: Mutex::default() })
    }

    /// The connection that there is; a new one if there is none, or if it has ended.
    pub(crate) fn connection(&self) -> Arc<SharedConnection> {
        let mut current = lock(&self.current);
        if let Some(connection) = current.connection.as_ref().filter(|connection| !connection.is_over()) {
            return connection.clone();
        }
        let member = self.members[current.index % self.members.len()].clone();
        let (done, opened) = watch::channel(None);
        let opening = self.runtime.spawn(async move {
            let _ = done.send(Some(Connection::open(&member).await.map(Arc::new)));
        });
        let connection = Arc::new(SharedConnection { opened, opening: opening.abort_handle() });
        current.connection = Some(connection.clone());
        connection
    }

    /// Leaves a member that did not serve us: the next connection is to the next one. Of many whose requests
    /// fail only the first does this, or they would leave the next member, too.
    pub(crate) fn leave(&self, failed: &Arc<SharedConnection>) {
        let mut current = lock(&self.current);
        if current.connection.take_if(|connection| Arc::ptr_eq(connection, failed)).is_some() {
            current.index = current.index.wrapping_add(1);
            // Those who still wait for it go on to the next member, too.
            failed.close();
        }
    }

    pub(crate) fn close(&self) {
        lock(&self.current).connection.take();
    }
}

impl SharedConnection {
    /// Waits until it is made.
    pub(crate) async fn opened(&self) -> Result<Arc<Connection>, GrpcError> {
        let mut opened = self.opened.clone();
        let left = || Err(GrpcError::Broken("the member was left for another one".to_owned()));
        opened.wait_for(Option::is_some).await.ok().and_then(|made| made.clone()).unwrap_or_else(left)
    }

    fn is_over(&self) -> bool {
        match &*self.opened.borrow() {
            Some(Ok(connection)) => connection.is_closed(),
            Some(Err(_)) => true,
            None => self.opening.is_finished(),
        }
    }

    fn close(&self) {
        self.opening.abort();
        if let Some(Ok(connection)) = &*self.opened.borrow() {
            connection.close();
        }
    }
}

impl Drop for SharedConnection {
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
        let config = Config::from_url(url).unwrap();
        (listeners, Members::new(&config, runtime::Handle::current()).unwrap())
    }

    fn next(members: &Members) -> usize {
        lock(&members.current).index
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
        let waits = connection.opened();
        tokio::pin!(waits);
        tokio::time::timeout(Duration::from_millis(50), &mut waits).await.unwrap_err();
        members.leave(&connection);
        assert!(matches!(waits.await, Err(GrpcError::Broken(_))));
        assert_eq!(next(&members), 1);
    }
}
