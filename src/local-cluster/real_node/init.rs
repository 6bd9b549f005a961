//! The first process inside. It makes the machine that the others see, starts the one that runs them, and reaps what
//! loses its parent, as containerd's shims do. All that is inside ends with it, and it ends with the half outside.

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

/// Why the node ends.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// Its description does not serve.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// Its cgroups cannot be joined.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// Its file system cannot be made.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The half outside has gone before all was ready.
    #[error("the process that starts the real node has ended")]
    Abandoned,
    /// A setting of the node's own cannot be made.
    #[error("cannot set up the real node")]
    Settings(#[source] io::Error),
    /// The process that runs the others cannot be started.
    #[error("cannot start the processes of the real node")]
    Start(#[source] io::Error),
    /// It has ended.
    #[error("the process that runs those of the real node has ended: {0:?}")]
    Ended(WaitStatus),
    /// Children cannot be waited for.
    #[error("cannot wait for processes")]
    Wait(#[source] Errno),
}

/// Runs as the first process of a PID namespace; comes back only with an error.
pub fn run(dir: &Path) -> Result<std::convert::Infallible, InitError> {
    let node = Node::load(dir)?;
    // First of all, so that nothing is born elsewhere.
    Cgroups::of(&node.id)?.join()?;
    let mut outside = io::stdin();
    let mut word = [0];
    outside.read_exact(&mut word).ok().filter(|()| word[0] == GO).ok_or(InitError::Abandoned)?;
    machine::enter(dir, &node.folders(dir))?;
    sethostname(NAME).map_err(|error| InitError::Settings(error.into()))?;
    // The namespace's own: it routes between its pods and the link.
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(InitError::Settings)?;
    thread::spawn(move || {
        // Nothing more is ever said: the pipe closes when the other side ends.
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
