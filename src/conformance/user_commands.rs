//! Commands of the user for what kube-node cannot know: the list of machines and the restart of the controller.

use std::process::Stdio;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use tokio::process::Command;

/// Lines of a listing that contain a Node's name, UID or providerID.
pub(super) fn machines_of<'a>(lines: &'a [String], node: &Node) -> Vec<&'a str> {
    let (name, uid) = (node.name_any(), node.uid().unwrap_or_default());
    let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
    let speaks = |line: &&str| {
        [&name, &uid, &provider_id].iter().any(|id| !id.is_empty() && line.contains(id.as_str()))
    };
    lines.iter().map(String::as_str).filter(speaks).collect()
}

/// Runs a command of the user and returns its lines.
pub(super) async fn run(command: &str) -> anyhow::Result<Vec<String>> {
    let output = Command::new("/bin/sh").arg("-c").arg(command).stdin(Stdio::null()).output().await;
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_is_known_by_any_name_of_its_node() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "workers-x2k9qf", "uid": "7c9f0b6c"},
            "spec": {"providerID": "cloud://zone/i-123"}}))
            .unwrap();
        let lines = ["i-1 workers-x2k9qf", "vm-7c9f0b6c", "cloud://zone/i-123", "other"].map(str::to_owned);
        assert_eq!(machines_of(&lines, &node).len(), 3);
        assert!(machines_of(&lines, &Node::default()).is_empty());
    }

    #[tokio::test]
    async fn a_command_that_fails_says_why() {
        assert_eq!(run("echo a; echo b").await.unwrap(), ["a", "b"]);
        let error = run("echo no >&2; exit 3").await.unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("no"), "{error}");
    }
}
