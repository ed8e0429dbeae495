//! One attempt to acquire: a place in the line of a name, from before its first byte is sent until it is a hold. Dropped
//! before that, it is taken out of the line in the background, found by its owner if its path never came.

use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;
use super::hold::Held;
use super::layout::{self, Contender};
use super::life::{Answer, Trouble};
use super::protocol::{self, Code, Mode, Permission, Request as Wire, Stat};
use super::record;
use super::session::Session;
use super::sessions::Sessions;
use crate::backend::{Grant, Request, TryOutcome};
use crate::text::printable;
use crate::{Error, Holder, Name, Owner, Result};

/// How often a folder may vanish while we enter it.
const TRIES: usize = 10;

/// The longest pause before one more look for a node that a broken connection may still deliver.
const LATE: Duration = Duration::from_secs(60);

/// What allows to delete children of a node: the permission to, or that to change permissions.
const DELETE: i32 = 8 | 16;

/// How long a caller that waits for a lock waits for its session to be opened: this process may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes the lock if it is free.
pub(super) async fn try_acquire(sessions: &Sessions, request: &Request) -> Result<TryOutcome> {
    let session = sessions.of(request.ttl, sessions.config.timeout).await?;
    contend(&session, request, false).await
}

/// Stands in line until the lock is free.
pub(super) async fn acquire(sessions: &Sessions, request: &Request) -> Result<Grant> {
    let session = sessions.of(request.ttl, PATIENCE.max(sessions.config.timeout)).await?;
    let error = match contend(&session, request, true).await {
        Ok(TryOutcome::Granted(grant)) => return Ok(grant),
        Ok(TryOutcome::Busy(_)) => session.unavailable("the wait ended without the lock"),
        Err(error) => error,
    };
    // Servers have granted a session: if it or its connection was lost, the caller waits on.
    if let Error::Unavailable { source, .. } | Error::Uncertain { source, .. } = &error {
        request.seen.obstacle(Some(source.to_string().into()));
    }
    Err(error)
}

/// Takes the lock if it is free; with `wait`, stands in line until it is.
async fn contend(session: &Arc<Session>, request: &Request, wait: bool) -> Result<TryOutcome> {
    let (mut place, mut children) = Place::enter(session, request).await?;
    request.seen.answered();
    let mut waited = false;
    loop {
        let line = layout::line(&children);
        if layout::is_used_up(&line) {
            return Err(place.used_up());
        }
        let Some(at) = line.iter().position(|contender| contender.owner() == Some(request.owner())) else {
            place.armed = false;
            return Err(session.unavailable("our place in the line was taken away"));
        };
        if at == 0 {
            // A connection that was silent for too long is replaced first: the lock counts from the greeting of the next.
            loop {
                match session.link(session.patience()).await {
                    Ok(_) => return place.granted(request, waited).map(TryOutcome::Granted),
                    Err(trouble) if !wait || session.has_ended() => {
                        return Err(session.unavailable(&trouble.why));
                    }
                    Err(_) => {}
                }
            }
        }
        let changed = wait.then(|| session.watches().wait(&place.path_of(&line[at - 1])));
        let holder = place.look(&line[0], wait.then_some(&line[at - 1])).await?;
        match (holder, changed) {
            (Some(holder), None) => return Ok(TryOutcome::Busy(Some(holder))),
            (Some(holder), Some(changed)) => {
                request.seen.note(holder);
                waited = true;
                tokio::select! {
                    _ = changed => {}
                    end = session.ended() => return Err(session.unavailable(end.text())),
                }
            }
            // Somebody left in between.
            (None, _) => {}
        }
        children = place.children().await?;
    }
}

/// A place in the line of a name.
struct Place {
    session: Arc<Session>,
    name: Name,
    owner: Owner,
    parent: String,
    /// Our node, once the server has said so.
    node: Option<(String, Stat)>,
    /// The connection that the request for it went over.
    link: Option<Arc<Connection>>,
    /// There may be a node.
    armed: bool,
}

impl Place {
    /// Stands in line, and looks at it.
    async fn enter(session: &Arc<Session>, request: &Request) -> Result<(Self, Vec<String>)> {
        let (name, owner) = (request.name.clone(), request.owner());
        let parent = layout::parent(&session.config().base, &name);
        let stem = layout::stem(&parent, owner);
        let data = record::data(session.timeout(), &request.note);
        let private = session.config().login.is_some();
        let create = Wire::Create { path: &stem, data: &data, mode: Mode::EphemeralSequential, private };
        let (session, node) = (session.clone(), None);
        let mut place = Self { session, name, owner, parent: parent.clone(), node, link: None, armed: false };
        for _ in 0..TRIES {
            if let Some(children) = place.stand(&create).await? {
                return Ok((place, children));
            }
            make_folders(&place.session, &parent, private).await?;
        }
        Err(place.session.unavailable("the folder of the lock vanished again and again; try again"))
    }

    /// Creates our node and looks at the line; `None` if there is no folder. Both requests are sent together, and the
    /// server handles them in this order.
    async fn stand(&mut self, create: &Wire<'_>) -> Result<Option<Vec<String>>> {
        let session = self.session.clone();
        let deadline = session.clock().now().plus(session.config().timeout.min(session.timeout()));
        let link = session.link(deadline).await.map_err(|trouble| self.lost(&trouble))?;
        let created = session.send(&link, create).map_err(|trouble| self.lost(&trouble))?;
        self.link = Some(link.clone());
        self.armed = true;
        let folder = session.config().checks_folders().then(|| Wire::Acl { path: &self.parent });
        let folder = folder.map(|request| session.send(&link, &request));
        let looked = session.send(&link, &Wire::Children { path: &self.parent });
        let body = match session.answer(created, deadline).await.map_err(|trouble| self.lost(&trouble))? {
            Ok(body) => body,
            Err(code) => {
                self.armed = false;
                return if code == Code::NoNode {
                    Ok(None)
                } else {
                    Err(session.refusal(code, &self.parent))
                };
            }
        };
        self.node = Some(protocol::created(&body).map_err(|what| session.config().backend(what))?);
        if let Some(asked) = folder {
            let asked = match asked {
                Ok(pending) => session.answer(pending, deadline).await,
                Err(trouble) => Err(trouble),
            };
            self.check_folder(asked).await?;
        }
        if let Ok(looked) = looked
            && let Ok(answer) = session.answer(looked, deadline).await
        {
            return self.read_children(answer).map(Some);
        }
        // The connection ended in between; our place in the line has not.
        self.children().await.map(Some)
    }

    /// Refuses a folder out of which others than us may delete our node: a login promises that nobody does. Checked when our
    /// node is in it, so that nobody can put another folder in its place.
    async fn check_folder(&self, asked: Result<Answer, Trouble>) -> Result<()> {
        let folder = match asked {
            Ok(answer) => self.read_acl(answer, &self.parent)?,
            Err(_) => self.acl(&self.parent).await?,
        };
        let Some((node, _)) = &self.node else { return Ok(()) };
        // Our own nodes are for our login alone; that is how its name and hash are known.
        let ours = match self.session.identities() {
            Some(ours) => ours,
            None => self.session.note_identities(self.acl(node).await?),
        };
        let is_ours = |one: &Permission| {
            // Who may not change a node's permissions is not told the hashes in them.
            let masked = |id: &str| id.split_once(':').map(|(user, _)| format!("{user}:x"));
            let same = |our: &Permission| our.id == one.id || masked(&our.id).as_ref() == Some(&one.id);
            ours.iter().any(|our| our.scheme == one.scheme && same(our))
        };
        match folder.iter().find(|one| one.rights & DELETE != 0 && !is_ours(one)) {
            Some(other) => Err(self.exposed(other)),
            None => Ok(()),
        }
    }

    async fn acl(&self, path: &str) -> Result<Vec<Permission>> {
        self.read_acl(self.session.insist(&Wire::Acl { path }).await?, path)
    }

    fn read_acl(&self, answer: Answer, path: &str) -> Result<Vec<Permission>> {
        match answer {
            Ok(body) => protocol::acl(&body).map_err(|what| self.session.config().backend(what)),
            Err(Code::NoNode) => Err(self.session.unavailable("our place in the line was taken away")),
            Err(code) => Err(self.session.refusal(code, path)),
        }
    }

    fn exposed(&self, other: &Permission) -> Error {
        // Of a login only the name: its hash is none of a message's business.
        let who = match other.id.split_once(':') {
            Some((user, _)) if other.scheme == "digest" => format!("digest:{user}"),
            _ => format!("{}:{}", other.scheme, other.id),
        };
        Error::config(format!(
            "the login does not protect lock `{}`: {} lets `{}` delete what is in the node `{}`; make it yours (in zkCli.sh \
             `addauth digest user:password` and `setAcl {} auth::cdrwa`), use another `prefix`, or accept it with the \
             parameter `acl=open`",
            printable(self.name.as_str()),
            self.session.config().label,
            printable(&who),
            printable(&self.parent),
            printable(&self.parent),
        ))
    }

    /// Why the place could not be taken. A connection that had ended without our knowing is worth another attempt, under
    /// a new identity.
    fn lost(&self, trouble: &Trouble) -> Error {
        match &self.link {
            Some(link) if trouble.sent && link.has_ended() && !self.session.has_ended() => {
                Error::Uncertain { name: self.name.clone(), source: trouble.why.to_string().into() }
            }
            _ => self.session.unavailable(&trouble.why),
        }
    }

    /// Why nobody can stand in this line.
    fn used_up(&self) -> Error {
        Error::config(format!(
            "the node `{}` of {} has had nearly 2^31 children, which is as far as ZooKeeper counts; let all who use lock `{}` \
             release it, delete the node, and acquire the lock again",
            self.parent,
            self.session.config().label,
            self.name
        ))
    }

    fn path_of(&self, contender: &Contender) -> String {
        format!("{}/{}", self.parent, contender.node)
    }

    async fn children(&self) -> Result<Vec<String>> {
        let answer = self.session.insist(&Wire::Children { path: &self.parent }).await?;
        self.read_children(answer)
    }

    fn read_children(&self, answer: Answer) -> Result<Vec<String>> {
        match answer {
            Ok(body) => protocol::children(&body).map_err(|what| self.session.config().backend(what)),
            // Somebody removed our node and the folder.
            Err(Code::NoNode) => Ok(Vec::new()),
            Err(code) => Err(self.session.refusal(code, &self.parent)),
        }
    }

    /// Who holds the lock; `None` if the line has changed meanwhile. Sets a watch on the one in front of us, if it is to.
    async fn look(&self, first: &Contender, watched: Option<&Contender>) -> Result<Option<Holder>> {
        if let Some(watched) = watched.filter(|watched| *watched != first)
            && self.read(watched, true).await?.is_none()
        {
            return Ok(None);
        }
        let found = self.read(first, watched == Some(first)).await?;
        Ok(found.map(|(data, stat)| record::holder(&self.name, first, &data, &stat)))
    }

    async fn read(&self, contender: &Contender, watch: bool) -> Result<Option<(Vec<u8>, Stat)>> {
        let path = self.path_of(contender);
        match self.session.insist(&Wire::Read { path: &path, watch }).await? {
            Ok(body) => protocol::read(&body).map(Some).map_err(|what| self.session.config().backend(what)),
            Err(Code::NoNode) => {
                self.session.watches().forget(&path);
                Ok(None)
            }
            Err(code) => Err(self.session.refusal(code, &path)),
        }
    }

    /// We are the first: hands the node over to a hold.
    fn granted(mut self, request: &Request, waited: bool) -> Result<Grant> {
        let Some((path, stat)) = self.node.clone() else {
            return Err(self.session.unavailable("this attempt has ended"));
        };
        let wrong = |what: String| self.session.config().backend(what);
        if !self.session.owns(stat.ephemeral_owner) {
            return Err(wrong(format!("node `{path}` is of another session")));
        }
        let token = record::token(&stat)
            .ok_or_else(|| wrong(format!("transaction {:#x} is too large for a token", stat.czxid)))?;
        self.armed = false;
        let sent = self.session.confirmed();
        let hold = Held::new(self.session.clone(), path, request.signal.clone(), sent);
        let term = Some(self.session.timeout());
        Ok(Grant { identity: request.identity, token, sent, term, pushed: waited, hold: Arc::new(hold) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.armed {
            let (session, parent, owner) = (self.session.clone(), self.parent.clone(), self.owner);
            let (node, link) = (self.node.take().map(|(path, _)| path), self.link.take());
            // At once, so that a next attempt of this client finds the line without it.
            let removed = node.as_ref().and_then(|path| session.send_now(&Wire::Delete { path }));
            self.session.run_errand(async move {
                match (node, removed) {
                    (Some(path), Some(removed)) => {
                        if session.answer(removed, session.patience()).await.is_err() {
                            remove(&session, &path).await;
                        }
                    }
                    (Some(path), None) => remove(&session, &path).await,
                    (None, _) => remove_lost(&session, &parent, owner, link).await,
                }
            });
        }
    }
}

/// Makes the folder of a name and those above it. The server collects them when they have been empty for a while.
async fn make_folders(session: &Session, parent: &str, private: bool) -> Result<()> {
    let deadline = session.patience();
    let link = session.link(deadline).await.map_err(|trouble| session.unavailable(&trouble.why))?;
    let mut last = None;
    for (end, _) in parent.match_indices('/').skip(1).chain([(parent.len(), "")]) {
        let folder = Wire::Create { path: &parent[..end], data: b"", mode: Mode::Container, private };
        last = Some(session.send(&link, &folder).map_err(|trouble| session.unavailable(&trouble.why))?);
    }
    let Some(last) = last else { return Ok(()) };
    let answer = session.answer(last, deadline).await.map_err(|trouble| session.unavailable(&trouble.why))?;
    match answer {
        // Those above are somebody else's to refuse. If one of them went away again, the caller comes back.
        Ok(_) | Err(Code::NodeExists | Code::NoNode) => Ok(()),
        Err(code) => Err(session.refusal(code, parent)),
    }
}

/// Removes a node of ours, however often it takes while the session lasts.
pub(super) async fn remove(session: &Session, path: &str) {
    let mut pause = Duration::from_millis(20);
    while !session.has_ended() {
        match session.call(&Wire::Delete { path }, session.patience()).await {
            Ok(Ok(_) | Err(Code::NoNode)) => return,
            Ok(Err(code)) => {
                let error = session.refusal(code, path);
                tracing::warn!(%error, "a node could not be removed; it ends with its session");
                return;
            }
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// Removes a node whose path never came, if there is one.
async fn remove_lost(session: &Session, parent: &str, owner: Owner, link: Option<Arc<Connection>>) {
    let mut pause = Duration::from_millis(50);
    while !session.has_ended() && pause < LATE {
        if let Some((children, over)) = look_again(session, parent).await {
            if let Some(ours) = layout::line(&children).iter().find(|one| one.owner() == Some(owner)) {
                return remove(session, &format!("{parent}/{}", ours.node)).await;
            }
            // Behind the request on its own connection: it came to nothing. On another one it may still arrive.
            if link.as_ref().is_some_and(|link| Arc::ptr_eq(link, &over)) {
                return;
            }
        }
        tokio::time::sleep(pause).await;
        pause *= 3;
    }
}

/// The children of a node as the leader knows them now, and the connection that they came over.
async fn look_again(session: &Session, parent: &str) -> Option<(Vec<String>, Arc<Connection>)> {
    let deadline = session.patience();
    let link = session.link(deadline).await.ok()?;
    session.send(&link, &Wire::Sync).ok()?;
    let look = session.send(&link, &Wire::Children { path: parent }).ok()?;
    let children = match session.answer(look, deadline).await.ok()? {
        Ok(body) => protocol::children(&body).ok()?,
        Err(_) => Vec::new(),
    };
    Some((children, link))
}
