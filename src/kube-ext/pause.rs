//! `kube-node pause`: the process of a sandbox. It holds the namespaces of a pod, reaps what the pod leaves to it where
//! they share a PID namespace, and ends when told to. One thread, no runtime: there is one of it beside every pod.

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
};

/// Sleeps until SIGTERM or SIGINT.
pub fn pause() -> Result<(), Errno> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD] {
        signals.add(signal);
    }
    // Blocked and waited for: the kernel drops what the first process of a namespace neither blocks nor handles.
    signals.thread_block()?;
    while signals.wait()? == Signal::SIGCHLD {
        // One signal may stand for several children.
        while !matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(_)) {}
    }
    Ok(())
}
