//! Objects that are written to: as protobuf and as JSON, in the state that a form asks for.

use http::Method;
use k8s_pb::{
    api::{
        coordination::v1::{Lease, LeaseList},
        core::v1::{Container, Node, NodeList, Pod, PodList, PodSpec, ResourceRequirements, Toleration},
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::Client;
use kube_ext::transport::{self, Body};
use prost::Message;
use serde_json::{Value, json};

use crate::{
    bare,
    forms::{Call, Form, PROTOBUF, State, Tracking},
    status,
};

/// An object in both forms.
pub struct Object<T> {
    pub name: String,
    pub protobuf: T,
    pub json: Value,
}

/// A kind of objects.
pub trait Kind: Message + Default + Clone {
    const PATH: &'static str;
    const TYPE: (&'static str, &'static str);
    type List: Message + Default;
    /// The one that is created.
    fn born(at: usize) -> Self;
    fn items(list: Self::List) -> Vec<Self>;
    fn metadata(&mut self) -> &mut ObjectMeta;

    /// In the envelope of a request.
    fn sealed(&self) -> Vec<u8> {
        transport::envelope(Self::TYPE.0, Self::TYPE.1, self)
    }
}

impl Kind for Node {
    const PATH: &'static str = bare::NODES;
    const TYPE: (&'static str, &'static str) = ("v1", "Node");
    type List = NodeList;

    fn born(at: usize) -> Self {
        bare::with_taints(&format!("written-{at}"), at)
    }

    fn items(list: NodeList) -> Vec<Self> {
        list.items
    }

    fn metadata(&mut self) -> &mut ObjectMeta {
        self.metadata.get_or_insert_default()
    }
}

impl Kind for Lease {
    const PATH: &'static str = bare::LEASES;
    const TYPE: (&'static str, &'static str) = ("coordination.k8s.io/v1", "Lease");
    type List = LeaseList;

    fn born(at: usize) -> Self {
        bare::renewed_lease(&format!("written-{at}"))
    }

    fn items(list: LeaseList) -> Vec<Self> {
        list.items
    }

    fn metadata(&mut self) -> &mut ObjectMeta {
        self.metadata.get_or_insert_default()
    }
}

impl Kind for Pod {
    const PATH: &'static str = "/api/v1/namespaces/default/pods";
    const TYPE: (&'static str, &'static str) = ("v1", "Pod");
    type List = PodList;

    fn born(at: usize) -> Self {
        let amount = |text: &str| Quantity { string: Some(text.to_owned()) };
        let container = Container {
            name: Some("main".to_owned()),
            image: Some(status::IMAGE.to_owned()),
            resources: Some(ResourceRequirements {
                requests: status::REQUESTS.map(|(name, text)| (name.to_owned(), amount(text))).into(),
                ..ResourceRequirements::default()
            }),
            ..Container::default()
        };
        Self {
            metadata: Some(ObjectMeta {
                name: Some(format!("written-{at}")),
                labels: [("app".to_owned(), "load".to_owned())].into(),
                ..ObjectMeta::default()
            }),
            spec: Some(PodSpec {
                node_name: Some(bare::name_of(0)),
                containers: vec![container],
                tolerations: vec![Toleration {
                    operator: Some("Exists".to_owned()),
                    ..Toleration::default()
                }],
                ..PodSpec::default()
            }),
            status: None,
        }
    }

    fn items(list: PodList) -> Vec<Self> {
        list.items
    }

    fn metadata(&mut self) -> &mut ObjectMeta {
        self.metadata.get_or_insert_default()
    }
}

/// So many objects in the state that `form` asks for.
pub async fn prepared<T: Kind>(
    client: &Client,
    count: usize,
    form: &Form<T>,
) -> anyhow::Result<Vec<Object<T>>> {
    if form.state == State::None {
        let like = json_of::<T>(client).await?;
        let object = |at| {
            let mut protobuf = T::born(at);
            let name = protobuf.metadata().name.clone().unwrap_or_default();
            let mut json = like.clone();
            json["metadata"]["name"] = name.clone().into();
            Object { name, protobuf, json }
        };
        return Ok((0..count).map(object).collect());
    }
    let create = |at| Call {
        method: Method::POST,
        path: T::PATH.to_owned(),
        media: PROTOBUF,
        body: T::born(at).sealed(),
    };
    crate::all(client, (0..count).map(create).collect()).await?;
    let names = (0..count).filter_map(|at| T::born(at).metadata().name.clone());
    if form.state == State::Ready {
        let status = bare::ready();
        let ready = |name: String| Call::strategic(format!("{}/{name}/status", T::PATH), &status);
        crate::all(client, names.clone().map(ready).collect()).await?;
    }
    if form.tracking == Tracking::Never {
        let bare = json!({ "metadata": { "managedFields": [{}] } });
        crate::all(client, names.map(|name| Call::merge(format!("{}/{name}", T::PATH), &bare)).collect())
            .await?;
    }
    tokio::time::sleep(crate::SETTLING).await;
    let listed: T::List =
        transport::send(client, None, Method::GET, T::PATH, Body::Object(Vec::new())).await?;
    let list: Value = client.request(http::Request::get(T::PATH).body(Vec::new())?).await?;
    // Both are in the order of their names.
    let jsons = list["items"].as_array().cloned().unwrap_or_default();
    let object = |(mut protobuf, mut json): (T, Value)| {
        json["apiVersion"] = T::TYPE.0.into();
        json["kind"] = T::TYPE.1.into();
        Object { name: protobuf.metadata().name.clone().unwrap_or_default(), protobuf, json }
    };
    let is_ours = |object: &Object<T>| object.name.starts_with("written-");
    Ok(T::items(listed).into_iter().zip(jsons).map(object).filter(is_ours).collect())
}

/// What is created, as JSON: the server translates it.
async fn json_of<T: Kind>(client: &Client) -> anyhow::Result<Value> {
    let request = http::Request::post(format!("{}?dryRun=All", T::PATH))
        .header("content-type", PROTOBUF)
        .body(T::born(0).sealed())?;
    let mut json: Value = client.request(request).await?;
    if let Some(metadata) = json["metadata"].as_object_mut() {
        for given in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
            metadata.remove(given);
        }
    }
    Ok(json)
}
