//! Calls on objects of one kind on behalf of a command. Errors name the kind and the object.

use std::{fmt::Debug, time::Duration};

use anyhow::{Context, anyhow};
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, ObjectList, Patch, PatchParams},
    runtime::wait::{self, Condition, await_condition},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::{
    call::{ApiError, call},
    error::refusal,
};

/// Bounds of a type that names its kind, as every generated one does.
pub trait Typed: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned {}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned> Typed for K {}

/// Reads an object; `None` if it does not exist.
pub async fn read<K: Typed>(api: &Api<K>, name: &str) -> Result<Option<K>, ApiError> {
    call(format!("read {} {name}", K::kind(&())), api.get_opt(name)).await
}

/// Lists objects; `what` names them in an error, as in «cannot list Nodes».
pub async fn list<K: Typed>(api: &Api<K>, what: &str, params: &ListParams) -> Result<Vec<K>, ApiError> {
    Ok(page(api, what, params).await?.items)
}

/// Attempts at a list that the API server puts off, one each second. client-go makes ten attempts; clusters that started
/// on a busy machine needed more, and users of java-operator-sdk measured 34 s until the cache of a new CRD was filled.
const ATTEMPTS: u32 = 60;

/// Lists one page. Until its cache of a new or changed CRD is filled, the API server asks to come again later (429).
async fn page<K: Typed>(api: &Api<K>, what: &str, params: &ListParams) -> Result<ObjectList<K>, ApiError> {
    for _ in 1..ATTEMPTS {
        match call(format!("list {what}"), api.list(params)).await {
            Err(error) if error.is(429) => sleep(Duration::from_secs(1)).await,
            other => return other,
        }
    }
    call(format!("list {what}"), api.list(params)).await
}

/// Pause before a failed watch is started again.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Objects per page of [`list_pages`].
const PAGE: u32 = 500;

/// Lists objects page by page, since thousands of them are megabytes, and passes each to `visit`.
pub async fn list_pages<K: Typed>(
    api: &Api<K>,
    what: &str,
    params: ListParams,
    visit: impl FnMut(K),
) -> Result<(), ApiError> {
    let (mut params, mut visit) = (params.limit(PAGE), visit);
    loop {
        let page = page(api, what, &params).await?;
        page.items.into_iter().for_each(&mut visit);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Applies a merge patch under this field manager.
pub async fn patch<K: Typed>(api: &Api<K>, name: &str, manager: &str, change: Value) -> Result<K, ApiError> {
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    call(format!("change {} {name}", K::kind(&())), api.patch(name, &params, &Patch::Merge(change))).await
}

/// Deletes an object. Returns false if it did not exist.
pub async fn delete<K: Typed>(api: &Api<K>, name: &str) -> Result<bool, ApiError> {
    let params = DeleteParams::default();
    match call(format!("delete {} {name}", K::kind(&())), api.delete(name, &params)).await {
        Err(error) if error.is(404) => Ok(false),
        other => other.map(|_| true),
    }
}

/// Waits until an object meets a condition. `problem` names the condition that is not met. A watch that fails
/// is started again, unless the API server denies it.
pub async fn wait_for<K: Clone + Debug + Send + DeserializeOwned + Resource + 'static>(
    api: Api<K>,
    name: &str,
    condition: impl Condition<K>,
    limit: Duration,
    problem: &str,
) -> anyhow::Result<()> {
    let is_met = |object: Option<&K>| condition.matches_object(object);
    let is_denied =
        |error: &wait::Error| refusal(error).is_some_and(|status| matches!(status.code, 401 | 403));
    let mut last = None;
    let met = timeout(limit, async {
        loop {
            match await_condition(api.clone(), name, is_met).await {
                Err(error) if !is_denied(&error) => last = Some(error),
                met => return met.map(drop),
            }
            sleep(WATCH_PAUSE).await;
        }
    });
    let met = met.await;
    let late = || format!("after {} s {problem}", limit.as_secs());
    match (met, last) {
        (Ok(met), _) => met.with_context(|| problem.to_owned()),
        (Err(_), Some(error)) => Err(error).with_context(late),
        (Err(_), None) => Err(anyhow!(late())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Secret;
    use kube::{Client, client::Body};
    use serde_json::json;

    use super::*;

    /// Time limit of the waits.
    const LIMIT: Duration = Duration::from_mins(3);

    /// A client whose first requests are answered by `codes`, and the others by an empty list.
    fn client(codes: &'static [u16]) -> (Client, Arc<AtomicUsize>) {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let server = tower::service_fn(move |_: Request<Body>| {
            let code = codes.get(counted.fetch_add(1, Relaxed)).copied().unwrap_or(200);
            let list = json!({ "apiVersion": "v1", "kind": "SecretList", "metadata": { "resourceVersion": "1" }, "items": [] });
            let refusal = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code });
            let body = if code == 200 { list } else { refusal };
            let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            async { answer }
        });
        (Client::new(server, "default"), requests)
    }

    async fn list_secrets(client: Client) -> Result<Vec<Secret>, ApiError> {
        list(&Api::default_namespaced(client), "Secrets", &ListParams::default()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_put_off_is_tried_again_for_a_minute_and_one_that_is_refused_is_not() {
        let (filling, requests) = client(&[429; 34]);
        assert!(list_secrets(filling).await.unwrap().is_empty());
        assert_eq!(requests.load(Relaxed), 35);
        let (overloaded, requests) = client(&[429; 1_000]);
        assert!(list_secrets(overloaded).await.unwrap_err().is(429));
        assert_eq!(requests.load(Relaxed), 60);
        let (denying, requests) = client(&[403]);
        assert!(list_secrets(denying).await.unwrap_err().is(403));
        assert_eq!(requests.load(Relaxed), 1);
    }

    async fn wait_gone(client: Client) -> anyhow::Result<()> {
        let is_gone = |secret: Option<&Secret>| secret.is_none();
        wait_for(Api::default_namespaced(client), "a", is_gone, LIMIT, "a is not gone").await
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_fails_is_started_again_and_one_that_is_denied_ends_the_wait() {
        let (failing, requests) = client(&[500, 503]);
        wait_gone(failing).await.unwrap();
        assert_eq!(requests.load(Relaxed), 3);
        let (denying, requests) = client(&[403]);
        assert_eq!(wait_gone(denying).await.unwrap_err().to_string(), "a is not gone");
        assert_eq!(requests.load(Relaxed), 1);
        let (dead, _) = client(&[500; 1_000]);
        let error = wait_gone(dead).await.unwrap_err();
        assert_eq!(error.to_string(), "after 180 s a is not gone");
        assert!(error.chain().count() > 1, "the cause of the failed watches is kept");
    }
}
