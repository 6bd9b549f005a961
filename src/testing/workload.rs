//! A workload whose availability is watched: a Deployment on the Nodes of one set, behind a Service.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::Deployment, core::v1::Service, discovery::v1::EndpointSlice, policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{ListParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::{Fixture, create, delete, eventually};

/// Until all pods of a workload are scheduled and Ready.
const RUNS: Duration = Duration::from_mins(2);

impl Fixture {
    /// A Deployment that runs on this set's Nodes alone, a pod a Node at most.
    pub async fn workload(&self, replicas: usize) {
        let labels = json!({"app": self.name});
        let services: Api<Service> = Api::default_namespaced(self.client.clone());
        let spec = json!({"selector": labels, "ports": [{"port": 80}]});
        create(&services, json!({"metadata": {"name": self.name}, "spec": spec})).await.unwrap();
        let deployments: Api<Deployment> = Api::default_namespaced(self.client.clone());
        let anti =
            json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}]);
        let spec = json!({
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "nodeSelector": {"kube-node.io/nodeset": self.name},
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": anti}},
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "example.com/main:1"}],
            }},
        });
        create(&deployments, json!({"metadata": {"name": self.name}, "spec": spec})).await.unwrap();
        eventually("the workload runs", RUNS, async || {
            let endpoints = self.endpoints().await;
            if endpoints == replicas { Ok(()) } else { Err(format!("{endpoints} of {replicas} endpoints")) }
        })
        .await;
    }

    /// Its Ready endpoints, as its `EndpointSlices` show them.
    pub async fn endpoints(&self) -> usize {
        let slices: Api<EndpointSlice> = Api::default_namespaced(self.client.clone());
        let selector = ListParams::default().labels(&format!("kubernetes.io/service-name={}", self.name));
        let listed = slices.list(&selector).await.unwrap();
        let endpoints = listed.items.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        endpoints
            .filter(|endpoint| endpoint.conditions.as_ref().is_some_and(|c| c.ready == Some(true)))
            .count()
    }

    /// Its disruption budget.
    pub async fn budget(&self, mut spec: Value) -> Api<PodDisruptionBudget> {
        let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(self.client.clone());
        spec["selector"] = json!({"matchLabels": {"app": self.name}});
        create(&budgets, json!({"metadata": {"name": self.name}, "spec": spec})).await.unwrap();
        budgets
    }

    /// Deletes the workload.
    pub async fn end_workload(&self) {
        let deployments: Api<Deployment> = Api::default_namespaced(self.client.clone());
        delete(&deployments, &self.name, PropagationPolicy::Background).await;
        let services: Api<Service> = Api::default_namespaced(self.client.clone());
        delete(&services, &self.name, PropagationPolicy::Background).await;
        let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(self.client.clone());
        delete(&budgets, &self.name, PropagationPolicy::Background).await;
    }
}
