//! The documents say what is so: their commands run, their objects are accepted, their links lead somewhere, and the book
//! has them all, pictures too. The book is docs/ and nothing else: what its documents link to is in there, so that a link
//! is as good in the book as beside the sources; a file of the repository is named by its path.
//!
//! A block `console` is run as it stands: a line that begins with `$ ` is a command, `> ` goes on with it, anything else is what
//! it prints. The blocks of one document are one session of a shell, with `kube-node` and the cluster's `kubectl` on its
//! path, `KUBECONFIG` as `up` prints it, and a folder of its own to work in. What cannot run there says why:
//! `console,ignore=<why>`, one of [`REASONS`]; what a reader has done before stands in a comment, `<!-- $ command -->`. A block `yaml` with whole objects is sent to the API server by a dry run.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod document;
mod links;
mod shell;

use std::{fs, path::PathBuf, sync::Mutex, thread};

use document::{Document, files};

/// Documents that are run at once.
const LANES: usize = 2;

/// Why a block may not be run here, by what a reader takes for granted.
const REASONS: [&str; 6] = [
    // A build, which takes minutes: of kube-node, of its tests, of another release of Kubernetes, or of the example. CI and tests
    // of their own make these.
    "builds",
    // A local cluster with a real node, which needs root: `tests/real_node/documented.rs` runs these.
    "real-node",
    // A cluster to install into, with a node that runs pods: `tests/real_node/documented.rs` runs these.
    "installs",
    // A cluster somewhere else, or a program that is not part of the project.
    "elsewhere",
    // It shows what is printed in a case of trouble.
    "shown",
    // A container engine.
    "engine",
];

/// The folder of the repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All documents, by their path in the repository.
fn documents() -> Vec<Document> {
    Document::all(&root())
}

#[test]
fn commands_run() {
    let documents = documents();
    for document in &documents {
        for block in &document.blocks {
            let is_shell = ["sh", "bash", "shell", "zsh"].contains(&block.language.as_str());
            assert!(!is_shell, "{}:{}: write commands as `console`", document.path, block.line);
        }
        for block in document.blocks.iter().filter(|block| block.language == "console") {
            if let Some(why) = &block.ignore {
                assert!(REASONS.contains(&why.as_str()), "{}:{}: ignore={why}", document.path, block.line);
            }
        }
    }
    // Each has a cluster of its own, and waits for it most of the time.
    let (next, failed) = (Mutex::new(documents.iter()), Mutex::new(Vec::new()));
    let lane = || {
        loop {
            let document = next.lock().unwrap().next();
            let Some(document) = document else { return };
            if let Err(error) = shell::run(document, None) {
                failed.lock().unwrap().push(error);
            }
        }
    };
    thread::scope(|scope| (0..LANES).for_each(|_| drop(scope.spawn(lane))));
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn objects_are_accepted() {
    let documents = documents();
    let objects = documents.iter().flat_map(|document| {
        let blocks = document.blocks.iter().filter(|block| block.language == "yaml");
        blocks.flat_map(|block| {
            let name = format!("{}-{}", document.path.replace(['/', '.'], "-"), block.line);
            let objects = block.text.split("\n---\n").filter(|object| is_whole(object));
            objects.enumerate().map(move |(n, object)| (format!("{name}-{n}.yaml"), object))
        })
    });
    shell::dry_run(objects).unwrap_or_else(|error| panic!("{error}"));
}

/// A reader applies these beside nodes whose containers run.
#[test]
fn hollow_classes_keep_pods_off_that_are_not_for_them() {
    let of_examples = files(&root(), "examples", "yaml").into_iter().map(|path| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        (path.display().to_string(), text)
    });
    let readme = Document::read(&root(), "README.md");
    let of_readme = readme.blocks.into_iter().filter(|block| block.language == "yaml");
    let mut tainted = 0;
    for (path, text) in of_examples.chain(of_readme.map(|block| ("README.md".to_owned(), block.text))) {
        for object in text.split("\n---\n").filter(|object| is_whole(object)) {
            let object: serde_json::Value = serde_norway::from_str(object).unwrap();
            let taints = object["spec"]["template"]["taints"].as_array();
            let is_tainted = |taint: &serde_json::Value| taint["key"] == "kube-node.io/hollow";
            if object["kind"] == "NodeClass" {
                assert!(taints.is_some_and(|taints| taints.iter().any(is_tainted)), "{path}: {object}");
                tainted += 1;
            }
        }
    }
    assert!(tainted > 4, "{tainted} classes");
}

/// Whether it is an object, and not a part of one.
fn is_whole(text: &str) -> bool {
    let has = |field: &str| text.lines().any(|line| line.starts_with(field));
    has("apiVersion:") && has("kind:")
}

#[test]
fn links_lead_somewhere() {
    let documents = documents();
    let broken: Vec<String> =
        documents.iter().flat_map(|document| links::broken(&root(), &documents, document)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn paths_are_those_of_the_repository() {
    let documents = documents();
    let missing: Vec<String> =
        documents.iter().flat_map(|document| links::missing(&root(), document)).collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn the_book_has_all_of_them() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    for document in documents() {
        if let Some(name) = document.path.strip_prefix("docs/")
            && name != "SUMMARY.md"
        {
            assert!(summary.contains(&format!("({name})")), "docs/SUMMARY.md does not list {name}");
        }
    }
    let pages: Vec<Document> = documents().into_iter().filter(links::is_in_book).collect();
    let shown: Vec<PathBuf> = pages.iter().flat_map(links::targets).map(|(_, target, _)| target).collect();
    let folders = ["docs", "docs/benchmarks", "docs/images"];
    for picture in folders.into_iter().flat_map(|folder| files(&root(), folder, "svg")) {
        assert!(shown.contains(&picture), "no page of the book shows {}", picture.display());
    }
}
