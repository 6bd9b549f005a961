//! `kube-node completion`: what a shell has to read to complete the commands and their arguments.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use super::program;

/// Arguments of `completion`.
///
/// For bash: source <(kube-node completion bash)
#[derive(Debug, Args)]
pub struct Completion {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completion {
    /// Prints the script.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        // In one piece: clap_complete panics when whoever reads has read enough.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program(), "kube-node", &mut script);
        super::say(String::from_utf8(script)?.trim_end());
        Ok(ExitCode::SUCCESS)
    }
}
