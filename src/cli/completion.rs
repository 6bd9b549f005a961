//! `kube-node completion`: prints the completion script of a shell.

use clap::Args;
use clap_complete::Shell;

use super::program;

/// Name of the program.
const NAME: &str = "kube-node";
/// Name of the program while the script for bash is made: for a program with a hyphen, `clap_complete` 4.6
/// completes no arguments, because it writes the names of its cases in two ways. The script is registered
/// under [`NAME`].
const FOR_BASH: &str = "kube_node";

/// Arguments of `completion`.
///
/// For bash: source <(kube-node completion bash)
#[derive(Debug, Args)]
pub struct Completion {
    /// Shell to print the completion script for
    #[arg(value_enum)]
    shell: Shell,
}

impl Completion {
    /// Prints the script.
    pub fn run(self) -> anyhow::Result<()> {
        // Written in one piece: clap_complete panics when the reader closes the pipe.
        let mut script = Vec::new();
        let name = if self.shell == Shell::Bash { FOR_BASH } else { NAME };
        clap_complete::generate(self.shell, &mut program(), name, &mut script);
        let registered = |name: &str| format!("-o default {name}\n");
        let script = String::from_utf8(script)?.replace(&registered(FOR_BASH), &registered(NAME));
        super::print_line(script.trim_end());
        Ok(())
    }
}
