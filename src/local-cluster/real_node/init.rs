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

use nix::{
    errno::Errno,
    sys::wait::{WaitStatus, waitpid},
    unistd::{Pid, sethostname},
};

use super::{
    NAME, Node, NodeError,
    cgroups::{CgroupError, Cgroups},
    host::GO,
    machine::{self, MachineError},
};

/// Reason why the node ends.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The node's description cannot be used.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The node's cgroups cannot be joined.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// The node's file system cannot be made.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The host process ended before the node was ready.
    #[error("the process that starts the real node has ended")]
    Abandoned,
    /// A setting of the node's namespaces cannot be made.
    #[error("cannot set up the real node")]
    Settings(#[source] io::Error),
    /// The process that supervises the others cannot be started.
    #[error("cannot start the processes of the real node")]
    Start(#[source] io::Error),
    /// The process that supervises the others has ended.
    #[error("the process that runs those of the real node has ended: {0:?}")]
    Ended(WaitStatus),
    /// Waiting for child processes failed.
    #[error("cannot wait for processes")]
    Wait(#[source] Errno),
}

/// Runs as the first process of a PID namespace. Returns only an error.
pub fn run(dir: &Path) -> Result<std::convert::Infallible, InitError> {
    let node = Node::load(dir)?;
    // Joined first, so that every child process starts inside the cgroup.
    Cgroups::of(&node.id)?.join()?;
    let mut outside = io::stdin();
    let mut word = [0];
    outside.read_exact(&mut word).ok().filter(|()| word[0] == GO).ok_or(InitError::Abandoned)?;
    machine::enter(dir, &node.folders(dir))?;
    sethostname(NAME).map_err(|error| InitError::Settings(error.into()))?;
    // Setting of this network namespace, which routes between its pods and the link.
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(InitError::Settings)?;
    thread::spawn(move || {
        // No second byte is ever sent: the read returns when the host process ends and the pipe closes.
        let _ = outside.read_exact(&mut [0]);
        process::exit(0);
    });
    let daemons = Command::new("/proc/self/exe")
        .args([Path::new("real-node"), Path::new("daemons"), dir])
        .stdin(Stdio::null())
        .spawn()
        .map_err(InitError::Start)?;
    let daemons = i32::try_from(daemons.id())
        .map(Pid::from_raw)
        .map_err(|error| InitError::Start(io::Error::other(error)))?;
    loop {
        match waitpid(None, None) {
            Ok(status) if status.pid() == Some(daemons) => return Err(InitError::Ended(status)),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(InitError::Wait(error)),
        }
    }
}
