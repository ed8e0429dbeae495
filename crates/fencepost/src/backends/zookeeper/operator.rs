//! Looking at locks, and taking them back.

use super::driver::{Cause, ErrorCode, Session, Stat, if_exists, requests};
use super::keys::{self, Contender};
use super::record;
use super::sessions::Sessions;
use crate::backend::{ForceRelease, Revoked};
use crate::backends::common::foreign;
use crate::{Error, Holder, Listing, Name, Result};

/// How many requests are sent before the first answer is waited for.
const PAGE: usize = 500;

/// The first in the queue of a lock.
struct Front {
    path: String,
    data: Vec<u8>,
    stat: Stat,
    holder: Holder,
    waiters: Vec<Contender>,
}

/// All holders whose name starts with `prefix`, by name.
pub(super) async fn list(sessions: &Sessions, prefix: &str) -> Result<Listing> {
    let session = &*sessions.any().await?;
    let base = &session.config.base;
    let folders = children(session, base).await?;
    let mut names: Vec<Name> = folders.iter().filter_map(|folder| keys::name(folder)).collect();
    names.retain(|name| name.as_str().starts_with(prefix));
    names.sort_unstable();
    let mut listing = Listing::default();
    for page in names.chunks(PAGE) {
        list_page(session, page, &mut listing).await?;
    }
    Ok(listing)
}

async fn list_page(session: &Session, names: &[Name], listing: &mut Listing) -> Result<()> {
    let folders: Vec<_> = names.iter().map(|name| keys::folder(&session.config.base, name)).collect();
    let requests: Vec<_> = folders.iter().map(|folder| requests::children(folder)).collect();
    let mut firsts = Vec::new();
    for ((children, name), folder) in session.call_all(&requests).await?.into_iter().zip(names).zip(&folders)
    {
        match if_exists(children) {
            Ok(children) => {
                let first = keys::queue(&children.unwrap_or_default()).into_iter().next();
                firsts.extend(first.map(|first| (name, first.path(folder), first)));
            }
            Err(error) => note_unreadable(listing, error.into())?,
        }
    }
    let requests: Vec<_> = firsts.iter().map(|(_, path, _)| requests::read(path)).collect();
    for (found, (name, _, first)) in session.call_all(&requests).await?.into_iter().zip(&firsts) {
        match if_exists(found) {
            Ok(Some((data, stat))) => listing.holders.push(record::decode(name, first, &data, &stat)),
            // It has gone meanwhile: the next one is worth a look of its own.
            Ok(None) => match front(session, name).await {
                Ok(front) => listing.holders.extend(front.map(|front| front.holder)),
                Err(error) => note_unreadable(listing, error)?,
            },
            Err(error) => {
                note_unreadable(listing, error.into())?;
                // Somebody holds it whom we may not see.
                listing.holders.push(Holder::unknown((*name).clone()));
            }
        }
    }
    Ok(())
}

/// What the server does not let us see, or what is no record, must not hide all other locks.
fn note_unreadable(listing: &mut Listing, error: Error) -> Result<()> {
    match error {
        Error::Config { .. } | Error::Backend { .. } => listing.unreadable.push(error),
        error => return Err(error),
    }
    Ok(())
}

/// The holder of one name, and its waiters.
pub(super) async fn show(sessions: &Sessions, name: &Name) -> Result<Option<Holder>> {
    let session = &*sessions.any().await?;
    let Some(Front { mut holder, waiters, .. }) = front(session, name).await? else { return Ok(None) };
    let folder = keys::folder(&session.config.base, name);
    let read = |waiter: &Contender| requests::read(&waiter.path(&folder));
    let requests: Vec<_> = waiters.iter().map(read).collect();
    for (found, waiter) in session.call_all(&requests).await?.into_iter().zip(&waiters) {
        let found = if_exists(found)?;
        holder.queue.extend(found.map(|(data, stat)| record::decode(name, waiter, &data, &stat)));
    }
    Ok(Some(holder))
}

/// Takes a lock back: marks its node, or deletes it. It is for whoever holds the lock when it first looks, if
/// that is the one that is meant, and for nobody who comes after.
pub(super) async fn force_release(
    sessions: &Sessions,
    name: &Name,
    how: &ForceRelease,
) -> Result<Option<Revoked>> {
    let session = &*sessions.any().await?;
    let mut victim = None;
    // Its node may change between the look and the request; then look again.
    for _ in 0..8 {
        let Some(Front { path, data, stat, holder, .. }) = front(session, name).await? else {
            return Ok(None);
        };
        if !how.means(&holder) || stat.czxid != *victim.get_or_insert(stat.czxid) {
            return Err(Error::changed(name, holder));
        }
        if holder.owner.is_none() && !how.now {
            return Err(foreign::cannot_be_asked(name, "freeing it"));
        }
        let request = match how.now {
            true => requests::delete(&path),
            false => requests::write(&path, &record::revoke(&data, &how.reason), stat.version),
        };
        let Err(error) = session.call(&request, session.patience()).await else {
            // It retires the victim's token and nobody else's: the next in the queue may have entered it
            // right after.
            let token = session.config.token(stat.czxid.saturating_add(1))?;
            return Ok(Some(Revoked::new(holder, token, how.now)));
        };
        match error.cause {
            Cause::Refused(ErrorCode::NO_NODE | ErrorCode::BAD_VERSION) => {}
            // It may have been made: to repeat it could hit the next holder.
            Cause::Unanswered(why) | Cause::ConnectionLost(why) => {
                let source = format!("{why}; look who holds it before you force a release again");
                return Err(Error::Uncertain { name: name.clone(), source: source.into() });
            }
            _ => return Err(error.into()),
        }
    }
    Err(session.config.unavailable(format!("lock `{name}` changed all the time; try again")))
}

async fn front(session: &Session, name: &Name) -> Result<Option<Front>> {
    let folder = keys::folder(&session.config.base, name);
    loop {
        let mut queue = keys::queue(&children(session, &folder).await?).into_iter();
        let Some(first) = queue.next() else { return Ok(None) };
        let path = first.path(&folder);
        let found = session.call(&requests::read(&path), session.patience()).await;
        if let Some((data, stat)) = if_exists(found)? {
            let holder = record::decode(name, &first, &data, &stat);
            return Ok(Some(Front { path, data, stat, holder, waiters: queue.collect() }));
        }
    }
}

/// The children of a folder as the leader knows them now; none if there is no folder.
async fn children(session: &Session, folder: &str) -> Result<Vec<String>> {
    sync(session).await?;
    // Another connection does as well: its server must know the last transaction that this session has seen.
    let children = session.call(&requests::children(folder), session.patience()).await;
    Ok(if_exists(children)?.unwrap_or_default())
}

/// Whether the leader answers.
pub(super) async fn check(sessions: &Sessions) -> Result<()> {
    sync(&*sessions.any().await?).await
}

/// Asks the leader. What it knew is known to our server then.
async fn sync(session: &Session) -> Result<()> {
    Ok(session.call(&requests::sync(), session.patience()).await?)
}
