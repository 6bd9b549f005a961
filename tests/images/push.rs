//! Images arrive in a registry as they were packed, for one architecture or both, and what keeps them from it is said with a
//! remedy. The programs in these images are ELF headers: nobody runs them here.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

use axum::Router;
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{StatusCode, header::WWW_AUTHENTICATE};
use kube_node_api::{ARCHITECTURE, names::MACHINE_PROGRAM as MACHINE};
use kube_node_testing::http::Request;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::runtime;

use super::{WHOLE, registry::Registry};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const OTHER: &str = if cfg!(target_arch = "x86_64") { "arm64" } else { "amd64" };
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The account of the registries with accounts, and its password as htpasswd has it, by bcrypt.
const USER: &str = "tester";
const PASSWORD: &str = "s3cret-of-tests";
const HTPASSWD: &str = "tester:$2a$04$Q9AseNhz/xW1eGS6YHvduOx.2Xk.1OyLVZ2VEiPRd3aF40imMDxNu\n";

/// A folder with programs of both architectures, which is also the home of the user.
struct Scene {
    dir: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Self {
        let dir =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("push-{name}-{}", std::process::id()));
        for (architecture, number) in [("amd64", 62), ("arm64", 183)] {
            fs::create_dir_all(dir.join(architecture)).unwrap();
            for program in ["kube-node", MACHINE] {
                fs::write(dir.join(architecture).join(program), elf(number, program)).unwrap();
            }
        }
        fs::create_dir_all(dir.join(".docker")).unwrap();
        fs::create_dir_all(dir.join("bin")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// `kube-node image ARGS`, with the programs of these architectures.
    fn image(&self, architectures: &[&str], args: &[&str], env: &[(&str, &str)]) -> Output {
        let mut command = Command::new(WHOLE);
        command.arg("image").args(args);
        for architecture in architectures {
            command.args(["--programs", &self.path(architecture)]);
        }
        // No proxy and no credentials of whoever runs the tests.
        command.env_clear().env("HOME", &self.dir).env("PATH", self.path("bin"));
        command.envs(env.iter().copied()).output().unwrap()
    }

    /// Pushes, and returns what the last line says: name, tag and digest.
    fn pushed(&self, architectures: &[&str], args: &[&str], env: &[(&str, &str)]) -> String {
        let last_line = |args: &[&str]| {
            let output = self.image(architectures, args, env);
            assert!(output.status.success(), "{args:?}: {}", error(&output));
            String::from_utf8(output.stdout).unwrap().lines().last().unwrap().to_owned()
        };
        // The manifest of a release names the digest before the image is pushed.
        let foretold = last_line(&[args, &["--dry-run"]].concat());
        let pushed = last_line(args);
        assert_eq!(foretold, pushed);
        pushed
    }

    /// Runs a push that must fail, and returns its error.
    fn refused(&self, args: &[&str], env: &[(&str, &str)]) -> String {
        let output = self.image(&[ARCHITECTURE], args, env);
        assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
        error(&output)
    }

    /// Writes the file of credentials, as `docker login` does.
    fn log_in(&self, config: &Value) {
        fs::write(self.dir.join(".docker/config.json"), config.to_string()).unwrap();
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A static program, as far as its header tells.
fn elf(machine: u8, content: &str) -> Vec<u8> {
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    elf.resize(16, 0);
    elf.extend([2, 0, machine, 0, 1, 0, 0, 0]);
    elf.resize(64, 0);
    elf[52] = 64;
    elf.extend(content.as_bytes());
    elf
}

fn error(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| line.starts_with("error: ")).collect::<Vec<_>>().join("\n")
}

fn registry(name: &str) -> Registry {
    Registry::start(name, LOOPBACK, &json!({}))
}

fn registry_with_accounts(name: &str, scene: &Scene) -> Registry {
    fs::write(scene.dir.join("htpasswd"), HTPASSWD).unwrap();
    let auth = json!({"htpasswd": {"realm": "tests", "path": scene.path("htpasswd")}});
    Registry::start(name, LOOPBACK, &json!({"auth": auth}))
}

fn account(password: &str) -> Value {
    json!({"auth": STANDARD.encode(format!("{USER}:{password}"))})
}

/// Manifest of a tag or a digest of `team/kube-node`, with its digest.
fn manifest(registry: &Registry, name: &str, media_type: &str) -> (String, Value) {
    let url = format!("http://{}/v2/team/kube-node/manifests/{name}", registry.address);
    let (code, text) = Request::get(url).header("Accept", media_type).answer().unwrap();
    assert_eq!(code, 200, "{text}");
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["mediaType"], media_type);
    (digest(&text), document)
}

/// Checks the blobs of an image, and returns its config.
fn config(registry: &Registry, manifest: &Value) -> Value {
    let url = |of: &Value| {
        format!("http://{}/v2/team/kube-node/blobs/{}", registry.address, of["digest"].as_str().unwrap())
    };
    let layer = Request::get(url(&manifest["layers"][0])).method("HEAD").answer();
    assert_eq!(layer, Some((200, String::new())));
    let (code, text) = Request::get(url(&manifest["config"])).answer().unwrap();
    assert_eq!((code, &json!(digest(&text))), (200, &manifest["config"]["digest"]));
    serde_json::from_str(&text).unwrap()
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

#[test]
fn an_image_arrives_with_the_digest_of_its_archive() {
    let (scene, registry) = (Scene::new("one"), registry("one"));
    let name = format!("{}/team/kube-node", registry.address);
    let pushed = scene.pushed(&[ARCHITECTURE], &["--push", &name], &[]);
    let (digest, manifest) = manifest(&registry, VERSION, MANIFEST);
    assert_eq!(pushed, format!("{name}:{VERSION}@{digest}"));
    let config = config(&registry, &manifest);
    assert_eq!(
        (&config["architecture"], &config["config"]["Entrypoint"]),
        (&json!(ARCHITECTURE), &json!(["/kube-node"]))
    );

    let archived = scene.image(&[ARCHITECTURE], &["kube-node", "--output-dir", &scene.path("archives")], &[]);
    let line = String::from_utf8(archived.stdout).unwrap();
    assert_eq!(line.split_whitespace().last(), Some(digest.as_str()));
}

#[test]
fn both_architectures_have_one_tag() {
    let (scene, registry) = (Scene::new("both"), registry("both"));
    let name = format!("{}/team/kube-node", registry.address);
    let push = || scene.pushed(&["amd64", "arm64"], &["kube-node", "--push", &name, "--tag", "both"], &[]);
    let pushed = push();
    let (digest, index) = manifest(&registry, "both", INDEX);
    assert_eq!(pushed, format!("{name}:both@{digest}"));
    let mut found = Vec::new();
    for of in index["manifests"].as_array().unwrap() {
        let (digest, manifest) = manifest(&registry, of["digest"].as_str().unwrap(), MANIFEST);
        assert_eq!(of["digest"], digest);
        let architecture = config(&registry, &manifest)["architecture"].clone();
        assert_eq!(of["platform"], json!({"architecture": architecture, "os": "linux"}));
        found.push(architecture);
    }
    assert_eq!(found, [json!("amd64"), json!("arm64")]);
    assert_eq!(push(), pushed, "the same programs are the same image");
}

#[test]
fn the_sandbox_has_a_repository_of_its_own() {
    let (scene, registry) = (Scene::new("pause"), registry("pause"));
    let name = format!("{}/team/kube-node", registry.address);
    scene.pushed(&[ARCHITECTURE], &["pause", "--push", &name], &[]);
    let (_, manifest) = manifest(&registry, VERSION, MANIFEST);
    assert_eq!(config(&registry, &manifest)["config"]["Entrypoint"], json!(["/kube-node", "pause"]));
}

#[test]
fn credentials_are_those_of_docker_and_podman() {
    let scene = Scene::new("account");
    let registry = registry_with_accounts("account", &scene);
    let address = registry.address.to_string();
    let name = format!("{address}/team/kube-node");
    let push = ["--push", &name];
    let file = scene.path(".docker/config.json");
    let log_in = format!("docker login {address}, or podman login {address}");

    let refused = scene.refused(&push, &[]);
    let wanted =
        format!("error: {address} asks for a credential, and there is none for it in {file} or /run/");
    assert!(refused.starts_with(&wanted), "{refused}");
    let wanted = format!("{}: {log_in}, writes one", scene.path(".config/containers/auth.json"));
    assert!(refused.ends_with(&wanted), "{refused}");
    scene.log_in(&json!({"auths": {&address: account("wrong")}}));
    let wanted = format!("error: {address} refuses the credential in {file}: {log_in}, replaces it");
    assert_eq!(scene.refused(&push, &[]), wanted);

    scene.log_in(&json!({"auths": {&address: account(PASSWORD)}}));
    let pushed = scene.pushed(&[ARCHITECTURE], &push, &[]);
    scene.log_in(&json!({}));
    scene.refused(&push, &[]);

    // podman's file, in which a part of the registry has an account.
    let auth = scene.path("auth.json");
    fs::write(&auth, json!({"auths": {format!("{address}/team"): account(PASSWORD)}}).to_string()).unwrap();
    assert_eq!(scene.pushed(&[ARCHITECTURE], &push, &[("REGISTRY_AUTH_FILE", &auth)]), pushed);

    // A program that keeps it.
    let helper = scene.dir.join("bin/docker-credential-of-tests");
    let answer = json!({"Username": USER, "Secret": PASSWORD});
    let script = format!("#!/bin/sh\nread -r of\n[ \"$1 $of\" = 'get {address}' ] && echo '{answer}'\n");
    fs::write(&helper, script).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    scene.log_in(&json!({"credHelpers": {&address: "of-tests"}}));
    assert_eq!(scene.pushed(&[ARCHITECTURE], &push, &[]), pushed);
}

/// A registry whose accounts may not push. `answer` is the document of its refusals; by `at_token` the server of its tokens
/// refuses already. Ends with the process.
fn denying_registry(answer: &'static str, at_token: bool) -> SocketAddr {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind((LOOPBACK, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let challenge = if at_token {
        format!("Bearer realm=\"http://{address}/token\",service=\"tests\"")
    } else {
        "Basic realm=\"tests\"".to_owned()
    };
    let respond = move |request: axum::extract::Request| {
        let (code, text) = match (request.method().as_str(), request.uri().path()) {
            ("GET", "/v2/") => (StatusCode::UNAUTHORIZED, ""),
            ("HEAD", _) => (StatusCode::NOT_FOUND, ""),
            _ => (StatusCode::FORBIDDEN, answer),
        };
        let challenge = challenge.clone();
        async move { (code, [(WWW_AUTHENTICATE, challenge)], text) }
    };
    let service = Router::new().fallback(respond);
    thread::spawn(move || runtime.block_on(axum::serve(listener, service).into_future()));
    address
}

#[test]
fn an_account_that_may_not_push_is_told_in_one_sentence() {
    let scene = Scene::new("denied");
    let file = scene.path(".docker/config.json");
    for (answer, at_token, words) in [
        (
            r#"{"errors": [{"code": "DENIED", "message": "requested access to the\nresource is denied"}]}"#,
            false,
            ": requested access to the resource is denied",
        ),
        (r#"{"errors": [{"code": "DENIED", "message": "not yours"}]}"#, true, ": not yours"),
        (r#"{"errors": [{"code": "denied", "message": "not yours"}]}"#, false, ": not yours"),
        (r#"{"errors": [{"code": "DENIED"}]}"#, false, ""),
        ("denied", false, ": denied"),
        ("", false, ""),
    ] {
        let address = denying_registry(answer, at_token).to_string();
        let name = format!("{address}/team/kube-node");
        scene.log_in(&json!({"auths": {&address: account(PASSWORD)}}));
        let wanted = format!(
            "error: {address} does not let the account in {file} push team/kube-node: use a name that belongs to it, or log in with another account{words}"
        );
        assert_eq!(scene.refused(&["--push", &name], &[]), wanted, "{answer}");
        scene.log_in(&json!({}));
        let said = scene.refused(&["--push", &name], &[]);
        let wanted = format!(
            "error: {address} lets nobody push team/kube-node without a credential, and there is none "
        );
        let end = format!(": docker login {address}{words}");
        assert!(said.starts_with(&wanted) && said.ends_with(&end) && !said.contains('\n'), "{said}");
    }
}

#[test]
fn no_error_shows_a_password() {
    let scene = Scene::new("secret");
    let registry = registry_with_accounts("secret", &scene);
    let address = registry.address.to_string();
    let helper = scene.dir.join("bin/docker-credential-of-tests");
    fs::write(&helper, format!("#!/bin/sh\necho {PASSWORD}\necho {PASSWORD} >&2\nexit 1\n")).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    for config in [
        json!({"auths": {&address: account(&format!("not-{PASSWORD}"))}}),
        json!({"auths": {&address: {"auth": PASSWORD}}}),
        json!({"auths": {&address: {"identitytoken": PASSWORD}}}),
        json!({"credsStore": "of-tests"}),
    ] {
        scene.log_in(&config);
        let output =
            scene.image(&[ARCHITECTURE], &["--push", &format!("{address}/a")], &[("RUST_LOG", "trace")]);
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&scene.path(".docker/config.json")), "{said}");
        assert!(!said.contains(PASSWORD) && !said.contains(&STANDARD.encode(PASSWORD)), "{said}");
    }
}

#[test]
fn what_does_not_answer_is_told_with_a_remedy() {
    let (scene, registry) = (Scene::new("silent"), registry("silent"));
    let address = registry.address.to_string();
    let free = TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap();
    let cases: [(String, &[&str], String); 3] = [
        (
            format!("{free}/a"),
            &[],
            format!("nothing listens at {free}: start the registry, or correct its name and port: "),
        ),
        (
            "registry.invalid/a".to_owned(),
            &[],
            "no address is known for registry.invalid: correct the name".to_owned(),
        ),
        (
            format!("{address}/a"),
            &["--plain-http=false"],
            format!("{address} does not speak https: give --plain-http if "),
        ),
    ];
    for (name, flags, wanted) in cases {
        let said = scene.refused(&[&["--push", &name][..], flags].concat(), &[]);
        assert!(said.starts_with(&format!("error: {wanted}")), "{said}");
    }
}

#[test]
fn certificates_are_checked() {
    let scene = Scene::new("tls");
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let served = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    for (file, text) in [("ca.crt", ca.pem()), ("tls.crt", served.pem()), ("tls.key", key.serialize_pem())] {
        fs::write(scene.dir.join(file), text).unwrap();
    }
    let tls = json!({"certificate": scene.path("tls.crt"), "key": scene.path("tls.key")});
    let registry = Registry::start("tls", LOOPBACK, &json!({"http": {"tls": tls}}));
    let address = registry.address;
    let (name, ca) = (format!("{address}/team/kube-node"), scene.path("ca.crt"));
    let push = ["--push", &name, "--plain-http=false"];

    let pushed = scene.pushed(&[ARCHITECTURE], &push, &[("SSL_CERT_FILE", &ca)]);
    assert!(pushed.starts_with(&format!("{name}:{VERSION}@sha256:")), "{pushed}");
    // Trusts another CA.
    let other = CertificateParams::default().self_signed(&KeyPair::generate().unwrap()).unwrap();
    fs::write(scene.dir.join("other.crt"), other.pem()).unwrap();
    let said = scene.refused(&push, &[("SSL_CERT_FILE", &scene.path("other.crt"))]);
    let wanted = format!(
        "error: the certificate of {address} is not trusted here: name the file of its CA in SSL_CERT_FILE: "
    );
    assert!(said.starts_with(&wanted), "{said}");
    // A loopback address is asked by http.
    let wanted = format!(
        "error: {address} speaks https: leave --plain-http away, or give --plain-http=false for a loopback address"
    );
    assert_eq!(scene.refused(&["--push", &name], &[]), wanted);
}

#[test]
fn arguments_that_make_no_image_are_refused() {
    let scene = Scene::new("arguments");
    let said = |args: &[&str]| {
        let output = Command::new(WHOLE).arg("image").args(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let (one, other) = (scene.path("amd64"), scene.path("arm64"));
    let cases: [(&[&str], &str); 9] = [
        (&[], "--output-dir <DIR>"),
        (&["--push", "kube-node"], "write REGISTRY/NAME, such as ghcr.io/me/kube-node"),
        (&["--push", "ghcr.io/me/kube-node:1"], "--tag gives the tag"),
        (&["--push", "http://ghcr.io/me/kube-node"], "--plain-http says that a registry speaks http"),
        (&["--push", "ghcr.io/me/x", "--output-dir", "y"], "cannot be used with"),
        (
            &["all", "--push", "ghcr.io/me/x"],
            "a repository has one image: name kube-node, pause or kubemark\n",
        ),
        (&["--plain-http", "--output-dir", "y"], "cannot be used with"),
        (
            &["kube-node", "--programs", &one, "--programs", &other, "--output-dir", "y"],
            "an archive is for one architecture: name one folder by --programs, or push the image\n",
        ),
        (
            &["--programs", &one, "--programs", &one, "--push", "ghcr.io/me/x"],
            "are both for amd64: name one folder for each architecture\n",
        ),
    ];
    for (args, wanted) in cases {
        let said = said(args);
        assert!(said.contains(wanted), "{args:?}: {said}");
    }
    assert!(!Path::new("y").exists());
}

#[test]
fn a_shell_is_of_the_architecture_of_its_image() {
    let scene = Scene::new("shell");
    let shell = scene.path(&format!("{OTHER}/kube-node"));
    let said = scene.refused(&["kube-node", "--output-dir", &scene.path("archives"), "--shell", &shell], &[]);
    let wanted = format!(
        "error: {shell} is for {OTHER}, and the image for {ARCHITECTURE}: name a shell for {ARCHITECTURE}"
    );
    assert_eq!(said, wanted);
}

#[test]
fn an_image_that_lacks_this_architecture_is_noted() {
    let (scene, registry) = (Scene::new("noted"), registry("noted"));
    let name = format!("{}/team/kube-node", registry.address);
    let said = |architectures: &[&str]| {
        let output = scene.image(architectures, &["--push", &name], &[]);
        assert!(output.status.success(), "{}", error(&output));
        String::from_utf8(output.stderr).unwrap()
    };
    let note = format!(
        "note: the image does not run on machines like this one: none of its programs is for {ARCHITECTURE}\n"
    );
    assert!(said(&[OTHER]).contains(&note));
    assert!(!said(&[OTHER, ARCHITECTURE]).contains("note: "));
}
