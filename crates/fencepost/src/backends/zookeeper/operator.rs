//! Looking at locks, and taking them back.

use super::layout::{self, Contender};
use super::life::{Pending, Trouble};
use super::protocol::{self, Code, Request, Stat};
use super::record;
use super::session::Session;
use crate::backend::{ForceRelease, Revoked};
use crate::{Error, FencingToken, Holder, Listing, Name, Result};

/// How many requests are sent before the first answer is waited for.
const PAGE: usize = 500;

/// The first in line, as its node shows it.
struct First {
    path: String,
    data: Vec<u8>,
    stat: Stat,
    holder: Holder,
    /// Those behind it.
    rest: Vec<Contender>,
}

/// All holders whose name starts with `prefix`, by name.
pub(super) async fn list(session: &Session, prefix: &str) -> Result<Listing> {
    let base = session.config().base.clone();
    let mut names: Vec<Name> =
        up_to_date(session, &base).await?.iter().filter_map(|name| layout::name(name)).collect();
    names.retain(|name| name.as_str().starts_with(prefix));
    names.sort_unstable();
    let Listing { mut holders, mut unreadable } = Listing::default();
    // What the server does not let us see, or what is no record, must not hide all other locks.
    let mut pass_over = |error| match error {
        Error::Config { .. } | Error::Backend { .. } => {
            unreadable.push(error);
            Ok(())
        }
        error => Err(error),
    };
    for page in names.chunks(PAGE) {
        let parents: Vec<_> = page.iter().map(|name| layout::parent(&base, name)).collect();
        let mut firsts = Vec::new();
        let asked = send_all(session, parents.iter().map(|path| Request::Children { path })).await?;
        for ((pending, name), parent) in asked.into_iter().zip(page).zip(&parents) {
            match children(session, pending, parent).await {
                Ok(children) => {
                    let first = layout::line(&children).into_iter().next();
                    firsts.extend(first.map(|first| (name, format!("{parent}/{}", first.node), first)));
                }
                Err(error) => pass_over(error)?,
            }
        }
        let reads = firsts.iter().map(|(_, path, _)| Request::Read { path, watch: false });
        let asked = send_all(session, reads).await?;
        for (pending, (name, path, first)) in asked.into_iter().zip(&firsts) {
            match read(session, pending, path).await {
                Ok(Some((data, stat))) => holders.push(record::holder(name, first, &data, &stat)),
                // Gone meanwhile: whoever is next is worth a look of its own.
                Ok(None) => match self::first(session, name).await {
                    Ok(first) => holders.extend(first.map(|first| first.holder)),
                    Err(error) => pass_over(error)?,
                },
                Err(error) => {
                    pass_over(error)?;
                    // Held by somebody that we may not see.
                    holders.push(Holder::unknown((*name).clone()));
                }
            }
        }
    }
    Ok(Listing { holders, unreadable })
}

/// The holder of one name, and who waits behind it.
pub(super) async fn show(session: &Session, name: &Name) -> Result<Option<Holder>> {
    let Some(First { mut holder, rest, .. }) = first(session, name).await? else { return Ok(None) };
    let parent = layout::parent(&session.config().base, name);
    let paths: Vec<_> = rest.iter().map(|contender| format!("{parent}/{}", contender.node)).collect();
    let reads = paths.iter().map(|path| Request::Read { path, watch: false });
    let asked = send_all(session, reads).await?;
    for ((pending, path), contender) in asked.into_iter().zip(&paths).zip(&rest) {
        let found = read(session, pending, path).await?;
        holder.queue.extend(found.map(|(data, stat)| record::holder(name, contender, &data, &stat)));
    }
    Ok(Some(holder))
}

/// Takes a lock back: marks its node, or deletes it. It is for whoever holds the lock when it first looks, if that is the
/// one that is meant, and for nobody who comes after.
pub(super) async fn force_release(
    session: &Session,
    name: &Name,
    how: &ForceRelease,
) -> Result<Option<Revoked>> {
    let mut victim = None;
    // Its node may change between the look and the request; then look again.
    for _ in 0..8 {
        let Some(First { path, data, stat, holder, .. }) = first(session, name).await? else {
            return Ok(None);
        };
        if !how.means(&holder) || stat.czxid != *victim.get_or_insert(stat.czxid) {
            return Err(Error::changed(name, holder));
        }
        if holder.owner.is_none() && !how.now {
            return Err(Error::unsupported(
                format!("asking the foreign holder of lock `{name}` to let go"),
                "only freeing it at once works (`--now`); make sure that it does not work any more",
            ));
        }
        let marked = record::revoke(&data, &how.reason);
        let request = match how.now {
            true => Request::Delete { path: &path },
            false => Request::Write { path: &path, data: &marked, version: stat.version },
        };
        let answer = session.call(&request, session.patience()).await;
        match answer.map_err(|trouble| unanswered(session, name, &trouble))? {
            Ok(_) => {
                return Ok(Some(Revoked::new(holder, next_token(session, &stat)?, how.now)));
            }
            Err(Code::NoNode | Code::BadVersion) => {}
            Err(code) => return Err(session.refusal(code, &path)),
        }
    }
    Err(session.unavailable(&format!("lock `{name}` changed all the time; try again")))
}

/// Why a force-release has no answer. If it may have been made, to repeat it could hit the next holder.
fn unanswered(session: &Session, name: &Name, trouble: &Trouble) -> Error {
    if !trouble.sent {
        return session.unavailable(&trouble.why);
    }
    let source = format!("{}; look who holds it before you force a release again", trouble.why);
    Error::Uncertain { name: name.clone(), source: source.into() }
}

/// A token that retires the victim's and nobody else's: whoever is next in line may have entered it right behind the
/// victim, and its token is the number of that transaction.
fn next_token(session: &Session, stat: &Stat) -> Result<FencingToken> {
    let next = stat.czxid.checked_add(1).and_then(|next| u64::try_from(next).ok());
    next.and_then(FencingToken::new).ok_or_else(|| {
        session.config().backend(format!("transaction {:#x} is too large for a token", stat.czxid))
    })
}

async fn first(session: &Session, name: &Name) -> Result<Option<First>> {
    let parent = layout::parent(&session.config().base, name);
    let mut line = up_to_date(session, &parent).await?;
    loop {
        let mut contenders = layout::line(&line).into_iter();
        let Some(contender) = contenders.next() else { return Ok(None) };
        let path = format!("{parent}/{}", contender.node);
        let mut asked = send_all(session, [Request::Read { path: &path, watch: false }].into_iter()).await?;
        let Some(pending) = asked.pop() else { return Ok(None) };
        if let Some((data, stat)) = read(session, pending, &path).await? {
            let holder = record::holder(name, &contender, &data, &stat);
            return Ok(Some(First { path, data, stat, holder, rest: contenders.collect() }));
        }
        line = up_to_date(session, &parent).await?;
    }
}

/// The children of a node as the leader knows them now.
async fn up_to_date(session: &Session, path: &str) -> Result<Vec<String>> {
    let requests = [Request::Sync, Request::Children { path }];
    let mut asked = send_all(session, requests.into_iter()).await?;
    match asked.pop() {
        Some(look) => children(session, look, path).await,
        None => Ok(Vec::new()),
    }
}

/// Sends requests together.
async fn send_all<'a>(
    session: &Session,
    requests: impl Iterator<Item = Request<'a>>,
) -> Result<Vec<Pending>> {
    let link = session.link(session.patience()).await.map_err(|trouble| session.unavailable(&trouble.why))?;
    let send = |request| session.send(&link, &request).map_err(|trouble| session.unavailable(&trouble.why));
    requests.map(send).collect()
}

async fn answer(session: &Session, pending: Pending, path: &str) -> Result<Option<Vec<u8>>> {
    let answer = session.answer(pending, session.patience()).await;
    match answer.map_err(|trouble| session.unavailable(&trouble.why))? {
        Ok(body) => Ok(Some(body)),
        Err(Code::NoNode) => Ok(None),
        Err(code) => Err(session.refusal(code, path)),
    }
}

async fn children(session: &Session, pending: Pending, path: &str) -> Result<Vec<String>> {
    match answer(session, pending, path).await? {
        Some(body) => protocol::children(&body).map_err(|what| session.config().backend(what)),
        None => Ok(Vec::new()),
    }
}

async fn read(session: &Session, pending: Pending, path: &str) -> Result<Option<(Vec<u8>, Stat)>> {
    match answer(session, pending, path).await? {
        Some(body) => protocol::read(&body).map(Some).map_err(|what| session.config().backend(what)),
        None => Ok(None),
    }
}
