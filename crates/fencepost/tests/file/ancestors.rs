//! Private directories that other users could move away, or lead us away from.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use fencepost::{Error, Locks};

use crate::harness::{Directory, held};

#[tokio::test]
async fn a_private_directory_that_others_could_move_away_is_refused() {
    let top = Directory::new();
    let parent = top.path().join("project");
    std::fs::create_dir(&parent).unwrap();
    let url = |below: &str| format!("file://{}/{below}", parent.display());
    let mode = |mode: u32| std::fs::set_permissions(&parent, PermissionsExt::from_mode(mode)).unwrap();
    for (open, ok) in [(0o755, true), (0o700, true), (0o777, false), (0o1777, true), (0o702, false)] {
        mode(open);
        let connected = Locks::connect(&url("locks")).await;
        assert_eq!(connected.is_ok(), ok, "{open:o}");
        if let Err(error) = connected {
            let (said, parent) = (error.to_string(), parent.display().to_string());
            assert!(matches!(error, Error::Config { .. }), "{error:?}");
            assert!(said.contains(&format!("`{parent}` can be written by everybody")), "{said}");
            assert!(said.contains("chmod"), "{said}");
            // Nothing is made below it either.
            Locks::connect(&url("new/locks")).await.unwrap_err();
            assert!(!Path::new(&format!("{parent}/new")).exists());
        }
    }
    // A link that others can change is no better than a directory that they can move.
    mode(0o777);
    std::os::unix::fs::symlink(top.path().join("elsewhere"), parent.join("link")).unwrap();
    std::fs::create_dir(top.path().join("elsewhere")).unwrap();
    Locks::connect(&url("link/locks")).await.unwrap_err();
    mode(0o755);
    Locks::connect(&url("link/locks")).await.unwrap();
    if rustix::process::geteuid().is_root() {
        // A group of others, of administrators, and an owner that this system knows and one that it does not.
        top.open_to(0o755);
        let cases = [
            (0o775, 0, 1, false),
            (0o775, 0, 0, true),
            (0o755, 1, 0, false),
            (0o755, 4_000_000, 0, true),
            (0o775, 4_000_000, 0, false),
        ];
        for (open, owner, group, ok) in cases {
            mode(open);
            std::os::unix::fs::chown(&parent, Some(owner), Some(group)).unwrap();
            assert_eq!(Locks::connect(&url("locks")).await.is_ok(), ok, "{owner} {group}");
        }
        std::os::unix::fs::chown(&parent, Some(0), Some(1)).unwrap();
        let said = Locks::connect(&url("locks")).await.unwrap_err().to_string();
        assert!(said.contains(&format!("`chmod g-w {}`", parent.display())), "{said}");
        // Nobody of the group comes through a closed directory.
        top.open_to(0o700);
        Locks::connect(&url("locks")).await.unwrap();
    }
}

/// Who may make something in a sticky directory may make a link there, and lead us elsewhere while we hold.
#[tokio::test]
async fn a_private_directory_behind_a_link_of_another_user_is_refused() {
    use std::os::unix::fs::{chown, lchown, symlink};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let top = Directory::new();
    top.open_to(0o755);
    let (sticky, target) = (top.path().join("sticky"), top.path().join("target"));
    std::fs::create_dir(&sticky).unwrap();
    std::fs::create_dir(&target).unwrap();
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o700)).unwrap();
    chown(&sticky, None, Some(4711)).unwrap();
    std::fs::set_permissions(&sticky, PermissionsExt::from_mode(0o1775)).unwrap();
    let link = sticky.join("link");
    for leads_to in [target.clone(), "../target".into(), target.join("new")] {
        symlink(&leads_to, &link).unwrap();
        lchown(&link, Some(1), Some(1)).unwrap();
        for below in ["", "/locks", "/a/../locks"] {
            let error = Locks::connect(&format!("file://{}{below}", link.display())).await.unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, Error::Config { .. }), "{error:?}");
            assert!(said.contains(&format!("`{}` is a symbolic link of user 1", link.display())), "{said}");
            assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "nothing is made there");
        }
        // Our own, and those of root, lead where their owner wants.
        lchown(&link, Some(0), Some(0)).unwrap();
        let locks = Locks::connect(&format!("file://{}/locks", link.display())).await.unwrap();
        held(&locks, "job").await.release().await.unwrap();
        let real = if leads_to.ends_with("new") { target.join("new/locks") } else { target.join("locks") };
        assert!(real.join("job.lock").exists());
        std::fs::remove_dir_all(target.join("locks")).unwrap_or_default();
        std::fs::remove_file(&link).unwrap();
    }
    // A directory of another user on the way is no better, also below a link of ours.
    std::fs::create_dir(sticky.join("theirs")).unwrap();
    chown(sticky.join("theirs"), Some(1), None).unwrap();
    symlink(sticky.join("theirs"), top.path().join("to-theirs")).unwrap();
    let error =
        Locks::connect(&format!("file://{}/to-theirs/locks", top.path().display())).await.unwrap_err();
    assert!(error.to_string().contains("belongs to user 1;"), "{error}");
    // Links in a circle have an end.
    symlink("circle", top.path().join("circle")).unwrap();
    let error = Locks::connect(&format!("file://{}/circle/locks", top.path().display())).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
}

/// Between the look and the making, or the opening, others may put a link there.
#[test]
fn a_link_that_another_user_makes_in_between_is_not_followed_either() {
    use std::os::unix::fs::{lchown, symlink};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let top = Directory::new();
    let (sticky, target) = (top.path().join("sticky"), top.path().join("target"));
    std::fs::create_dir(&sticky).unwrap();
    std::fs::create_dir(&target).unwrap();
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::set_permissions(&sticky, PermissionsExt::from_mode(0o1777)).unwrap();
    let (name, link, end) = (sticky.join("name"), top.path().join("link"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Relaxed) {
                if symlink(&target, &link).is_ok() {
                    lchown(&link, Some(1), Some(1)).unwrap();
                }
                // Not over a directory, which is the one that we have made.
                if std::fs::rename(&link, &name).is_ok() {
                    let _ = std::fs::remove_file(&name);
                }
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for _ in 0..500 {
            let _ = runtime.block_on(Locks::connect(&format!("file://{}", name.display())));
            let _ = runtime.block_on(Locks::connect(&format!("file://{}/locks", name.display())));
            let _ = std::fs::remove_dir_all(&name);
        }
        end.store(true, Relaxed);
    });
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "nothing is made there");
}

#[tokio::test]
async fn a_private_directory_whose_parent_a_list_opens_to_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let top = Directory::new();
    top.open_to(0o755);
    let parent = top.path().join("project");
    std::fs::create_dir(&parent).unwrap();
    std::fs::set_permissions(&parent, PermissionsExt::from_mode(0o750)).unwrap();
    // Of the owner, user 1, the group, the most of the last two, and of others.
    let entries =
        [(1_u16, 7_u16, u32::MAX), (2, 7, 1), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, user) in entries {
        list.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes(), &user.to_le_bytes()].concat());
    }
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(&parent, "system.posix_acl_access", &list, flags) {
        // Not every file system has such lists.
        Err(rustix::io::Errno::OPNOTSUPP) => return,
        set => set.unwrap(),
    }
    let url = format!("file://{}/locks", parent.display());
    let error = Locks::connect(&url).await.unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(said.contains(&format!("`{}` can be written by users", parent.display())), "{said}");
    assert!(said.contains(&format!("`chmod g-w {}`", parent.display())), "{said}");
    assert!(!parent.join("locks").exists());
    // What the message says mends it.
    assert!(Command::new("chmod").arg("g-w").arg(&parent).status().unwrap().success());
    Locks::connect(&url).await.unwrap();
}
