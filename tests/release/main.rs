//! The release script refuses what is no release, and says what to do. Making one takes minutes and is left to whoever
//! releases; what it would make it from is looked at here: the versions that the repository really has. Signatures, the manifest
//! for krew and the workflows are made and read here by the programs that read them elsewhere.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod artifacts;
mod refusals;
mod scene;
mod signing;

use std::process::ExitCode;

use kube_node_testing::{harness, trials};

fn main() -> ExitCode {
    let signing =
        trials! { blocking signing::a_signature_is_good_by_a_key_that_users_trust_and_for_these_files };
    let others = trials! {
        blocking refusals::the_versions_of_this_repository_agree,
        blocking refusals::versions_and_files_that_disagree_are_refused,
        blocking refusals::a_file_that_is_not_committed_is_refused,
        blocking refusals::advisories_are_checked_for_these_crates_and_within_a_week,
        blocking signing::provenance_names_each_file_the_image_and_the_commit,
        blocking refusals::what_a_build_lacks_is_named,
        blocking refusals::a_wrong_argument_is_refused,
        blocking artifacts::krew_installs_the_plugin_by_its_manifest,
        blocking artifacts::install_yaml_has_the_image_of_the_release,
        blocking artifacts::the_page_of_releases_has_every_file,
        blocking artifacts::workflows_are_valid_and_name_actions_by_commit,
    };
    harness::run_with_program("release", ("ssh-keygen", "openssh-client"), signing, others)
}
