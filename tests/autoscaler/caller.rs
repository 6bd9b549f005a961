//! cluster-autoscaler, played: the calls of one of its loops in their order and number, and its orders.

use k8s_openapi::api::core::v1::Node;
use kube_node::autoscaler::proto::{
    ExternalGrpcNode, GetAvailableGpuTypesRequest, GpuLabelRequest, Instance, NodeGroup,
    NodeGroupAutoscalingOptions, NodeGroupAutoscalingOptionsRequest, NodeGroupDecreaseTargetSizeRequest,
    NodeGroupDeleteNodesRequest, NodeGroupForNodeRequest, NodeGroupIncreaseSizeRequest,
    NodeGroupNodesRequest, NodeGroupTargetSizeRequest, NodeGroupTemplateNodeInfoRequest, NodeGroupsRequest,
    RefreshRequest, cloud_provider_client::CloudProviderClient, instance_status::InstanceState,
};
use tonic::{Code, Status, transport::Channel};

/// One that calls.
#[derive(Clone)]
pub struct Caller(pub CloudProviderClient<Channel>);

/// A Node as cluster-autoscaler names it.
pub fn named(node: &Node) -> ExternalGrpcNode {
    ExternalGrpcNode {
        provider_id: node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default(),
        name: node.metadata.name.clone().unwrap_or_default(),
        labels: node.metadata.labels.clone().unwrap_or_default().into_iter().collect(),
        annotations: node.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
    }
}

/// A machine that it has not seen a Node of.
pub fn fake(id: &str) -> ExternalGrpcNode {
    ExternalGrpcNode { provider_id: id.to_owned(), name: id.to_owned(), ..ExternalGrpcNode::default() }
}

pub fn state(instance: &Instance) -> InstanceState {
    instance.status.as_ref().map_or(InstanceState::Unspecified, |status| status.instance_state())
}

impl Caller {
    pub async fn refresh(&mut self) -> Result<(), Status> {
        self.0.refresh(RefreshRequest {}).await.map(drop)
    }

    pub async fn groups(&mut self) -> Result<Vec<NodeGroup>, Status> {
        Ok(self.0.node_groups(NodeGroupsRequest {}).await?.into_inner().node_groups)
    }

    pub async fn group(&mut self, id: &str) -> Option<NodeGroup> {
        self.groups().await.unwrap().into_iter().find(|group| group.id == id)
    }

    pub async fn target(&mut self, id: &str) -> Result<i32, Status> {
        let request = NodeGroupTargetSizeRequest { id: id.to_owned() };
        Ok(self.0.node_group_target_size(request).await?.into_inner().target_size)
    }

    pub async fn nodes(&mut self, id: &str) -> Result<Vec<Instance>, Status> {
        let request = NodeGroupNodesRequest { id: id.to_owned() };
        Ok(self.0.node_group_nodes(request).await?.into_inner().instances)
    }

    pub async fn group_of(&mut self, node: ExternalGrpcNode) -> Result<String, Status> {
        let answer = self.0.node_group_for_node(NodeGroupForNodeRequest { node: Some(node) }).await?;
        Ok(answer.into_inner().node_group.expect("a message, never nothing").id)
    }

    pub async fn increase(&mut self, id: &str, delta: i32) -> Result<(), Status> {
        let request = NodeGroupIncreaseSizeRequest { delta, id: id.to_owned() };
        self.0.node_group_increase_size(request).await.map(drop)
    }

    pub async fn decrease(&mut self, id: &str, delta: i32) -> Result<(), Status> {
        let request = NodeGroupDecreaseTargetSizeRequest { delta, id: id.to_owned() };
        self.0.node_group_decrease_target_size(request).await.map(drop)
    }

    pub async fn delete(&mut self, id: &str, nodes: Vec<ExternalGrpcNode>) -> Result<(), Status> {
        let request = NodeGroupDeleteNodesRequest { nodes, id: id.to_owned() };
        self.0.node_group_delete_nodes(request).await.map(drop)
    }

    pub async fn template(&mut self, id: &str) -> Result<(Vec<u8>, Vec<u8>), Status> {
        let request = NodeGroupTemplateNodeInfoRequest { id: id.to_owned() };
        let answer = self.0.node_group_template_node_info(request).await?.into_inner();
        Ok((answer.node_info, answer.node_bytes))
    }

    pub async fn options(
        &mut self,
        id: &str,
        defaults: NodeGroupAutoscalingOptions,
    ) -> Result<NodeGroupAutoscalingOptions, Status> {
        let request = NodeGroupAutoscalingOptionsRequest { id: id.to_owned(), defaults: Some(defaults) };
        let answer = self.0.node_group_get_options(request).await?.into_inner();
        Ok(answer.node_group_autoscaling_options.expect("options"))
    }

    /// The calls of a loop in which nothing is to be done, as cluster-autoscaler makes them over these Nodes; how many
    /// they were. `took` is told of each.
    pub async fn quiet_loop(&mut self, nodes: &[Node], mut took: impl FnMut(std::time::Duration)) -> usize {
        let mut calls = 0;
        macro_rules! call {
            ($call:expr) => {{
                let start = std::time::Instant::now();
                let answer = $call;
                took(start.elapsed());
                calls += 1;
                answer
            }};
        }
        call!(self.refresh().await).unwrap();
        let groups = call!(self.groups().await).unwrap();
        for node in nodes {
            call!(self.group_of(named(node)).await).unwrap();
        }
        for group in &groups {
            call!(self.nodes(&group.id).await).unwrap();
            // The state of the cluster, its accepted ranges, upcoming nodes: each asks anew.
            for _ in 0..3 {
                call!(self.target(&group.id).await).unwrap();
            }
            call!(self.template(&group.id).await).unwrap();
        }
        // For the time a Node may take to start, to be unneeded, to be unready: twice a Node, and the rest of what a loop
        // asks of each.
        for node in nodes {
            let group = groups.iter().find(|group| {
                node.metadata.labels.as_ref().is_some_and(|labels| labels["kube-node.io/nodeset"] == group.id)
            });
            let id = group.map_or("", |group| group.id.as_str());
            for _ in 0..2 {
                let answer = call!(self.options(id, NodeGroupAutoscalingOptions::default()).await);
                assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
            }
            for _ in 0..3 {
                call!(self.target(id).await).unwrap();
            }
        }
        call!(self.0.gpu_label(GpuLabelRequest {}).await).unwrap();
        call!(self.0.get_available_gpu_types(GetAvailableGpuTypesRequest {}).await).unwrap();
        calls
    }
}
