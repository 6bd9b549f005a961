//! File system of the node: the programs of this machine, and private folders for everything that a machine writes.
//!
//! A new root in a mount namespace of its own. The top-level folders of the host are bound into it, except
//! /run, /tmp (in memory, empty at each start, as after a boot) and /var (in the data folder, kept). So
//! containerd, kubelet and CNI plugins use their usual paths and never meet the host's. Everything disappears
//! with the namespace.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use anyhow::Context;
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    unistd::{chdir, pivot_root},
};

/// Top-level folders that the node does not share with the host.
const PRIVATE: [&str; 4] = ["proc", "run", "tmp", "var"];
/// Kernel settings that a kubelet checks and would otherwise change for the whole machine. Files with these
/// values are mounted over those in /proc/sys; the kernel's own settings stay unchanged.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Makes the root below `dir` and enters it. `needed` are folders of the host that must exist under their own
/// paths. The mount namespace must be this process's own and must not propagate mounts.
pub(super) fn enter(dir: &Path, needed: &[&Path]) -> anyhow::Result<()> {
    let root = dir.join("root");
    create(&root)?;
    let none = None::<&str>;
    mount(Some("node"), &root, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
        .with_context(|| not_mounted(&root))?;
    bind_top_of_host(&root)?;
    let proc = root.join("proc");
    create(&proc)?;
    let restricted = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), &proc, Some("proc"), restricted, none).with_context(|| not_mounted(&proc))?;
    create(&root.join("run"))?;
    create(&root.join("tmp"))?;
    open_to_all(&root.join("tmp"))?;
    make_var(dir, &root.join("var"))?;
    for folder in needed {
        let top = folder.strip_prefix("/").ok().and_then(|path| path.iter().next());
        if top.is_some_and(|top| PRIVATE.iter().any(|private| top == *private)) {
            bind(folder, &root.join(folder.strip_prefix("/").unwrap_or(folder)))?;
        }
    }
    show_kernel_settings(&root)?;

    chdir(&root).with_context(|| not_mounted(&root))?;
    // pivot_root stacks the old root on the new one; umount2 then detaches the old root.
    pivot_root(".", ".").with_context(|| not_mounted(&root))?;
    umount2(".", MntFlags::MNT_DETACH).with_context(|| not_mounted(Path::new("/")))?;
    chdir("/").with_context(|| not_mounted(Path::new("/")))?;
    // Pods' volumes may propagate mounts to each other, as on any node; none reaches the host.
    mount(none, "/", none, MsFlags::MS_SHARED | MsFlags::MS_REC, none)
        .with_context(|| not_mounted(Path::new("/")))
}

fn bind_top_of_host(root: &Path) -> anyhow::Result<()> {
    let at = Path::new("/");
    let entries = fs::read_dir(at).with_context(|| not_created(at))?;
    for entry in entries.flatten().filter(|entry| PRIVATE.iter().all(|name| entry.file_name() != *name)) {
        let (path, target) = (entry.path(), root.join(entry.file_name()));
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_symlink() {
            let pointed = fs::read_link(&path).with_context(|| not_created(&path))?;
            symlink(pointed, &target).with_context(|| not_created(&target))?;
        } else if kind.is_dir() {
            bind(&path, &target)?;
        }
    }
    Ok(())
}

fn make_var(dir: &Path, target: &Path) -> anyhow::Result<()> {
    let var = dir.join("var");
    for folder in ["lib", "log", "tmp"] {
        create(&var.join(folder))?;
    }
    open_to_all(&var.join("tmp"))?;
    let link = var.join("run");
    if !link.is_symlink() {
        symlink("/run", &link).with_context(|| not_created(&link))?;
    }
    bind(&var, target)
}

fn show_kernel_settings(root: &Path) -> anyhow::Result<()> {
    let shown = root.join("run/kernel");
    create(&shown)?;
    for (name, value) in KERNEL_SETTINGS {
        let file = root.join("proc/sys").join(name);
        // A kernel built without keys lacks these files; the kubelet then reports it.
        if fs::read_to_string(&file).is_ok_and(|present| present.trim() != value) {
            let over = shown.join(name.replace('/', "."));
            fs::write(&over, format!("{value}\n")).with_context(|| not_created(&over))?;
            mount(Some(&over), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .with_context(|| not_mounted(&file))?;
        }
    }
    Ok(())
}

fn bind(source: &Path, target: &Path) -> anyhow::Result<()> {
    create(target)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(source), target, None::<&str>, flags, None::<&str>).with_context(|| not_mounted(source))
}

fn create(path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path).with_context(|| not_created(path))
}

fn open_to_all(path: &Path) -> anyhow::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o1777)).with_context(|| not_created(path))
}

fn not_created(path: &Path) -> String {
    format!("cannot create {} for the real node", path.display())
}

fn not_mounted(path: &Path) -> String {
    format!("cannot mount {} for the real node", path.display())
}
