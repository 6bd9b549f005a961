//! First process inside the node. Makes the node's file system, starts the process that supervises the
//! others, and reaps orphans, such as containerd's shims. Every process of the node ends with this one, and
//! this one ends with the host process.

use std::{
    fs,
    io::{self, Read},
    path::Path,
    process::{self, Command, Stdio},
    thread,
};

use anyhow::{Context, bail, ensure};
use nix::{
    errno::Errno,
    sys::wait::waitpid,
    unistd::{Pid, sethostname},
};

use super::{
    cgroups::Cgroups,
    description::{NAME, Node},
    machine,
};

/// Byte on standard input that lets this process continue.
pub(super) const GO: u8 = b'+';

/// Contexts of errors.
const NOT_SET_UP: &str = "cannot set up the real node";
const NOT_STARTED: &str = "cannot start the processes of the real node";

/// Runs as the first process of a PID namespace. Returns only an error.
pub fn run(dir: &Path) -> anyhow::Result<std::convert::Infallible> {
    let node = Node::load(dir)?;
    // Joined first, so that every child process starts inside the cgroup.
    Cgroups::of(&node.id)?.join()?;
    let mut outside = io::stdin();
    let mut word = [0];
    let may_go = outside.read_exact(&mut word).is_ok() && word[0] == GO;
    ensure!(may_go, "the process that starts the real node has ended");
    machine::enter(dir, &node.folders(dir))?;
    sethostname(NAME).context(NOT_SET_UP)?;
    // Setting of this network namespace, which routes between its pods and the link.
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context(NOT_SET_UP)?;
    thread::spawn(move || {
        // No second byte is ever sent: the read returns when the host process ends and the pipe closes.
        let _ = outside.read_exact(&mut [0]);
        process::exit(0);
    });
    let daemons = Command::new("/proc/self/exe")
        .args([Path::new("real-node"), Path::new("daemons"), dir])
        .stdin(Stdio::null())
        .spawn()
        .context(NOT_STARTED)?;
    let daemons = Pid::from_raw(i32::try_from(daemons.id()).context(NOT_STARTED)?);
    loop {
        match waitpid(None, None) {
            Ok(status) if status.pid() == Some(daemons) => {
                bail!("the process that runs those of the real node has ended: {status:?}")
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for processes"),
        }
    }
}
