//! What happens between an operator and those that hold or take a lock, at moments that only the store itself can choose.

use std::sync::Arc;
use std::time::Duration;

use super::claim::Tried;
use super::lease::Key;
use super::lockfile::LockFile;
use super::record::Revocation;
use super::{Shared, open, place};
use crate::backend::{Grant, Request};
use crate::url::StoreUrl;
use crate::{Error, ForceRelease, Handle, Name, Owner, Result};

const HOUR: Duration = Duration::from_secs(3600);

/// A store in a directory of its own, which is removed with it.
struct Stage {
    shared: Arc<Shared>,
    name: Name,
}

impl Stage {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("fencepost-file-{}", Owner::fresh()));
        let url = format!("file://{}?timeout=100ms", folder.display());
        Self { shared: open(StoreUrl::parse(&url).unwrap()).unwrap(), name: Name::new("job").unwrap() }
    }

    fn request(&self) -> Request {
        Request::new(self.name.clone(), HOUR, "".into(), Arc::default())
    }

    fn take(&self) -> Grant {
        match self.shared.try_claim(&self.request()) {
            Ok(Tried::Granted(grant)) => grant,
            _ => panic!("nobody holds it"),
        }
    }

    async fn detached(&self) -> Handle {
        let grant = self.take();
        grant.hold.detach(HOUR).await.unwrap();
        Handle::new(self.name.clone(), grant.identity, grant.token)
    }

    fn file(&self) -> LockFile {
        LockFile::open(&self.shared.place, &place::file_name(&self.name)).unwrap().unwrap()
    }

    fn announce(&self, victim: Owner, token: u64) {
        self.file().revoke(&Revocation { victim, token, reason: "it hangs", replacing: true }).unwrap();
    }

    async fn force_release(&self, how: &ForceRelease) -> Result<Option<crate::backend::Revoked>> {
        self.shared.revoke(&self.name, how).await
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.shared.place.path);
    }
}

#[tokio::test]
async fn while_an_operator_replaces_the_file_of_one_holder_the_next_one_gets_no_lock_in_it() {
    let stage = Stage::new();
    let victim = stage.take();
    // What an operator does first; then the holder lets go by itself.
    let turn = LockFile::directory(&stage.shared.place).unwrap();
    assert!(turn.try_lock().unwrap());
    stage.announce(victim.identity.owner(), victim.token.get() + 1);
    assert!(victim.hold.release().await.unwrap());
    assert!(matches!(stage.shared.try_claim(&stage.request()), Ok(Tried::Passing)));
    // The operator was killed.
    drop(turn);
    let next = stage.take();
    assert!(next.token.get() > victim.token.get() + 1);
    assert!(!stage.file().peek().unwrap().revocation().unwrap().unwrap().replacing);
}

#[tokio::test]
async fn an_operator_takes_nothing_from_the_successor_of_the_holder_that_it_found() {
    let stage = Stage::new();
    for how in [ForceRelease::ask("it hangs"), ForceRelease::now("it hangs")] {
        let found = stage.take();
        let file = stage.file();
        let owner = found.identity.owner();
        assert!(found.hold.release().await.unwrap());
        let next = stage.take();
        assert!(stage.shared.revoke_flock(&file, &stage.name, owner, &how).await.unwrap().is_none());
        // Also if it came between the operator's look and its announcement.
        let token = next.token.get() + 1;
        let late = Revocation { victim: owner, token, reason: "it hangs", replacing: how.now };
        assert!(!stage.shared.announce(&file, &stage.name, &late).unwrap());
        assert!(!file.peek().unwrap().revocation().unwrap().unwrap().replacing);
        let renewed = next.hold.renew(HOUR).await.unwrap();
        assert!(matches!(renewed, crate::backend::Renewal::Renewed { .. }), "{renewed:?}");
        let error = stage.force_release(&how.if_token(found.token)).await.unwrap_err();
        assert!(matches!(error, Error::Changed { .. }), "{error}");
        assert!(next.hold.release().await.unwrap());
    }
}

#[tokio::test]
async fn a_lock_that_was_attached_meanwhile_is_still_the_one_that_the_operator_means() {
    let stage = Stage::new();
    let handle = stage.detached().await;
    let request = stage.request();
    let grant = stage.shared.attach(&handle, &request).await.unwrap();
    let how = ForceRelease::ask("it hangs").if_token(handle.token());
    let gone = stage.shared.revoke_lease(&stage.name, Key::of(&handle), &how).await.unwrap();
    assert!(gone.is_none(), "not under the old identity");
    let revoked = stage.force_release(&how).await.unwrap().unwrap();
    assert_eq!(revoked.holder.owner, Some(grant.identity.owner()));
}

#[tokio::test]
async fn a_release_by_handle_ends_a_lease_that_an_operator_has_only_begun_to_revoke() {
    let stage = Stage::new();
    let handle = stage.detached().await;
    let (victim, token) = (handle.owner(), handle.token().get() + 1);
    let revocation = Revocation { victim, token, reason: "it hangs", replacing: false };
    stage.file().revoke(&revocation).unwrap();
    let key = Key::of(&handle);
    let renewal = stage.shared.extend_detached(&stage.name, key, HOUR).await.unwrap();
    assert!(matches!(renewal, crate::backend::Renewal::Lost(crate::Loss::ForceReleased { .. })));
    assert!(stage.shared.end(&stage.name, key).await.unwrap());
    assert!(!stage.shared.end(&stage.name, key).await.unwrap());
    assert!(stage.take().token.get() > token);
}
