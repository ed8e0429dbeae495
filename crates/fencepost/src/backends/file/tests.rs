//! What happens between an operator and those that hold or take a lock, at moments that only the store itself
//! can choose.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{AttemptOutcome, attempt};
use super::attach::{self, LeaseKey};
use super::client::Client;
use super::config::Config;
use super::lockfile::LockFile;
use super::operator;
use super::record::Revocation;
use crate::backend::{Grant, Renewal, Request};
use crate::url::StoreUrl;
use crate::{Error, ForceRelease, Handle, Loss, Name, Owner, Result};

const HOUR: Duration = Duration::from_secs(3600);

/// A store in a directory of its own, which is removed with it.
struct OwnDirectory {
    client: Arc<Client>,
    name: Name,
}

impl OwnDirectory {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("fencepost-file-{}", Owner::fresh()));
        let url = StoreUrl::parse(&format!("file://{}?timeout=100ms", folder.display())).unwrap();
        let client = Client::open(&Config::from_url(url).unwrap()).unwrap();
        Self { client, name: Name::new("job").unwrap() }
    }

    fn request(&self) -> Request {
        Request::new(self.name.clone(), HOUR, "".into(), Arc::default())
    }

    fn take(&self) -> Grant {
        match attempt(&self.client, &self.request()) {
            Ok(AttemptOutcome::Granted(grant)) => grant,
            _ => panic!("nobody holds it"),
        }
    }

    async fn detached(&self) -> Handle {
        let grant = self.take();
        grant.hold.detach(HOUR).await.unwrap();
        Handle::new(self.name.clone(), grant.identity, grant.token, Duration::from_secs(30))
    }

    fn file(&self) -> LockFile {
        self.client.file(&self.name).unwrap().unwrap()
    }

    fn announce(&self, victim: Owner, token: u64) {
        self.file().revoke(&Revocation { victim, token, reason: "it hangs", replacing: true }).unwrap();
    }

    fn is_being_replaced(&self) -> bool {
        self.file().read().unwrap().revocation().unwrap().unwrap().replacing
    }

    async fn force_release(&self, how: &ForceRelease) -> Result<Option<crate::backend::Revoked>> {
        operator::force_release(&self.client, &self.name, how).await
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.client.directory.path);
    }
}

#[tokio::test]
async fn while_an_operator_replaces_the_file_of_one_holder_the_next_one_gets_no_lock_in_it() {
    let store = OwnDirectory::new();
    let victim = store.take();
    // What an operator does first; then the holder lets go by itself.
    let turn = LockFile::of_directory(&store.client.directory).unwrap();
    assert!(turn.try_lock().unwrap());
    store.announce(victim.identity.owner(), victim.token.get() + 1);
    assert!(victim.hold.release().await.unwrap());
    assert!(matches!(attempt(&store.client, &store.request()), Ok(AttemptOutcome::Passing)));
    // The operator was killed.
    drop(turn);
    let next = store.take();
    assert!(next.token.get() > victim.token.get() + 1);
    assert!(!store.is_being_replaced());
}

#[tokio::test]
async fn an_operator_takes_nothing_from_the_successor_of_the_holder_that_it_found() {
    let store = OwnDirectory::new();
    for how in [ForceRelease::ask("it hangs"), ForceRelease::now("it hangs")] {
        let found = store.take();
        let file = store.file();
        let owner = found.identity.owner();
        assert!(found.hold.release().await.unwrap());
        let next = store.take();
        assert!(operator::revoke_flock(&store.client, &file, &store.name, owner, &how).unwrap().is_none());
        // Also if it came between the operator's look and its announcement.
        let token = next.token.get() + 1;
        let late = Revocation { victim: owner, token, reason: "it hangs", replacing: how.now };
        assert!(!operator::announce(&store.client, &file, &store.name, &late).unwrap());
        assert!(!store.is_being_replaced());
        let renewed = next.hold.renew(HOUR).await.unwrap();
        assert!(matches!(renewed, Renewal::Renewed { .. }), "{renewed:?}");
        let error = store.force_release(&how.if_token(found.token)).await.unwrap_err();
        assert!(matches!(error, Error::Changed { .. }), "{error}");
        assert!(next.hold.release().await.unwrap());
    }
}

#[tokio::test]
async fn a_lock_that_was_attached_meanwhile_is_still_the_one_that_the_operator_means() {
    let store = OwnDirectory::new();
    let handle = store.detached().await;
    let request = store.request();
    let grant = attach::attach(&store.client, &handle, &request).await.unwrap();
    let how = ForceRelease::ask("it hangs").if_token(handle.token());
    let gone = operator::revoke_lease(&store.client, LeaseKey::of(&handle), &how).await.unwrap();
    assert!(gone.is_none(), "not under the old identity");
    let revoked = store.force_release(&how).await.unwrap().unwrap();
    assert_eq!(revoked.holder.owner, Some(grant.identity.owner()));
}

#[tokio::test]
async fn a_release_by_handle_ends_a_lease_that_an_operator_has_only_begun_to_revoke() {
    let store = OwnDirectory::new();
    let handle = store.detached().await;
    let (victim, token) = (handle.owner(), handle.token().get() + 1);
    let revocation = Revocation { victim, token, reason: "it hangs", replacing: false };
    store.file().revoke(&revocation).unwrap();
    let key = LeaseKey::of(&handle);
    let renewal = attach::renew(&store.client, &key, HOUR).await.unwrap();
    assert!(matches!(renewal, Renewal::Lost(Loss::ForceReleased { .. })));
    assert!(attach::release(&store.client, &key).await.unwrap());
    assert!(!attach::release(&store.client, &key).await.unwrap());
    assert!(store.take().token.get() > token);
}
