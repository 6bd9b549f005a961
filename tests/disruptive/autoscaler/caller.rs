//! cluster-autoscaler, played: the calls of one of its loops in their order and number, and its orders.

use k8s_openapi::api::core::v1::Node;
use kube_node_controllers::autoscaler::proto::{
    ExternalGrpcNode, Instance, InstanceStatus, NodeGroup, NodeGroupAutoscalingOptions,
    NodeGroupAutoscalingOptionsRequest, NodeGroupDecreaseTargetSizeRequest, NodeGroupDeleteNodesRequest,
    NodeGroupForNodeRequest, NodeGroupIncreaseSizeRequest, NodeGroupNodesRequest, NodeGroupTargetSizeRequest,
    NodeGroupTemplateNodeInfoRequest, NodeGroupsRequest, RefreshRequest,
    cloud_provider_client::CloudProviderClient, instance_status::InstanceState,
};
use tonic::{Status, transport::Channel};

/// One that calls.
#[derive(Clone)]
pub struct Caller(pub CloudProviderClient<Channel>);

/// A Node as cluster-autoscaler names it.
pub fn external(node: &Node) -> ExternalGrpcNode {
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
    instance.status.as_ref().map_or(InstanceState::Unspecified, InstanceStatus::instance_state)
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
}
