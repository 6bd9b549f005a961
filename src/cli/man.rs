//! `kube-node man`: writes man pages, one per command, from the texts of `--help`.

use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::Args;

use super::program;

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Folder for the pages: DIR/kube-node.1, DIR/kube-node-up.1 and so on
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
}

impl Man {
    /// Writes the pages.
    pub fn run(self) -> anyhow::Result<()> {
        let dir = &self.output_dir;
        let failed = || format!("cannot write the pages to {}", dir.display());
        fs::create_dir_all(dir).with_context(failed)?;
        clap_mangen::generate_to(program(), dir).with_context(failed)?;
        super::print_line(format_args!("Written: man {}/kube-node.1", dir.display()));
        Ok(())
    }
}
