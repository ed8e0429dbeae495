//! The folder of a lock: made as needed, and refused where others may delete our nodes.

use super::driver::{CallError, Cause, ErrorCode, Permission, Session, requests};
use crate::text::printable;
use crate::{Error, Name, Result};

/// What allows to delete children of a node: the permission to, or that to change permissions.
const DELETE: i32 = 8 | 16;

/// Makes the folder of a name and those above it. The server collects them when they have been empty for a
/// while.
pub(super) async fn create(session: &Session, folder: &str) -> Result<()> {
    let private = session.config.login.is_some();
    let ends = folder.match_indices('/').skip(1).map(|(end, _)| end).chain([folder.len()]);
    let requests: Vec<_> = ends.map(|end| requests::create_folder(&folder[..end], private)).collect();
    match session.call_all(&requests).await?.pop() {
        // Those above are for others to refuse. If one of them went away again, the caller comes back.
        None | Some(Ok(())) => Ok(()),
        Some(Err(CallError {
            cause: Cause::Refused(ErrorCode::NODE_EXISTS | ErrorCode::NO_NODE), ..
        })) => Ok(()),
        Some(Err(error)) => Err(error.into()),
    }
}

/// Refuses a folder out of which others than us may delete our node: a login promises that nobody does. Must
/// come after the node was created in it, so that nobody can put another folder in its place.
pub(super) async fn check(
    session: &Session,
    name: &Name,
    folder: &str,
    acl: &[Permission],
    node: &str,
) -> Result<()> {
    // Our own nodes are for our login alone, so their ACL shows how the servers name it.
    let ours = match session.own_acl.get() {
        Some(ours) => ours,
        None => {
            let acl = session.insist(&requests::acl(node)).await?;
            session.own_acl.get_or_init(|| acl)
        }
    };
    let is_ours = |one: &Permission| {
        // Clients that may not change a node's permissions are not told the hashes in them.
        let masked = |id: &str| id.split_once(':').map(|(user, _)| format!("{user}:x"));
        let same = |our: &Permission| our.id == one.id || masked(&our.id).as_ref() == Some(&one.id);
        ours.iter().any(|our| our.scheme == one.scheme && same(our))
    };
    let Some(other) = acl.iter().find(|one| one.rights & DELETE != 0 && !is_ours(one)) else { return Ok(()) };
    // Of a login only the name: no message shows its hash.
    let who = match other.id.split_once(':') {
        Some((user, _)) if other.scheme == "digest" => format!("digest:{user}"),
        _ => format!("{}:{}", other.scheme, other.id),
    };
    let folder = printable(folder);
    Err(Error::config(format!(
        "the login does not protect lock `{}`: {} lets `{}` delete what is in the node `{folder}`; make it \
         yours (in zkCli.sh `addauth digest user:password` and `setAcl {folder} auth::cdrwa`), use another \
         `prefix`, or accept it with the parameter `acl=open`",
        printable(name.as_str()),
        session.config.label,
        printable(&who),
    )))
}

/// Why nobody can stand in the queue of this folder.
pub(super) fn used_up(session: &Session, name: &Name, folder: &str) -> Error {
    Error::config(format!(
        "the node `{folder}` of {} has had nearly 2^31 children, which is as far as ZooKeeper counts; \
         let all who use lock `{name}` release it, delete the node, and acquire the lock again",
        session.config.label,
    ))
}
