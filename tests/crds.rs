//! The generated definitions in crds/ are those of the code.

use std::fs;

#[test]
fn crds_folder_matches_the_code() {
    let dir = std::env::temp_dir().join(format!("kube-node-crds-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_kube-node"))
        .args(["crds", "--output-dir"])
        .arg(&dir)
        .status()
        .unwrap();
    assert!(status.success());
    for file in ["nodeclasses.yaml", "nodesets.yaml"] {
        let wanted = fs::read_to_string(dir.join(file)).unwrap();
        let stored =
            fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/crds/").to_owned() + file).unwrap();
        assert!(wanted == stored, "crds/{file} is stale: run `cargo run -- crds --output-dir crds`");
    }
    fs::remove_dir_all(&dir).unwrap();
}
