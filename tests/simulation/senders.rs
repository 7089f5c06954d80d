//! The senders: they sign, post, come again when they are not answered 2xx, and repeat themselves.

use crate::{
    plan::Planned,
    processes::{Ingest, SECRET, rule},
    scene::Scene,
};
use axum::body::Body;
use http::Request;
use ingest::{Unsigned, sign};
use std::{sync::Arc, time::Duration};
use tower::ServiceExt;

/// Tries of one post. What is not acknowledged by then is no obligation.
const TRIES: u64 = 4;
/// A sender waits so long for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Posts a webhook until it is acknowledged or the sender gives up.
pub(crate) async fn post(scene: Arc<Scene>, ingest: Arc<Ingest>, webhook: Arc<Planned>) {
    let (source, delivery_id) = (webhook.source, webhook.delivery_id.as_str());
    let name = format!("{source}/{delivery_id}");
    for tried in 0..TRIES {
        scene
            .oracle()
            .posts(source, delivery_id, webhook.event_type, &webhook.body);
        scene.tell("sender", &format!("posts {name}"));
        let (life, router) = ingest.serving();
        let answered = tokio::time::timeout(PATIENCE, router.oneshot(request(&scene, &webhook)));
        let status = tokio::select! {
            biased;
            () = life.died().cancelled() => None,
            answered = answered => answered.ok().map(|response| {
                response.unwrap_or_else(|never| match never {}).status().as_u16()
            }),
        };
        scene.tell("sender", &format!("{name} is answered {status:?}"));
        if status.is_some_and(|status| (200..300).contains(&status)) {
            scene.oracle().acknowledged(source, delivery_id);
            return;
        }
        // What is answered so was signed rightly and is well-formed: only the log may be in the way.
        if status.is_some_and(|status| status != 503) {
            let what = format!("{name} is answered {status:?}");
            scene.oracle().violated(1, what, None);
        }
        tokio::time::sleep(Duration::from_secs(1 + 3 * tried)).await;
    }
}

fn request(scene: &Scene, webhook: &Planned) -> Request<Body> {
    let unsigned = Unsigned {
        delivery_id: &webhook.delivery_id,
        event_type: webhook.event_type,
        public_url: None,
        body: &webhook.body,
        now_ms: scene.clock.now_ms(),
    };
    let made = sign(rule(webhook.source), &[SECRET.as_bytes()], &unsigned);
    let mut request = Request::post(format!("/hooks/{}", webhook.source));
    for (name, value) in made.expect("can be signed") {
        request = request.header(name, value);
    }
    let request = request.header("content-type", "application/json");
    request
        .body(Body::from(webhook.body.clone()))
        .expect("a request")
}
