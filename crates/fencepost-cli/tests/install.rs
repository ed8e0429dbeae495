//! What is installed beside the command, by `make install` and as a Debian package, and what `--version` says
//! of where it is from.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::{Store, assert_fails, code, text};
use fencepost_testkit::Folder;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const FENCEPOST: &str = env!("CARGO_BIN_EXE_fencepost");

/// A program that must succeed; returns its stdout.
#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    text(&output.stdout)
}

fn script(name: &str, words: &[&str]) -> Command {
    let mut script = Command::new("sh");
    script.arg(format!("{ROOT}/scripts/{name}")).args(words);
    script
}

fn install(folder: &Folder, what: &str) -> Command {
    let mut install = script("install", &[what]);
    install.env("DESTDIR", folder.path()).env("PREFIX", "/opt/fencepost");
    install
}

/// The files below a folder, by their paths in it.
fn files(folder: &Path) -> BTreeSet<String> {
    let found = succeed(Command::new("find").arg(folder).args(["-type", "f", "-printf", "%P\n"]));
    found.lines().map(str::to_owned).collect()
}

#[test]
fn uninstall_removes_what_install_put_and_nothing_else() {
    let folder = Folder::new("install");
    let man = folder.path().join("opt/fencepost/share/man/man1");
    std::fs::create_dir_all(&man).unwrap();
    std::fs::write(man.join("fencepost-of-others.1"), "theirs").unwrap();
    let before = files(folder.path());

    succeed(&mut install(&folder, FENCEPOST));
    let installed = files(folder.path());
    for file in [
        "bin/fencepost",
        "share/man/man1/fencepost.1",
        "share/man/man1/fencepost-run.1",
        "share/bash-completion/completions/fencepost",
        "share/zsh/site-functions/_fencepost",
        "share/fish/vendor_completions.d/fencepost.fish",
    ] {
        assert!(installed.contains(&format!("opt/fencepost/{file}")), "no {file} in {installed:?}");
    }
    assert!(installed.iter().all(|file| file.starts_with("opt/fencepost/")), "{installed:?}");

    succeed(&mut install(&folder, "--remove"));
    assert_eq!(files(folder.path()), before);
    assert_fails(
        &install(&folder, "--remove").output().unwrap(),
        1,
        &["no ", "/opt/fencepost/bin/fencepost"],
    );
}

#[test]
fn the_debian_package_has_all_of_it_and_its_command_runs() {
    let folder = Folder::new("package");
    let made = folder.path().join("made").display().to_string();
    // To compress a build for tests would take longer than all else.
    succeed(script("deb", &[FENCEPOST, &made]).env("DPKG_DEB_COMPRESSOR_LEVEL", "0"));
    let architecture = succeed(Command::new("dpkg").arg("--print-architecture"));
    let version = env!("CARGO_PKG_VERSION");
    let package = format!("{made}/fencepost_{version}_{}.deb", architecture.trim());
    let dpkg = |what: &str| succeed(Command::new("dpkg-deb").args([what, &package]));

    let (info, contents) = (dpkg("--info"), dpkg("--contents"));
    for field in [format!("Version: {version}\n"), format!("Architecture: {architecture}")] {
        assert!(info.contains(&field), "{info}");
    }
    assert!(contents.lines().all(|line| line.contains(" root/root ")), "{contents}");

    let (name, library) = (|one: &str| one.split(' ').next().unwrap().to_owned(), "shlibs:Depends=");
    if Path::new("/usr/bin/dpkg-shlibdeps").exists() {
        std::fs::create_dir(folder.path().join("debian")).unwrap();
        std::fs::write(folder.path().join("debian/control"), "Source: fencepost\n").unwrap();
        let mut shlibdeps = Command::new("dpkg-shlibdeps");
        let found = succeed(shlibdeps.args(["-O", FENCEPOST]).current_dir(folder.path()));
        let needed = found.trim().strip_prefix(library).unwrap().split(", ");
        let depends = info.lines().find_map(|line| line.strip_prefix(" Depends: ")).unwrap();
        let depends: BTreeSet<_> = depends.split(", ").map(name).collect();
        assert_eq!(depends, needed.map(name).collect(), "{info}");
    }

    let extracted = folder.path().join("extracted");
    succeed(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&extracted));
    let found = files(&extracted);
    for file in [
        "share/man/man1/fencepost.1.gz",
        "share/man/man1/fencepost-run.1.gz",
        "share/bash-completion/completions/fencepost",
        "share/zsh/vendor-completions/_fencepost",
        "share/fish/vendor_completions.d/fencepost.fish",
        "share/doc/fencepost/copyright",
        "share/doc/fencepost/changelog.gz",
        "share/doc/fencepost/examples/systemd/nightly-report.service",
    ] {
        assert!(found.contains(&format!("usr/{file}")), "no {file} in {found:?}");
    }
    let mut run = Command::new(extracted.join("usr/bin/fencepost"));
    run.args(["run", "packaged", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
    let token = succeed(run.env("FENCEPOST_STORE", format!("file://{}/locks", folder.path().display())));
    assert!(token.trim().parse::<u64>().unwrap() > 0);
    if Path::new("/usr/bin/lintian").exists() {
        let mut lintian = Command::new("lintian");
        // It leaves files behind.
        lintian.env("TMPDIR", folder.path());
        succeed(lintian.args(["--fail-on", "error", "--allow-root", &package]));
    }
}

/// The units, where systemd would find them, with the command that is tested.
fn units(folder: &Folder) -> [String; 2] {
    ["nightly-report.service", "nightly-report.timer"].map(|name| {
        let unit = std::fs::read_to_string(format!("{ROOT}/examples/systemd/{name}")).unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, unit.replace("ExecStart=fencepost ", &format!("ExecStart={FENCEPOST} ")))
            .unwrap();
        path.display().to_string()
    })
}

#[test]
fn systemd_finds_no_fault_in_the_units() {
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        return;
    }
    let folder = Folder::new("units");
    let mut verify = Command::new("systemd-analyze");
    let output = verify.args(["verify", "--man=no"]).args(units(&folder)).output().unwrap();
    // What it warns of does not change its exit code. It may warn of units of this machine, too.
    let stderr = text(&output.stderr);
    assert!(output.status.success() && !stderr.contains("nightly-report"), "{stderr}");
}

#[test]
fn the_service_makes_the_report_and_a_busy_lock_is_no_failure() {
    let store = Store::redis();
    let folder = Folder::new("service");
    let unit = std::fs::read_to_string(&units(&folder)[0]).unwrap();
    // As systemd reads it, so does a shell.
    let command = unit.split_once("\nExecStart=").unwrap().1.replace("\\\n", " ");
    let command = command.lines().next().unwrap();
    std::fs::write(store.path("store"), format!("{}\n", store.url)).unwrap();
    std::fs::write(store.path("orders"), "anvil,30\n").unwrap();
    std::fs::create_dir(store.path("reports")).unwrap();
    let service = || {
        let mut service = Command::new("sh");
        service.args(["-c", command]).env("CREDENTIALS_DIRECTORY", store.path("."));
        service.env("PATH", format!("{ROOT}/examples/cron:/usr/bin:/bin"));
        service.env("ORDERS", store.path("orders")).env("REPORTS", store.path("reports"));
        service.output().unwrap()
    };
    assert_eq!(code(&service()), 0, "{:?}", service());
    assert_eq!(files(&store.path("reports")).len(), 1);

    let _other_host = store.hold("nightly-report", &[]);
    let busy = service();
    assert!(unit.contains(&format!("\nSuccessExitStatus={}\n", code(&busy))), "{busy:?}");
}

#[test]
fn the_version_names_the_commit_and_the_features() {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        output.status.success().then(|| text(&output.stdout).trim().to_owned())
    };
    let commit = git(&["log", "-1", "--no-show-signature", "--abbrev=9", "--format=%h %cs"])
        .filter(|_| git(&["rev-parse", "--show-prefix"]).as_deref() == Some("crates/fencepost-cli/"));
    let commit = commit.map(|commit| format!("{commit}; ")).unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "fencepost {version} ({commit}file, redis, redis-cluster, redis-sentinel, redlock, postgres, etcd, \
         zookeeper, tls, torture)\n"
    );
    let store = Store::file();
    assert_eq!(store.succeed(&["--version"]), expected);
    assert_eq!(store.succeed(&["-V"]), format!("fencepost {version}\n"));
}
