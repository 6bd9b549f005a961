//! The gRPC calls: requests of cluster-autoscaler in, decisions of [`kube_node_planner::autoscaling`] out.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube_ext::error::chain;
use kube_node_api::{AutoscalingOptions, GoDuration, names};
use kube_node_planner::autoscaling::{
    self, ClassPrice, Code, GPU_LABEL, ReplicaChange, ScaleRefusal, ScaleRequest, SetSnapshot, Wanted,
};
use prost::Message;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::{
    groups::{Group, Groups},
    proto::{
        CleanupRequest, CleanupResponse, ExternalGrpcNode, GetAvailableGpuTypesRequest,
        GetAvailableGpuTypesResponse, GpuLabelRequest, GpuLabelResponse, Instance, InstanceErrorInfo,
        InstanceStatus, NodeGroup, NodeGroupAutoscalingOptions, NodeGroupAutoscalingOptionsRequest,
        NodeGroupAutoscalingOptionsResponse, NodeGroupDecreaseTargetSizeRequest,
        NodeGroupDecreaseTargetSizeResponse, NodeGroupDeleteNodesRequest, NodeGroupDeleteNodesResponse,
        NodeGroupForNodeRequest, NodeGroupForNodeResponse, NodeGroupIncreaseSizeRequest,
        NodeGroupIncreaseSizeResponse, NodeGroupNodesRequest, NodeGroupNodesResponse,
        NodeGroupTargetSizeRequest, NodeGroupTargetSizeResponse, NodeGroupTemplateNodeInfoRequest,
        NodeGroupTemplateNodeInfoResponse, NodeGroupsRequest, NodeGroupsResponse, PricingNodePriceRequest,
        PricingNodePriceResponse, PricingPodPriceRequest, PricingPodPriceResponse, RefreshRequest,
        RefreshResponse, cloud_provider_server::CloudProvider, instance_status::InstanceState,
    },
    writer::{ORDER_LIMIT, ScaleError},
};

/// Error classes of cluster-autoscaler: out of resources, and any other.
const CLASS_OUT_OF_RESOURCES: i32 = 1;
const CLASS_OTHER: i32 = 99;

type Answer<T> = Result<Response<T>, Status>;

/// The gRPC service.
pub(super) struct Service {
    pub(super) groups: Arc<Groups>,
    /// True if options of sets are served.
    pub(super) options: bool,
}

fn status(code: Code, message: String) -> Status {
    Status::new(tonic::Code::from_i32(code as i32), message)
}

fn refused(refusal: &ScaleRefusal) -> Status {
    status(refusal.code(), refusal.to_string())
}

fn failed(error: &ScaleError) -> Status {
    status(error.code(), chain(error))
}

fn open(group: &Group) -> Status {
    let name = group.name();
    Status::unavailable(format!("a change of NodeSet {name} has no answer yet: ask again"))
}

fn wanted(node: &ExternalGrpcNode) -> Wanted<'_> {
    Wanted { provider_id: &node.provider_id, name: &node.name }
}

fn seconds(time: Option<&prost_types::Timestamp>) -> Option<f64> {
    time.map(|time| time.seconds as f64 + f64::from(time.nanos) / 1e9)
}

fn span(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

impl Service {
    fn message(&self, group: &Group) -> NodeGroup {
        let bounds = self.groups.bounds(group, group.shown.bounds);
        NodeGroup {
            id: group.name().to_owned(),
            min_size: bounds.min,
            max_size: bounds.max,
            debug: group.describe(bounds),
        }
    }

    /// Executes a scale request. `decide` computes the change from the snapshot of the set at that time.
    async fn order(
        &self,
        order: ScaleRequest,
        id: &str,
        decide: impl Fn(&Groups, &SetSnapshot) -> Result<Option<ReplicaChange>, ScaleRefusal>
        + Send
        + Sync
        + 'static,
    ) -> Result<(), Status> {
        let [for_shown, for_deciding] = [Arc::clone(&self.groups), Arc::clone(&self.groups)];
        let set = id.to_owned();
        let shown = move || for_shown.get(&set).map(|group| group.shown);
        let decide = move |standing: &SetSnapshot| decide(&for_deciding, standing);
        self.groups.writer.order(order, id, shown, decide).await.map_err(|error| failed(&error))
    }
}

#[tonic::async_trait]
impl CloudProvider for Service {
    async fn refresh(&self, _: Request<RefreshRequest>) -> Answer<RefreshResponse> {
        match timeout(ORDER_LIMIT, self.groups.writer.settle_all()).await {
            Ok(Ok(())) => Ok(Response::new(RefreshResponse {})),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(Status::unavailable("the API server does not say how the last changes ended")),
        }
    }

    async fn node_groups(&self, _: Request<NodeGroupsRequest>) -> Answer<NodeGroupsResponse> {
        let node_groups = self.groups.all().iter().map(|group| self.message(group)).collect();
        Ok(Response::new(NodeGroupsResponse { node_groups }))
    }

    async fn node_group_for_node(
        &self,
        request: Request<NodeGroupForNodeRequest>,
    ) -> Answer<NodeGroupForNodeResponse> {
        let node = request.into_inner().node.unwrap_or_default();
        let group = self.groups.of_node(wanted(&node)).map_err(|refusal| refused(&refusal))?;
        let node_group = group.as_ref().map(|group| self.message(group)).unwrap_or_default();
        Ok(Response::new(NodeGroupForNodeResponse { node_group: Some(node_group) }))
    }

    async fn node_group_target_size(
        &self,
        request: Request<NodeGroupTargetSizeRequest>,
    ) -> Answer<NodeGroupTargetSizeResponse> {
        let group = self.groups.get(&request.into_inner().id).map_err(|refusal| refused(&refusal))?;
        let target_size = self.groups.target_size(&group).ok_or_else(|| open(&group))?;
        Ok(Response::new(NodeGroupTargetSizeResponse { target_size }))
    }

    async fn node_group_nodes(
        &self,
        request: Request<NodeGroupNodesRequest>,
    ) -> Answer<NodeGroupNodesResponse> {
        let group = self.groups.get(&request.into_inner().id).map_err(|refusal| refused(&refusal))?;
        let standing = self.groups.writer.standing(group.name(), &group.shown).ok_or_else(|| open(&group))?;
        let (now, rollout) = (Timestamp::now(), group.has_rollout());
        let instances = self.groups.machines(&group, |machines, coming| {
            let all = autoscaling::instances(group.name(), &standing, machines, coming, rollout, now);
            all.into_iter().map(instance_message).collect()
        });
        Ok(Response::new(NodeGroupNodesResponse { instances }))
    }

    async fn node_group_increase_size(
        &self,
        request: Request<NodeGroupIncreaseSizeRequest>,
    ) -> Answer<NodeGroupIncreaseSizeResponse> {
        let NodeGroupIncreaseSizeRequest { delta, id } = request.into_inner();
        let set = id.clone();
        let decide = move |groups: &Groups, standing: &SetSnapshot| {
            let group = groups.same(&set, standing)?;
            let standing = SetSnapshot { bounds: groups.bounds(&group, standing.bounds), ..standing.clone() };
            autoscaling::increase(&standing, delta).map(Some)
        };
        self.order(ScaleRequest::of_number(), &id, decide).await?;
        Ok(Response::new(NodeGroupIncreaseSizeResponse {}))
    }

    async fn node_group_delete_nodes(
        &self,
        request: Request<NodeGroupDeleteNodesRequest>,
    ) -> Answer<NodeGroupDeleteNodesResponse> {
        let NodeGroupDeleteNodesRequest { nodes, id } = request.into_inner();
        let named: Vec<_> = nodes.into_iter().map(|node| (node.provider_id, node.name)).collect();
        let set = id.clone();
        let decide = move |groups: &Groups, standing: &SetSnapshot| groups.delete(standing, &set, &named);
        self.order(ScaleRequest::of_names(), &id, decide).await?;
        Ok(Response::new(NodeGroupDeleteNodesResponse {}))
    }

    async fn node_group_decrease_target_size(
        &self,
        request: Request<NodeGroupDecreaseTargetSizeRequest>,
    ) -> Answer<NodeGroupDecreaseTargetSizeResponse> {
        let NodeGroupDecreaseTargetSizeRequest { delta, id } = request.into_inner();
        let set = id.clone();
        let decide = move |groups: &Groups, standing: &SetSnapshot| {
            let group = groups.same(&set, standing)?;
            let rollout = group.has_rollout();
            groups.machines(&group, |machines, _| {
                autoscaling::decrease(standing, machines, rollout, delta).map(Some)
            })
        };
        self.order(ScaleRequest::of_number(), &id, decide).await?;
        Ok(Response::new(NodeGroupDecreaseTargetSizeResponse {}))
    }

    async fn node_group_template_node_info(
        &self,
        request: Request<NodeGroupTemplateNodeInfoRequest>,
    ) -> Answer<NodeGroupTemplateNodeInfoResponse> {
        let group = self.groups.get(&request.into_inner().id).map_err(|refusal| refused(&refusal))?;
        let node = self.groups.template_node(&group).await.map_err(|refusal| refused(&refusal))?;
        let bytes = node.encode_to_vec();
        Ok(Response::new(NodeGroupTemplateNodeInfoResponse { node_info: bytes.clone(), node_bytes: bytes }))
    }

    async fn node_group_get_options(
        &self,
        request: Request<NodeGroupAutoscalingOptionsRequest>,
    ) -> Answer<NodeGroupAutoscalingOptionsResponse> {
        let NodeGroupAutoscalingOptionsRequest { id, defaults } = request.into_inner();
        let defaults = defaults.unwrap_or_default();
        // A release without this field reads any answer as «may take no time to start».
        if !self.options || defaults.max_node_startup_duration.is_none() {
            return Err(Status::unimplemented("options of node groups are not served"));
        }
        let group = self.groups.get(&id).map_err(|refusal| refused(&refusal))?;
        let asked = group.set.spec.autoscaling.as_ref().and_then(|autoscaling| autoscaling.options.clone());
        let options = options(&asked.unwrap_or_default(), defaults);
        Ok(Response::new(NodeGroupAutoscalingOptionsResponse {
            node_group_autoscaling_options: Some(options),
        }))
    }

    async fn pricing_node_price(
        &self,
        request: Request<PricingNodePriceRequest>,
    ) -> Answer<PricingNodePriceResponse> {
        let PricingNodePriceRequest { node, start_timestamp, end_timestamp } = request.into_inner();
        let node = node.unwrap_or_default();
        let price = || {
            let classes = self.groups.classes();
            if classes.iter().all(|class| class.spec.price.is_none()) {
                return Err(ScaleRefusal::NoPrices);
            }
            let hours =
                autoscaling::hours(seconds(start_timestamp.as_ref()), seconds(end_timestamp.as_ref()))?;
            let label = node.labels.get(names::LABEL_NODECLASS).map(String::as_str);
            let class = self.groups.class_of(wanted(&node), label)?;
            let foreign = || ScaleRefusal::Foreign { node: node.name.clone(), set: "any".to_owned() };
            let class = class.ok_or_else(foreign)?;
            let name = class.metadata.name.as_deref().unwrap_or_default();
            autoscaling::node_price(name, class.spec.price.as_deref(), hours)
        };
        let price = price().map_err(|refusal| refused(&refusal))?;
        Ok(Response::new(PricingNodePriceResponse { price }))
    }

    async fn pricing_pod_price(
        &self,
        request: Request<PricingPodPriceRequest>,
    ) -> Answer<PricingPodPriceResponse> {
        let PricingPodPriceRequest { pod_bytes, start_timestamp, end_timestamp } = request.into_inner();
        let price = || {
            let classes = self.groups.classes();
            let prices: Vec<ClassPrice<'_>> = classes
                .iter()
                .filter_map(|class| {
                    let an_hour = class.spec.price.as_ref()?.parse().ok()?;
                    Some(ClassPrice { an_hour, capacity: class.spec.capacity.as_ref()? })
                })
                .collect();
            if prices.is_empty() {
                return Err(ScaleRefusal::NoPrices);
            }
            let pod = k8s_pb::api::core::v1::Pod::decode(pod_bytes.as_slice())
                .map_err(|error| ScaleRefusal::BadPod(error.to_string()))?;
            let hours =
                autoscaling::hours(seconds(start_timestamp.as_ref()), seconds(end_timestamp.as_ref()))?;
            Ok(autoscaling::least_pod_price(&pod, &prices, hours))
        };
        let price = price().map_err(|refusal| refused(&refusal))?;
        Ok(Response::new(PricingPodPriceResponse { price }))
    }

    async fn gpu_label(&self, _: Request<GpuLabelRequest>) -> Answer<GpuLabelResponse> {
        Ok(Response::new(GpuLabelResponse { label: GPU_LABEL.to_owned() }))
    }

    async fn get_available_gpu_types(
        &self,
        _: Request<GetAvailableGpuTypesRequest>,
    ) -> Answer<GetAvailableGpuTypesResponse> {
        let (classes, groups) = (self.groups.classes(), self.groups.all());
        let of_classes = classes.iter().filter_map(|class| class.spec.template.as_ref());
        let of_sets = groups.iter().filter_map(|group| group.set.spec.template.as_ref());
        let kinds = autoscaling::gpu_types(of_classes.chain(of_sets));
        let gpu_types = kinds.into_iter().map(|kind| (kind, prost_types::Any::default())).collect();
        Ok(Response::new(GetAvailableGpuTypesResponse { gpu_types }))
    }

    async fn cleanup(&self, _: Request<CleanupRequest>) -> Answer<CleanupResponse> {
        // No state is kept for a client.
        Ok(Response::new(CleanupResponse {}))
    }
}

fn instance_message(instance: autoscaling::Instance<'_>) -> Instance {
    let state = match instance.state {
        autoscaling::InstanceState::Running => InstanceState::InstanceRunning,
        autoscaling::InstanceState::Creating => InstanceState::InstanceCreating,
        autoscaling::InstanceState::Deleting => InstanceState::InstanceDeleting,
    };
    let error_info = instance.error.map(|error| InstanceErrorInfo {
        error_code: error.reason.to_owned(),
        error_message: error.message.to_owned(),
        instance_error_class: if error.is_out_of_resources() { CLASS_OUT_OF_RESOURCES } else { CLASS_OTHER },
    });
    let status = InstanceStatus { instance_state: state.into(), error_info };
    Instance { id: instance.id.into_owned(), status: Some(status) }
}

/// The options of the set, and the offered defaults for the rest.
fn options(asked: &AutoscalingOptions, defaults: NodeGroupAutoscalingOptions) -> NodeGroupAutoscalingOptions {
    // The schema checks the form; a set older than that rule keeps the default.
    let share = |asked: Option<&String>, default| asked.and_then(|text| text.parse().ok()).unwrap_or(default);
    let time = |asked: Option<GoDuration>, default| asked.map_or(default, |time| span(time.0));
    NodeGroupAutoscalingOptions {
        scale_down_utilization_threshold: share(
            asked.scale_down_utilization_threshold.as_ref(),
            defaults.scale_down_utilization_threshold,
        ),
        scale_down_gpu_utilization_threshold: share(
            asked.scale_down_gpu_utilization_threshold.as_ref(),
            defaults.scale_down_gpu_utilization_threshold,
        ),
        zero_or_max_node_scaling: asked.zero_or_max_node_scaling.unwrap_or(defaults.zero_or_max_node_scaling),
        ignore_daemon_sets_utilization: asked
            .ignore_daemon_sets_utilization
            .unwrap_or(defaults.ignore_daemon_sets_utilization),
        scale_down_unneeded_duration: time(
            asked.scale_down_unneeded_time,
            defaults.scale_down_unneeded_duration,
        ),
        scale_down_unready_duration: time(
            asked.scale_down_unready_time,
            defaults.scale_down_unready_duration,
        ),
        max_node_provision_duration: time(
            asked.max_node_provision_time,
            defaults.max_node_provision_duration,
        ),
        max_node_startup_duration: time(asked.max_node_startup_time, defaults.max_node_startup_duration),
        allow_non_atomic_scale_up_to_max: asked
            .allow_non_atomic_scale_up_to_max
            .unwrap_or(defaults.allow_non_atomic_scale_up_to_max),
    }
}
