//! `force-release`: takes a lock away from its holder, for operators.

use fencepost::Locks;
use serde_json::json;

use crate::args::ForceRelease;
use crate::exit::Outcome;
use crate::output::{Console, shown};

pub(super) async fn run(args: &ForceRelease, locks: &Locks, console: Console) -> Outcome {
    let name = args.target.name(locks)?;
    let (name, reason) = (name.as_str(), args.reason.as_str());
    let revoked = if args.now {
        locks.force_release_now(name, reason).await?
    } else {
        locks.force_release(name, reason).await?
    };
    let Some(revoked) = revoked else {
        let nobody = json!({ "name": name, "freed": true, "token": null, "holder": null });
        console.result(&nobody, || format!("nobody holds lock `{}`; nothing was done", shown(name)))?;
        return Ok(0);
    };
    let (token, holder) = (revoked.token, &revoked.holder);
    let json = json!({ "name": name, "freed": revoked.freed, "token": token, "holder": holder });
    console.result(&json, || {
        let lock = format!("lock `{}`", shown(name));
        let what = if revoked.freed {
            format!("{lock} is free; it was taken from {holder}")
        } else {
            format!(
                "{lock} was asked back from {holder}\nit is free when the holder lets go or its lease ends"
            )
        };
        format!(
            "{what}\ntoken {token}\nactivate this token at the resource that the lock protects: \
             only that keeps the old holder from writing there"
        )
    })?;
    Ok(0)
}
