//! Boundaries inside the code: crates depend downwards only, the modules of each crate import each other without cycles,
//! and the parts that a simulation runs take clocks, random numbers and tasks from their environment.
//!
//! The compiler accepts cycles inside a crate, and a reader then has to hold all modules of the cycle at once. Edges
//! between a module and its own ancestors do not count: a parent wires its children, and they use what the parent
//! declares. A re-export counts as an import of the module that it names.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{Attribute, Item, UseTree, Visibility, visit::Visit};

/// The crates from bottom to top, by folder: each depends on those before it alone.
const CRATES: [&str; 12] = [
    "api",
    "kube-ext",
    "cache",
    "machine-identity",
    "hollow-kubelet",
    "machine-agent",
    "local-cluster",
    "planner",
    "controllers",
    "operator",
    "conformance",
    "cli",
];

/// Crates that a crate must not depend on though they are before it: an edit of theirs does not rebuild it.
const INDEPENDENT: [(&str, &[&str]); 2] =
    [("controllers", &["hollow-kubelet", "machine-agent"]), ("operator", &["machine-agent"])];

/// Path of a module inside its crate; empty for lib.rs.
type Module = Vec<String>;
/// Modules under one parent, and those of their siblings that each imports.
type Siblings = BTreeMap<String, BTreeSet<String>>;

/// Paths that a module names.
#[derive(Default)]
struct Names {
    paths: Vec<Vec<String>>,
    /// Path behind each name that the module exports from elsewhere.
    exports: BTreeMap<String, Vec<String>>,
}

/// Whether an item is compiled for unit tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

/// All paths of a `use`, each with the name that it gets.
fn flatten(tree: &UseTree, prefix: &[String], into: &mut Vec<(String, Vec<String>)>) {
    let with = |name: String| [prefix, &[name]].concat();
    match tree {
        UseTree::Path(path) => flatten(&path.tree, &with(path.ident.to_string()), into),
        UseTree::Name(name) => into.push((name.ident.to_string(), with(name.ident.to_string()))),
        UseTree::Rename(name) => into.push((name.rename.to_string(), with(name.ident.to_string()))),
        UseTree::Glob(_) => into.push(("*".to_owned(), prefix.to_vec())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, into)),
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Mod(module) if is_test(&module.attrs) => {}
            Item::Fn(function) if is_test(&function.attrs) => {}
            Item::Impl(block) if is_test(&block.attrs) => {}
            Item::Use(item) if is_test(&item.attrs) => {}
            Item::Use(item) => {
                let mut flat = Vec::new();
                flatten(&item.tree, &[], &mut flat);
                for (name, path) in flat {
                    if !matches!(item.vis, Visibility::Inherited) {
                        self.exports.insert(name, path.clone());
                    }
                    self.paths.push(path);
                }
            }
            item => syn::visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }
}

/// Adds the modules in a folder.
fn read(folder: &Path, module: &Module, into: &mut BTreeMap<Module, Names>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name.contains("test") {
            continue;
        }
        if path.is_dir() {
            read(&path, &[&module[..], &[name]].concat(), into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let own =
                if name == "mod" || name == "lib" { module.clone() } else { [&module[..], &[name]].concat() };
            let mut names = Names::default();
            names.visit_file(&syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
            into.insert(own, names);
        }
    }
}

/// Module that a path leads to; None if it leads out of the crate.
fn resolve(
    modules: &BTreeMap<Module, Names>,
    from: &Module,
    path: &[String],
    depth: usize,
) -> Option<Module> {
    let child = |of: &Module, name: &String| [&of[..], std::slice::from_ref(name)].concat();
    let mut rest = path;
    let mut at = match rest.first()?.as_str() {
        "crate" => Module::new(),
        "self" | "super" => from.clone(),
        _ if modules.contains_key(&child(from, rest.first()?)) => from.clone(),
        _ => return None,
    };
    while let [first, tail @ ..] = rest {
        match first.as_str() {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            _ if modules.contains_key(&child(&at, first)) => at = child(&at, first),
            _ => {
                let exported = modules.get(&at).and_then(|names| names.exports.get(first));
                return match exported {
                    Some(path) if depth < 8 => Some(resolve(modules, &at, path, depth + 1).unwrap_or(at)),
                    _ => Some(at),
                };
            }
        }
        rest = tail;
    }
    Some(at)
}

/// Imports between siblings, by their parent.
fn imports(modules: &BTreeMap<Module, Names>) -> BTreeMap<Module, Siblings> {
    let mut all = BTreeMap::<Module, Siblings>::new();
    for (from, names) in modules {
        for to in names.paths.iter().filter_map(|path| resolve(modules, from, path, 0)) {
            let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if let (Some(one), Some(other)) = (from.get(common), to.get(common)) {
                let siblings = all.entry(from[..common].to_vec()).or_default();
                siblings.entry(one.clone()).or_default().insert(other.clone());
            }
        }
    }
    all
}

/// Siblings that `start` imports, directly or not.
fn reachable(siblings: &Siblings, start: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut next = vec![start];
    while let Some(module) = next.pop() {
        for import in siblings.get(module).into_iter().flatten() {
            if found.insert(import.clone()) {
                next.push(import);
            }
        }
    }
    found
}

/// Each cycle of a crate: the modules that import themselves through others.
fn cycles(modules: &BTreeMap<Module, Names>) -> Vec<String> {
    let mut cycles = Vec::new();
    for (parent, siblings) in imports(modules) {
        let reached: BTreeMap<&String, BTreeSet<String>> =
            siblings.keys().map(|module| (module, reachable(&siblings, module))).collect();
        let groups: BTreeSet<Vec<&String>> = (reached.iter())
            .filter(|(module, reached)| reached.contains(**module))
            .map(|(module, own)| {
                let both = reached
                    .iter()
                    .filter(|(other, others)| own.contains(**other) && others.contains(*module));
                both.map(|(other, _)| *other).collect()
            })
            .collect();
        cycles.extend(groups.iter().map(|group| format!("{}: {group:?}", parent.join("::"))));
    }
    cycles
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn crates_depend_downwards_only() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let folders = fs::read_dir(root().join("src")).unwrap().map(|entry| entry.unwrap().path());
    let crates: BTreeSet<String> = folders
        .filter(|folder| folder.join("Cargo.toml").exists())
        .map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    // The crate for tests is a dependency of tests alone, and not part of any program.
    assert!(crates.iter().all(|name| CRATES.contains(&name.as_str()) || name == "testing"), "{crates:?}");
    let workspace = read("Cargo.toml");
    for (level, name) in CRATES.iter().enumerate() {
        let manifest = read(&format!("src/{name}/Cargo.toml"));
        // The planner decides about objects of the API and does no I/O, so it needs nothing of ours but their types.
        let first = if *name == "planner" { 1 } else { level };
        let independent = INDEPENDENT.iter().filter(|(one, _)| one == name).flat_map(|(_, others)| *others);
        for other in CRATES.iter().skip(first).chain(independent) {
            let path = format!("{{ path = \"src/{other}\" }}");
            let package =
                workspace.lines().find_map(|line| line.strip_suffix(&path)?.strip_suffix(" = ")).unwrap();
            let depends = manifest.lines().any(|line| line.starts_with(&format!("{package}.workspace")));
            assert!(!depends, "{name} depends on {other}");
        }
    }
}

#[test]
fn modules_import_each_other_without_cycles() {
    let mut wrong = Vec::new();
    for name in CRATES {
        let mut modules = BTreeMap::new();
        read(&root().join("src").join(name), &Module::new(), &mut modules);
        wrong.extend(cycles(&modules).into_iter().map(|cycle| format!("{name}: {cycle}")));
    }
    assert!(wrong.is_empty(), "modules that import each other in a circle:\n{}", wrong.join("\n"));
}

fn ends_with(path: &[String], end: &[&str]) -> bool {
    path.len() >= end.len() && path.iter().rev().zip(end.iter().rev()).all(|(one, other)| one == other)
}

/// Clocks, random numbers and tasks that a simulation could not replace.
const UNSIMULATED: [&[&str]; 9] = [
    &["Timestamp", "now"],
    &["SystemTime"],
    &["std", "time", "Instant"],
    &["rand", "random"],
    &["rand", "random_range"],
    &["rand", "rng"],
    &["tokio", "spawn"],
    &["task", "spawn"],
    &["thread", "spawn"],
];

#[test]
fn what_a_simulation_runs_reads_clocks_and_random_numbers_from_its_environment() {
    let mut wrong = Vec::new();
    for name in [
        "api",
        "kube-ext",
        "cache",
        "machine-identity",
        "hollow-kubelet",
        "planner",
        "controllers",
        "operator",
    ] {
        let mut modules = BTreeMap::new();
        read(&root().join("src").join(name), &Module::new(), &mut modules);
        modules.retain(|module, _| name != "kube-ext" || *module != ["environment"]);
        for (module, Names { paths, .. }) in modules {
            let direct = paths.iter().filter(|path| UNSIMULATED.iter().any(|end| ends_with(path, end)));
            wrong.extend(direct.map(|path| format!("{name}::{}: {}", module.join("::"), path.join("::"))));
        }
    }
    assert!(wrong.is_empty(), "use kube_ext::environment or tokio::time instead of:\n{}", wrong.join("\n"));
}

#[test]
fn a_cycle_is_found_through_a_re_export() {
    let parse = |text: &str| {
        let mut names = Names::default();
        names.visit_file(&syn::parse_file(text).unwrap());
        names
    };
    let module =
        |path: &str| path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect::<Module>();
    let modules: BTreeMap<Module, Names> = [
        ("", "mod a; mod b; pub use b::B;"),
        ("a", "use crate::B; mod inner; #[cfg(test)] mod tests { use crate::c::C; }"),
        ("a::inner", "use super::A;"),
        ("b", "fn f() -> crate::a::A { todo!() }"),
        ("c", "use crate::{a::A, b};"),
    ]
    .map(|(path, text)| (module(path), parse(text)))
    .into();
    assert_eq!(cycles(&modules), [r#": ["a", "b"]"#]);
}
