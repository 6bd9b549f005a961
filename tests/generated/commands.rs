//! The page of commands: what `--help` of each says, and the environment they read.

use std::{fmt::Write as _, process::Command};

use crate::markdown::{self, code};

/// What is read from the environment without a flag that stands for it.
const ENVIRONMENT: [(&str, &str); 11] = [
    ("KUBECONFIG", "which cluster, where `--kubeconfig` is absent"),
    ("KUBEBUILDER_ASSETS", "folder of the control plane's programs, where `--binaries` is absent"),
    (
        "RUST_LOG",
        "what the operator, the hollow kubelet and the kubemark proxy log, such as `info,kube_node_controllers=debug`",
    ),
    ("POD_NAME", "the operator's pod: who it is in a Lease and in events"),
    ("XDG_CACHE_HOME", "below it programs of the control plane are kept; `~/.cache` when absent"),
    ("XDG_DATA_HOME", "below it clusters of this machine are; `~/.local/share` when absent"),
    ("REGISTRY_AUTH_FILE", "file with credentials of registries, for `image --push`"),
    ("DOCKER_CONFIG", "folder of docker's `config.json` with such credentials; `~/.docker` when absent"),
    ("XDG_RUNTIME_DIR", "below it podman keeps such credentials"),
    ("SSL_CERT_FILE", "CAs that `image --push` trusts, in place of those of the system"),
    ("PATH", "where `go`, and what a real node needs, is found"),
];

pub fn page() -> String {
    let mut commands = Vec::new();
    collect(&[], &mut commands);
    let mut page = markdown::page("Commands", "`kube-node --help`");
    page.push_str(
        "\nAs `kube-node help` says it, and [`kube-node man`](../kubectl.md#completion-and-man-pages).\n",
    );
    page.push_str("\n## Environment\n\n");
    let flags = commands.iter().flat_map(|(command_path, help)| {
        let variables = variables(help).into_iter();
        variables.map(|(variable, flag)| {
            [code(&variable), format!("{} of {}", code(&flag), code(&name(command_path)))]
        })
    });
    let others = ENVIRONMENT.map(|(variable, meaning)| [code(variable), meaning.to_owned()]);
    let rows: Vec<_> = flags.chain(others).collect();
    page.push_str(&markdown::table(["variable", "what it stands for"], &rows));
    for (command_path, help) in &commands {
        write!(page, "\n## {}\n\n```text\n{}\n```\n", code(&name(command_path)), help.trim_end()).unwrap();
    }
    page
}

fn name(command_path: &[String]) -> String {
    [&["kube-node".to_owned()], command_path].concat().join(" ")
}

/// A command with its help, and after it those below it.
fn collect(command_path: &[String], commands: &mut Vec<(Vec<String>, String)>) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_kube-node"));
    // As wide as a page is, whatever terminal this runs in, and without what the environment says.
    let output = program.args(command_path).arg("--help").env_clear().env("COLUMNS", "100").output().unwrap();
    assert!(output.status.success(), "{command_path:?}");
    let help: String = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect();
    let below = subcommands(&help);
    commands.push((command_path.to_vec(), help));
    for command in below {
        collect(&[command_path, &[command]].concat(), commands);
    }
}

/// The commands below one, by its help: no other line of it begins with two spaces and a letter.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().filter_map(|line| line.strip_prefix("  "));
    let named = listed.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    named
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Variables that stand for flags, by a command's help: `[env: NAME=]`.
fn variables(help: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut flag = "";
    for line in help.lines() {
        flag = line.split_whitespace().find(|word| word.starts_with("--")).unwrap_or(flag);
        if let Some((_, rest)) = line.split_once("[env: ") {
            found.push((rest.split(['=', ']']).next().unwrap().to_owned(), flag.to_owned()));
        }
    }
    found
}
