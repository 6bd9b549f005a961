//! The cluster with a real node: kubelet, containerd, CNI and kube-proxy run for real, and so do pods of our own images.
//!
//! Tests with other arguments of `up` have clusters of their own. Two of these have a real node at a time
//! ([`place_of_a_cluster`]).

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(
    clippy::duplicate_mod,
    reason = "a suite with a cluster of its own has a copy of the module that holds it"
)]

#[path = "../compare/mod.rs"]
mod compare;
mod documented;
mod fault_injection;
mod fleet;
mod hosting;
#[path = "../helm/installed.rs"]
mod installed;
mod kinds;
mod machines;
mod moved;
mod node;
#[path = "../helm/program.rs"]
#[allow(dead_code, reason = "a part of it is for the tests of the chart")]
mod program;
mod provisioning;
mod pulled;
mod reboot;
mod refusals;
#[path = "../registry/mod.rs"]
mod registry;
mod silence;
mod trouble;

use std::{fs, path::Path, process::ExitCode, sync::LazyLock};

use futures::executor::block_on;
use kube_node_testing::{TestCluster, harness, test_target, trials};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Held by every test that needs the node as it is, and alone by one that breaks it.
static NODE: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// Arguments of `up`.
const UP: &[&str] = &["--real-node", "--kubemark"];
/// The cluster of this suite.
static CLUSTER: LazyLock<TestCluster> =
    LazyLock::new(|| TestCluster::shared(test_target!(), "real_node", UP));

/// Places for clusters of single tests that have a real node. Such a cluster takes a third of a core while nothing happens in it, and
/// six of them left kubelets and API servers of two cores too little to keep their time limits.
static PLACES: Semaphore = Semaphore::const_new(ALL_PLACES as usize);
const ALL_PLACES: u32 = 2;

/// Waits for one of these places, and has it until the result is dropped. Its cluster ends before.
fn place_of_a_cluster() -> SemaphorePermit<'static> {
    block_on(PLACES.acquire()).expect("it is never closed")
}

/// Waits for all of these places: for a cluster beside which the Leases of another one expire on a busy machine.
fn all_places_of_clusters() -> SemaphorePermit<'static> {
    block_on(PLACES.acquire_many(ALL_PLACES)).expect("it is never closed")
}

fn main() -> ExitCode {
    // The longest first, but those with a cluster of their own apart: there are places for two of them.
    let trials = trials! {
        waiting installed::release::from_install_to_uninstall,
        blocking documented::the_documented_commands_install_and_uninstall,
        waiting fault_injection::our_pod_in_silence,
        waiting fault_injection::an_upstream_pod_in_silence,
        waiting fault_injection::a_converted_configuration_by_turns,
        waiting fault_injection::a_converted_configuration_after_a_while,
        waiting fault_injection::our_pod_by_turns,
        waiting fault_injection::our_pod_after_a_while,
        waiting fault_injection::our_pod_reboots,
        waiting fault_injection::an_upstream_pod_by_turns,
        waiting fault_injection::an_upstream_pod_after_a_while,
        waiting compare::ours_differs_least_and_each_difference_is_explained,
        waiting pulled::the_chart_is_installed_with_an_image_out_of_a_registry,
        blocking documented::the_documented_commands_show_the_real_node,
        waiting fleet::from_create_to_cleanup,
        waiting hosting::machines_of_another_cluster,
        waiting machines::five_of_each_are_ready_and_what_their_class_says,
        waiting machines::a_changed_class_rolls_through,
        waiting machines::a_machine_lingers_for_the_deletion_timeout,
        waiting machines::a_killed_process_is_told_and_comes_back_as_the_same_machine,
        waiting machines::a_pod_deleted_by_hand_is_noticed_and_made_again,
        waiting machines::a_machine_that_dies_while_nobody_looks_is_made_again,
        waiting node::the_node_is_ready_and_open_to_all,
        waiting node::pods_of_our_image_run_and_are_reached,
        waiting node::pods_reach_the_api_server_at_its_service,
        waiting node::images_are_those_that_are_written,
        waiting node::what_is_killed_comes_back_under_the_pods,
        waiting provisioning::files_reach_the_machine_as_they_were_asked_for,
        waiting provisioning::versions_are_reported_as_they_were_asked_for,
        waiting provisioning::commands_of_an_upstream_image,
        waiting provisioning::commands_of_our_own_image,
        waiting reboot::machines_come_back_after_a_power_cut,
        waiting trouble::what_keeps_a_pod_from_running_is_named_and_others_go_on,
        waiting trouble::commands_without_a_shell_are_told,
        waiting trouble::a_machine_out_of_memory_says_so,
        waiting trouble::an_evicted_machine_is_told_and_made_again,
        blocking moved::logs_and_commands_reach_pods_after_the_machine_has_moved,
        blocking silence::dropped_packets_are_noticed_within_45_s,
        blocking refusals::what_is_missing_is_named_with_what_to_do,
        blocking refusals::who_is_not_root_is_told_so,
    };
    let others = trials! {
        blocking refusals::images_of_programs_that_would_not_run_are_refused,
        blocking compare::differences::tests::what_is_missing_and_what_is_extra_is_one_place,
        blocking compare::differences::tests::a_step_that_a_slow_kubelet_left_out_is_no_difference_and_one_that_is_missing_is,
        blocking compare::facts::tests::a_pod_of_a_kubelet_that_succeeds_in_the_end_has_not_failed,
        blocking compare::facts::tests::what_passes_by_is_told_from_what_stays,
        blocking compare::page::tests::a_table_is_read_as_it_was_written_and_reasons_are_kept,
        blocking compare::page::tests::what_is_not_listed_and_what_is_stale_is_told,
        blocking documented::each_block_that_installs_is_run,
        blocking every_test_is_in_the_list,
    };
    harness::run("real_node", trials, others)
}

/// The attributes of the compiler's own harness make no test here: what has one would never run.
fn every_test_is_in_the_list() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let installed = ["cluster", "growth", "hosts", "installed", "release"]
        .map(|name| tests.join(format!("helm/{name}.rs")));
    let folders =
        ["real_node", "compare", "teardown"].map(|folder| fs::read_dir(tests.join(folder)).unwrap());
    let files = folders.into_iter().flatten().map(|entry| entry.unwrap().path()).chain(installed);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let lost = text
            .lines()
            .any(|line| ["#[test]", "#[tokio::test"].iter().any(|mark| line.trim_start().starts_with(mark)));
        assert!(!lost, "{} has a test that stands in no list of tests/real_node/main.rs", file.display());
    }
}
