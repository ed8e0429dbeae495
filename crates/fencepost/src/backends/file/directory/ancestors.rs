//! The directories that lead to a private lock directory. A user that may rename one of them, or that owns a
//! link on the way, can put a second directory in its place, and so let a second holder in.

use std::ffi::{CStr, OsString};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, lgetxattr, mkdirat, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::Unfit;
use crate::Error;

const STICKY: u32 = 0o1000;
/// How many links one path may lead through, as in the kernel.
const MAX_LINKS: usize = 40;
/// Where Linux keeps the access control list of a directory.
const ACL: &CStr = c"system.posix_acl_access";
/// A directory that is only walked through. It need not be readable.
const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How far a walk has come.
pub(super) struct Walk {
    pub(super) directory: OwnedFd,
    /// Without links.
    pub(super) path: PathBuf,
    /// A directory above lets nobody but its owner through.
    pub(super) closed: bool,
}

/// Opens a directory by a way that no other user can change. What is missing is made, for us alone.
///
/// Each step starts at a directory that is open and was found fit. So nothing can be exchanged between the
/// look and the step, and what others make in between is looked at like everything else.
pub(super) fn walk(path: &Path) -> Result<Walk, Unfit> {
    let refused = |part: &Path, Objection { what, remedy }: Objection| {
        Unfit::Refused(Error::config(format!(
            "lock directory `{}` can be moved away by other users, who could then let a second holder in: \
             `{}` {what}; {remedy}, or use another directory (`file:///path`; below `/tmp` will do)",
            path.display(),
            part.display()
        )))
    };
    let (mut ahead, mut links) = (steps(&std::path::absolute(path)?), 0);
    let mut walk = Walk::from_root()?;
    while let Some(name) = ahead.pop() {
        if name == "/" {
            walk = Walk::from_root()?;
            continue;
        }
        if name == ".." {
            // Walked anew. What is known of a directory depends on those above it.
            ahead.extend(steps(walk.path.parent().unwrap_or(&walk.path)));
            continue;
        }
        let stat = fstat(&walk.directory)?;
        if let Some(objection) = objection(&stat, &walk)? {
            return Err(refused(&walk.path, objection));
        }
        walk.closed |= stat.st_mode & 0o011 == 0;
        match open_or_make(&walk.directory, &name) {
            Ok(next) => {
                walk.directory = next;
                walk.path.push(&name);
            }
            Err(Errno::NOTDIR | Errno::LOOP) if links < MAX_LINKS => {
                links += 1;
                let (owner, target) = read_link(&walk.directory, &name)?;
                if ![0, us(), stat.st_uid].contains(&owner) {
                    let what = format!("is a symbolic link of user {owner}");
                    let remedy = "remove it".to_owned();
                    return Err(refused(&walk.path.join(&name), Objection { what, remedy }));
                }
                ahead.extend(steps(&target));
            }
            Err(error) => return Err(error.into()),
        }
    }
    // To read from and to lock, which a step is not for.
    walk.directory = openat(&walk.directory, c".", super::DIRECTORY, Mode::empty())?;
    Ok(walk)
}

impl Walk {
    fn from_root() -> Result<Self, Errno> {
        let directory = openat(CWD, c"/", STEP, Mode::empty())?;
        Ok(Self { directory, path: PathBuf::from("/"), closed: false })
    }
}

/// The steps of a path, the first one last.
fn steps(path: &Path) -> Vec<OsString> {
    path.iter().rev().filter(|step| *step != ".").map(OsString::from).collect()
}

fn open_or_make(parent: &OwnedFd, name: &OsString) -> Result<OwnedFd, Errno> {
    match openat(parent, name, STEP, Mode::empty()) {
        Err(Errno::NOENT) => match mkdirat(parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => openat(parent, name, STEP, Mode::empty()),
            Err(error) => Err(error),
        },
        found => found,
    }
}

/// The owner of a symbolic link and where it leads.
fn read_link(parent: &OwnedFd, name: &OsString) -> Result<(u32, PathBuf), Errno> {
    let link = openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&link)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return Err(Errno::NOTDIR);
    }
    let target = readlinkat(&link, c"", Vec::new())?;
    Ok((stat.st_uid, OsString::from_vec(target.into_bytes()).into()))
}

/// What speaks against a directory on the way, and what would mend it.
struct Objection {
    what: String,
    remedy: String,
}

fn objection(stat: &Stat, walk: &Walk) -> Result<Option<Objection>, Errno> {
    let (mode, owner, path) = (stat.st_mode, stat.st_uid, walk.path.display());
    let object = |what: String, remedy: String| Ok(Some(Objection { what, remedy }));
    if !is_trusted(owner) {
        return object(format!("belongs to user {owner}"), "change its owner".to_owned());
    }
    // With the sticky bit users move only what is theirs. The owner of the next step is looked at there.
    if mode & STICKY != 0 {
        return Ok(None);
    }
    let remedy = |who| format!("close it with `chmod {who}-w {path}`, or set its sticky bit");
    if mode & 0o002 != 0 {
        return object("can be written by everybody".to_owned(), remedy("o"));
    }
    // Many systems let groups write by default. No member comes here through a closed directory.
    if mode & 0o020 == 0 || walk.closed {
        return Ok(None);
    }
    // With a list, the bits of the group are the most that anybody on the list has.
    if has_acl(&walk.path)? {
        return object("can be written by users of its access control list".to_owned(), remedy("g"));
    }
    if !is_private_group(stat.st_gid, owner) {
        let what = format!("can be written by group {}, which may have other members", stat.st_gid);
        return object(what, remedy("g"));
    }
    Ok(None)
}

/// Whether a list names more users and groups than the permissions do. The way there is fit, so the path
/// leads to this directory.
fn has_acl(path: &Path) -> Result<bool, Errno> {
    match lgetxattr(path, ACL, &mut [0_u8; 0][..]) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

fn us() -> u32 {
    geteuid().as_raw()
}

/// Whether nobody but us and root acts as this user. Also true of users that this system does not know: they
/// own what comes from outside of a container.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == us() || is_unmapped(user) || is_unknown(user)
}

/// Whether this is the kernel's stand-in for users outside of our user namespace.
fn is_unmapped(user: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let stand_in = read("/proc/sys/kernel/overflowuid");
    let map = read("/proc/self/uid_map");
    let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    !map.is_empty() && !whole && stand_in.trim().parse() == Ok(user)
}

/// Whether a group is known to be its owner's alone. Many systems give each user such a group, and let it
/// write.
fn is_private_group(group: u32, owner: u32) -> bool {
    let read = |path| match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Some(String::new()),
        text => text.ok(),
    };
    let files = (read("/etc/nsswitch.conf"), read("/etc/passwd"), read("/etc/group"));
    let (Some(sources), Some(users), Some(groups)) = files else { return false };
    // Other sources do not list all that they know.
    all_are_listed(&sources) && has_no_strangers(group, &[owner, 0, us()], &users, &groups)
}

/// Whether the files of users and groups name all of them.
fn all_are_listed(sources: &str) -> bool {
    let lines = sources.lines().filter_map(|line| line.split('#').next()?.split_once(':'));
    let ours = lines.filter(|(what, _)| ["passwd", "group", "initgroups"].contains(&what.trim()));
    let mut names = ours.flat_map(|(_, names)| names.split_whitespace());
    // In brackets is what to do after an answer.
    names.all(|name| ["files", "systemd"].contains(&name) || name.contains(['[', '=', ']']))
}

/// Whether a group is the first known user's own, and only known users are in it. The list of groups leaves
/// out users whose first group it is, so the list of users counts as well.
fn has_no_strangers(group: u32, known: &[u32], users: &str, groups: &str) -> bool {
    let table = |text: &'_ str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
    };
    let number = |line: &[String], at: usize| line.get(at).and_then(|field| field.parse::<u32>().ok());
    let (users, groups) = (table(users), table(groups));
    let is_known = |line: &[String]| number(line, 2).is_some_and(|user| known.contains(&user));
    let by_user = || users.iter().filter(|line| number(line, 3) == Some(group));
    let by_group = || groups.iter().filter(|line| number(line, 2) == Some(group));
    let members = by_group().filter_map(|line| line.get(3)).flat_map(|names| names.split(','));
    let mut members = members.filter(|name| !name.is_empty());
    let own = by_user().any(|user| {
        number(user, 2) == known.first().copied() && by_group().any(|group| group.first() == user.first())
    });
    own && by_user().all(|user| is_known(user))
        && members.all(|name| users.iter().any(|user| user[0] == name && is_known(user)))
}

/// Whether the system's lists of users, files or others, do not have this one.
fn is_unknown(user: u32) -> bool {
    let mut buffer = vec![0; 1024];
    loop {
        // SAFETY: all zeros is a valid value of this plain struct of numbers and pointers.
        #[allow(unsafe_code)]
        let mut entry = unsafe { std::mem::zeroed::<libc::passwd>() };
        let (mut found, start, len) = (std::ptr::null_mut(), buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the buffer is as long as it says and outlives what the entry points to.
        #[allow(unsafe_code)]
        match unsafe { libc::getpwuid_r(user, &mut entry, start, len, &mut found) } {
            // Larger, until the entry fits.
            libc::ERANGE if len < 1 << 20 => buffer.resize(len * 2, 0),
            // Without any list nobody is known.
            0 | libc::ENOENT | libc::ESRCH => return found.is_null(),
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n";
    const GROUPS: &str = "root:x:0:\nann:x:1000:\nbob:x:1001:ann\nstaff:x:50:\n";

    #[test]
    fn a_group_is_private_only_if_both_lists_have_nobody_else_in_it() {
        let private = |group, known: &[u32], users: &str| has_no_strangers(group, known, users, GROUPS);
        assert!(private(1000, &[1000, 0], USERS));
        assert!(private(0, &[0, 1000], USERS));
        // A member by the list of groups, unless that is us.
        assert!(!private(1001, &[1001, 0], USERS));
        assert!(private(1001, &[1001, 0, 1000], USERS));
        // Somebody whose first group it is, whom the list of groups does not have.
        let third = format!("{USERS}eve:x:1002:1000::/:/bin/sh\n");
        assert!(!private(1000, &[1000, 0], &third));
        assert!(private(1000, &[1000, 0, 1002], &third));
        // Nobody's own, and unknown ones.
        assert!(!private(50, &[0], USERS));
        assert!(!private(4711, &[4711], USERS));
        assert!(!private(0, &[0], ""));
    }

    #[test]
    fn groups_are_known_only_where_the_files_name_everybody() {
        assert!(all_are_listed(""));
        assert!(all_are_listed(
            "passwd: files systemd # sss\ngroup:\tfiles [SUCCESS=merge] systemd\nhosts: files dns"
        ));
        assert!(!all_are_listed("passwd: files sss\ngroup: files"));
        assert!(!all_are_listed("passwd: files\ngroup: files [!UNAVAIL=return UNAVAIL=continue] ldap"));
        assert!(!all_are_listed("passwd: files\ninitgroups: winbind"));
    }
}
