//! `kube-node pause`: the process of a pod sandbox. It holds the pod's namespaces, reaps orphaned processes
//! where the PID namespace is shared, and ends on a signal. One thread, no runtime: there is one such process
//! per pod.

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
    // Blocked and waited for: the kernel drops signals that PID 1 of a namespace neither blocks nor handles.
    signals.thread_block()?;
    while signals.wait()? == Signal::SIGCHLD {
        // One signal may stand for several children.
        while !matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(_)) {}
    }
    Ok(())
}
