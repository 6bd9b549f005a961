//! `kube-node install-files`: copies the files of a NodeClass to the folder of a machine, with owner and mode. Run by
//! the pods of machines.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, str::FromStr};

use anyhow::{Context, bail, ensure};
use clap::Args;

/// Arguments of `install-files`.
#[derive(Debug, Args)]
pub struct InstallFiles {
    /// Folder to copy the files from
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Folder to copy the files to
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Name, owner and mode of a file to copy; may be repeated
    #[arg(long = "file", value_name = "NAME:USER:GROUP:MODE")]
    files: Vec<InstalledFile>,
}

/// Name, owner and mode of a file to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InstalledFile {
    name: String,
    user: u32,
    group: u32,
    mode: u32,
}

impl FromStr for InstalledFile {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let wrong = "write NAME:USER:GROUP:MODE, with numbers and an octal mode";
        let [name, user, group, mode] = *text.split(':').collect::<Vec<_>>() else { bail!(wrong) };
        ensure!(!name.is_empty() && !name.contains('/'), "a name has no folder");
        let (user, group) = (user.parse().context(wrong)?, group.parse().context(wrong)?);
        Ok(Self { name: name.to_owned(), user, group, mode: u32::from_str_radix(mode, 8).context(wrong)? })
    }
}

impl InstallFiles {
    /// Copies all files.
    pub fn run(self) -> anyhow::Result<()> {
        for InstalledFile { name, user, group, mode } in &self.files {
            let (from, to) = (self.from.join(name), self.to.join(name));
            let install = || {
                // A file copied before a restart may not be writable for this user.
                fs::remove_file(&to).or_else(|error| match error.kind() {
                    std::io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })?;
                fs::copy(&from, &to)?;
                fs::set_permissions(&to, fs::Permissions::from_mode(*mode))?;
                std::os::unix::fs::chown(&to, Some(*user), Some(*group))
            };
            install().with_context(|| format!("cannot bring {} to {}", from.display(), to.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let good: InstalledFile = "file-0:0:65532:640".parse().unwrap();
        assert_eq!((good.user, good.group, good.mode), (0, 65_532, 0o640));
        for wrong in ["file-0", "a/b:0:0:600", ":0:0:600", "f:root:0:600", "f:0:0:999"] {
            assert!(wrong.parse::<InstalledFile>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_arrive_with_their_mode_and_again_after_a_restart() {
        let dir = std::env::temp_dir().join(format!("kube-node-install-{}", std::process::id()));
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::create_dir_all(&from).unwrap();
        fs::create_dir_all(&to).unwrap();
        fs::write(from.join("f"), "content").unwrap();
        let owner = fs::metadata(&from).unwrap();
        let files =
            vec![InstalledFile { name: "f".into(), user: owner.uid(), group: owner.gid(), mode: 0o400 }];
        for _ in 0..2 {
            InstallFiles { from: from.clone(), to: to.clone(), files: files.clone() }.run().unwrap();
            assert_eq!(fs::metadata(to.join("f")).unwrap().mode() & 0o777, 0o400);
        }
        assert_eq!(fs::read_to_string(to.join("f")).unwrap(), "content");
        fs::remove_dir_all(dir).unwrap();
    }
}
