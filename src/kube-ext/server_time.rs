//! The API server's clock: the one by which objects get their creation time.

use anyhow::Context;
use http::{Request, header::DATE};
use jiff::{Timestamp, fmt::rfc2822};
use kube::{Client, client::Body};

use crate::call::call;

/// The API server's time in whole seconds, from the header `Date` of a response.
pub async fn server_time(client: &Client) -> anyhow::Result<Timestamp> {
    let request = Request::get("/version").body(Body::empty())?;
    let response = call("read the time of the API server", client.send(request)).await?;
    let date = response.headers().get(DATE).context("a response of the API server has no header Date")?;
    let date = date.to_str().context("the header Date of the API server is no text")?;
    let time = rfc2822::parse(date)
        .with_context(|| format!("the header Date of the API server is no time: {date}"))?;
    Ok(time.timestamp())
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn client(date: Option<&'static str>) -> Client {
        let server = tower::service_fn(move |_: Request<Body>| async move {
            let answer = date.into_iter().fold(Response::builder(), |answer, date| answer.header(DATE, date));
            answer.body(Body::empty())
        });
        Client::new(server, "default")
    }

    #[tokio::test]
    async fn the_time_of_the_api_server_is_that_of_its_answer() {
        let time = server_time(&client(Some("Sat, 28 Nov 2026 16:28:47 GMT"))).await.unwrap();
        assert_eq!(time.to_string(), "2026-11-28T16:28:47Z");
        for (date, error) in [(None, "has no header Date"), (Some("today"), "is no time: today")] {
            let refused = server_time(&client(date)).await.unwrap_err().to_string();
            assert!(refused.contains(error), "{refused}");
        }
    }
}
