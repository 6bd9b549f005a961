//! A registry on this machine, of CNCF Distribution.
//!
//! Input: an address, and settings in the form of its configuration. Output: a process that answers there, with a folder of
//! its own. Both are gone when the value is dropped.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use kube_node_testing::{LONG, go_program::GoProgram};
use serde_json::{Value, json};

const REGISTRY: GoProgram = GoProgram {
    name: "registry",
    folder: "tests/registry",
    module: "github.com/distribution/distribution/v3",
    package: ".",
};

/// A running registry.
pub struct Registry {
    /// Host and port.
    pub address: SocketAddr,
    dir: PathBuf,
    process: Child,
}

impl Registry {
    /// Starts a registry on a port that the system chooses; `name` is unique in the test binary, `settings` are sections of its configuration.
    pub fn start(name: &str, host: IpAddr, settings: &Value) -> Self {
        let program = REGISTRY.path().expect("the registry is built");
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("registry-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": dir.join("data")}},
        });
        for (section, value) in settings.as_object().unwrap() {
            config[section] = value.clone();
        }
        config["http"]["addr"] = json!(SocketAddr::new(host, 0).to_string());
        // YAML, of which JSON is a part.
        let file = dir.join("config.yml");
        fs::write(&file, config.to_string()).unwrap();
        let log = fs::File::create(dir.join("log")).unwrap();
        let process = Command::new(program)
            .arg("serve")
            .arg(&file)
            // No collector of traces is there.
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("the registry runs");
        let mut registry = Self { address: SocketAddr::new(host, 0), dir, process };
        let began = Instant::now();
        loop {
            let log = fs::read_to_string(registry.dir.join("log")).unwrap_or_default();
            if let Some(address) = listened_on(&log) {
                registry.address = address;
                return registry;
            }
            assert!(began.elapsed() < LONG, "the registry does not listen: {log}");
            thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// The address on which the registry listens, as its log reports it; None until then.
fn listened_on(log: &str) -> Option<SocketAddr> {
    let (_, address) = log.split_once("listening on ")?;
    address[..address.find([',', '"', '\n'])?].parse().ok()
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
