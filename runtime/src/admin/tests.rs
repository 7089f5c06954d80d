use super::*;
use axum::{
    body::{Body, to_bytes},
    http::Request,
};
use tower::ServiceExt;

async fn get_json(readiness: &Readiness) -> (StatusCode, serde_json::Value) {
    let request = Request::get("/readyz").body(Body::empty()).unwrap();
    let response = router(readiness.clone(), Metrics::empty())
        .oneshot(request)
        .await
        .unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 64 * 1024).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test(start_paused = true)]
async fn readiness_says_which_check_fails_and_why() {
    let readiness = Readiness::new();
    assert_eq!(get_json(&readiness).await.0, StatusCode::OK);

    readiness.check("log", Duration::from_millis(100), || async { Ok(()) });
    assert_eq!(get_json(&readiness).await.0, StatusCode::OK);

    readiness.check("store", Duration::from_millis(100), || async {
        Err("no host".to_owned())
    });
    readiness.check("slow", Duration::from_millis(100), std::future::pending);
    let (status, report) = get_json(&readiness).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(report["checks"]["log"], "ok");
    assert_eq!(report["checks"]["store"], "no host");
    assert_eq!(report["checks"]["slow"], "no answer within 100 ms");
}

#[tokio::test]
async fn draining_is_not_ready() {
    let readiness = Readiness::new();
    readiness.check("log", Duration::from_millis(100), || async { Ok(()) });
    readiness.drain();
    let (status, report) = get_json(&readiness).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(report["draining"], true);
    assert_eq!(report["checks"]["log"], "ok");
}

#[tokio::test]
async fn what_the_checks_hold_is_let_go_at_the_end() {
    let readiness = Readiness::new();
    let held = std::sync::Arc::new(());
    let holder = std::sync::Arc::clone(&held);
    readiness.check("log", Duration::from_millis(100), move || {
        let holder = std::sync::Arc::clone(&holder);
        async move {
            drop(holder);
            Ok(())
        }
    });
    assert_eq!(get_json(&readiness).await.0, StatusCode::OK);
    readiness.close();
    assert_eq!(std::sync::Arc::strong_count(&held), 1);
    assert_eq!(
        get_json(&readiness).await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
}

#[tokio::test]
async fn serving_ends_with_the_token() {
    let config = AdminConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..AdminConfig::default()
    };
    let admin = Admin::bind(&config).await.unwrap();
    let address = admin.address().unwrap();
    let stop = CancellationToken::new();
    let served = tokio::spawn(admin.serve(Readiness::new(), Metrics::empty(), stop.clone()));
    // An idle connection does not hold the end up.
    let idle = tokio::net::TcpStream::connect(address).await.unwrap();
    stop.cancel();
    served.await.unwrap().unwrap();
    drop(idle);
}
