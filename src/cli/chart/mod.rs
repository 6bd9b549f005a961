//! `kube-node chart`: what the jobs of the Helm chart do in the cluster, as pods of our own image. People have no need of it.

mod certificates;
mod uninstall;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Arguments of `chart`.
#[derive(Debug, Args)]
pub struct Chart {
    #[command(subcommand)]
    job: Job,
}

#[derive(Debug, Subcommand)]
enum Job {
    /// See to it that the autoscaler server and cluster-autoscaler have certificates
    Certificates(certificates::Certificates),
    /// Before the operator goes: nothing may be left that needs it
    Uninstall(uninstall::Uninstall),
}

impl Chart {
    /// Does the job.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.job {
            Job::Certificates(job) => job.run(),
            Job::Uninstall(job) => job.run(),
        }
    }
}
