//! The gRPC calls: requests of cluster-autoscaler in, decisions of [`kube_node_planner::autoscaling`] out.

use std::sync::Arc;

use kube_ext::environment;
use kube_node_api::{AutoscalingOptions, GoDuration, names};
use kube_node_planner::autoscaling::{
    self, ClassPrice, Code, GPU_LABEL, NodeRef, ReplicaChange, ScaleRefusal, ScaleRequest, SetSnapshot,
};
use prost::Message;
use tokio::time::{Instant, timeout};
use tonic::{Request, Response, Status};

use super::{
    groups::{Group, Groups},
    proto::{self as pb, cloud_provider_server::CloudProvider, instance_status::InstanceState},
    writer::{SCALE_LIMIT, refused},
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

fn open(group: &Group) -> Status {
    let name = group.name();
    Status::unavailable(format!("a change of NodeSet {name} has no answer yet: ask again"))
}

fn node_ref(node: &pb::ExternalGrpcNode) -> NodeRef<'_> {
    NodeRef { provider_id: &node.provider_id, name: &node.name }
}

fn seconds(time: Option<&prost_types::Timestamp>) -> Option<f64> {
    time.map(|time| time.seconds as f64 + f64::from(time.nanos) / 1e9)
}

impl Service {
    fn message(&self, group: &Group) -> pb::NodeGroup {
        let bounds = self.groups.bounds(group, group.shown.bounds);
        pb::NodeGroup {
            id: group.name().to_owned(),
            min_size: bounds.min,
            max_size: bounds.max,
            debug: group.describe(bounds),
        }
    }

    fn group(&self, id: &str) -> Result<Group, Status> {
        self.groups.get(id).map_err(|refusal| refused(&refusal))
    }

    /// Executes a scale request before `deadline`. `decide` computes the change from the snapshot of the set at that time.
    async fn scale(
        &self,
        deadline: Instant,
        request: ScaleRequest,
        id: &str,
        decide: impl Fn(&Groups, &SetSnapshot) -> Result<Option<ReplicaChange>, ScaleRefusal>
        + Send
        + Sync
        + 'static,
    ) -> Result<(), Status> {
        let [for_shown, for_deciding] = [Arc::clone(&self.groups), Arc::clone(&self.groups)];
        let set = id.to_owned();
        let shown = move || for_shown.get(&set).map(|group| group.shown);
        let decide = move |snapshot: &SetSnapshot| decide(&for_deciding, snapshot);
        self.groups.writer.execute(deadline, request, id, shown, decide).await
    }
}

#[tonic::async_trait]
impl CloudProvider for Service {
    async fn refresh(&self, _: Request<pb::RefreshRequest>) -> Answer<pb::RefreshResponse> {
        let silent = |_| Status::unavailable("the API server does not say how the last changes ended");
        timeout(SCALE_LIMIT, self.groups.writer.settle_all()).await.map_err(silent)??;
        Ok(Response::new(pb::RefreshResponse {}))
    }

    async fn node_groups(&self, _: Request<pb::NodeGroupsRequest>) -> Answer<pb::NodeGroupsResponse> {
        let node_groups = self.groups.all().iter().map(|group| self.message(group)).collect();
        Ok(Response::new(pb::NodeGroupsResponse { node_groups }))
    }

    async fn node_group_for_node(
        &self,
        request: Request<pb::NodeGroupForNodeRequest>,
    ) -> Answer<pb::NodeGroupForNodeResponse> {
        let node = request.into_inner().node.unwrap_or_default();
        let group = self.groups.of_node(node_ref(&node)).map_err(|refusal| refused(&refusal))?;
        let node_group = group.as_ref().map(|group| self.message(group)).unwrap_or_default();
        Ok(Response::new(pb::NodeGroupForNodeResponse { node_group: Some(node_group) }))
    }

    async fn node_group_target_size(
        &self,
        request: Request<pb::NodeGroupTargetSizeRequest>,
    ) -> Answer<pb::NodeGroupTargetSizeResponse> {
        let group = self.group(&request.into_inner().id)?;
        let target_size = self.groups.target_size(&group).ok_or_else(|| open(&group))?;
        Ok(Response::new(pb::NodeGroupTargetSizeResponse { target_size }))
    }

    async fn node_group_nodes(
        &self,
        request: Request<pb::NodeGroupNodesRequest>,
    ) -> Answer<pb::NodeGroupNodesResponse> {
        let group = self.group(&request.into_inner().id)?;
        let snapshot = self.groups.writer.snapshot(group.name(), &group.shown).ok_or_else(|| open(&group))?;
        let (now, rollout) = (environment::now(), group.has_rollout());
        let instances = self.groups.machines(&group, |machines, coming| {
            let all = autoscaling::instances(group.name(), &snapshot, machines, coming, rollout, now);
            all.into_iter().map(instance_message).collect()
        });
        Ok(Response::new(pb::NodeGroupNodesResponse { instances }))
    }

    async fn node_group_increase_size(
        &self,
        request: Request<pb::NodeGroupIncreaseSizeRequest>,
    ) -> Answer<pb::NodeGroupIncreaseSizeResponse> {
        let pb::NodeGroupIncreaseSizeRequest { delta, id } = request.into_inner();
        let set = id.clone();
        let decide = move |groups: &Groups, snapshot: &SetSnapshot| {
            let group = groups.same(&set, snapshot)?;
            let snapshot = SetSnapshot { bounds: groups.bounds(&group, snapshot.bounds), ..snapshot.clone() };
            autoscaling::increase(&snapshot, delta).map(Some)
        };
        self.scale(Instant::now() + SCALE_LIMIT, ScaleRequest::of_number(), &id, decide).await?;
        Ok(Response::new(pb::NodeGroupIncreaseSizeResponse {}))
    }

    async fn node_group_delete_nodes(
        &self,
        request: Request<pb::NodeGroupDeleteNodesRequest>,
    ) -> Answer<pb::NodeGroupDeleteNodesResponse> {
        let pb::NodeGroupDeleteNodesRequest { nodes, id } = request.into_inner();
        let victims: Vec<_> = nodes.into_iter().map(|node| (node.provider_id, node.name)).collect();
        let deadline = Instant::now() + SCALE_LIMIT;
        self.groups.check_identity(&victims).await?;
        let set = id.clone();
        let decide = move |groups: &Groups, snapshot: &SetSnapshot| groups.delete(snapshot, &set, &victims);
        self.scale(deadline, ScaleRequest::of_names(), &id, decide).await?;
        Ok(Response::new(pb::NodeGroupDeleteNodesResponse {}))
    }

    async fn node_group_decrease_target_size(
        &self,
        request: Request<pb::NodeGroupDecreaseTargetSizeRequest>,
    ) -> Answer<pb::NodeGroupDecreaseTargetSizeResponse> {
        let pb::NodeGroupDecreaseTargetSizeRequest { delta, id } = request.into_inner();
        let set = id.clone();
        let decide = move |groups: &Groups, snapshot: &SetSnapshot| {
            let group = groups.same(&set, snapshot)?;
            let rollout = group.has_rollout();
            groups.machines(&group, |machines, coming| {
                autoscaling::decrease(snapshot, machines, coming, rollout, delta).map(Some)
            })
        };
        self.scale(Instant::now() + SCALE_LIMIT, ScaleRequest::of_number(), &id, decide).await?;
        Ok(Response::new(pb::NodeGroupDecreaseTargetSizeResponse {}))
    }

    async fn node_group_template_node_info(
        &self,
        request: Request<pb::NodeGroupTemplateNodeInfoRequest>,
    ) -> Answer<pb::NodeGroupTemplateNodeInfoResponse> {
        let group = self.group(&request.into_inner().id)?;
        let node = self.groups.template_node(&group).await.map_err(|refusal| refused(&refusal))?;
        let node_bytes = node.encode_to_vec();
        let node_info = node_bytes.clone();
        Ok(Response::new(pb::NodeGroupTemplateNodeInfoResponse { node_info, node_bytes }))
    }

    async fn node_group_get_options(
        &self,
        request: Request<pb::NodeGroupAutoscalingOptionsRequest>,
    ) -> Answer<pb::NodeGroupAutoscalingOptionsResponse> {
        let pb::NodeGroupAutoscalingOptionsRequest { id, defaults } = request.into_inner();
        let defaults = defaults.unwrap_or_default();
        // A release without this field reads any answer as «may take no time to start».
        if !self.options || defaults.max_node_startup_duration.is_none() {
            return Err(Status::unimplemented("options of node groups are not served"));
        }
        let group = self.group(&id)?;
        let of_set = group.set.spec.autoscaling.as_ref().and_then(|autoscaling| autoscaling.options.clone());
        let node_group_autoscaling_options = Some(options(&of_set.unwrap_or_default(), defaults));
        Ok(Response::new(pb::NodeGroupAutoscalingOptionsResponse { node_group_autoscaling_options }))
    }

    async fn pricing_node_price(
        &self,
        request: Request<pb::PricingNodePriceRequest>,
    ) -> Answer<pb::PricingNodePriceResponse> {
        let pb::PricingNodePriceRequest { node, start_timestamp, end_timestamp } = request.into_inner();
        let node = node.unwrap_or_default();
        let price = || {
            let classes = self.groups.classes();
            if classes.iter().all(|class| class.spec.price.is_none()) {
                return Err(ScaleRefusal::no_prices());
            }
            let hours =
                autoscaling::hours(seconds(start_timestamp.as_ref()), seconds(end_timestamp.as_ref()))?;
            let label = node.labels.get(names::LABEL_NODECLASS).map(String::as_str);
            let class = self.groups.class_of(node_ref(&node), label);
            let class = class.ok_or_else(|| ScaleRefusal::foreign(&node.name, "any"))?;
            let name = class.metadata.name.as_deref().unwrap_or_default();
            autoscaling::node_price(name, class.spec.price.as_deref(), hours)
        };
        let price = price().map_err(|refusal| refused(&refusal))?;
        Ok(Response::new(pb::PricingNodePriceResponse { price }))
    }

    async fn pricing_pod_price(
        &self,
        request: Request<pb::PricingPodPriceRequest>,
    ) -> Answer<pb::PricingPodPriceResponse> {
        let pb::PricingPodPriceRequest { pod_bytes, start_timestamp, end_timestamp } = request.into_inner();
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
                return Err(ScaleRefusal::no_prices());
            }
            let pod = k8s_pb::api::core::v1::Pod::decode(pod_bytes.as_slice()).map_err(|error| {
                ScaleRefusal::new(Code::InvalidArgument, format!("pod_bytes are no core/v1 Pod: {error}"))
            })?;
            let hours =
                autoscaling::hours(seconds(start_timestamp.as_ref()), seconds(end_timestamp.as_ref()))?;
            Ok(autoscaling::least_pod_price(&pod, &prices, hours))
        };
        let price = price().map_err(|refusal| refused(&refusal))?;
        Ok(Response::new(pb::PricingPodPriceResponse { price }))
    }

    async fn gpu_label(&self, _: Request<pb::GpuLabelRequest>) -> Answer<pb::GpuLabelResponse> {
        Ok(Response::new(pb::GpuLabelResponse { label: GPU_LABEL.to_owned() }))
    }

    async fn get_available_gpu_types(
        &self,
        _: Request<pb::GetAvailableGpuTypesRequest>,
    ) -> Answer<pb::GetAvailableGpuTypesResponse> {
        let (classes, groups) = (self.groups.classes(), self.groups.all());
        let of_classes = classes.iter().filter_map(|class| class.spec.template.as_ref());
        let of_sets = groups.iter().filter_map(|group| group.set.spec.template.as_ref());
        let gpu_types = autoscaling::gpu_types(of_classes.chain(of_sets));
        let gpu_types = gpu_types.into_iter().map(|name| (name, prost_types::Any::default())).collect();
        Ok(Response::new(pb::GetAvailableGpuTypesResponse { gpu_types }))
    }

    async fn cleanup(&self, _: Request<pb::CleanupRequest>) -> Answer<pb::CleanupResponse> {
        // No state is kept for a client.
        Ok(Response::new(pb::CleanupResponse {}))
    }
}

fn instance_message(instance: autoscaling::Instance<'_>) -> pb::Instance {
    let state = match instance.state {
        autoscaling::InstanceState::Running => InstanceState::InstanceRunning,
        autoscaling::InstanceState::Creating => InstanceState::InstanceCreating,
        autoscaling::InstanceState::Deleting => InstanceState::InstanceDeleting,
    };
    let error_info = instance.error.map(|error| pb::InstanceErrorInfo {
        error_code: error.reason.to_owned(),
        error_message: error.message.to_owned(),
        instance_error_class: if error.is_out_of_resources() { CLASS_OUT_OF_RESOURCES } else { CLASS_OTHER },
    });
    let status = pb::InstanceStatus { instance_state: state.into(), error_info };
    pb::Instance { id: instance.id.into_owned(), status: Some(status) }
}

/// The options of the set, and the offered defaults for the rest.
fn options(
    of_set: &AutoscalingOptions,
    mut options: pb::NodeGroupAutoscalingOptions,
) -> pb::NodeGroupAutoscalingOptions {
    fn set<T>(option: &mut T, value: Option<T>) {
        if let Some(value) = value {
            *option = value;
        }
    }
    // The schema checks the form; a set older than that rule keeps the default.
    let share = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
    let time = |time: Option<GoDuration>| time.map(|time| prost_types::Duration::try_from(time.0).ok());
    set(&mut options.scale_down_utilization_threshold, share(&of_set.scale_down_utilization_threshold));
    let of_gpu = share(&of_set.scale_down_gpu_utilization_threshold);
    set(&mut options.scale_down_gpu_utilization_threshold, of_gpu);
    set(&mut options.zero_or_max_node_scaling, of_set.zero_or_max_node_scaling);
    set(&mut options.ignore_daemon_sets_utilization, of_set.ignore_daemon_sets_utilization);
    set(&mut options.scale_down_unneeded_duration, time(of_set.scale_down_unneeded_time));
    set(&mut options.scale_down_unready_duration, time(of_set.scale_down_unready_time));
    set(&mut options.max_node_provision_duration, time(of_set.max_node_provision_time));
    set(&mut options.max_node_startup_duration, time(of_set.max_node_startup_time));
    set(&mut options.allow_non_atomic_scale_up_to_max, of_set.allow_non_atomic_scale_up_to_max);
    options
}
